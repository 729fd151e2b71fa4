"""The tables of the simulation record, and whether every requirement is met."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from comparison_data import ALPHA, UNEQUAL_LIMIT, Row


def find_limit(row: Row, draws: int) -> float:
    """The largest share of false claims that meets the requirement: the level and two standard errors.

    The simulated critical value has an error too, as large as that of ``draws`` data sets.
    """
    level = ALPHA if row.get("spread", "alike") == "alike" else UNEQUAL_LIMIT
    return level + 2 * (level * (1 - level) * (1 / row["repetitions"] + 1 / draws)) ** 0.5


def rate(row: Row) -> float:
    return row["events"] / row["repetitions"]


def select_kind(rows: list[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["kind"] == kind]


def show_errors(errors: list[Row], draws: int) -> bool:
    """Print a table of family-wise errors; whether every requirement is met."""
    fine = True
    columns = {
        "normal": lambda r: not r["failed"] and r.get("tails") == "normal",
        "t(3)": lambda r: not r["failed"] and r.get("tails") == "t3",
        "failed": lambda r: r["failed"] and r.get("tails") == "normal",
        "failed t(3)": lambda r: r["failed"] and r.get("tails") == "t3",
        "unequal": lambda r: r.get("spread") and not r["proportional"],
        "proportional": lambda r: r.get("spread") and r["proportional"],
    }
    print(f"{'family':10}{'arms':>5}{'seeds':>6}" + "".join(f"{name:>14}" for name in columns))
    for family, arms, seeds in sorted({(r["family"], r["arms"], r["seeds"]) for r in errors}):
        own = [r for r in errors if (r["family"], r["arms"], r["seeds"]) == (family, arms, seeds)]
        text = f"{family:10}{arms:>5}{seeds:>6}"
        for test in columns.values():
            worst = max((row for row in own if test(row)), key=rate, default=None)
            mark = "!" if worst and rate(worst) > find_limit(worst, draws) else ""
            fine &= not mark
            text += (f"{mark}{rate(worst):.4f}" if worst else "-").rjust(14)
        print(text)
    return fine


def show(record: Row) -> bool:
    """Print the tables; whether every requirement is met."""
    rows, draws = record["rows"], record["draws"]
    print(f"family-wise error at 0.05, {record['repetitions']} repetitions: worst over the scenarios of a column")
    fine = show_errors(select_kind(rows, "error"), draws)
    print("\nthe same with more seeds than a reference distribution simulates")
    fine &= show_errors(select_kind(rows, "many seeds"), draws)
    print("\npower: one arm differs by d total standard deviations; half of the variance is shared")
    power = [row for row in rows if row["kind"] == "power"]
    found = {(r["family"], r["arms"], r["seeds"], r["d"], r["shared"]): rate(r) for r in power}
    many = sorted({r["seeds"] for r in power})
    print(f"{'family':10}{'arms':>5}{'d':>5}" + "".join(f"{n:>7} s" for n in many))
    for family, arms, d in sorted({(r["family"], r["arms"], r["d"]) for r in power}):
        print(f"{family:10}{arms:>5}{d:>5g}" + "".join(f"{found[family, arms, n, d, 0.5]:>9.3f}" for n in many))
    if (("baseline", 8, 5, 2.0, 0.5)) in found:
        fine &= found["baseline", 8, 5, 2.0, 0.5] >= 0.8 and found["baseline", 8, 3, 10.0, 0.5] >= 0.95
    names = ("tails", "spread", "proportional", "shared", "d", "worse")
    print("\ncandidates, 8 arms")
    table: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    for row in (row for row in rows if row["kind"] == "candidate"):
        label = " ".join(f"{name}={row[name]}" for name in names if name in row)
        table[row["family"], row["seeds"], label][row["candidate"]] = rate(row)
    order = list(dict.fromkeys(name for cells in table.values() for name in cells))
    print("\n".join(f"  {letter}: {name}" for letter, name in zip("ABCDEFGH", order, strict=False)))
    print(
        f"{'family':10}{'seeds':>6}  {'scenario':45}" + "".join(f"{letter:>7}" for letter in "ABCDEFGH"[: len(order)])
    )
    for (family, seeds, label), cells in sorted(table.items()):
        print(f"{family:10}{seeds:>6}  {label:45}" + "".join(f"{cells[name]:7.3f}" for name in order))
    print(
        f"\nlooks after {tuple(record['looks'])} seeds, decided arms dropped: error of false claims, share of runs trained, claims by look"
    )
    for row in (row for row in rows if row["kind"] == "looks"):
        label = " ".join(f"{name}={row[name]}" for name in names if name in row) or "alike"
        limit = "" if rate(row) <= find_limit(row, draws) else "!"
        fine &= not limit
        claims = [f"{count / row['repetitions']:.3f}" for count in row.get("claims_by_look", [])]
        print(
            f"{row['family']:10}{row['arms']:>5}  {label:45}{limit}{rate(row):.4f}  {row['runs_used']:.3f}  {' '.join(claims)}"
        )
    print("\ncompare_paired over the same looks, all arms with all seeds: error of false claims")
    for row in (row for row in rows if row["kind"] == "comparison"):
        label = f"half of the arms differ by the margin {row['margin']:g}" if "margin" in row else "no differences"
        limit = "" if rate(row) <= find_limit(row, draws) else "!"
        fine &= not limit
        print(f"{row['family']:10}{row['arms']:>5}  {label:45}{limit}{rate(row):.4f}")
    print(
        "\nequivalence within a margin: false claims where half of the arms differ by the margin; claims where none differs"
    )
    for row in (row for row in rows if row["kind"].startswith("equivalence")):
        label = " ".join(f"{name}={row[name]}" for name in (*names, "margin") if name in row)
        limit = "!" if row["kind"] == "equivalence error" and rate(row) > find_limit(row, draws) else ""
        fine &= not limit
        print(f"{row['kind']:18} {row['family']:10}{row['arms']:>5}{row['seeds']:>6}  {label:25}{limit}{rate(row):.4f}")
    print(
        "\nperplexities by differences (value) and by ratios (log): false claims, and claims of a difference of 2 sigma"
    )
    for row in (row for row in rows if row["kind"].startswith("scale")):
        label = " ".join(f"{name}={row[name]}" for name in ("scale", "sigma", *names) if name in row)
        limit = "!" if row["kind"] == "scale error" and rate(row) > find_limit(row, draws) else ""
        fine &= not limit
        print(f"{row['kind']:18} {row['family']:10}{row['arms']:>5}{row['seeds']:>6}  {label:45}{limit}{rate(row):.4f}")
    print("\nfurther seeds: share decided after the number named, as the truth is and if the estimate were true")
    for row in (row for row in rows if row["kind"] == "further"):
        shares = [row[name] / max(row["continued"], 1) for name in ("decided", "decided_as_estimated")]
        followed = row["continued"] / max(row["undecided"], 1)
        print(
            f"{row['family']:10}{row['arms']:>5}{row['seeds']:>6} d={row['d']:g}  undecided {row['undecided']}, median {row['median']:g}, "
            f"continued {followed:.2f}: {shares[0]:.3f} {shares[1]:.3f}"
        )
    print("\nevery requirement is met" if fine else "\na requirement is not met (marked !)")
    return fine
