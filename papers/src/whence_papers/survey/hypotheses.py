"""Three hypotheses of a survey about the method that scales one positional channel (Yu et al. 2024), each as an experiment.

The survey (in French, 2025) questions three assumptions of that method: that hidden states have channels that are monotone and
smooth in position, that the causal mask puts position into them, and that scaling one channel corrects the bias.
``write_all`` tests each on a model and writes ``hypothesis-NAME.json`` with the numbers and an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence import records
from whence.errors import usage_error
from whence.mend.scale_channel import ScaleChannel
from whence.probe import ablation, hidden_states, likelihood, run_folder
from whence.probe.arrays import channels, geometry
from whence.probe.curves import LEVEL, bootstrap_means
from whence.probe.identity import identify, same_model
from whence.probe.measurement import Notify, judge_choice
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks import Prompt, build_task, spread_slots
from whence_papers.survey.record import (
    MIN_ITEMS,
    MIN_RANK_CORRELATION,
    MIN_TEXTS,
    MIN_TOKENS,
    follows_position,
    has_enough_texts,
    hypothesis_record,
    mean,
    require_texts,
    shared_sign,
)

AGREEMENT = 0.9  # rank correlation with position, in texts that did not select the channel
TIMES_CHANCE = 2.0
ONE_WAY_RULE = (
    f"each of the three fits finds more than {TIMES_CHANCE:g} times as many channels as in a shuffled order, and its ten "
    f"smoothest have a mean rank correlation with position of at least {AGREEMENT:g} in texts that did not choose them; "
    f"fewer than {MIN_TEXTS} texts of {MIN_TOKENS} tokens decide nothing"
)


def one_way(lm: ProbedModel, texts: int = 64, tokens: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Select channels by each fit on half of the texts, and test their direction on the other half."""
    require_texts(texts, tokens)
    half = texts // 2
    choosing = hidden_states.mean_states(lm, hidden_states.random_texts(lm, half, tokens, seed=seed))
    held_out = hidden_states.random_texts(lm, half, tokens, seed=seed + 1)
    judging = hidden_states.mean_states(lm, held_out)
    numbers: dict[str, Any] = {}
    passed: list[set[int]] = []
    best = None
    for fit in channels.FITS:
        positional = channels.positional_channels(choosing, fit, most=None)
        passed.append({one.channel for one in positional})
        best = best or (positional[0] if positional else None)
        again = [ablation.rank_correlation(judging[_middle(one), tokens // 10 :, one.channel]) * one.direction
                 for one in positional[:10]]  # fmt: skip
        numbers[fit] = {
            "channels": len(positional),
            "by_chance": channels.by_chance(choosing, fit, seed),
            "smoothest": [{"channel": one.channel, "direction": one.direction, "roughness": one.roughness}
                          for one in positional[:10]],
            "rank_correlation_in_other_texts": mean(again),
        }  # fmt: skip
    union = set.union(*passed)
    numbers["agreement_of_fits"] = len(set.intersection(*passed)) / len(union) if union else 0.0
    numbers["position_in_one_token"] = None if best is None else _share(lm, best, held_out)
    numbers["hidden_size"] = choosing.shape[-1]
    answer = decide_one_way(numbers) if has_enough_texts(texts, tokens) else None
    return hypothesis_record(
        lm, "one-way", "some channels of the hidden states run one way, and smoothly, along a text", ONE_WAY_RULE, answer,
        numbers, texts=texts, tokens=tokens, seed=seed,
    )  # fmt: skip


def decide_one_way(numbers: dict[str, Any]) -> bool:
    """Apply the rule, given enough texts."""
    return all(
        numbers[fit]["channels"] > TIMES_CHANCE * numbers[fit]["by_chance"]
        and numbers[fit]["rank_correlation_in_other_texts"] >= AGREEMENT
        for fit in channels.FITS
    )


def _middle(one: channels.Channel) -> int:
    return one.layers[len(one.layers) // 2]


def _share(lm: ProbedModel, one: channels.Channel, texts: torch.Tensor) -> float:
    """The share of position in a single token's value of the smoothest channel. A smooth mean may explain little of it."""
    skipped = texts.shape[1] // 10
    every = [text[_middle(one), skipped:, one.channel] for text in hidden_states.iterate_states(lm, texts)]
    return geometry.decompose(torch.stack(every)[..., None]).position_beyond_chance


FROM_MASK_RULE = (
    "in both halves of the texts the mask alone leaves more position in what layers read than the encoding alone and than "
    "neither does, and cropping the mask of a span moves the positional channel there more than shifting its positions "
    f"does, in two spans, where that channel has a rank correlation with position of at least {MIN_RANK_CORRELATION:g}; fewer than "
    f"{MIN_TEXTS} texts of {MIN_TOKENS} tokens decide nothing"
)
IN_A_SPAN = ("shifted encoding", "cropped mask")


def from_mask(lm: ProbedModel, texts: int = 64, tokens: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Change each source of position in a span, and remove it. The channel is selected on other texts."""
    require_texts(texts, tokens)
    shift = tokens // 5
    spans = [(tokens * 2 // 5, tokens * 3 // 5), (tokens * 3 // 5, tokens * 4 // 5)]
    choosing = hidden_states.mean_states(lm, hidden_states.random_texts(lm, texts // 2, tokens, seed=seed))
    positional = channels.positional_channels(choosing, "cubic", most=1)
    channel = positional[0].channel if positional else None
    layer = positional[0].layers[len(positional[0].layers) // 2] if positional else lm.layers // 2
    held_out = hidden_states.random_texts(lm, texts, tokens, seed=seed + 1)

    def collect_states(arm: tuple[Tensor, Tensor]) -> Tensor:
        settings = {"positions": arm[0], "visible": arm[1]}
        return torch.stack([one[layer] for one in hidden_states.iterate_states(lm, held_out, **settings)]).double()

    first, second = (ablation.arms(tokens, span, shift) for span in spans)
    untouched = collect_states(first["untouched"])
    arms = {name: _halves(collect_states(arm), untouched, channel, spans[0]) for name, arm in first.items()}
    elsewhere = {name: _halves(collect_states(second[name]), untouched, channel, spans[1]) for name in IN_A_SPAN}
    answer = decide_from_mask(arms, elsewhere) if positional and has_enough_texts(texts, tokens) else None
    numbers = {"channel": channel, "layer": layer, "arms": arms, "arms_in_the_second_span": elsewhere}
    return hypothesis_record(
        lm, "from-mask", "the causal mask, more than the position encoding, puts position into the hidden states",
        FROM_MASK_RULE, answer, numbers, texts=texts, tokens=tokens, spans=[list(span) for span in spans], shift=shift,
        seed=seed,
    )  # fmt: skip


def decide_from_mask(
    arms: dict[str, list[dict[str, float]]], elsewhere: dict[str, list[dict[str, float]]]
) -> bool | None:
    """Apply the rule, given enough texts and a channel."""
    if not follows_position(arms["untouched"]):
        return None

    def more(one: list[dict[str, float]], than: list[dict[str, float]], what: str) -> list[float]:
        return [left[what] - right[what] for left, right in zip(one, than, strict=True)]

    spans = [sign for where in (arms, elsewhere)
             for sign in more(where["cropped mask"], where["shifted encoding"], "change_in_span")]  # fmt: skip
    way = shared_sign([*more(arms["mask alone"], arms["encoding alone"], "position_share"), *spans])
    if way and shared_sign(more(arms["mask alone"], arms["neither"], "position_share")) is not True:
        return None
    return way


def _halves(every: Tensor, untouched: Tensor, channel: int | None, span: tuple[int, int]) -> list[dict[str, float]]:
    """Measure both halves of the texts separately, so that a result must hold in both."""
    half = len(every) // 2
    return [_arm(every[part], untouched[part], channel, span) for part in (slice(0, half), slice(half, None))]


def _arm(every: Tensor, untouched: Tensor, channel: int | None, span: tuple[int, int]) -> dict[str, float]:
    """One half of the texts in one arm, ``[texts, tokens, hidden_size]``: share of position after normalization, and the channel."""
    measures = {
        "position_share": geometry.decompose(hidden_states.normalize_states(every[:, 1:])).position_beyond_chance
    }
    if channel is not None:
        curve, before = every.mean(0)[:, channel], untouched.mean(0)[:, channel]
        measures["rank_correlation"] = ablation.rank_correlation(curve[len(curve) // 10 :])
        measures["change_in_span"] = ablation.change_in_span(curve, before, span)
    return measures


SCALES = (1.0, 0.5, 0.0, -0.5, -1.0)
SCALING_CLAIM = "scaling one positional channel by a number below 1 evens out retrieval over positions"
SCALING_RULE = (
    "with the scale chosen on half of the items, on the other half the gap between places shrinks, its whole interval "
    "beyond zero, the average does not fall, and no control channel of like size shrinks the gap as much; fewer than "
    f"{MIN_ITEMS} items to judge by decide nothing"
)


def scaling_helps(
    lm: ProbedModel, items: int = 200, pairs: int = 10, gold_slots: int = 5, controls: int = 3, texts: int = 32,
    tokens: int = 1000, seed: int = 0, scales: Sequence[float] = SCALES,
) -> dict[str, Any]:  # fmt: skip
    """Key-value retrieval with the smoothest positional channel scaled, and with control channels scaled."""
    if items < 4 or controls < 1 or 1.0 not in scales or not any(times < 1 for times in scales):
        raise usage_error(
            "scaling_helps",
            f"{items} items, {controls} controls and scales {list(scales)}",
            "at least 4 items, 1 control, the scale 1 and a smaller scale are needed",
            "correct these arguments",
        )
    about = {"items": items, "pairs": pairs, "texts": texts, "tokens": tokens, "scales": list(scales), "seed": seed}
    means = hidden_states.mean_states(lm, hidden_states.random_texts(lm, texts, tokens, seed=seed))
    positional = channels.positional_channels(means, "cubic", most=1)
    if not positional:
        return hypothesis_record(lm, "scaling-helps", SCALING_CLAIM, SCALING_RULE, None, {"channel": None}, **about)
    own = positional[0].channel
    layers = range(lm.layers // 3, max(lm.layers // 3 + 1, lm.layers * 4 // 5))
    questions = build_task("key-value", items, pairs=pairs, seed=seed)
    where = spread_slots(questions.slots, gold_slots)
    prompts = [[lm.apply_template(questions.prompt(item, place)) for place in where] for item in questions.items]
    before = _score_prompts(lm, prompts)
    table = {channel: {times: _score_scaled(lm, prompts, channel, times, layers) for times in scales if times < 1}
             for channel in (own, *choose_controls(means, own, controls))}  # fmt: skip
    half = items // 2
    best = {channel: _best_scale(row, half) for channel, row in table.items()}
    judged_before = before[0][half:]
    shrinks = {
        channel: _effect_of_scaling(judged_before, table[channel][best[channel]][0][half:], seed) for channel in table
    }
    others = [shrinks[channel]["gap_shrinks_by"] for channel in table if channel != own]
    numbers = {
        "channel": own,
        "layers": [layers.start, layers.stop],
        "gold_slots": list(where),
        "before": _accuracy_by_slot(judged_before),
        "channels": {
            str(channel): {
                "scale": best[channel],
                "control": channel != own,
                **_accuracy_by_slot(table[channel][best[channel]][0][half:]),
                **shrinks[channel],
                "by_scale": {str(times): _accuracy_by_slot(answers[0]) for times, answers in row.items()},
            }
            for channel, row in table.items()
        },
    }
    answer = decide_scaling_helps(shrinks[own], others) if items - half >= MIN_ITEMS else None
    return hypothesis_record(
        lm, "scaling-helps", SCALING_CLAIM, SCALING_RULE, answer, numbers, controls=controls, **about
    )


def decide_scaling_helps(own: dict[str, Any], controls: Sequence[float]) -> bool | None:
    """Apply the rule. None if the interval contains zero and nothing else contradicts the claim."""
    if own["gap_interval"]["high"] < 0 or own["average_interval"]["high"] < 0:
        return False
    if own["gap_interval"]["low"] <= 0:
        return None
    return own["average_rises_by"] >= 0 and all(own["gap_shrinks_by"] > other for other in controls)


def choose_controls(means: Tensor, channel: int, count: int) -> list[int]:
    """Control channels: the nearest in size to the positional one that are monotone in no fit."""
    size = means[:, means.shape[1] // 10 :].abs().mean((0, 1))
    positional = {one.channel for fit in channels.FITS for one in channels.positional_channels(means, fit, most=None)}
    order = [one for one in (size / size[channel]).log().abs().argsort().tolist() if one != channel]
    # if the segmented fit accepts every channel, take the nearest in size
    return ([one for one in order if one not in positional] or order)[:count]


def _best_scale(row: dict[float, tuple[Tensor, Tensor]], half: int) -> float:
    """The scale with the smallest loss over all slots of the first half of the items."""
    return min(row, key=lambda times: float(row[times][1][:half].mean()))


def _score_scaled(
    lm: ProbedModel, prompts: list[list[Prompt]], channel: int, times: float, layers: range
) -> tuple[Tensor, Tensor]:
    with ScaleChannel(channel, times, layers).apply(lm.model):
        return _score_prompts(lm, prompts)


def _score_prompts(lm: ProbedModel, prompts: list[list[Prompt]]) -> tuple[Tensor, Tensor]:
    """Correctness, and the loss of the gold answer among the choices: ``[items, slots]`` each."""
    correct, loss = [], []
    every = iter(likelihood.score_choices(lm, [prompt for row in prompts for prompt in row]))
    for row in prompts:
        scores = [next(every) for _ in row]
        correct.append(
            [float(judge_choice(prompt, choices)["correct"]) for prompt, choices in zip(row, scores, strict=True)]
        )
        loss.append([-float(torch.tensor(choices, dtype=torch.float64).log_softmax(0)[0]) for choices in scores])
    return torch.tensor(correct, dtype=torch.float64), torch.tensor(loss, dtype=torch.float64)


def _effect_of_scaling(before: Tensor, after: Tensor, seed: int) -> dict[str, Any]:
    """Decrease of the gap and increase of the mean accuracy, with bootstrap intervals over items."""
    resamples = [
        bootstrap_means(table, seed) for table in (before, after)
    ]  # one seed: the same resampled items in both
    gaps = [table.amax(1) - table.amin(1) for table in resamples]
    means = [table.mean(1) for table in resamples]
    first, second = _accuracy_by_slot(before), _accuracy_by_slot(after)
    return {
        "gap_shrinks_by": first["gap"] - second["gap"],
        "gap_interval": _interval(gaps[0] - gaps[1]),
        "average_rises_by": second["average"] - first["average"],
        "average_interval": _interval(means[1] - means[0]),
    }


def _accuracy_by_slot(correct: Tensor) -> dict[str, Any]:
    at = correct.mean(0)
    return {"at": at.tolist(), "average": float(at.mean()), "gap": float(at.max() - at.min()), "n": len(correct)}


def _interval(draws: Tensor) -> dict[str, float]:
    tail = (1 - LEVEL) / 2
    return {"low": float(draws.quantile(tail)), "high": float(draws.quantile(1 - tail)), "level": LEVEL}


EXPERIMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "one-way": one_way,
    "from-mask": from_mask,
    "scaling-helps": scaling_helps,
}

_FEW = {"texts": 4, "tokens": 48}
_SOME = {"texts": 8, "tokens": 256}
#: quick: seconds on the tiny model; usual: 15 minutes on two cores for SmolLM2; full: for a GPU
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "quick": {
        "one-way": _FEW,
        "from-mask": _FEW,
        "scaling-helps": {"items": 4, "pairs": 3, "gold_slots": 3, "controls": 1, "scales": (1.0, 0.0), **_FEW},
    },
    "usual": {
        "one-way": _SOME,
        "from-mask": _SOME,
        "scaling-helps": {"items": 8, "pairs": 6, "gold_slots": 3, "controls": 1, "scales": (1.0, 0.0, -1.0), **_SOME},
    },
    "full": {"scaling-helps": {"items": 300, "controls": 2, "scales": (1.0, 0.5, 0.0, -1.0)}},
}


def write_all(
    lm: ProbedModel, folder: Path, sizes: dict[str, dict[str, Any]], notify: Notify = lambda *progress: None
) -> list[dict[str, Any]]:
    """Return the record of every hypothesis. Records in the folder are read, missing ones are computed.

    If the folder has a plan, it must be of the same model.
    """
    results = []
    identity = identify(lm)
    if records.exists(folder / run_folder.PLAN):
        run_folder.require_identity(folder, identity)
    for number, (name, experiment) in enumerate(EXPERIMENTS.items()):
        path = folder / f"hypothesis-{name}.json"
        if not (read := records.exists(path)):
            records.write(path, {**experiment(lm, **sizes.get(name, {})), "identity": identity})
        results.append(records.read(path))
        if not same_model(results[-1].get("identity") or {}, identity):
            raise usage_error(
                "whence hypotheses",
                f"{path.name} of another model",
                "a folder holds records of one model",
                "pass another --out",
            )
        notify(number + 1, len(EXPERIMENTS), f"hypothesis: {name}", read)
    return results
