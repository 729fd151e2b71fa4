"""What the records of a probe say of a claim (``results/probe/``); a probe, a task or a part that is missing is waited for."""

from __future__ import annotations

from collections.abc import Callable
from operator import eq
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from whence import records
from whence.errors import usage_error
from whence.probe import analyses, curves, run_folder
from whence.probe.findings import read_task
from whence.statistics import proportion
from whence_papers.ledger.places import Places, Waiting
from whence_papers.survey.hypotheses.from_mask import describe_numbers, over_positions, speaks

CachedPrompts = Callable[..., tuple[dict[str, Any], str]]
FOLDER = "probe"


def found_probe(places: Places, model: str, wanted: str, has: Callable[[Path], bool]) -> Path:
    """The one probe of a model that has what is wanted."""
    base = places.results / FOLDER
    probes = records.find_folders(base, "plan.json")
    folders = [folder for folder in probes if run_folder.load_plan(folder)[0].model == model]
    found = [folder for folder in folders if has(folder)]
    if not found:
        raise Waiting(f"a probe of {model} with {wanted} in {base}/")
    if len(found) > 1:
        got = " and ".join(folder.name for folder in found)
        raise usage_error("claims", got, f"one probe of {model} has the records of {wanted}", "move the others away")
    return found[0]


def asked(places: Places, model: str, task: str, score: str) -> tuple[Tensor, int, Path]:
    """Right or wrong, ``[items, places]``, the number of slots, and the folder."""

    def whole(folder: Path) -> bool:
        return any(one["task"] == task for one in run_folder.load_plan(folder)[1]["tasks"])

    folder = found_probe(places, model, f"the task {task}", whole)
    plan, about = run_folder.load_plan(folder)
    one = next(one for one in about["tasks"] if one["task"] == task)
    own = read_task(plan, one, folder)
    if own is None or score not in plan.scores:
        raise Waiting(f"all records of {task} by {score} in {folder}/")
    return curves.by_item(own, score)[1], one["slots"], folder


def gold_position(places: Places, model: str, task: str, score: str) -> tuple[dict[str, Any], str]:
    """The curve of one task: how far the first and the last place lie above the middle one, and the gap with its p.

    ``*_low`` is the lower end of a 95% interval over items drawn anew; points are per cent of the answers.
    """
    table, slots, folder = asked(places, model, task, score)
    middle = table.shape[1] // 2
    draws = 100 * curves.bootstrap_means(table, seed=0)
    means = 100 * table.mean(0)
    chance = curves.gap_by_chance(table, seed=0)
    found = {
        "first_over_middle": float(means[0] - means[middle]),
        "first_over_middle_low": _low(draws[:, 0] - draws[:, middle]),
        "last_over_middle": float(means[-1] - means[middle]),
        "last_over_middle_low": _low(draws[:, -1] - draws[:, middle]),
        "gap": float(means.max() - means.min()),
        "gap_p": chance["gap_p"],
    }
    told = ", ".join(f"{value:.0f}" for value in means)
    return found | {"words": f"{len(table)} items of {slots} slots; right by place, %: {told}."}, folder.as_posix()


def gold_position_by_length(places: Places, model: str, tasks: list[str], score: str) -> tuple[dict[str, Any], str]:
    """How much deeper the middle lies below the mean of both ends at the last of some lengths than at the first."""
    depths, draws, words, folder = [], [], [], Path()
    for seed, task in enumerate((tasks[0], tasks[-1])):
        table, slots, folder = asked(places, model, task, score)
        depths.append(float(_depth(100 * table.mean(0)[None])[0]))
        draws.append(_depth(100 * curves.bootstrap_means(table, seed=seed)))
        words.append(f"{depths[-1]:.1f} points at {slots} slots")
    found = {"deeper_by": depths[1] - depths[0], "deeper_by_low": _low(draws[1] - draws[0])}
    return found | {"words": f"The middle below the ends: {', '.join(words)}."}, folder.as_posix()


def hypothesis(places: Places, model: str, hypothesis: str) -> tuple[dict[str, Any], str]:
    """The answer of an experiment on a hypothesis: 1 where the hypothesis held, 0 where it did not."""
    record, path = _tested_hypothesis(places, model, hypothesis)
    if record["answer"] is None:
        raise Waiting(f"a larger probe of {model}: the numbers of {Path(path).name} do not tell")
    return {"held": int(record["answer"]), "words": f"The rule: {record['rule']}."}, path


def mask_or_positions(places: Places, model: str) -> tuple[dict[str, Any], str]:
    """Two experiments on where hidden states have position from, which may contradict each other.

    ``cropped_over_shifted``: how much more a cropped mask moves the positional channel in a span than shifted positions
    do, the least over spans and halves of the texts. ``mask_over_encoding``: the share of position with the mask alone
    over that with the encoding alone, the most over the halves.
    """
    record, path = _tested_hypothesis(places, model, "from-mask")
    numbers = record["numbers"]
    if not speaks(numbers, record["settings"]) or any(
        half["position_share"] <= 0 for half in numbers["arms"]["encoding alone"]
    ):
        raise Waiting(f"a larger probe of {model}: the numbers of {Path(path).name} are too few, or follow no position")
    moved, left = over_positions(numbers)
    return {
        "cropped_over_shifted": min(moved),
        "mask_over_encoding": max(left),
        "words": describe_numbers(numbers),
    }, path


