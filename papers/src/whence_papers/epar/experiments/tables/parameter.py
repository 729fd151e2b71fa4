"""The CSV files and the text report of experiment 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence_papers.epar.experiments.tables.writing import paragraph, said, section, table, write_csv, write_report

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
    parts = [_best_for(name, heads, record["spec"]["seeds"]) for name, heads in found.items()]
    about = (
        "Each for one objective of a head that keeps its weights: the task's error, and the distance from the attention that "
        "the head has with the numbers of the source's signature, which are known to be best. No theorem promises numbers."
    )
    return section("Best numbers", *parts, paragraph(about))


def _best_for(objective: str, heads: list[Record], seeds: list[int]) -> str:
    lines = [[objective, "alpha", "beta", "gamma", "error", "on a bound", "still falls beyond by, of its range"]]
    for seed, head in zip(seeds, heads, strict=True):
        for way in ("by_gradient", "by_grid"):
            numbers = (f"{head[way][key]:.4g}" for key in ("alpha", "beta", "gamma", "error"))
            beyond = f"{head['inside']['violation']:.2g}" if way == "by_gradient" else ""
            lines.append(
                [f"seed {seed}, {way[3:]}", *numbers, ", ".join(head[way]["at_bounds"]) or "none", beyond]
            )  # fmt: skip
    agreed = sum(head["two_ways_agree"]["holds"] for head in heads)
    apart = max(head["two_ways_agree"]["violation"] for head in heads)
    inside = sum(head["inside"]["holds"] for head in heads)
    verdict = (
        f"Two ways agree for {agreed} of {len(heads)} heads (least errors differ by {apart:.1e} of their range at most). The "
        f"optimum lies inside the bounds for {inside} of {len(heads)}."
    )
    return f"{table(lines)}\n{verdict}\n"


def trained(record: Record) -> str:
    lines = [["trained with", "error of the last ten steps"]]
    lines += [[form, said(values, 4)] for form, values in record["results"]["trained_errors"].items()]
    learned = [["learned number", "value"]]
    for name in ("alpha", "beta", "gamma"):
        learned.append([name, said([one[name] for one in record["results"]["learned"]])])
    return section("Training with each form, and with numbers that learn", table(lines), "", table(learned))
