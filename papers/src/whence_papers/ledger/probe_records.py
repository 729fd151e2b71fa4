"""Evidence from the records of a probe (``results/probe/``). A missing probe, task or part raises ``MissingEvidence``."""

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
from whence.probe.arrays.channels import FITS
from whence.probe.findings import read_task
from whence.statistics import proportion
from whence_papers.ledger.claims import LedgerFolders, MissingEvidence
from whence_papers.ledger.study_records import Reader
from whence_papers.survey.record import can_decide, describe_from_mask, has_enough_texts, mask_over_position

FOLDER = "probe"


def find_probe(folders: LedgerFolders, model: str, wanted: str, has: Callable[[Path], bool]) -> Path:
    """Find the one probe of a model that ``has`` accepts."""
    base = folders.results / FOLDER
    probes = folders.reader.find_folders(base, "plan.json")
    candidates = [folder for folder in probes if run_folder.load_plan(folder)[0].model == model]
    matching = [folder for folder in candidates if has(folder)]
    if not matching:
        raise MissingEvidence(f"a probe of {model} with {wanted} in {base}/")
    if len(matching) > 1:
        got = " and ".join(folder.name for folder in matching)
        raise usage_error("claims", got, f"only one probe of {model} may hold {wanted}", "move the other folders away")
    return matching[0]


def load_answers(folders: LedgerFolders, model: str, task: str, score: str) -> tuple[Tensor, int, Path]:
    """Correctness ``[items, slots tested]``, the number of slots, and the folder."""

    def whole(folder: Path) -> bool:
        return any(one["task"] == task for one in run_folder.load_plan(folder)[1]["tasks"])

    folder = find_probe(folders, model, f"the task {task}", whole)
    plan, about = run_folder.load_plan(folder)
    one = next(one for one in about["tasks"] if one["task"] == task)
    own = read_task(plan, one, folder)
    if own is None or score not in plan.scores:
        raise MissingEvidence(f"all records of {task} by {score} in {folder}/")
    return curves.by_item(own, score)[1], one["slots"], folder


def gold_position(folders: LedgerFolders, model: str, task: str, score: str) -> tuple[dict[str, Any], str]:
    """The position curve of one task: first and last slot minus the middle slot, and the gap with its p.

    ``*_low`` and ``*_high`` are the ends of a 95% bootstrap interval over items, in percentage points of accuracy.
    """
    table, slots, folder = load_answers(folders, model, task, score)
    middle = table.shape[1] // 2
    draws = 100 * curves.bootstrap_means(table, seed=0)
    means = 100 * table.mean(0)
    chance = curves.gap_by_chance(table, seed=0)
    figures = {
        "first_over_middle": float(means[0] - means[middle]),
        **_interval("first_over_middle", draws[:, 0] - draws[:, middle]),
        "last_over_middle": float(means[-1] - means[middle]),
        **_interval("last_over_middle", draws[:, -1] - draws[:, middle]),
        "gap": float(means.max() - means.min()),
        "gap_p": chance["gap_p"],
    }
    by_place = ", ".join(f"{value:.0f}" for value in means)
    return figures | {
        "words": f"{len(table)} items of {slots} slots; accuracy by slot, %: {by_place}."
    }, folder.as_posix()


def gold_position_by_length(
    folders: LedgerFolders, model: str, tasks: list[str], score: str
) -> tuple[dict[str, Any], str]:
    """How much deeper the middle lies below the mean of both ends at the longest length than at the shortest."""
    depths, draws, words, folder = [], [], [], Path()
    for seed, task in enumerate((tasks[0], tasks[-1])):
        table, slots, folder = load_answers(folders, model, task, score)
        depths.append(float(_depth(100 * table.mean(0)[None])[0]))
        draws.append(_depth(100 * curves.bootstrap_means(table, seed=seed)))
        words.append(f"{depths[-1]:.1f} points at {slots} slots")
    figures = {"deeper_by": depths[1] - depths[0], **_interval("deeper_by", draws[1] - draws[0])}
    return figures | {"words": f"Depth of the middle below the ends: {', '.join(words)}."}, folder.as_posix()


def hypothesis(folders: LedgerFolders, model: str, hypothesis: str) -> tuple[dict[str, Any], str]:
    """The result of a hypothesis test: 1 if supported, 0 if not; the record may also be undecided."""
    record, path = _load_hypothesis(folders, model, hypothesis)
    words = f"The rule: {record['rule']}."
    if record["answer"] is None:
        return {"held": 0, "held_verdict": "undecided", "words": words}, path
    return {"held": int(record["answer"]), "held_verdict": "decided", "words": words}, path