def _tested_hypothesis(places: Places, model: str, hypothesis: str) -> tuple[dict[str, Any], str]:
    name = f"hypothesis-{hypothesis}.json"
    folder = found_probe(places, model, f"the hypothesis {hypothesis}", lambda folder: records.exists(folder / name))
    return records.read(folder / name), (folder / name).as_posix()


def slot_emphasis(places: Places, model: str) -> tuple[dict[str, Any], str]:
    """How often a slot's own answer became likelier when the slot's weight was multiplied, with Wilson's lower end; and how
    often, when its score was, the answer went the way the attention did."""
    found, path = _explained(places, model, "emphasis-weight")
    scored, scored_path = _explained(places, model, "emphasis-score")
    gains = [row["after"] > row["before"] for row in found["rows"]]
    share = proportion(sum(gains), len(gains), curves.LEVEL)
    rises = [row["attention_after"] > row["attention_before"] for row in scored["rows"]]
    likelier = [row["after"] > row["before"] for row in scored["rows"]]
    same_direction = proportion(sum(map(eq, rises, likelier)), len(rises), curves.LEVEL)
    words = (
        f"The weight times {found['factor']:g}, {found['items']} items, {len(gains)} cases. The score times "
        f"{scored['factor']:g}, {len(rises)} cases: attention to the slot rises in {100 * sum(rises) / len(rises):.3g}%, its "
        f"answer becomes likelier in {100 * sum(likelier) / len(likelier):.3g}%."
    )
    figures = {
        "gained": share.share,
        "gained_low": share.interval.low,
        "with_attention": same_direction.share,
        "with_attention_low": same_direction.interval.low,
    }
    return figures | {"words": words}, f"{path} and {Path(scored_path).name}"


def positional_part(places: Places, model: str) -> tuple[dict[str, Any], str]:
    """The positional part of hidden states as two halves of the texts have it in common, by the median layer: its rank, and
    the share of the lowest frequencies; beside them what one mean over all texts says, noise and all."""
    found, path = _explained(places, model, "geometry")
    common = [layer["in_both_halves"] for layer in found["layers"] if layer.get("in_both_halves")]
    if not common:
        raise Waiting(f"a probe of {model} that compares two halves of its texts")
    told = {name: median(layer[name] for layer in common) for name in ("rank", "low_frequencies")}
    noisy = {f"{name}_with_noise": median(layer[name] for layer in found["layers"]) for name in told}
    words = (
        f"{found['texts']} texts of {found['tokens']} tokens; {len(common)} of {len(found['layers'])} layers have position "
        f"beyond chance. In the mean of all texts, noise and all, {noisy['rank_with_noise']:g} and "
        f"{noisy['low_frequencies_with_noise']:.2f}. A share above 1 is all of it, within the noise: what other frequencies "
        "have in common then adds up to less than nothing."
    )
    return told | noisy | {"words": words}, path


def near_and_far(places: Places, model: str, near: list[int], far: list[int]) -> tuple[dict[str, Any], str]:
    """Attention to a token from ``near[0]`` to ``near[1]`` back over that to one far back, with positions and without.

    Means over all tokens of the record's doublings that lie inside, layers and heads.
    """
    found, path = _explained(places, model, "distance")
    if "one_position" not in found:
        raise Waiting(f"a probe of {model} that takes positions away")

    def mean(attention: list[list[list[float]]], ends: list[int]) -> float:
        inside = [index for index, (low, high) in enumerate(found["ranges"]) if ends[0] <= low and high <= ends[1]]
        if not inside:
            raise Waiting(f"a probe of {model} on texts longer than {ends[0]} tokens")
        tokens = torch.tensor([high - low for low, high in found["ranges"]], dtype=torch.float64)[inside]
        means = torch.tensor(attention, dtype=torch.float64)[..., inside].mean((0, 1))
        return float((means * tokens).sum() / tokens.sum())

    usual, alone = (mean(found[arm], near) / mean(found[arm], far) for arm in ("attention", "one_position"))
    words = (
        f"{near[0]} to {near[1] - 1} tokens back over {far[0]} to {far[1] - 1}: {usual:.1f} times, {alone:.1f} without."
    )
    return {"near_over_far": usual, "without_positions": alone, "times_as_much": usual / alone, "words": words}, path


def _explained(places: Places, model: str, way: str) -> tuple[dict[str, Any], str]:
    name = analyses.file_name(way)
    folders = records.find_folders(places.results / FOLDER, name)
    explained = [folder for folder in folders if run_folder.load_plan(folder)[0].model == model]
    # where several plans were explained, the one that the hypotheses were tested with is the large one
    tested = [
        folder for folder in explained if any(n.startswith("hypothesis-") for n in records.RecordFolder(folder).names())
    ]
    folder = found_probe(places, model, way, lambda one: one in (tested or explained))
    return records.read(folder / name)["result"], (folder / name).as_posix()


def _depth(means: Tensor) -> Tensor:
    return (means[:, 0] + means[:, -1]) / 2 - means[:, means.shape[1] // 2]


def _low(draws: Tensor) -> float:
    return float(torch.quantile(draws, (1 - curves.LEVEL) / 2))


READINGS: dict[str, CachedPrompts] = {
    function.__name__: function
    for function in (
        gold_position,
        gold_position_by_length,
        hypothesis,
        mask_or_positions,
        slot_emphasis,
        positional_part,
        near_and_far,
    )
}
