"""What the records of studies say of a claim, read anew each time; a study or a seed that is missing is waited for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from whence import records
from whence.errors import usage_error
from whence.lab import results as lab
from whence.lab.study import Study
from whence.statistics import Comparison, compare, smallest_p
from whence_papers.ledger.places import Places, Waiting

Reading = Callable[..., tuple[dict[str, Any], str]]
METRICS = {
    "accuracy": (100.0, True, "points"),
    "perplexity": (1.0, False, ""),
    "repetition": (100.0, False, "points"),
}


def found_study(places: Places, name: str) -> tuple[Study, Path]:
    """The study of a name and the folder of its records, however deep below the results it lies."""
    folders = [
        folder
        for folder in records.find_folders(places.results, "study.json", deep=True)
        if folder.name.startswith(f"{name}-")
        and records.read(folder / "study.json").get("spec", {}).get("name") == name
    ]
    if not folders:
        raise Waiting(f"the study {name} in {places.results}/")
    if len(folders) > 1:
        got = " and ".join(folder.relative_to(places.results).as_posix() for folder in folders)
        raise usage_error("claims", got, f"one study {name} has the records that count", "move the others away")
    return lab.load_study(folders[0]), folders[0]


def finished(study: Study, folder: Path, arm: str) -> dict[str, Any]:
    """What an arm's records hold, once every seed has ended."""
    chosen = [one for one in study.arms if one.name == arm]
    if not chosen:
        got = f"{arm!r} in {study.name}"
        raise usage_error("claims", got, f"its arms are {', '.join(a.name for a in study.arms)}", "name one of them")
    found = lab.summarize_arm(study, chosen[0], folder)
    curves, gone = found["curves"], {str(one["seed"]) for one in found["diverged"]}
    if len(curves) < len(study.seeds):
        raise Waiting(f"{len(study.seeds) - len(curves)} of {len(study.seeds)} seeds of {study.name}, {arm}")
    return found | {"curves": {seed: curve for seed, curve in curves.items() if seed not in gone}}  # those end early


def values_of(found: dict[str, Any], split: str, evaluation: int | None, factor: float) -> list[float]:
    """One number a seed: the last evaluation's, or that of the n-th, counted from 1."""
    place = -1 if evaluation is None else evaluation - 1
    made = min((len(curve["evaluations"]) for curve in found["curves"].values()), default=place + 1)
    if place >= made:
        got = f"evaluation {evaluation} of {found['name']}, which has {made}"
        raise usage_error(
            "claims", got, "a figure names an evaluation that the study makes", "correct the ledger's entry"
        )
    return [factor * curve["evaluations"][place]["splits"][split] for curve in found["curves"].values()]


def lost(found: dict[str, Any]) -> str:
    """A sentence on seeds that diverged."""
    gone = found["diverged"]
    return f" {len(gone)} seed{'' if len(gone) == 1 else 's'} diverged." if gone else ""


def values(
    places: Places, study: str, arm: str, metric: str, figures: dict[str, dict[str, Any]]
) -> tuple[dict[str, Any], str]:
    """Figures of one arm, each with its split and, if not the last, the number of its evaluation: one value a seed."""
    spec, folder = found_study(places, study)
    found = finished(spec, folder, arm)
    factor = METRICS[metric][0]
    told: dict[str, Any] = {
        name: values_of(found, asked["split"], asked.get("evaluation"), factor) for name, asked in figures.items()
    }
    return told | {"words": f"The source has one run.{lost(found)}"}, folder.as_posix()


def difference(
    places: Places, study: str, arm: str, baseline: str, metric: str, split: str, evaluation: int | None = None
) -> tuple[dict[str, Any], str]:
    """One arm against another: 1 where it can be called better, -1 where worse, 0 where neither."""
    spec, folder = found_study(places, study)
    factor = METRICS[metric][0]
    both = {name: values_of(finished(spec, folder, name), split, evaluation, factor) for name in (baseline, arm)}
    found = judged(both, baseline, metric, spec.comparisons, spec.decision.alpha)[arm]
    own = f"The source has one run of each, with which no test can give a p below {smallest_p(1, 1):g}."
    return found | {"words": f"{found['words']} {own}"}, folder.as_posix()


def against(
    places: Places,
    study: str,
    arm: str,
    others: list[str],
    metric: str,
    split: str,
    question: str = "",
    alpha: float | None = None,
) -> tuple[dict[str, Any], str]:
    """One arm against several: the direction and the gain over each, 1 where the arm can be called better.

    A ``question`` makes sure that a study with a number for a name is the one meant. An ``alpha`` of one's own is for
    a study whose level its seeds cannot reach, whatever they find: such a test would be decided before any run.
    """
    spec, folder = found_study(places, study)
    if question and spec.question != question:
        got = f"{study} that asks {spec.question!r}"
        raise usage_error(
            "claims", got, f"the ledger means the one that asks {question!r}", "correct the ledger's entry"
        )
    factor = METRICS[metric][0]
    sides = {name: values_of(finished(spec, folder, name), split, None, factor) for name in (arm, *others)}
    told: dict[str, Any] = {}
    words = []
    for other in others:  # each comparison has the other for its baseline, so that the words are about the arm
        pair = {other: sides[other], arm: sides[arm]}
        one = judged(pair, other, metric, spec.comparisons, alpha or spec.decision.alpha)[arm]
        told |= {f"direction_against_{_slug(other)}": one["direction"], f"gain_over_{_slug(other)}": one["gain"]}
        words.append(one["words"])
    return told | {"words": " ".join(words)}, folder.as_posix()


