"""The CSV files and the text report of experiment 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence.experiments.epar.tables.writing import paragraph, said, section, table, write_csv, write_report

Record = dict[str, Any]


def write(record: Record, folder: Path) -> None:
    for number in record["results"]["sweeps"]:
        write_csv(folder / f"{number}_parameter_data.csv", rows(record, number))
    parts = [sweep(record, number) for number in record["results"]["sweeps"]]
    parts += [elasticities(record), best(record), trained(record)]
    write_report(folder / "parameter_sensitivity_report.txt", record, "Experiment 3: parameter sensitivity", parts)


def rows(record: Record, number: str) -> list[dict[str, Any]]:
    """One row for each value of the number, kind of weights, form and head."""
    found, seeds = record["results"]["sweeps"][number], record["spec"]["seeds"]
    return [
        {number: value, "weights": weights, "form": form, "seed": seed}
        | {measure: values[place][head] for measure, values in measured.items()}
        for weights in ("random", "trained")
        for form, measured in found[weights].items()
        for place, value in enumerate(found["at"])
        for head, seed in enumerate(seeds)
    ]


def sweep(record: Record, number: str) -> str:
    found = record["results"]["sweeps"][number]
    lines = []
    for form, measured in found["trained"].items():
        lines.append([f"{form}, {number}", *measured])
        for place, value in enumerate(found["at"]):
            lines.append([f"{value:g}", *(said(values[place]) for values in measured.values())])
    return section(f"Trained heads over {number}, weights kept", table(lines))


def elasticities(record: Record) -> str:
    found = record["results"]["elasticities"]
    lines = [["% for + 1 % of", *found["by"]]]
    for number in next(iter(found["by"].values())):
        lines.append([number, *(said(by_number[number]) for by_number in found["by"].values())])
    apart = f"Autograd and central differences agree to {found['autograd_against_differences']:.1e}."
    return section("Sensitivity at the source's numbers, trained enhanced heads", table(lines), apart)


def best(record: Record) -> str:
    found = record["results"]["best"]
    lines = [["head", "alpha", "beta", "gamma", "error", "on a bound"]]
    ways = [*found["by_gradient"], found["by_grid_of_the_first"]]
    names = [f"seed {seed}, gradient" for seed in record["spec"]["seeds"]]
    for name, way in zip([*names, f"{names[0].removesuffix('gradient')}grid"], ways, strict=True):
        numbers = (f"{way[key]:.4g}" for key in ("alpha", "beta", "gamma", "error"))
        lines.append([name, *numbers, ", ".join(way["at_bounds"]) or "none"])
    agree = found["two_ways_agree"]
    verdict = f"Two ways agree: {agree['holds']} (difference of the least error {agree['violation']:.1e} of its range)."
    about = (
        "Best for one objective, the task's error of a head that keeps its weights; no theorem promises these numbers."
    )
    return section("Best numbers", table(lines), verdict, paragraph(about))


def trained(record: Record) -> str:
    lines = [["trained with", "error of the last ten steps"]]
    lines += [[form, said(values, 4)] for form, values in record["results"]["trained_errors"].items()]
    learned = [["learned number", "value"]]
    for name in ("alpha", "beta", "gamma"):
        learned.append([name, said([one[name] for one in record["results"]["learned"]])])
    return section("Training with each form, and with numbers that learn", table(lines), "", table(learned))
