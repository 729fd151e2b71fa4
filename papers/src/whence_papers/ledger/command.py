"""``whence claims``"""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whence.cli.json_output import JsonOption, print_json, select
from whence.errors import usage_error
from whence_papers import FOLDER
from whence_papers.ledger.claims import SIGNS
from whence_papers.ledger.formulas import plain_quote

if TYPE_CHECKING:
    from rich.console import Console

    from whence_papers.ledger import LedgerFolders, Source


STYLES = {
    "reproduced": "green", "not reproduced": "red", "undecided": "yellow", "equivalent": "cyan", "arithmetic wrong": "bold red",
    "not testable": "dim",
}  # fmt: skip
WIDE = 120  # terminal width from which the table has four columns


def claims(
    source: Annotated[list[str] | None, typer.Option(help="Source by name or number. Repeatable.")] = None,
    verdict: Annotated[
        list[str] | None, typer.Option(help="Verdict to show, such as 'not reproduced'. Repeatable.")
    ] = None,
    id_: Annotated[list[str] | None, typer.Option("--id", help="Claim to show with all details. Repeatable.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report to this file.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Recompute the records of these claims first.")] = False,
    folder: Annotated[Path, typer.Option(help="Folder of the claims.", show_default="in the package")] = FOLDER
    / "claims",
    results: Annotated[
        Path, typer.Option(help="Folder with the records of the studies.", show_default="in the package")
    ] = FOLDER / "results",
    as_json: JsonOption = False,
) -> None:
    """List the claims of the sources with verdicts computed from records.

    Examples:

    whence claims

    whence claims --source epar --verdict "arithmetic wrong"

    whence claims --id epar-retention-ratio

    whence claims --page build/claims.html

    whence claims --update
    """
    from whence.records import require_folder
    from whence_papers.ledger import LedgerFolders, load_sources
    from whence_papers.ledger.evidence import KNOWN_NAMES
    from whence_papers.ledger.page import add_provenance
    from whence_papers.ledger.verdicts import count_verdicts, judge_sources

    require_folder("whence claims --folder", folder, "claims")
    require_folder("whence claims --results", results, "records of studies")
    sources = load_sources(folder, KNOWN_NAMES)
    selected_sources = select_claims(sources, source or [], id_ or [])
    folders = LedgerFolders(folder, results)
    shown_verdicts = parse_verdicts(verdict or [])
    if update:
        update_records(selected_sources, folders)
    ledger = judge_sources(selected_sources, folders)
    for one in ledger["sources"]:
        one["claims"] = [claim for claim in one["claims"] if claim["verdict"] in shown_verdicts]
    ledger["sources"] = [one for one in ledger["sources"] if one["claims"]]
    rows = [claim for one in ledger["sources"] for claim in one["claims"]]
    ledger["counts"], ledger["identities"] = (count_verdicts(ledger["sources"], flag) for flag in (False, True))
    if page is not None or id_:
        add_provenance(rows)
    if page is not None:
        print(f"page: {write_page(ledger, page)}", file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print_json("claims", {"page": page, **select(ledger, "counts", "identities", "sources")})
    if page is not None or as_json:
        return
    if id_:
        for row in rows:
            print(format_details(row, (folder, results)))
    elif sys.stdout.isatty():
        print_table(ledger)
    else:
        for row in rows:
            print("\t".join((row["id"], row["verdict"], row["claim"], describe_checks(row), row["reason"])))
    print(format_counts(ledger["counts"], ledger["identities"]), file=sys.stdout if sys.stdout.isatty() else sys.stderr)


def judge_all(folder: Path, results: Path) -> dict[str, Any]:
    """Judge every claim of a ledger from the records in a folder."""
    from whence_papers.ledger import LedgerFolders, load_sources
    from whence_papers.ledger.evidence import KNOWN_NAMES
    from whence_papers.ledger.verdicts import judge_sources

    return judge_sources(load_sources(folder, KNOWN_NAMES), LedgerFolders(folder, results))


def select_claims(sources: list[Source], names: list[str], ids: list[str]) -> list[Source]:
    """Select sources by name or number and claims by id; without a selection, all."""
    from dataclasses import replace

    by_name = {name: one for one in sources for name in (one.name, one.number)}
    for name in names:
        if name not in by_name:
            rule = f"the sources are {', '.join(f'{one.name} ({one.number})' for one in sources)}"
            raise usage_error("whence claims --source", repr(name), rule, "name one of them")
    all_ids = {claim.id for one in sources for claim in one.claims}
    for name in ids:
        if name not in all_ids:
            raise usage_error(
                "whence claims --id",
                repr(name),
                f"there is no such claim{_suggest(name, all_ids)}",
                "run `whence claims` for all ids",
            )
    selected = [one for one in sources if not names or one in [by_name[name] for name in names]]
    if ids:
        selected = [replace(one, claims=tuple(c for c in one.claims if c.id in ids)) for one in selected]
    return [one for one in selected if one.claims]


def _suggest(name: str, ids: set[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, sorted(ids), n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def parse_verdicts(names: list[str]) -> tuple[str, ...]:
    """Parse verdict names, with hyphens or spaces; without names, all verdicts."""
    spelled = [name.replace("-", " ").lower() for name in names]
    for name in spelled:
        if name not in SIGNS:
            raise usage_error(
                "whence claims --verdict", repr(name), f"the verdicts are {', '.join(SIGNS)}", "name one of them"
            )
    return tuple(spelled) or tuple(SIGNS)


def update_records(sources: list[Source], folders: LedgerFolders) -> None:
    """Recompute records and print the outcome of each."""
    from whence.cli.progress import show_progress
    from whence_papers.ledger import evidence

    claims = [claim for one in sources for claim in one.claims]
    total = sum(claim.method == "compute" for claim in claims)
    unchanged = 0
    with show_progress() as progress:
        for number, (claim, outcome) in enumerate(evidence.update_records(claims, folders), start=1):
            unchanged += outcome == "unchanged"
            progress.finish(number, total, f"{claim.id}: {outcome}")
    print(f"{unchanged} of {total} records unchanged", file=sys.stderr)


def describe_checks(row: dict[str, Any], most: int = 3) -> str:
    """What the source says, check by check, at most ``most`` of them."""
    texts = [check["statement"] for check in row["checks"]]
    return "; ".join(texts[:most]) + (f"; and {len(texts) - most} more" if len(texts) > most else "")


def print_table(ledger: dict[str, Any], console: Console | None = None) -> None:
    """Print one table per source. On a narrow terminal, claim and result share a column."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    wide = console.width >= WIDE
    for source in ledger["sources"]:
        view = Table(box=SIMPLE_HEAD, title=f"{source['number']}  {source['title']}", title_justify="left", expand=True)
        view.add_column("verdict", width=18 if wide else 12)
        view.add_column("claim", ratio=5, overflow="fold")
        if wide:
            view.add_column("the source says", ratio=2, overflow="fold")
            view.add_column("our result", ratio=4, overflow="fold")
        for row in source["claims"]:
            mark = Text(f"{SIGNS[row['verdict']]} {row['verdict']}", style=STYLES.get(row["verdict"], ""))
            claim = Text.assemble(row["claim"], "\n", (row["id"], "dim"))
            if row["by_definition"]:
                mark.append("\nby definition", style="dim")
            if wide:
                claim.append(f"\n“{plain_quote(row['quote'])}”", style="dim italic")
                view.add_row(mark, claim, describe_checks(row), row["reason"])
            else:
                view.add_row(mark, Text.assemble(claim, "\n", row["reason"]))
            view.add_section()
        console.print(view)


def format_details(row: dict[str, Any], folders: tuple[Path, ...] = ()) -> str:
    """Format one claim with all details. Paths of records in ``folders`` begin with the folder's name."""
    lines = [f"{row['id']}: {SIGNS[row['verdict']]} {row['verdict']}", *_field("", row["claim"])]
    lines += _field("quote", f"“{plain_quote(row['quote'])}”") + _field("where", row["where"])
    if row["repository"]:
        lines += _field("rests on", row["repository"])
    lines += _field("how", row["how"]) + _field("reason", row["reason"])
    if row["by_definition"]:
        lines += _field("kind", "holds or fails by definition; no measurement could come out otherwise")
    for check in row["checks"]:
        mark = check["state"] or {True: "agrees", False: "does not agree", None: "no result yet"}[check["agrees"]]
        note = f" ({check['note']})" if check["note"] else ""
        result = f"; our result {check['result']}" if check["result"] else ""
        lines += _field("check", f"{check['statement']}{result}: {mark}{note}")
    figures = [
        f"{name} {_format_value(value)}"
        for name, value in row["figures"].items()
        if name not in ("words", "not_testable") and not isinstance(value, dict)  # measurements behind the figures
    ]
    if figures:
        lines += _field("figures", ", ".join(figures))
    if row["arguments"]:
        lines += _field("arguments", ", ".join(f"{name} = {value}" for name, value in row["arguments"].items()))
    if row["record"]:
        lines.append(f"  {'record':10}{_shorten_paths(row['record'], folders)}")  # not wrapped: paths are copied
    if row.get("sources"):
        lines += _field("sources", row["sources"])
    return "\n".join(lines) + "\n"


def _shorten_paths(text: str, folders: tuple[Path, ...]) -> str:
    for folder in folders:
        if folder.is_absolute():
            text = text.replace(f"{folder.as_posix()}/", f"{folder.name}/")
    return text


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value, value))}]"
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)


