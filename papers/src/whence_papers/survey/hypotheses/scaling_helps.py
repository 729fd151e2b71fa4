"""The third hypothesis: multiplying one positional channel mends the bias, rather than merely changing something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.probe import hidden_states, likelihood
from whence.probe.ablation import scale_channel
from whence.probe.arrays import channels
from whence.probe.curves import LEVEL, bootstrap_means
from whence.probe.measurement import judge_choice
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks import Prompt, build_task, spread_slots
from whence_papers.survey.hypotheses.record import ENOUGH_ITEMS, hypothesis_record

SCALES = (1.0, 0.5, 0.0, -0.5, -1.0)
CLAIM = "scaling one positional channel by a number below 1 evens out retrieval over positions"
RULE = (
    "with the scale chosen on half of the items, on the other half the gap between places shrinks, its whole interval "
    "beyond zero, the average does not fall, and no control channel of like size shrinks the gap as much; fewer than "
    f"{ENOUGH_ITEMS} items to judge by decide nothing"
)


def scaling_helps(
    lm: ProbedModel, items: int = 200, pairs: int = 10, gold_slots: int = 5, controls: int = 3, texts: int = 32,
    tokens: int = 1000, seed: int = 0, scales: Sequence[float] = SCALES,
) -> dict[str, Any]:  # fmt: skip
    """Key-value retrieval with the smoothest positional channel scaled, and with channels that follow no position."""
    if items < 4 or controls < 1 or 1.0 not in scales or not any(times < 1 for times in scales):
        raise usage_error(
            "scaling_helps",
            f"{items} items, {controls} controls and scales {list(scales)}",
            "it needs 4 items, a control, the scale 1 and one below",
            "add what is missing",
        )
    about = {"items": items, "pairs": pairs, "texts": texts, "tokens": tokens, "scales": list(scales), "seed": seed}
    means = hidden_states.mean_states(lm, hidden_states.random_texts(lm, texts, tokens, seed=seed))
    found = channels.positional_channels(means, "cubic", most=1)
    if not found:
        return hypothesis_record(lm, "scaling-helps", CLAIM, RULE, None, {"channel": None}, **about)
    own = found[0].channel
    layers = range(lm.layers // 3, max(lm.layers // 3 + 1, lm.layers * 4 // 5))
    questions = build_task("key-value", items, pairs=pairs, seed=seed)
    where = spread_slots(questions.slots, gold_slots)
    prompts = [[lm.apply_template(questions.prompt(item, place)) for place in where] for item in questions.items]
    before = _answers(lm, prompts)
    table = {channel: {times: _scaled(lm, prompts, channel, times, layers) for times in scales if times < 1}
             for channel in (own, *controls_for(means, own, controls))}  # fmt: skip
    half = items // 2
    best = {channel: _best(row, half) for channel, row in table.items()}
    judged_before = before[0][half:]
    shrinks = {channel: _shrinks(judged_before, table[channel][best[channel]][0][half:], seed) for channel in table}
    others = [shrinks[channel]["gap_shrinks_by"] for channel in table if channel != own]
    numbers = {
        "channel": own,
        "layers": [layers.start, layers.stop],
        "gold_slots": list(where),
        "before": _short(judged_before),
        "channels": {
            str(channel): {
                "scale": best[channel],
                "control": channel != own,
                **_short(table[channel][best[channel]][0][half:]),
                **shrinks[channel],
                "by_scale": {str(times): _short(answers[0]) for times, answers in row.items()},
            }
            for channel, row in table.items()
        },
    }
    answer = decided(shrinks[own], others) if items - half >= ENOUGH_ITEMS else None
    return hypothesis_record(lm, "scaling-helps", CLAIM, RULE, answer, numbers, controls=controls, **about)


def decided(own: dict[str, Any], controls: Sequence[float]) -> bool | None:
    """The rule: True, False, or None where the interval holds zero and nothing else speaks against the claim."""
    if own["gap_interval"]["high"] < 0 or own["average_interval"]["high"] < 0:
        return False
    if own["gap_interval"]["low"] <= 0:
        return None
    return own["average_rises_by"] >= 0 and all(own["gap_shrinks_by"] > other for other in controls)


def controls_for(means: Tensor, channel: int, count: int) -> list[int]:
    """Channels as large as the positional one, as near as there are, that run one way in no fit."""
    size = means[:, means.shape[1] // 10 :].abs().mean((0, 1))
    known = {one.channel for fit in channels.FITS for one in channels.positional_channels(means, fit, most=None)}
    order = [one for one in (size / size[channel]).log().abs().argsort().tolist() if one != channel]
    # the segmented fit may pass everything: then the nearest in size have to do
    return ([one for one in order if one not in known] or order)[:count]


def _best(row: dict[float, tuple[Tensor, Tensor]], half: int) -> float:
    """The scale with the least loss over all places of the first items."""
    return min(row, key=lambda times: float(row[times][1][:half].mean()))


def _scaled(
    lm: ProbedModel, prompts: list[list[Prompt]], channel: int, times: float, layers: range
) -> tuple[Tensor, Tensor]:
    with scale_channel(lm, channel, times, layers):
        return _answers(lm, prompts)


def _answers(lm: ProbedModel, prompts: list[list[Prompt]]) -> tuple[Tensor, Tensor]:
    """Right or wrong, and the loss of the gold among its rivals: ``[items, places]`` each."""
    correct, loss = [], []
    every = iter(likelihood.score_choices(lm, [prompt for row in prompts for prompt in row]))
    for row in prompts:
        scores = [next(every) for _ in row]
        correct.append(
            [float(judge_choice(prompt, found)["correct"]) for prompt, found in zip(row, scores, strict=True)]
        )
        loss.append([-float(torch.tensor(found, dtype=torch.float64).log_softmax(0)[0]) for found in scores])
    return torch.tensor(correct, dtype=torch.float64), torch.tensor(loss, dtype=torch.float64)


def _shrinks(before: Tensor, after: Tensor, seed: int) -> dict[str, Any]:
    """How much smaller the gap and how much larger the average became, with intervals over items drawn anew."""
    drawn = [bootstrap_means(table, seed) for table in (before, after)]  # one seed: the same items in both
    gaps = [table.amax(1) - table.amin(1) for table in drawn]
    means = [table.mean(1) for table in drawn]
    first, second = _short(before), _short(after)
    return {
        "gap_shrinks_by": first["gap"] - second["gap"],
        "gap_interval": _ends(gaps[0] - gaps[1]),
        "average_rises_by": second["average"] - first["average"],
        "average_interval": _ends(means[1] - means[0]),
    }


def _short(correct: Tensor) -> dict[str, Any]:
    at = correct.mean(0)
    return {"at": at.tolist(), "average": float(at.mean()), "gap": float(at.max() - at.min()), "n": len(correct)}


def _ends(draws: Tensor) -> dict[str, float]:
    tail = (1 - LEVEL) / 2
    return {"low": float(draws.quantile(tail)), "high": float(draws.quantile(1 - tail)), "level": LEVEL}
