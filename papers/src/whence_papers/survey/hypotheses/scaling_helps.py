"""The third doubt: that multiplying one positional channel mends the bias, rather than merely changing something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.probe import likelihood, states
from whence.probe.arrays import channels
from whence.probe.curves import LEVEL, resampled
from whence.probe.measuring import judged
from whence.probe.scaling import scaled
from whence.probe.subject import Subject
from whence.probe.tasks import Prompt, spread, task
from whence_papers.survey.hypotheses.record import ENOUGH_ITEMS, doubt_record

SCALES = (1.0, 0.5, 0.0, -0.5, -1.0)
CLAIM = "scaling one positional channel by a number below 1 evens out retrieval over positions"
RULE = (
    "with the scale chosen on half of the items, on the other half the gap between places shrinks, its whole interval "
    "beyond zero, the average does not fall, and no control channel of like size shrinks the gap as much; fewer than "
    f"{ENOUGH_ITEMS} items to judge by decide nothing"
)


def scaling_helps(
    subject: Subject, items: int = 200, pairs: int = 10, places: int = 5, controls: int = 3, texts: int = 32,
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
    means = states.mean_states(subject, states.random_texts(subject, texts, tokens, seed=seed))
    found = channels.positional_channels(means, "cubic", most=1)
    if not found:
        return doubt_record(subject, "scaling-helps", CLAIM, RULE, None, {"channel": None}, **about)
    own = found[0].channel
    layers = range(subject.layers // 3, max(subject.layers // 3 + 1, subject.layers * 4 // 5))
    questions = task("key-value", items, pairs=pairs, seed=seed)
    where = spread(questions.slots, places)
    prompts = [[subject.framed(questions.prompt(item, place)) for place in where] for item in questions.items]
    before = _answers(subject, prompts)
    table = {channel: {times: _scaled(subject, prompts, channel, times, layers) for times in scales if times < 1}
             for channel in (own, *controls_for(means, own, controls))}  # fmt: skip
    half = items // 2
    best = {channel: _best(row, half) for channel, row in table.items()}
    judged_before = before[0][half:]
    shrinks = {channel: _shrinks(judged_before, table[channel][best[channel]][0][half:], seed) for channel in table}
    others = [shrinks[channel]["gap_shrinks_by"] for channel in table if channel != own]
    numbers = {
        "channel": own,
        "layers": [layers.start, layers.stop],
        "places": list(where),
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
    return doubt_record(subject, "scaling-helps", CLAIM, RULE, answer, numbers, controls=controls, **about)


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
    subject: Subject, prompts: list[list[Prompt]], channel: int, times: float, layers: range
) -> tuple[Tensor, Tensor]:
    with scaled(subject, channel, times, layers):
        return _answers(subject, prompts)


def _answers(subject: Subject, prompts: list[list[Prompt]]) -> tuple[Tensor, Tensor]:
    """Right or wrong, and the loss of the gold among its rivals: ``[items, places]`` each."""
    right, loss = [], []
    every = iter(likelihood.contest(subject, [prompt for row in prompts for prompt in row]))
    for row in prompts:
        scores = [next(every) for _ in row]
        right.append([float(judged(prompt, found)["right"]) for prompt, found in zip(row, scores, strict=True)])
        loss.append([-float(torch.tensor(found, dtype=torch.float64).log_softmax(0)[0]) for found in scores])
    return torch.tensor(right, dtype=torch.float64), torch.tensor(loss, dtype=torch.float64)


def _shrinks(before: Tensor, after: Tensor, seed: int) -> dict[str, Any]:
    """How much smaller the gap and how much larger the average became, with intervals over items drawn anew."""
    drawn = [resampled(table, seed) for table in (before, after)]  # one seed: the same items in both
    gaps = [table.amax(1) - table.amin(1) for table in drawn]
    means = [table.mean(1) for table in drawn]
    first, second = _short(before), _short(after)
    return {
        "gap_shrinks_by": first["gap"] - second["gap"],
        "gap_interval": _ends(gaps[0] - gaps[1]),
        "average_rises_by": second["average"] - first["average"],
        "average_interval": _ends(means[1] - means[0]),
    }


def _short(right: Tensor) -> dict[str, Any]:
    at = right.mean(0)
    return {"at": at.tolist(), "average": float(at.mean()), "gap": float(at.max() - at.min()), "n": len(right)}


def _ends(draws: Tensor) -> dict[str, float]:
    tail = (1 - LEVEL) / 2
    return {"low": float(draws.quantile(tail)), "high": float(draws.quantile(1 - tail)), "level": LEVEL}