def best_of(
    places: Places, study: str, arms: list[str], baseline: str, metric: str, split: str
) -> tuple[dict[str, Any], str]:
    """Several arms against a baseline, where one that is better is enough: the best direction among them."""
    spec, folder = found_study(places, study)
    factor = METRICS[metric][0]
    sides = {name: values_of(finished(spec, folder, name), split, None, factor) for name in (baseline, *arms)}
    told = judged(sides, baseline, metric, spec.comparisons, spec.decision.alpha)
    directions = {f"direction_of_{_slug(name)}": told[name]["direction"] for name in arms}
    words = " ".join(told[name]["words"] for name in arms)
    return {"best_direction": max(directions.values()), **directions, "words": words}, folder.as_posix()


def _slug(name: str) -> str:
    return "_".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def between_studies(
    places: Places, study: str, other: str, arm: str, metric: str, split: str
) -> tuple[dict[str, Any], str]:
    """The same arm in two studies, the second against the first."""
    factor, sides, folders = METRICS[metric][0], {}, []
    for name in (study, other):
        spec, folder = found_study(places, name)
        sides[name] = values_of(finished(spec, folder, arm), split, None, factor)
        folders.append(folder.as_posix())
    return judged(sides, study, metric, 1)[other], ", ".join(folders)


def between_splits(
    places: Places, study: str, arm: str, metric: str, splits: list[str], baseline: str
) -> tuple[dict[str, Any], str]:
    """The splits of one arm against one of them: a direction for each."""
    spec, folder = found_study(places, study)
    found = finished(spec, folder, arm)
    sides = {split: values_of(found, split, None, METRICS[metric][0]) for split in splits}
    told = judged(sides, baseline, metric, len(splits) - 1)
    flat: dict[str, Any] = {f"{split}_direction": one["direction"] for split, one in told.items()}
    return flat | {"words": " ".join(one["words"] for one in told.values())}, folder.as_posix()


def steps_back(places: Places, study: str, arm: str, metric: str, splits: list[str]) -> tuple[dict[str, Any], str]:
    """How often a value is worse than at the evaluation before, over all seeds and the named splits."""
    spec, folder = found_study(places, study)
    found, better = finished(spec, folder, arm), METRICS[metric][1]
    back = steps = 0
    for curve in found["curves"].values():
        for split in splits:
            rows = [one["splits"][split] for one in curve["evaluations"]]
            worse = [(b < a) if better else (b > a) for a, b in pairwise(rows)]
            back, steps = back + sum(worse), steps + len(worse)
    return {"steps_back": back, "steps": steps, "words": f"Of {steps} steps."}, folder.as_posix()


def step_time(places: Places, way: str, baseline: str) -> tuple[dict[str, Any], str]:
    """A measured training step against another in the same run: how many per cent longer, by medians of
    steps as a program runs them, launched from Python."""
    path = places.benchmarks / "train_step.json"
    if not records.exists(path):
        raise Waiting(f"a measured training step ({path}, made by `make gpu-bench`)")
    kept = records.read(path)
    times = {row["way"]: median(row["milliseconds"]) for row in kept["rows"] if "milliseconds" in row}
    if way not in times or baseline not in times:
        raise Waiting(f"times of {way} and {baseline} in {path}")
    where = kept["environment"]["machine"].get("accelerator", "a CPU")
    told = f"On {where}, {kept['spec']['tokens']} tokens, {way} against {baseline}."
    return {"more_percent": 100 * (times[way] / times[baseline] - 1), "words": told}, path.as_posix()


def judged(
    sides: dict[str, list[float]], baseline: str, metric: str, m: int, alpha: float = 0.05
) -> dict[str, dict[str, Any]]:
    """``whence.statistics.compare`` as numbers: each side's direction, difference, gain, interval and words."""
    _, higher, unit = METRICS[metric]
    return of_comparison(compare(sides, baseline, max(m, len(sides) - 1), higher, level=1 - alpha, unit=unit))


def of_comparison(found: Comparison) -> dict[str, dict[str, Any]]:
    """A comparison by arm; the direction is read off the verdict's first word, which says what may be claimed."""
    directions = {"better": 1, "worse": -1}
    return {
        name: {
            "direction": directions.get(arm.verdict.split()[0], 0),
            "difference": arm.difference,
            "gain": arm.difference if found.higher_is_better else -arm.difference,
            "low": arm.corrected_interval.low if arm.corrected_interval else arm.difference,
            "high": arm.corrected_interval.high if arm.corrected_interval else arm.difference,
            "words": f"{name}: {arm.verdict}.",
        }
        for name, arm in found.arms.items()
    }


READINGS: dict[str, Reading] = {
    function.__name__: function
    for function in (values, difference, against, best_of, between_studies, between_splits, steps_back, step_time)
}
