"""Evidence from the records of studies, experiments and benchmarks, read each time.

A missing study, seed or record raises ``MissingEvidence``, which leaves a claim open.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from whence.errors import usage_error
from whence.lab import results as lab
from whence.lab.study import Study
from whence.statistics import Comparison, compare, smallest_p
from whence_papers.ledger.claims import LedgerFolders, MissingEvidence

Reader = Callable[..., tuple[dict[str, Any], str]]
METRICS = {
    "accuracy": (100.0, True, "points"),
    "perplexity": (1.0, False, ""),
    "repetition": (100.0, False, "points"),
}


def find_study(folders: LedgerFolders, name: str) -> tuple[Study, Path]:
    """Find a study by name anywhere below the results, with the folder of its records."""
    candidates = [
        folder
        for folder in folders.reader.find_folders(folders.results, "study.json", deep=True)
        if folder.name.startswith(f"{name}-")
        and folders.reader.read(folder / "study.json").get("spec", {}).get("name") == name
    ]
    if not candidates:
        raise MissingEvidence(f"the study {name} in {folders.results}/")
    if len(candidates) > 1:
        got = " and ".join(folder.relative_to(folders.results).as_posix() for folder in candidates)
        raise usage_error("claims", got, f"only one folder may hold the study {name}", "move the other folders away")
    return lab.load_study(candidates[0], folders.reader), candidates[0]


def load_finished_arm(folders: LedgerFolders, study: Study, folder: Path, arm: str) -> dict[str, Any]:
    """Summarize the records of an arm. All seeds must have ended."""
    matching = [one for one in study.arms if one.name == arm]
    if not matching:
        got = f"{arm!r} in {study.name}"
        raise usage_error("claims", got, f"its arms are {', '.join(a.name for a in study.arms)}", "name one of them")
    summary = lab.summarize_arm(study, matching[0], folder, folders.reader)
    curves, diverged = summary["curves"], {str(one["seed"]) for one in summary["diverged"]}
    if len(curves) < len(study.seeds):
        raise MissingEvidence(f"{len(study.seeds) - len(curves)} of {len(study.seeds)} seeds of {study.name}, {arm}")
    return summary | {
        "curves": {seed: curve for seed, curve in curves.items() if seed not in diverged}
    }  # those end early


def seed_values(arm: dict[str, Any], split: str, evaluation: int | None, factor: float) -> list[float]:
    """One number per seed, of the last evaluation or of the n-th, counted from 1."""
    place = -1 if evaluation is None else evaluation - 1
    count = min((len(curve["evaluations"]) for curve in arm["curves"].values()), default=place + 1)
    if place >= count:
        got = f"evaluation {evaluation} of {arm['name']}, which has {count}"
        raise usage_error("claims", got, "a figure names an evaluation of the study", "correct the claim")
    return [factor * curve["evaluations"][place]["splits"][split] for curve in arm["curves"].values()]


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
    factor = METRICS[metric][0]
    both = {
        name: seed_values(load_finished_arm(folders, spec, folder, name), split, evaluation, factor)
        for name in (baseline, arm)
    }
    comparison = compare_arms(both, baseline, metric, spec.comparisons, spec.decision.alpha)[arm]
    own = f"The source has one run of each arm; no test on one run each gives a p below {smallest_p(1, 1):g}."
    return comparison | {"words": f"{comparison['words']} {own}"}, folder.as_posix()


def against(
    folders: LedgerFolders,
    study: str,
    arm: str,
    others: list[str],
    metric: str,
    split: str,
    question: str = "",
    alpha: float | None = None,
) -> tuple[dict[str, Any], str]:
    """Compare one arm with several others: a direction (1 if the arm is better) and the gain over each.

    ``question`` verifies that the study is the intended one. ``alpha`` replaces the level of a study whose number of
    seeds cannot reach that level; such a test would be decided before any run.
    """
    spec, folder = find_study(folders, study)
    if question and spec.question != question:
        got = f"{study} that asks {spec.question!r}"
        raise usage_error("claims", got, f"the claim is about the study that asks {question!r}", "correct the claim")
    factor = METRICS[metric][0]
    sides = {
        name: seed_values(load_finished_arm(folders, spec, folder, name), split, None, factor)
        for name in (arm, *others)
    }
    results: dict[str, Any] = {}
    words = []
    for other in others:  # the other arm is the baseline, so that the sentence is about ``arm``
        pair = {other: sides[other], arm: sides[arm]}
        one = compare_arms(pair, other, metric, spec.comparisons, alpha or spec.decision.alpha)[arm]
        results |= {
            f"direction_against_{_slug(other)}": one["direction"],
            f"gain_over_{_slug(other)}": one["gain"],
        }
        words.append(one["words"])
    return results | {"words": " ".join(words)}, folder.as_posix()


def best_of(
    folders: LedgerFolders, study: str, arms: list[str], baseline: str, metric: str, split: str
) -> tuple[dict[str, Any], str]:
    """Compare several arms with a baseline and return the best direction among them."""
    spec, folder = find_study(folders, study)
    factor = METRICS[metric][0]
    sides = {
        name: seed_values(load_finished_arm(folders, spec, folder, name), split, None, factor)
        for name in (baseline, *arms)
    }
    comparisons = compare_arms(sides, baseline, metric, spec.comparisons, spec.decision.alpha)
    directions = {f"direction_of_{_slug(name)}": comparisons[name]["direction"] for name in arms}
    words = " ".join(comparisons[name]["words"] for name in arms)
    return {"best_direction": max(directions.values()), **directions, "words": words}, folder.as_posix()


def _slug(name: str) -> str:
    return "_".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def between_studies(
    folders: LedgerFolders, study: str, other: str, arm: str, metric: str, split: str
) -> tuple[dict[str, Any], str]:
    """Compare the same arm in two studies, the second with the first."""
    factor, sides, paths = METRICS[metric][0], {}, []
    for name in (study, other):
        spec, folder = find_study(folders, name)
        sides[name] = seed_values(load_finished_arm(folders, spec, folder, arm), split, None, factor)
        paths.append(folder.as_posix())
    return compare_arms(sides, study, metric, 1)[other], ", ".join(paths)


def between_splits(
    folders: LedgerFolders, study: str, arm: str, metric: str, splits: list[str], baseline: str
) -> tuple[dict[str, Any], str]:
    """Compare the splits of one arm with a baseline split: a direction for each."""
    spec, folder = find_study(folders, study)
    finished = load_finished_arm(folders, spec, folder, arm)
    sides = {split: seed_values(finished, split, None, METRICS[metric][0]) for split in splits}
    comparisons = compare_arms(sides, baseline, metric, len(splits) - 1)
    flat: dict[str, Any] = {f"{split}_direction": one["direction"] for split, one in comparisons.items()}
    return flat | {"words": " ".join(one["words"] for one in comparisons.values())}, folder.as_posix()


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
        raise MissingEvidence(f"times of {variant} and {baseline} in {path}")
    where = record["environment"]["machine"].get("accelerator", "a CPU")
    sentence = f"On {where}, {record['spec']['tokens']} tokens, {variant} against {baseline}."
    return {"more_percent": 100 * (times[variant] / times[baseline] - 1), "words": sentence}, path.as_posix()


def compare_arms(
    sides: dict[str, list[float]], baseline: str, metric: str, m: int, alpha: float = 0.05
) -> dict[str, dict[str, Any]]:
    """``whence.statistics.compare`` as numbers: direction, difference, gain, interval and a sentence for each arm."""
    _, higher, unit = METRICS[metric]
    return comparison_figures(compare(sides, baseline, max(m, len(sides) - 1), higher, level=1 - alpha, unit=unit))


def comparison_figures(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Figures of a comparison by arm. The first word of the verdict gives the direction."""
    directions = {"better": 1, "worse": -1}
    return {
        name: {
            "direction": directions.get(arm.verdict.split()[0], 0),
            "difference": arm.difference,
            "gain": arm.difference if comparison.higher_is_better else -arm.difference,
            "low": arm.corrected_interval.low if arm.corrected_interval else arm.difference,
            "high": arm.corrected_interval.high if arm.corrected_interval else arm.difference,
            "words": f"{name}: {arm.verdict}.",
        }
        for name, arm in comparison.arms.items()
    }


