"""Tables and the figure of the simulated error rates and power, from benchmarks/records/statistics.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]

#: columns of the error table: heading, and which scenarios count
ERRORS: dict[str, Callable[[Row], bool]] = {
    "normal": lambda row: not row["failed"] and row.get("tails") == "normal",
    "t(3)": lambda row: not row["failed"] and row.get("tails") == "t3",
    "15 % failed runs": lambda row: row["failed"] and row.get("tails") == "normal",
    "t(3), 15 % failed": lambda row: row["failed"] and row.get("tails") == "t3",
    "unequal spread": lambda row: bool(row.get("spread")),
}
#: rows of the candidates' table: heading, and the scenario
CANDIDATE_CELLS: dict[str, Row] = {
    "error, alike": {"shared": 0.5},
    "error, t(3)": {"tails": "t3", "shared": 0.5},
    "error, one wide arm": {"spread": "one"},
    "error, wide baseline": {"spread": "baseline"},
    "error, half wide, all that varies": {"spread": "half", "proportional": True, "shared": 0.9},
    "power, d = 2": {"d": 2.0, "shared": 0.5},
    "power, d = 10": {"d": 10.0, "shared": 0.5},
}
#: rows of the table of limits: heading, kind of the rows, and whether spreads differ
LIMITS: dict[str, tuple[str, bool]] = {
    "one look": ("error", False),
    "one look, unequal spread": ("error", True),
    "one look, more than 64 seeds": ("many seeds", False),
    "one look, more than 64 seeds, unequal spread": ("many seeds", True),
    "rounds of seeds": ("looks", False),
    "rounds of seeds, unequal spread": ("looks", True),
    "rounds of seeds, whole comparison": ("comparison", False),
    "perplexities": ("scale error", False),
    "perplexities, one arm diverges": ("scale error", True),
    "equivalence": ("equivalence error", False),
    "equivalence, unequal spread": ("equivalence error", True),
}
UNEQUAL_LIMIT = 0.075
CONFIDENCE = 0.95  # that the largest of rates whose true value is the limit lies below the bound
SCENARIO = ("tails", "spread", "proportional", "shared", "d", "worse")


def rate(row: Row) -> float:
    return float(row["events"] / row["repetitions"])


def select(record: Row, kind: str, **terms: Any) -> list[Row]:
    """The rows of a kind with these terms."""
    return [
        row for row in record["rows"] if row["kind"] == kind and all(row.get(name) == v for name, v in terms.items())
    ]


def error_rows(record: Row, kind: str = "error") -> Table:
    """Family-wise error: the worst scenario of each column."""
    cells = sorted({(row["family"], row["arms"], row["seeds"]) for row in select(record, kind)})
    rows = []
    for family, arms, seeds in cells:
        own = select(record, kind, family=family, arms=arms, seeds=seeds)
        worst = [f"{max(rate(row) for row in own if chosen(row)):.3f}" for chosen in ERRORS.values()]
        rows.append([family, str(arms), str(seeds), *worst])
    return ["family", "arms", "seeds", *ERRORS], rows


def many_seeds_rows(record: Row) -> Table:
    """Family-wise error with more seeds than a reference distribution simulates."""
    return error_rows(record, "many seeds")


def standard_error(level: float, repetitions: int, draws: int) -> float:
    """The simulation error of one rate at its level: that of its data sets, and that of the simulated critical value.

    >>> round(standard_error(0.05, 5000, 10_000), 4)
    0.0038
    """
    return float((level * (1 - level) * (1 / repetitions + 1 / draws)) ** 0.5)


def bound_maximum(level: float, error: float, count: int) -> float:
    """A bound on the largest of ``count`` rates whose true value is the level, with a probability of ``CONFIDENCE``.

    The rates count as independent. Those of one size share a critical value, so their maximum is smaller if anything.

    >>> round(bound_maximum(0.05, 0.0038, 1), 4), round(bound_maximum(0.05, 0.0038, 288), 4)
    (0.0563, 0.0636)
    """
    return level + error * NormalDist().inv_cdf(CONFIDENCE ** (1 / count))


def limit_rows(record: Row) -> Table:
    """The largest simulated error rate beside its limit and the simulation error."""
    rows = []
    for heading, (kind, unequal) in LIMITS.items():
        own = [row for row in select(record, kind) if bool(row.get("spread")) == unequal]
        level = UNEQUAL_LIMIT if unequal else record["alpha"]
        error = max(standard_error(level, row["repetitions"], record["draws"]) for row in own)
        largest, bound = max(map(rate, own)), bound_maximum(level, error, len(own))
        if largest <= level:
            reading = f"below {level:g}"
        elif largest <= bound:
            reading = f"within {level:g} plus simulation error of the maximum over {len(own)} rates"
        else:
            reading = f"above {level:g}, and not by simulation error"
        numbers = [
            f"{level:g}",
            str(len(own)),
            f"{largest:.3f}",
            f"{error:.4f}",
            f"{level + 2 * error:.4f}",
            f"{bound:.4f}",
        ]
        rows.append([heading, *numbers, reading])
    head = ["false claims", "limit", "rates", "largest", "standard error of one rate", "limit plus two standard errors"]
    return [*head, "bound on the largest", "reading"], rows


def candidate_rows(record: Row) -> Table:
    """Error and power of the tests that were considered: 8 arms, 7 of them compared with a baseline, 5 seeds."""
    found = select(record, "candidate", family="baseline", seeds=5)
    names = list(dict.fromkeys(row["candidate"] for row in found))
    names.sort(key=lambda name: "least favorable" not in name)
    rows = []
    for name in names:
        own = {
            tuple(sorted((key, row[key]) for key in SCENARIO if key in row)): rate(row)
            for row in found
            if row["candidate"] == name
        }
        rows.append([name, *(f"{own[tuple(sorted(scenario.items()))]:.3f}" for scenario in CANDIDATE_CELLS.values())])
    return ["test", *CANDIDATE_CELLS], rows


def power_rows(record: Row) -> Table:
    """Power over seeds; half of the variance is shared."""
    seeds = sorted({row["seeds"] for row in select(record, "power")})
    rows = []
    for family, arms in sorted({(row["family"], row["arms"]) for row in select(record, "power")}):
        for d in (1.0, 2.0, 3.0):
            own = {
                row["seeds"]: rate(row) for row in select(record, "power", family=family, arms=arms, d=d, shared=0.5)
            }
            rows.append([family, str(arms), f"{d:g}", *(f"{own[n]:.2f}" for n in seeds)])
    return ["family", "arms", "d", *(f"{n} seeds" for n in seeds)], rows


def look_rows(record: Row) -> Table:
    """Errors over all looks, with decided arms dropped, and the share of runs that were trained."""
    rows = []
    for row in select(record, "looks"):
        spread = {"half": "half of the arms wide", "baseline": "baseline wide"}.get(row.get("spread", ""), "")
        terms = [
            f"{row['worse']} arm{'s' if row['worse'] > 1 else ''} worse by d = {row['d']:g}"
            if row.get("worse")
            else "",
            "t(3)" if row.get("tails") == "t3" else "",
            spread + (", all that varies" if row.get("proportional") else ""),
        ]
        claims = [f"{count / row['repetitions']:.2f}" for count in row.get("claims_by_look", ())]
        scenario = ", ".join(term for term in terms if term) or "no differences"
        rows.append(
            [
                row["family"],
                str(row["arms"]),
                scenario,
                f"{rate(row):.3f}",
                f"{100 * row['runs_used']:.0f} %",
                " / ".join(claims),
            ]
        )
    looks = " / ".join(map(str, record["looks"]))
    return ["family", "arms", "scenario", "error", "runs trained", f"decided at look {looks}"], rows


def comparison_rows(record: Row) -> Table:
    """False claims of the whole comparison over all looks, without and with a margin."""
    rows = []
    for family, arms in sorted({(row["family"], row["arms"]) for row in select(record, "comparison")}):
        plain, margin = (
            next(row for row in select(record, "comparison", family=family, arms=arms) if ("margin" in row) == wanted)
            for wanted in (False, True)
        )
        cells = [f"{rate(plain):.4f}", f"{rate(margin):.4f}", str(plain["repetitions"])]
        rows.append([family, str(arms), *cells])
    head = ["family", "arms", "error, no differences", "error, half of the arms differ by the margin"]
    return [*head, "data sets per rate"], rows


def equivalence_rows(record: Row) -> Table:
    """False claims with a margin, worst over the scenarios, and the probability to claim equivalence of equal arms."""
    rows = []
    for family, arms, seeds in sorted(
        {(r["family"], r["arms"], r["seeds"]) for r in select(record, "equivalence error")}
    ):
        cell = {"family": family, "arms": arms, "seeds": seeds}
        alike, unequal = (
            max(rate(row) for row in select(record, "equivalence error", **cell) if ("spread" in row) == wide)
            for wide in (False, True)
        )
        power = {row["margin"]: rate(row) for row in select(record, "equivalence power", **cell)}
        rows.append(
            [
                family,
                str(arms),
                str(seeds),
                f"{alike:.3f}",
                f"{unequal:.3f}",
                *(f"{power[m]:.2f}" for m in (1.0, 2.0, 3.0)),
            ]
        )
    head = ["family", "arms", "seeds", "error, alike", "error, unequal spread"]
    return [*head, *(f"power, margin {margin}" for margin in (1, 2, 3))], rows


def scale_rows(record: Row) -> Table:
    """Perplexities compared by differences and by ratios: worst error over tails, and power with normal logarithms."""
    cells = sorted({(r["family"], r["arms"], r["seeds"], r["sigma"]) for r in select(record, "scale error")})
    rows = []
    for family, arms, seeds, sigma in cells:
        texts = []
        for diverges in (False, True):
            for kind, tails in (("scale error", ("normal", "t3")), ("scale power", ("normal",))):
                for scale in ("value", "log"):
                    terms = {"family": family, "arms": arms, "seeds": seeds, "sigma": sigma, "scale": scale}
                    found = [
                        rate(row)
                        for row in select(record, kind, **terms)
                        if row["tails"] in tails and ("spread" in row) == diverges
                    ]
                    texts.append(f"{max(found):.{3 if kind == 'scale error' else 2}f}")
        rows.append([family, str(arms), str(seeds), f"{sigma:g}", *texts])
    columns = [f"{kind}, {by}" for kind in ("error", "power") for by in ("differences", "ratios")]
    return ["family", "arms", "seeds", "sigma", *columns, *(f"{name}, one diverges" for name in columns)], rows


def further_rows(record: Row) -> Table:
    """Undecided comparisons that are continued with the number of further seeds that the report names."""
    rows = []
    for row in select(record, "further"):
        shares = [row[name] / row["continued"] for name in ("decided_as_estimated", "decided")]
        rows.append(
            [row["family"], str(row["seeds"]), f"{row['d']:g}", f"{row['undecided'] / row['repetitions']:.2f}", f"{row['median']:.0f}",
             f"{row['continued'] / row['undecided']:.2f}", *(f"{share:.2f}" for share in shares)]
        )  # fmt: skip
    head = ["family", "seeds", "true d", "undecided", "further seeds (median)", "at most 40"]
    return [*head, "decided, if the estimate is true", "decided, as the truth is"], rows


def draw(record: Row, out: Path) -> None:
    """Power over seeds, for differences and for shares of the variance."""
    from matplotlib.figure import Figure

    from whence.report.image_files import write_png

    figure = Figure(figsize=(9, 3.6), dpi=160, facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    lines: list[tuple[Any, str, Row]] = [(left, f"d = {d:g}", {"d": d, "shared": 0.5}) for d in (3.0, 2.0, 1.0)]
    lines += [(right, f"{100 * shared:.0f} % shared", {"d": 2.0, "shared": shared}) for shared in (0.9, 0.5, 0.0)]
    for number, (axes, label, terms) in enumerate(lines):
        for family, dashes in (("baseline", "-"), ("pairs", "--")):
            own = sorted((row["seeds"], rate(row)) for row in select(record, "power", family=family, arms=8, **terms))
            color = ("#08519c", "#b35806", "#4d4d4d")[number % 3]
            name = label if family == "baseline" else None
            axes.plot(*zip(*own, strict=True), dashes, color=color, marker="o^s"[number % 3], markersize=4, label=name)
    for axes, title in ((left, "half of the variance is shared"), (right, "a difference of d = 2")):
        axes.axhline(0.8, color="0.6", linewidth=0.8, zorder=0)
        axes.set_title(f"8 arms, {title}", fontsize=10)
        axes.set_xlabel("seeds")
        axes.set_ylim(0, 1.02)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="lower right")
    left.set_ylabel("probability to claim the difference")
    write_png(figure, out)
