"""The table of docs/benchmarks.md and the page beside it: a model before and after a change, from committed records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from api_tables import markdown
from whence.bench.findings import compare_benchmarks
from whence.records import RecordReader
from whence.report.bench import comparison_page
from whence.report.bench.page import COMPARISON_HEAD, comparison_rows
from whence.report.bench.sentences import ORDER, describe_rule
from whence_papers import FOLDER

RESULTS = FOLDER / "results" / "bench"
PAGE = "benchmarks-recipe.html"  # in docs/, of the first pair


def find_pairs(results: Path = RESULTS) -> list[tuple[Path, Path]]:
    """Folders of ``whence bench`` of the same weights and settings, without and with an intervention."""
    reader = RecordReader()
    plans = {
        folder: reader.read(folder / "bench.json")["plan"] for folder in reader.find_folders(results, "bench.json")
    }

    def measured(plan: dict[str, Any]) -> tuple[str, str]:
        return str(plan["identity"]["weights"]), str(plan["settings"])

    return [
        (before, after)
        for after, changed in plans.items()
        for before, plain in plans.items()
        if changed["identity"].get("intervention")
        and not plain["identity"].get("intervention")
        and not plain["identity"]["attached"]
        and measured(plain) == measured(changed)
    ]


def short_name(plan: dict[str, Any]) -> str:
    """A model with what is attached or applied; the settings of an intervention are in its record."""
    identity = plan["identity"]
    applied = identity.get("intervention")
    parts = [*(one["position"] for one in identity["attached"]), *([applied["name"]] if applied else [])]
    return " with ".join([plan["model"], " and ".join(parts)]) if parts else str(plan["model"])


def compare_pair(before: Path, after: Path) -> dict[str, Any]:
    """The comparison of a pair under short names, with the command that made it."""
    contents = [RecordReader().read(folder / "bench.json") for folder in (before, after)]
    names = [short_name(content["plan"]) for content in contents]
    return compare_benchmarks(before, after, names, command=contents[1]["command"])


def before_after(results: Path = RESULTS) -> str:
    """One table for each pair, with the command, the verdicts and how they are decided."""
    parts = []
    for before, after in find_pairs(results):
        found = compare_pair(before, after)
        verdicts = [task["verdict"] for task in found["tasks"]]
        counts = ", ".join(f"{verdicts.count(one)} {one}" for one in ORDER if one in verdicts)
        rows = [
            [f"**{cell}**" if cell in ("better", "worse") else cell for cell in row] for row in comparison_rows(found)
        ]
        parts.append(
            f"{found['names'][1]} against {found['names'][0]}: {counts}. [The page]({PAGE}) is the report that `--compare` writes.\n\n"
            f"```bash\n{found['command']}\n```\n\n{markdown(list(COMPARISON_HEAD), rows)}\n\n{describe_rule(found)}"
        )
    return "\n\n".join(parts) or "No comparison is committed yet."


def write_page(out: Path, results: Path = RESULTS) -> None:
    """Write the page of the first pair, as ``whence bench --compare`` writes it."""
    for before, after in find_pairs(results)[:1]:
        out.write_text(comparison_page(compare_pair(before, after)))