MIN_OVER_SHUFFLED, MIN_RANK_CORRELATION = 2.0, 0.9  # of a smoothing method that supports monotone channels


def monotone_channels(folders: LedgerFolders, model: str) -> tuple[dict[str, Any], str]:
    """How many smoothing methods support channels that are monotone in position, of those that find any channel.

    A method supports them if it finds more than twice as many channels as in shuffled order, and the ten smoothest follow
    position in texts that did not select them. A method that finds none in either order decides nothing.
    """
    record, path = _load_hypothesis(folders, model, "one-way")
    settings = record["settings"]
    if not has_enough_texts(settings["texts"], settings["tokens"]):
        raise MissingEvidence(f"a larger probe of {model}: {Path(path).name} has too few texts")
    fits = {name: record["numbers"][name] for name in FITS}
    usable = {name: one for name, one in fits.items() if one["channels"] or one["by_chance"]}
    supporting = [
        name
        for name, one in usable.items()
        if one["channels"] > MIN_OVER_SHUFFLED * one["by_chance"]
        and one["rank_correlation_in_other_texts"] >= MIN_RANK_CORRELATION
    ]
    sentences = [
        f"{name}: {one['channels']} channels in order, {one['by_chance']} shuffled, rank correlation "
        f"{one['rank_correlation_in_other_texts']:.2f} in other texts"
        for name, one in usable.items()
    ]
    unusable = [f"{name} finds no channel in either order" for name in fits if name not in usable]
    figures: dict[str, Any] = {"usable_fits": len(usable), "supporting_fits": len(supporting)}
    if not usable:
        figures["supporting_fits_verdict"] = "undecided"
    return figures | {"words": f"{'; '.join(sentences + unusable)}."}, path


def mask_or_positions(folders: LedgerFolders, model: str) -> tuple[dict[str, Any], str]:
    """Two experiments on the origin of position in hidden states. They may contradict each other.

    ``cropped_over_shifted``: how much more a cropped mask moves the positional channel in a span than shifted positions
    do, the least over spans and halves of the texts. ``mask_over_encoding``: the share of position with the mask alone
    over that with the encoding alone, the most over the halves.
    """
    record, path = _load_hypothesis(folders, model, "from-mask")
    numbers = record["numbers"]
    if not can_decide(numbers, record["settings"]) or any(
        half["position_share"] <= 0 for half in numbers["arms"]["encoding alone"]
    ):
        raise MissingEvidence(
            f"a larger probe of {model}: {Path(path).name} has too few texts, or no channel follows position"
        )
    by_crop, by_mask = mask_over_position(numbers)
    return {
        "cropped_over_shifted": min(by_crop),
        "mask_over_encoding": max(by_mask),
        "words": describe_from_mask(numbers),
    }, path


def _load_hypothesis(folders: LedgerFolders, model: str, hypothesis: str) -> tuple[dict[str, Any], str]:
    name = f"hypothesis-{hypothesis}.json"
    folder = find_probe(
        folders, model, f"the hypothesis {hypothesis}", lambda folder: folders.reader.exists(folder / name)
    )
    return folders.reader.read(folder / name), (folder / name).as_posix()


def slot_emphasis(folders: LedgerFolders, model: str) -> tuple[dict[str, Any], str]:
    """How often a slot's answer becomes likelier when the slot's attention weight is multiplied, and how often the answer
    follows the attention when the slot's score is multiplied; each with the ends of Wilson's interval."""
    weighted, path = _load_analysis(folders, model, "emphasis-weight")
    scored, scored_path = _load_analysis(folders, model, "emphasis-score")
    gains = [row["after"] > row["before"] for row in weighted["rows"]]
    share = proportion(sum(gains), len(gains), curves.LEVEL)
    rises = [row["attention_after"] > row["attention_before"] for row in scored["rows"]]
    likelier = [row["after"] > row["before"] for row in scored["rows"]]
    same_direction = proportion(sum(map(eq, rises, likelier)), len(rises), curves.LEVEL)
    words = (
        f"The weight times {weighted['factor']:g}, {weighted['items']} items, {len(gains)} cases. The score times "
        f"{scored['factor']:g}, {len(rises)} cases: attention to the slot rises in {100 * sum(rises) / len(rises):.3g}%, its "
        f"answer becomes likelier in {100 * sum(likelier) / len(likelier):.3g}%."
    )
    figures = {
        "gained": share.share,
        "gained_low": share.interval.low,
        "gained_high": share.interval.high,
        "with_attention": same_direction.share,
        "with_attention_low": same_direction.interval.low,
        "with_attention_high": same_direction.interval.high,
    }
    return figures | {"words": words}, f"{path} and {Path(scored_path).name}"


