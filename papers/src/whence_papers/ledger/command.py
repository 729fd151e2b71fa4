"""``whence claims``"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whence.errors import usage_error
from whence_papers import FOLDER

if TYPE_CHECKING:
    from rich.console import Console

    from whence_papers.ledger import Places, Source


SIGNS = {"reproduced": "✓", "not reproduced": "✗", "arithmetic wrong": "≠", "not testable here": "–", "open": "○"}
STYLES = {"reproduced": "green", "not reproduced": "red", "arithmetic wrong": "bold red", "not testable here": "dim"}
WIDE = 120  # columns from which the claim, what is said and what is found have one each


def claims(
    source: Annotated[list[str] | None, typer.Option(help="a source by name or number; again for more")] = None,
    verdict: Annotated[list[str] | None, typer.Option(help="one of the five verdicts; again for more")] = None,
    id_: Annotated[list[str] | None, typer.Option("--id", help="a claim with all details; again for more")] = None,
    page: Annotated[Path | None, typer.Option(help="write one HTML page of these claims to this file")] = None,
    update: Annotated[bool, typer.Option("--update", help="compute the records of these claims anew first")] = False,
    folder: Annotated[Path, typer.Option(help="Folder of the ledger.")] = FOLDER / "claims",
    results: Annotated[Path, typer.Option(help="Folder with the records of the studies.")] = FOLDER / "results",
) -> None:
    """What the sources claim, what is found here, and the verdict, computed from the records each time.

    Examples:

    whence claims

    whence claims --source epar --verdict "arithmetic wrong"

    whence claims --id epar-retention-ratio

    whence claims --page build/claims.html

    whence claims --update
    """
    from whence_papers.ledger import Places, findings, load
    from whence_papers.ledger.evidence import KNOWN
    from whence_papers.ledger.provenance import add_provenance

    sources = load(folder, KNOWN)
    asked = chosen(sources, source or [], id_ or [])
    places = Places(folder, results)
    wanted = verdicts(verdict or [])
    if update:
        renew(asked, places)
    found = findings(asked, places)
    for one in found["sources"]:
        one["claims"] = [claim for claim in one["claims"] if claim["verdict"] in wanted]
    found["sources"] = [one for one in found["sources"] if one["claims"]]
    rows = [claim for one in found["sources"] for claim in one["claims"]]
    found["counts"] = {name: sum(row["verdict"] == name for row in rows) for name in SIGNS}
    if page is not None or id_:
        add_provenance(rows)
    if page is not None:
        print(f"page: {write_page(found, page)}")
        return
    if id_:
        for row in rows:
            print(details(row))
    elif sys.stdout.isatty():
        table(found)
    else:
        for row in rows:
            print("\t".join((row["id"], row["verdict"], row["claim"], said(row), row["because"])))
    print(summary(found["counts"]), file=sys.stdout if sys.stdout.isatty() else sys.stderr)


def judged(folder: Path, results: Path) -> dict[str, Any]:
    """Every claim of a ledger with its verdict from the records in a folder."""
    from whence_papers.ledger import Places, findings, load
    from whence_papers.ledger.evidence import KNOWN

    return findings(load(folder, KNOWN), Places(folder, results))


def chosen(sources: list[Source], names: list[str], ids: list[str]) -> list[Source]:
    """The sources and claims that were asked for; all where nothing was."""
    from dataclasses import replace

    known = {name: one for one in sources for name in (one.name, one.number)}
    for name in names:
        if name not in known:
            rule = f"the sources are {', '.join(f'{one.name} ({one.number})' for one in sources)}"
            raise usage_error("whence claims --source", repr(name), rule, "name one of them")
    all_ids = {claim.id for one in sources for claim in one.claims}
    for name in ids:
        if name not in all_ids:
            raise usage_error(
                "whence claims --id", repr(name), f"there is no such claim{_near(name, all_ids)}", "name one"
            )
    kept = [one for one in sources if not names or one in [known[name] for name in names]]
    if ids:
        kept = [replace(one, claims=tuple(c for c in one.claims if c.id in ids)) for one in kept]
    return [one for one in kept if one.claims]


def _near(name: str, ids: set[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, sorted(ids), n=3)
    return f" (is it {' or '.join(close)}?)" if close else ""


def verdicts(names: list[str]) -> tuple[str, ...]:
    """The verdicts by name, with hyphens or spaces; all where none is asked for."""
    plain = [name.replace("-", " ").lower() for name in names]
    for name in plain:
        if name not in SIGNS:
            raise usage_error(
                "whence claims --verdict", repr(name), f"a verdict is one of {', '.join(SIGNS)}", "name one"
            )
    return tuple(plain) or tuple(SIGNS)


def renew(sources: list[Source], places: Places) -> None:
    """Compute records anew, with a line for each."""
    from whence.cli.progress import show_progress
    from whence_papers.ledger import update

    claims = [claim for one in sources for claim in one.claims]
    total = sum(claim.way == "compute" for claim in claims)
    unchanged = 0
    with show_progress() as progress:
        for number, (claim, outcome) in enumerate(update(claims, places), start=1):
            unchanged += outcome == "unchanged"
            progress.finish(number, total, f"{claim.id}: {outcome}")
    print(f"{unchanged} of {total} records are as they were", file=sys.stderr)


def said(row: dict[str, Any], most: int = 3) -> str:
    """What the source says, check by check; the details have all of them."""
    told = [check["says"] for check in row["checks"]]
    return "; ".join(told[:most]) + (f"; and {len(told) - most} more" if len(told) > most else "")


def table(found: dict[str, Any], console: Console | None = None) -> None:
    """A table a source on a terminal; a narrow one has the claim, what is said and what is found below one another."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    wide = console.width >= WIDE
    for source in found["sources"]:
        shown = Table(
            box=SIMPLE_HEAD, title=f"{source['number']}  {source['title']}", title_justify="left", expand=True
        )
        shown.add_column("verdict", width=18 if wide else 12)
        shown.add_column("claim", ratio=5)
        if wide:
            shown.add_column("the source says", ratio=2)
            shown.add_column("found here", ratio=4)
        for row in source["claims"]:
            mark = Text(f"{SIGNS[row['verdict']]} {row['verdict']}", style=STYLES.get(row["verdict"], ""))
            claim = Text.assemble(row["claim"], "\n", (row["id"], "dim"))
            if wide:
                shown.add_row(mark, claim, said(row), row["because"])
            else:
                shown.add_row(mark, Text.assemble(claim, "\n", row["because"]))
            shown.add_section()
        console.print(shown)