def adapters(folders: LedgerFolders, adapter: str, baseline: str, split: str) -> tuple[dict[str, Any], str]:
    """Compare two adapters of the adaptive experiment: 1 for better, -1 for worse, 0 for undecided."""
    path = folders.results / "epar" / "adaptive_attention.json"
    if not folders.reader.exists(path):
        raise MissingEvidence(f"the adaptive experiment ({path}, written by `whence run epar/adaptive_attention`)")
    models = folders.reader.read(path)["results"]["models"]
    factor = METRICS["accuracy"][0]
    sides = {name: [factor * seed["splits"][split] for seed in models[name]] for name in (baseline, adapter)}
    # every adapter is compared with the same baseline, so the correction counts all of them
    comparison = compare_arms(sides, baseline, "accuracy", len(models) - 1)[adapter]
    return comparison, path.as_posix()


def experiment_differs(
    folders: LedgerFolders, record: str, command: str, arm: str, baseline: str, measure: str, metric: str
) -> tuple[dict[str, Any], str]:
    """Compare two arms of an experiment: 1 for better, -1 for worse, 0 for undecided."""
    path = folders.results / record
    if not folders.reader.exists(path):
        raise MissingEvidence(f"the record {path} (`{command}`)")
    arms = folders.reader.read(path)["results"]["arms"]
    sides = {name: [METRICS[metric][0] * value for value in arms[name][measure]] for name in (baseline, arm)}
    return compare_arms(sides, baseline, metric, 1)[arm], path.as_posix()


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
        values, difference, against, best_of, between_studies, between_splits, steps_back, step_time, adapters,
        experiment_differs, pointer_time,
    )
}  # fmt: skip