def positional_part(folders: LedgerFolders, model: str) -> tuple[dict[str, Any], str]:
    """The positional part of hidden states that two halves of the texts share, at the median layer: its rank and the share
    of the lowest frequencies. ``*_with_noise`` are the same figures of the mean over all texts."""
    geometry, path = _load_analysis(folders, model, "geometry")
    common = [layer["in_both_halves"] for layer in geometry["layers"] if layer.get("in_both_halves")]
    if not common:
        raise MissingEvidence(f"a probe of {model} that compares two halves of its texts")
    figures = {name: median(layer[name] for layer in common) for name in ("rank", "low_frequencies")}
    noisy = {f"{name}_with_noise": median(layer[name] for layer in geometry["layers"]) for name in figures}
    words = (
        f"{geometry['texts']} texts of {geometry['tokens']} tokens; {len(common)} of {len(geometry['layers'])} layers have position "
        f"beyond chance. In the mean of all texts, with noise: {noisy['rank_with_noise']:g} and "
        f"{noisy['low_frequencies_with_noise']:.2f}. A share above 1 means that the shared part of the other frequencies sums "
        "to less than zero, within noise."
    )
    return figures | noisy | {"words": words}, path


def near_and_far(folders: LedgerFolders, model: str, near: list[int], far: list[int]) -> tuple[dict[str, Any], str]:
    """Ratio of the attention to near tokens and to far tokens, with and without positions.

    ``near`` and ``far`` are distance ranges. Means over the recorded ranges inside them, over layers and heads.
    """
    profile, path = _load_analysis(folders, model, "distance")
    if "one_position" not in profile:
        raise MissingEvidence(f"a probe of {model} that ablates positions")

    def mean(attention: list[list[list[float]]], ends: list[int]) -> float:
        inside = [index for index, (low, high) in enumerate(profile["ranges"]) if ends[0] <= low and high <= ends[1]]
        if not inside:
            raise MissingEvidence(f"a probe of {model} on texts longer than {ends[0]} tokens")
        tokens = torch.tensor([high - low for low, high in profile["ranges"]], dtype=torch.float64)[inside]
        means = torch.tensor(attention, dtype=torch.float64)[..., inside].mean((0, 1))
        return float((means * tokens).sum() / tokens.sum())

    usual, alone = (mean(profile[arm], near) / mean(profile[arm], far) for arm in ("attention", "one_position"))
    words = (
        f"{near[0]} to {near[1] - 1} tokens back over {far[0]} to {far[1] - 1}: {usual:.1f} times, {alone:.1f} without."
    )
    return {"near_over_far": usual, "without_positions": alone, "times_as_much": usual / alone, "words": words}, path


def _load_analysis(folders: LedgerFolders, model: str, analysis: str) -> tuple[dict[str, Any], str]:
    name = analyses.file_name(analysis)
    candidates = folders.reader.find_folders(folders.results / FOLDER, name)
    explained = [folder for folder in candidates if run_folder.load_plan(folder)[0].model == model]
    # of several probes with this analysis, the one with the hypotheses is the large one
    with_record = [
        folder for folder in explained if any(n.startswith("hypothesis-") for n in records.RecordFolder(folder).names())
    ]
    folder = find_probe(folders, model, analysis, lambda one: one in (with_record or explained))
    return folders.reader.read(folder / name)["result"], (folder / name).as_posix()


def _depth(means: Tensor) -> Tensor:
    return (means[:, 0] + means[:, -1]) / 2 - means[:, means.shape[1] // 2]


def _interval(name: str, draws: Tensor) -> dict[str, float]:
    """The ends of a bootstrap interval."""
    ends = torch.tensor([(1 - curves.LEVEL) / 2, (1 + curves.LEVEL) / 2], dtype=draws.dtype)
    low, high = torch.quantile(draws, ends).tolist()
    return {f"{name}_low": low, f"{name}_high": high}


READERS: dict[str, Reader] = {
    function.__name__: function
    for function in (
        gold_position,
        gold_position_by_length,
        hypothesis,
        monotone_channels,
        mask_or_positions,
        slot_emphasis,
        positional_part,
        near_and_far,
    )
}
