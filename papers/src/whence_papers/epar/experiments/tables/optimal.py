"""The text report and the CSV of experiment 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence.statistics import compare
from whence_papers.epar.experiments.cells import by_head, patterns, runs_of
from whence_papers.epar.experiments.source import CONSISTENCY, CONSISTENCY_OF_ALL, RANKING
from whence_papers.epar.experiments.tables.writing import paragraph, said, section, table, write_csv, write_report

Record = dict[str, Any]
WEIGHTS, FORMS = ("random", "places", "trained"), ("none", "basic", "enhanced")


def write(record: Record, folder: Path) -> None:
    write_csv(folder / "verification_data.csv", rows(record))
    parts = [definitions(record), prediction(record), values(record), differences(record)]
    parts += [claimed_gains(record), against_source(record)]
    write_report(folder / "verification_report.txt", record, "Experiment 2: the position of maximum benefit", parts)


def rows(record: Record) -> list[dict[str, Any]]:
    """Every run of every head, one row each."""
    found, spec = [], record["spec"]
    for weights in WEIGHTS:
        for form in FORMS:
            for pattern in patterns(record):
                cell = record["results"]["values"][weights][form][pattern]
                for number, seed in enumerate(spec["seeds"]):
                    for run in range(len(cell["ranking"][number])):
                        about = {"weights": weights, "form": form, "pattern": pattern, "seed": seed, "run": run}
                        found.append(about | {measure: cell[measure][number][run] for measure in cell})
    return found


def definitions(record: Record) -> str:
    lines = [f"{name}: {meaning}" for name, meaning in record["results"]["measures"].items()]
    lines += ["consistency (the source's two-part form): (value_part + place_part) / 2"]
    lines += [
        "random: heads as they start; places: the same, random position vectors added to the input, as the source has"
    ]
    lines += ["it; trained: heads trained on a task whose wanted attention is known. All intervals: 95 %, over heads."]
    return section("Definitions", *lines)


def prediction(record: Record) -> str:
    tried = record["results"]["prediction"]
    failed = [one for one in tried if not one["holds"]]
    count = sum(one["checked"] for one in tried)
    verdict = "in every one of them" if not failed else f"but not for {len(failed)} of {len(tried)} kinds of heads"
    text = (
        f"The source predicts argmax_i of (row mean of A) x I. Tried on {count} attention maps, this is argmax I {verdict}: "
        "a softmax row has the mean 1/L, so the prediction does not depend on the attention, and not on alpha, beta or gamma."
    )
    return section("The prediction reads no attention", paragraph(text))


def values(record: Record) -> str:
    parts = []
    for measure in ("consistency", "place_part", "guess", "ranking", "true_place", "true_ranking"):
        lines = [["pattern", *(f"{weights}, {form}" for weights in ("places", "trained") for form in FORMS)]]
        for pattern in patterns(record):
            cells = [by_head(record, w, form, pattern, measure) for w in ("places", "trained") for form in FORMS]
            lines.append([pattern, *map(said, cells)])
        parts += [f"{measure}:", table(lines), ""]
    return section("Values", *parts)


def differences(record: Record) -> str:
    """Enhanced minus basic with its interval, heads paired; no test is made of so many numbers."""
    lines = [["weights, pattern", "consistency", "ranking", "true_place", "true_ranking"]]
    for weights in WEIGHTS:
        for pattern in patterns(record):
            cells = []
            for measure in lines[0][1:]:
                basic, enhanced = (by_head(record, weights, form, pattern, measure) for form in ("basic", "enhanced"))
                cells.append(said([b - a for a, b in zip(basic, enhanced, strict=True)]))
            lines.append([f"{weights}, {pattern}", *cells])
    return section("Enhanced minus basic, heads paired", table(lines))


def claimed_gains(record: Record) -> str:
    """The source's four claims that the enhanced form is better, tested for each kind of weights."""
    claims = [("consistency", pattern) for pattern in CONSISTENCY] + [("ranking", pattern) for pattern in RANKING]
    lines = []
    for weights in WEIGHTS:
        for measure, pattern in claims:
            arms = {form: by_head(record, weights, form, pattern, measure) for form in ("basic", "enhanced")}
            verdict = compare(arms, "basic", len(claims), higher_is_better=True).arms["enhanced"].verdict
            lines.append(f"{weights} weights, {measure}, {pattern}: {verdict}")
    return section(
        f"Is enhanced better, as the source has it? Welch, m = {len(claims)} claims a kind of weights", *lines
    )


def against_source(record: Record) -> str:
    lines = [["", "the source", *(f"{weights} weights" for weights in WEIGHTS), "random guess (trained)"]]
    for name, measure, source in (("consistency", "consistency", CONSISTENCY), ("ranking", "ranking", RANKING)):
        for pattern, figures in source.items():
            for form, figure in zip(("basic", "enhanced"), figures, strict=True):
                cells = [said(by_head(record, weights, form, pattern, measure)) for weights in WEIGHTS]
                guess = said(by_head(record, "trained", form, pattern, "guess")) if measure == "consistency" else ""
                lines.append([f"{name}, {pattern}, {form}", f"{figure:g}", *cells, guess])
    below = []
    for weights in WEIGHTS:
        for form in ("basic", "enhanced"):
            for pattern in patterns(record):
                runs = [x for head in runs_of(record, weights, form, pattern, "consistency") for x in head]
                share = sum(x < CONSISTENCY_OF_ALL for x in runs) / len(runs)
                mean = sum(runs) / len(runs)
                below.append((mean, f"{weights}, {form}, {pattern}", share))
    least = min(below)
    floor = (
        f"The source: every pattern above {CONSISTENCY_OF_ALL:g}. Least mean here: {least[0]:.3f} ({least[1]}), with "
        f"{100 * least[2]:.0f} % of its runs below."
    )
    return section("Against the source's figures", table(lines), paragraph(floor))
