"""Generate the tables of papers/README.md and of the records, and the pages of docs/papers/, from ledger and records.

python tools/papers_table.py           # write the tables and pages
python tools/papers_table.py --check   # fail if they are out of date
"""

from __future__ import annotations

import argparse
import inspect
import re
import runpy
import sys
from pathlib import Path
from typing import Any

from bench_tables import short_name
from papers_pages import source_page
from record_facts import provenance_table
from task_table import task_table
from whence.bench.findings import collect_findings as collect_bench
from whence.records import find_folders
from whence.report.bench.sentences import format_score, name_metric, name_task
from whence_papers import FOLDER
from whence_papers.epar import experiments as epar
from whence_papers.ledger import LedgerFolders
from whence_papers.ledger.claims import SIGNS
from whence_papers.ledger.command import judge_all
from whence_papers.ledger.headlines import headline_rows
from whence_papers.ledger.verdicts import count_verdicts

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "papers" / "README.md"
RECORDS = FOLDER / "results" / "README.md"
PAGES = ROOT / "docs" / "papers"


def study_commands() -> dict[str, str]:
    """Name of a study or experiment -> the command that runs it, from the study files."""
    commands: dict[str, str] = {}
    for path in sorted((FOLDER / "studies").rglob("*.py")):
        name = path.relative_to(FOLDER / "studies").with_suffix("").as_posix()
        if name.endswith("/all"):
            continue
        module = runpy.run_path(str(path))
        make = module.get("experiments") or module["studies"]
        scales = module["SCALES"] if "scale" in inspect.signature(make).parameters else [None]
        for scale in scales:
            for one in make(scale) if scale else make():
                suffix = f" --scale {scale}" if scale else ""
                commands.setdefault(one.name, f"whence run {name}{suffix}")
        for data in module.get("DATA", ()):
            for one in make(data=data):
                commands.setdefault(one.name, f"whence run {name} --data {data}")
    return commands


def command_for(claim: dict[str, Any], studies: dict[str, str]) -> str:
    """The command that makes the record of a claim; empty if nothing does."""
    if not claim["record"] and claim["by"] == "step_time":
        return "python benchmarks/train_step.py"
    if not claim["record"] and (claim["method"] != "compute" or "study" in claim["arguments"]):
        return studies.get(claim["arguments"].get("study", ""), "")
    if claim["method"] == "compute":
        return f"whence claims --update --source {claim['source']}"
    record = Path(re.split(r", | and ", claim["record"])[0])
    if record.name.startswith("hypothesis-"):
        return "whence hypotheses smollm2 --full"
    if "probe" in record.parts:
        return "whence probe smollm2 --full"
    if "mend" in record.parts:
        return "python tools/mend_trials.py run smollm2 gemma3"
    if record.parts[0] == "benchmarks":
        return f"python {record.parent.parent / record.stem}.py"
    return studies[re.sub(r"-[0-9a-f]{12}$", "", record.name.removesuffix(".json"))]


def short_record(claim: dict[str, Any]) -> str:
    """The record of a claim or its folder, relative to the package or the repository; empty if it has none."""
    if claim["method"] == "compute":
        return "claims/records/"
    first = re.split(r", | and ", claim["record"] or "")[0].removeprefix(f"{FOLDER.as_posix()}/")
    parts = Path(first).parts
    return f"results/{parts[1]}/" if parts[:1] == ("results",) and not first.startswith("results/epar/") else first


