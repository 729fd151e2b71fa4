"""Evidence from the records of studies, experiments and benchmarks, read each time.

A missing study, seed or record raises ``MissingEvidence``, which leaves a claim open.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from whence.errors import usage_error
from whence.lab import results as lab
from whence.lab.arms import Arm
from whence.lab.scores import collect_baselines
from whence.lab.study import Study
from whence.lab.tasks.baselines import CONSTANT, RULE
from whence.statistics import PairedComparison
from whence_papers.ledger.claims import LedgerFolders, MissingEvidence
from whence_papers.ledger.comparisons import METRICS, compare_lists, compare_seeds, compare_unpaired, contrast_figures

Reader = Callable[..., tuple[dict[str, Any], str]]
RUNNING = "running"
ONE_RUN = "The source has one run of each arm, which allows no test."


def find_study(folders: LedgerFolders, name: str) -> tuple[Study, Path]:
    """Find a study by name anywhere below the results, with the folder of its records."""
    candidates = [
        folder
        for folder in folders.reader.find_folders(folders.results, "study.json", deep=True)
        if folder.name.startswith(f"{name}-")
        and folders.reader.read(folder / "study.json").get("spec", {}).get("name") == name
    ]
    if not candidates:
        raise MissingEvidence(f"the study {name} in {folders.results.name}/")
    if len(candidates) > 1:
        got = " and ".join(folder.relative_to(folders.results).as_posix() for folder in candidates)
        raise usage_error("claims", got, f"only one folder may hold the study {name}", "move the other folders away")
    return lab.load_study(candidates[0], folders.reader), candidates[0]


def missing_seeds(folders: LedgerFolders, study: Study, folder: Path, arm: Arm, count: int) -> MissingEvidence:
    """The error for seeds without a record, with what is wrong with the records that cannot be read."""
    reasons = "; ".join(one["reason"] for one in lab.find_failures(study, arm, folder, folders.reader))
    waits_for = f"{count} of {len(study.seeds)} seeds of {study.name}, {arm.name}"
    return MissingEvidence(f"{waits_for}: {reasons}" if reasons else waits_for)


def load_finished_arm(folders: LedgerFolders, study: Study, folder: Path, arm: str) -> dict[str, Any]:
    """Summarize the records of an arm, once for a judgement. All seeds must have ended."""
    if (folder, arm) in folders.arms:
        return folders.arms[folder, arm]
    matching = [one for one in study.arms if one.name == arm]
    if not matching:
        got = f"{arm!r} in {study.name}"
        raise usage_error("claims", got, f"its arms are {', '.join(a.name for a in study.arms)}", "name one of them")
    summary = lab.summarize_arm(study, matching[0], folder, folders.reader)
    curves, diverged = summary["curves"], {str(one["seed"]) for one in summary["diverged"]}
    if len(curves) < len(study.seeds):
        raise missing_seeds(folders, study, folder, matching[0], len(study.seeds) - len(curves))
    folders.arms[folder, arm] = summary | {
        "curves": {seed: curve for seed, curve in curves.items() if seed not in diverged}
    }  # those end early
    return folders.arms[folder, arm]


def seed_values(arm: dict[str, Any], split: str, evaluation: int | None, factor: float) -> list[float]:
    """One number per seed, of the last evaluation or of the n-th, counted from 1.

    The split ``"running"`` is the running mean on the training batches, with dropout.
    """
    place = -1 if evaluation is None else evaluation - 1
    count = min((len(curve["evaluations"]) for curve in arm["curves"].values()), default=place + 1)
    if place >= count:
        got = f"evaluation {evaluation} of {arm['name']}, which has {count}"
        raise usage_error("claims", got, "a figure names an evaluation of the study", "correct the claim")
    rows = [curve["evaluations"][place] for curve in arm["curves"].values()]
    return [factor * (row["training"] if split == RUNNING else row["splits"][split]) for row in rows]


def compare_study(
    folders: LedgerFolders, study: Study, folder: Path, arms: list[str], metric: str, split: str,
    evaluation: int | None = None, comparisons: int | None = None,
) -> PairedComparison:  # fmt: skip
    """Compare the arms of a study, of which ``arms`` must be finished. The first of them is compared with the others.

    Every arm with all seeds takes part: it counts for the family, and it tells how much seeds vary. If the first arm is
    the baseline of the study, the family is the study's own; otherwise it is that of all pairs. ``comparisons`` is the size
    of the family if it is not that of the study.
    """
    values: dict[str, dict[int, float | None]] = {}
    for name in [*arms, *(arm.name for arm in study.arms if arm.name not in arms)]:
        try:
            finished = load_finished_arm(folders, study, folder, name)
        except MissingEvidence:
            if name in arms:
                raise
            continue
        own = dict(
            zip(map(int, finished["curves"]), seed_values(finished, split, evaluation, METRICS[metric][0]), strict=True)
        )
        values[name] = {seed: own.get(seed) for seed in study.seeds}
    baseline = arms[0] if arms[0] == study.decision.baseline and study.decision.family == "baseline" else None
    share = study.contrasts / (comparisons or study.comparisons)
    return compare_seeds(
        values, metric, baseline, alpha=study.decision.alpha, share=share, references=folders.references
    )


def find_unbeaten_rule(folders: LedgerFolders, study: Study, folder: Path, metric: str, split: str) -> dict[str, str]:
    """Why a comparison of arms says nothing: no arm beats the best constant or simple rule in the study's record.

    Arms are compared by their means over seeds at the last evaluation. The result is empty if an arm beats every such
    baseline, or if the record has none on this metric and split.
    """
    factor, higher, unit = METRICS[metric]
    path = folder / "baselines.json"
    stored = folders.reader.read(path)["baselines"] if folders.reader.exists(path) else {}
    rules = {
        (one["kind"], one["name"]): factor * one["splits"][split][metric]
        for one in collect_baselines(stored, study.decision.split)
        if one["kind"] in (CONSTANT, RULE) and metric in one["splits"].get(split, {})
    }
    means: dict[str, float] = {}
    for arm in study.arms if rules else ():
        try:
            own = seed_values(load_finished_arm(folders, study, folder, arm.name), split, None, factor)
        except MissingEvidence:
            continue
        if own:
            means[arm.name] = mean(own)
    if not rules or not means:
        return {}
    select = max if higher else min
    rule, arm_name = select(rules, key=lambda key: rules[key]), select(means, key=lambda name: means[name])
    if means[arm_name] > rules[rule] if higher else means[arm_name] < rules[rule]:
        return {}
    kind, name = rule
    reason = (
        f"by this record: no arm reaches the {kind} '{name}' by {metric.replace('_f1', ' F1')} on {split}. "
        f"It has {rules[rule]:.4g} {unit}".rstrip()
        + f"; the best arm, {arm_name}, has {means[arm_name]:.4g}. Differences between arms below it do not test the claim."
    )
    return {"not_testable": reason}


def describe_diverged(arm: dict[str, Any]) -> str:
    """A sentence about diverged seeds, or an empty text."""
    diverged = arm["diverged"]
    return f" {len(diverged)} seed{'' if len(diverged) == 1 else 's'} diverged." if diverged else ""


def values(
    folders: LedgerFolders, study: str, arm: str, metric: str, figures: dict[str, dict[str, Any]]
) -> tuple[dict[str, Any], str]:
    """Figures of one arm, one value per seed. A figure names its split and, unless it is the last, its evaluation."""
    spec, folder = find_study(folders, study)
    finished = load_finished_arm(folders, spec, folder, arm)
    factor = METRICS[metric][0]
    results: dict[str, Any] = {
        name: seed_values(finished, figure["split"], figure.get("evaluation"), factor)
        for name, figure in figures.items()
    }
    return results | {"words": f"The source has one run.{describe_diverged(finished)}"}, folder.as_posix()


def difference(
    folders: LedgerFolders, study: str, arm: str, baseline: str, metric: str, split: str, evaluation: int | None = None
) -> tuple[dict[str, Any], str]:
    """Compare two arms. The direction is 1 for better, -1 for worse, 0 for undecided."""
    spec, folder = find_study(folders, study)
    comparison = compare_study(folders, spec, folder, [baseline, arm], metric, split, evaluation)
    figures = contrast_figures(comparison, arm, baseline, metric)
    unbeaten = find_unbeaten_rule(folders, spec, folder, metric, split)
    return figures | {"words": f"{figures['words']} {ONE_RUN}"} | unbeaten, folder.as_posix()


def against(
    folders: LedgerFolders,
    study: str,
    arm: str,
    others: list[str],
    metric: str,
    split: str,
    question: str = "",
    comparisons: int | None = None,
) -> tuple[dict[str, Any], str]:
    """Compare one arm with several others: a direction (1 if the arm is better) and the gain over each.

    Args:
        question: verifies that the study is the intended one.
        comparisons: size of the family, if other studies belong to it.
    """
    spec, folder = find_study(folders, study)
    if question and spec.question != question:
        got = f"{study} that asks {spec.question!r}"
        raise usage_error("claims", got, f"the claim is about the study that asks {question!r}", "correct the claim")
    comparison = compare_study(folders, spec, folder, [arm, *others], metric, split, comparisons=comparisons)
    results: dict[str, Any] = {}
    words = []
    for other in others:
        one = contrast_figures(comparison, arm, other, metric)
        results |= {
            f"direction_against_{_slug(other)}": one["direction"],
            f"direction_against_{_slug(other)}_verdict": one["direction_verdict"],
            f"gain_over_{_slug(other)}": one["gain"],
            f"gain_over_{_slug(other)}_low": one["gain_low"],
            f"gain_over_{_slug(other)}_high": one["gain_high"],
        }
        words.append(one["words"])
    unbeaten = find_unbeaten_rule(folders, spec, folder, metric, split)
    return results | {"words": " ".join(words)} | unbeaten, folder.as_posix()


def best_of(
    folders: LedgerFolders, study: str, arms: list[str], baseline: str, metric: str, split: str
) -> tuple[dict[str, Any], str]:
    """Compare several arms with a baseline and return the best direction among them."""
    spec, folder = find_study(folders, study)
    comparison = compare_study(folders, spec, folder, [baseline, *arms], metric, split)
    figures = {name: contrast_figures(comparison, name, baseline, metric) for name in arms}
    directions = {f"direction_of_{_slug(name)}": one["direction"] for name, one in figures.items()}
    best = max(directions.values())
    verdicts = {one["direction_verdict"] for one in figures.values() if one["direction"] == best}
    verdict = "undecided" if "undecided" in verdicts else verdicts.pop()
    words = " ".join(one["words"] for one in figures.values())
    unbeaten = find_unbeaten_rule(folders, spec, folder, metric, split)
    results = {"best_direction": best, "best_direction_verdict": verdict, **directions, "words": words}
    return results | unbeaten, folder.as_posix()


def smallest_p(folders: LedgerFolders, study: str, metric: str, split: str) -> tuple[dict[str, Any], str]:
    """The smallest corrected p among the comparisons of a study with its baseline, and how many reach its level."""
    spec, folder = find_study(folders, study)
    baseline = spec.decision.baseline
    names = [baseline, *(arm.name for arm in spec.arms if arm.name != baseline)]
    comparison = compare_study(folders, spec, folder, names, metric, split)
    ps = {one.first: one.p for one in comparison.contrasts if one.p is not None}
    best = min(ps, key=lambda name: ps[name])
    claimed = sum(one.verdict in ("better", "worse") for one in comparison.contrasts)
    words = (
        f"{claimed} of {len(comparison.contrasts)} differences from {baseline} reach {spec.decision.alpha:g} with "
        f"{len(comparison.seeds)} seeds; the smallest p is that of {best}."
    )
    return {"smallest_corrected_p": ps[best], "claimed": claimed, "words": words}, folder.as_posix()


def _slug(name: str) -> str:
    return "_".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def between_studies(
    folders: LedgerFolders, study: str, other: str, arm: str, metric: str, split: str
) -> tuple[dict[str, Any], str]:
    """Compare the same arm in two studies, the second with the first. Equal seeds on equal data are paired."""
    factor, paths = METRICS[metric][0], []
    sides: dict[str, dict[int, float | None]] = {}
    data: list[set[str | None]] = []
    for name in (study, other):
        spec, folder = find_study(folders, name)
        finished = load_finished_arm(folders, spec, folder, arm)
        own = dict(zip(map(int, finished["curves"]), seed_values(finished, split, None, factor), strict=True))
        sides[name] = {seed: own.get(seed) for seed in spec.seeds}
        (matching,) = (one for one in spec.arms if one.name == arm)
        runs = lab.load_arm_records(spec, matching, folder, folders.reader)
        data.append({run.get("task", {}).get("data_hash") for run in runs})
        paths.append(folder.as_posix())
    same_seeds, same_data = set(sides[study]) == set(sides[other]), data[0] == data[1] and len(data[0] - {None}) == 1
    if same_seeds and same_data:
        figures = contrast_figures(compare_seeds(sides, metric, study), other, study, metric)
        return figures | {"words": f"{figures['words']} The two studies are paired by seed."}, ", ".join(paths)
    why = "the records do not show equal data" if same_seeds else "the seeds differ"
    lists = {name: [value for value in own.values() if value is not None] for name, own in sides.items()}
    return compare_unpaired(lists, metric, other, study, why), ", ".join(paths)


def between_splits(
    folders: LedgerFolders, study: str, arm: str, metric: str, splits: list[str], baseline: str
) -> tuple[dict[str, Any], str]:
    """Compare the splits of one arm with a baseline split: a direction for each. Splits share the trained models."""
    spec, folder = find_study(folders, study)
    finished = load_finished_arm(folders, spec, folder, arm)
    sides = {split: seed_values(finished, split, None, METRICS[metric][0]) for split in splits}
    comparison = compare_lists(sides, metric, baseline)
    figures = {split: contrast_figures(comparison, split, baseline, metric) for split in splits if split != baseline}
    flat: dict[str, Any] = {}
    for split, one in figures.items():
        flat |= {f"{split}_direction": one["direction"], f"{split}_direction_verdict": one["direction_verdict"]}
    return flat | {"words": " ".join(one["words"] for one in figures.values())}, folder.as_posix()


def steps_back(
    folders: LedgerFolders, study: str, arm: str, metric: str, splits: list[str]
) -> tuple[dict[str, Any], str]:
    """How often a value is worse than at the previous evaluation, over all seeds and the named splits."""
    spec, folder = find_study(folders, study)
    finished, better = load_finished_arm(folders, spec, folder, arm), METRICS[metric][1]
    back = steps = 0
    for curve in finished["curves"].values():
        for split in splits:
            rows = [one["splits"][split] for one in curve["evaluations"]]
            worse = [(b < a) if better else (b > a) for a, b in pairwise(rows)]
            back, steps = back + sum(worse), steps + len(worse)
    return {"steps_back": back, "steps": steps, "words": f"Of {steps} steps."}, folder.as_posix()


def step_time(folders: LedgerFolders, variant: str, baseline: str) -> tuple[dict[str, Any], str]:
    """Compare the measured time of two training steps in one run: percent more, by medians of steps launched from Python."""
    path = folders.benchmarks / "train_step.json"
    if not folders.reader.exists(path):
        raise MissingEvidence(f"a measured training step ({path}, written by `make gpu-bench`)")
    record = folders.reader.read(path)
    times = {row["variant"]: median(row["milliseconds"]) for row in record["rows"] if "milliseconds" in row}
    if variant not in times or baseline not in times:
        raise MissingEvidence(f"times of {variant} and {baseline} in one run ({path}, written by `make gpu-bench`)")
    where = record["environment"]["machine"].get("accelerator", "a CPU")
    sentence = f"On {where}, {record['spec']['tokens']} tokens, {variant} against {baseline}."
    return {"more_percent": 100 * (times[variant] / times[baseline] - 1), "words": sentence}, path.as_posix()


def adapters(folders: LedgerFolders, adapter: str, baseline: str, split: str) -> tuple[dict[str, Any], str]:
    """Compare two adapters of the adaptive experiment: 1 for better, -1 for worse, 0 for undecided."""
    path = folders.results / "epar" / "adaptive_attention.json"
    if not folders.reader.exists(path):
        raise MissingEvidence(f"the adaptive experiment ({path}, written by `whence run epar/adaptive_attention`)")
    models = folders.reader.read(path)["results"]["models"]
    factor = METRICS["accuracy"][0]
    sides = {name: [factor * seed["splits"][split] for seed in seeds] for name, seeds in models.items()}
    return contrast_figures(compare_lists(sides, "accuracy", baseline), adapter, baseline, "accuracy"), path.as_posix()


def head_gain(folders: LedgerFolders, weights: str, measure: str, patterns: list[str]) -> tuple[dict[str, Any], str]:
    """What a measure of the optimal position gains from the basic to the enhanced form, one mean per head and pattern.

    Args:
        weights: which heads of the experiment, such as ``trained``.
    """
    path = folders.results / "epar" / "optimal_position.json"
    if not folders.reader.exists(path):
        raise MissingEvidence(
            f"the experiment on optimal positions ({path}, written by `whence run epar/optimal_position`)"
        )
    values = folders.reader.read(path)["results"]["values"][weights]
    means = {
        (form, pattern): [mean(runs) for runs in values[form][pattern][measure]]
        for form in ("basic", "enhanced")
        for pattern in patterns
    }
    gains: dict[str, Any] = {
        f"{pattern}_gain": [b - a for a, b in zip(means["basic", pattern], means["enhanced", pattern], strict=True)]
        for pattern in patterns
    }
    levels = [
        f"{pattern} {mean(means['basic', pattern]):.3f} to {mean(means['enhanced', pattern]):.3f}"
        for pattern in patterns
    ]
    return gains | {
        "words": f"{weights} heads, {measure} with the basic and the enhanced form: {', '.join(levels)}."
    }, path.as_posix()


def experiment_differs(
    folders: LedgerFolders, record: str, command: str, arm: str, baseline: str, measure: str, metric: str
) -> tuple[dict[str, Any], str]:
    """Compare two arms of an experiment: 1 for better, -1 for worse, 0 for undecided."""
    path = folders.results / record
    if not folders.reader.exists(path):
        raise MissingEvidence(f"the record {path} (`{command}`)")
    arms = folders.reader.read(path)["results"]["arms"]
    sides = {name: [METRICS[metric][0] * value for value in arms[name][measure]] for name in (baseline, arm)}
    return contrast_figures(compare_lists(sides, metric, baseline), arm, baseline, metric), path.as_posix()


def pointer_time(folders: LedgerFolders, variant: str, baseline: str) -> tuple[dict[str, Any], str]:
    """Ratio of the times of two pointers: forward and backward, medians of interleaved measurements."""
    path = folders.benchmarks / "pointers.json"
    if not folders.reader.exists(path):
        raise MissingEvidence(f"measured times of pointers ({path}, written by benchmarks/pointers.py)")
    record = folders.reader.read(path)
    times = {name: median(row["milliseconds"]) for name, row in record["results"].items()}
    about, machine = record["about"], record["environment"]["machine"]
    words = (
        f"{variant} {times[variant]:.2f} ms, {baseline} {times[baseline]:.2f} ms, median of {about['turns']} turns on one thread of "
        f"{machine['processor']}: {about['batch']} histories of {about['visits']} visits, embed_dim {about['embed_dim']}."
    )
    return {"times_as_long": times[variant] / times[baseline], "words": words}, path.as_posix()


READERS: dict[str, Reader] = {
    function.__name__: function
    for function in (
        values, difference, against, best_of, smallest_p, between_studies, between_splits, steps_back, step_time, adapters,
        head_gain, experiment_differs, pointer_time,
    )
}  # fmt: skip