def _field(name: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, min(100, shutil.get_terminal_size((112, 24)).columns - 12)) or [""]
    return [f"  {name if place == 0 else '':10}{line}" for place, line in enumerate(wrapped)]


def format_counts(counts: dict[str, int], identities: dict[str, int]) -> str:
    """One line: the number of claims with each verdict, and apart from them those that hold or fail by definition.

    >>> format_counts({"reproduced": 2, "open": 1}, {"reproduced": 1})
    '3 claims: 2 reproduced, 1 open; 1 more by definition: 1 reproduced'
    >>> format_counts({"open": 0}, {})
    'no claims'
    """
    total, apart = sum(counts.values()), sum(identities.values())
    if not total and not apart:
        return "no claims"
    line = f"{total} claim{'s' if total != 1 else ''}: {_list_counts(counts)}" if total else ""
    if not apart:
        return line
    return f"{line}{'; ' if line else ''}{apart} {'more ' if line else ''}by definition: {_list_counts(identities)}"


def _list_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number)


def write_page(ledger: dict[str, Any], path: Path) -> Path:
    """Write the HTML report."""
    import time

    from whence import records
    from whence_papers.ledger.page import render_claims_page

    about = {
        "command": records.rerun_command() or "whence claims", "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "environment": records.describe_environment(("torch", "scipy"), sources=[__name__]),
    }  # fmt: skip
    text = render_claims_page(ledger | about)
    records.write_text(path, text)
    return path