def table(source: dict[str, Any], studies: dict[str, str]) -> str:
    """One row per item of the source and record, with the verdict of each claim."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for claim in source["claims"]:
        record = short_record(claim)
        command = command_for(claim, studies)
        item = claim["where"].split(";")[0].strip()
        short = claim["id"].removeprefix(f"{source['name']}-")
        mark = " ≡" if claim["by_definition"] else ""
        rows.setdefault((item, command, record), []).append(f"{SIGNS[claim['verdict']]} {short}{mark}")
    lines = ["| source item | command | record | result |", "|---|---|---|---|"]
    for (item, command, record), verdicts in rows.items():
        cells = [item.replace("|", "\\|"), f"`{command}`" if command else "", f"`{record}`" if record else ""]
        lines.append(f"| {' | '.join(cells)} | {', '.join(verdicts)} |")
    return "\n".join(lines)


def experiments(studies: dict[str, str]) -> str:
    """The experiments of EPAR with their commands, records and folders of figures."""
    lines = ["| question | command | record | figures and tables |", "|---|---|---|---|"]
    for one in epar.ALL:
        record = one.record_path(Path("results")).as_posix()
        lines.append(f"| {one.question} | `{studies[one.name]}` | `{record}` | `output/{one.folder}/` |")
    return "\n".join(lines)


def overview(found: dict[str, Any]) -> str:
    """The number of claims by source and verdict; claims that hold or fail by definition are counted apart."""
    lines = ["| source | " + " | ".join(f"{sign} {name}" for name, sign in SIGNS.items()) + " | ≡ by definition |"]
    lines.append("|---|" + "---|" * (len(SIGNS) + 1))
    for source in found["sources"]:
        counts = [*count_verdicts([source]).values(), sum(claim["by_definition"] for claim in source["claims"])]
        lines.append(f"| `{source['name']}`: {source['title']} | {' | '.join(map(str, counts))} |")
    total = [*found["counts"].values(), sum(found["identities"].values())]
    lines.append(f"| all | {' | '.join(map(str, total))} |")
    return "\n".join(lines)


def headlines() -> str:
    """Published figures of cures and ours, from the committed trials."""
    head, rows = headline_rows(LedgerFolders(FOLDER / "claims", FOLDER / "results"))
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def benchmarks() -> str:
    """Scores of pretrained models, one row for each task of each folder of ``whence bench``."""
    head = ("model", "task", "items", "scores (95% interval)", "command")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for folder in find_folders(FOLDER / "results" / "bench", "bench.json"):
        found = collect_bench(folder)
        for task in found["tasks"]:
            scores = "; ".join(f"{name_metric(one['metric'])} {format_score(one)}" for one in task["metrics"])
            cells = (short_name(found["plan"]), name_task(task), str(task["items"]), scores, f"`{found['command']}`")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def render(text: str, found: dict[str, Any], studies: dict[str, str]) -> str:
    """The README with its generated parts replaced."""
    parts = {
        "overview": overview(found),
        "experiments": experiments(studies),
        "headlines": headlines(),
        "benchmarks": benchmarks(),
        "tasks": task_table(FOLDER / "results"),
    }
    parts |= {one["name"]: table(one, studies) for one in found["sources"]}
    for name, part in parts.items():
        text = replace_part(text, name, part)
    return text


def replace_part(text: str, name: str, part: str) -> str:
    """The text with the generated part between two markers replaced."""
    begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    if begin not in text or end not in text:
        raise SystemExit(f"the README needs the markers {begin} and {end}")
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n{part}\n{end}{rest.split(end, 1)[1]}"


def generate() -> dict[Path, str]:
    """The README and the page of each source, as the ledger has them."""
    found = judge_all(FOLDER / "claims", FOLDER / "results")
    studies = study_commands()
    pages = {
        PAGES / f"{one['name']}.md": source_page(one, lambda claim: command_for(claim, studies))
        for one in found["sources"]
    }
    records = replace_part(RECORDS.read_text(), "provenance", provenance_table(FOLDER))
    return {README: render(README.read_text(), found, studies), RECORDS: records, **pages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="Write nothing; fail if a table is out of date.")
    check = parser.parse_args().check
    for path, text in generate().items():
        if check and (not path.exists() or path.read_text() != text):
            sys.exit(f"{path.relative_to(ROOT)} is out of date; run: python tools/papers_table.py")
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)


if __name__ == "__main__":
    main()