def details(row: dict[str, Any]) -> str:
    """All about one claim, as text."""
    lines = [f"{row['id']}: {SIGNS[row['verdict']]} {row['verdict']}", *_told("", row["claim"])]
    lines += _told("where", row["where"]) + _told("how", row["how"]) + _told("because", row["because"])
    for check in row["checks"]:
        mark = {True: "agrees", False: "does not agree", None: "not found yet"}[check["agrees"]]
        note = f" ({check['note']})" if check["note"] else ""
        found = f"; found {check['found']}" if check["found"] else ""
        lines += _told("check", f"{check['says']}{found}: {mark}{note}")
    figures = [f"{name} {_plain(value)}" for name, value in row["found"].items() if name != "words"]
    if figures:
        lines += _told("figures", ", ".join(figures))
    if row["given"]:
        lines += _told("given", ", ".join(f"{name} = {value}" for name, value in row["given"].items()))
    if row["record"]:
        lines += _told("record", row["record"])
    if row.get("sources"):
        lines += _told("sources", row["sources"])
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)


def _told(name: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, 100) or [""]
    return [f"  {name if place == 0 else '':9}{line}" for place, line in enumerate(wrapped)]


def summary(counts: dict[str, int]) -> str:
    total = sum(counts.values())
    return f"{total} claim{'s' if total != 1 else ''}: " + ", ".join(
        f"{number} {name}" for name, number in counts.items() if number
    )


def write_page(found: dict[str, Any], path: Path) -> Path:
    """The page, written whole."""
    import time

    from whence import records
    from whence_papers.ledger.page import page

    about = {
        "command": records.rerun_command() or "whence claims", "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "environment": records.describe_environment(("torch", "scipy"), sources=[__name__]),
    }  # fmt: skip
    text = page(found | about)
    records.write_text(path, text)
    return path
