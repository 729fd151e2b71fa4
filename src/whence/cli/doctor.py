"""``whence doctor``: what this machine can run, and how fast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whence.cli.json_output import JsonOption, json_document

if TYPE_CHECKING:
    from rich.console import Console

HELP = "Show what this machine can run, what is missing and how to get it, and how fast attention is here."

EXAMPLES = """Examples:

whence doctor

whence doctor --no-speed

whence doctor --json

The exit code is 0 unless something is broken. A missing extra, data set or GPU is not broken."""

#: a label, a text, and what to do about it
Row = tuple[str, str, str | None]


def doctor(
    ctx: typer.Context,
    speed: Annotated[bool, typer.Option(help="Measure the speed of attention, for about three seconds.")] = True,
    as_json: JsonOption = False,
) -> None:
    from rich.console import Console

    from whence.cli.doctor_facts import collect_facts
    from whence.cli.doctor_speed import measure_speed

    results = ctx.with_resource(json_document("doctor", as_json))
    facts = collect_facts()
    facts["speed"] = None
    if speed and facts["attention_works"]:
        with Console(stderr=True).status("Measuring the speed of attention."):
            facts["speed"] = measure_speed(facts["device"]["type"])
    results.update(facts)
    if not as_json:
        print_facts(facts)
    if facts["problems"]:
        raise typer.Exit(1)


def print_facts(facts: dict[str, Any]) -> None:
    """Print the sections: on a terminal wrapped to its width, elsewhere one line for each fact, which can be searched."""
    from rich.console import Console

    console = Console(highlight=False)
    for title, rows in describe_facts(facts):
        if console.is_terminal:
            print_section(console, title, rows)
        else:
            print(title)
            for label, text, remedy in rows:
                print(f"  {label}: {text}" + (f"; {remedy}" if remedy else ""))
    problems = facts["problems"]
    if problems:
        console.print(f"{len(problems)} broken:", style="bold red", markup=False)
        for problem in problems:
            console.print(f"- {problem}", markup=False, soft_wrap=not console.is_terminal)
    else:
        console.print("Nothing is broken.", style="bold green", markup=False)


def print_section(console: Console, title: str, rows: list[Row]) -> None:
    """A heading, then a label and a text in each row, with the remedy on a line of its own, ready to copy."""
    from rich.table import Table
    from rich.text import Text

    console.print(title, style="bold", markup=False)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="cyan")
    grid.add_column(overflow="fold")
    for label, text, remedy in rows:
        content = Text(text)
        if remedy:
            content.append(f"\n{remedy}", style="yellow")
        grid.add_row(label, content)
    console.print(grid)
    console.print()


def describe_facts(facts: dict[str, Any]) -> Iterator[tuple[str, list[Row]]]:
    """The title and the rows of each section."""
    versions, machine, device, here = facts["versions"], facts["machine"], facts["device"], facts["here"]
    cores, threads = count(machine["cores"], "core"), count(machine["threads"], "thread")
    yield (
        "This machine",
        [
            ("whence", f"{versions['whence']}, with Python {versions['python']} and torch {versions['torch']}", None),
            ("processor", f"{cores}; torch uses {threads}", None),
            ("memory", f"{machine['memory_gib']:.0f} GiB, {machine['free_memory_gib']:.0f} GiB free", None),
            ("GPU", device["text"], None),
            ("this folder", here["text"], None if here["writable"] else "pass --out to commands that write files"),
        ],
    )
    rows: list[Row] = [(one["backend"], f"for {one['call']} ({one['why']})", None) for one in facts["kernels"]]
    if facts["why_not_fused"] is not None:
        rows.append(("triton", f"not used: {facts['why_not_fused']}", None))
    yield "Which code computes attention", rows
    if facts["speed"] is not None:
        yield f"Speed of attention, {facts['speed']['setting']}", describe_speed(facts["speed"])
    yield "Extras, and what they are for", [describe_extra(one) for one in facts["extras"]]
    data, weights = facts["data"], facts["weights"]
    yield "Data sets", [("folder", data["text"], None), *(describe_found(one) for one in data["sets"])]
    yield "Pretrained models", [("folder", weights["text"], None), *(describe_found(one) for one in weights["models"])]


def describe_extra(extra: dict[str, Any]) -> Row:
    if extra["state"] == "installed":
        return extra["name"], f"installed: {extra['purpose']}", None
    packages = ", ".join(extra["missing"] + extra["outdated"])
    reason = f" ({packages})" if packages else " (no installed whence declares this extra)"
    return extra["name"], f"{extra['state']}: {extra['purpose']}{reason}", f"run: {extra['install']}"


def describe_found(one: dict[str, Any]) -> Row:
    state = "found" if one["found"] else "missing"
    absent = one.get("missing_parts", [])  # of a data set
    if absent:
        present = "training" if "development" in absent else "development"
        state = f"found ({present} part; the {absent[0]} part is missing)"
    return one["name"], f"{state}: {one['purpose']}", one["remedy"] if absent or not one["found"] else None


def describe_speed(speed: dict[str, Any]) -> list[Row]:
    times = [f"{row['milliseconds']:.2f} ms" for row in speed["rows"]]
    ratios = ["" if row["ratio"] is None else f", {row['ratio']:.2f} times SDPA" for row in speed["rows"]]
    return [(row["name"], own + ratio, None) for row, own, ratio in zip(speed["rows"], times, ratios, strict=True)]


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "core"), count(2, "core")
    ('1 core', '2 cores')
    """
    return f"{number} {noun}" + ("" if number == 1 else "s")
