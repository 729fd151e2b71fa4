"""Two probes on one page: ``whence report FOLDER_A FOLDER_B``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whence.errors import usage_error
from whence.records import find_folders

PAGE = "comparison.html"


def write_comparison(folders: Sequence[Path], out: Path | None, labels: Sequence[str]) -> Path:
    """The sentences on the terminal and the page, from the records of two probes alone."""
    from whence import records
    from whence.probe.findings import compare_probes
    from whence.report.probe.comparison import comparison_page, overall, task_answer

    if len(folders) != 2:
        raise usage_error("whence report", f"{len(folders)} folders", "two probes are compared", "name two folders")
    if labels and (len(labels) != 2 or labels[0] == labels[1]):
        raise usage_error(
            "whence report --label", repr(list(labels)), "each probe has a name of its own", "pass it twice"
        )
    first, second = (one_probe(folder) for folder in folders)
    said = " ".join(["whence report", *map(str, folders), *(f'--label "{label}"' for label in labels)])
    found = compare_probes(first, second, labels, said)
    for task in found["tasks"]:
        print(f"{task['task']}: {task_answer(task, found)}")
    print(overall(found))
    page = out or second / PAGE
    records.write_text(page, comparison_page(found))
    return page


def one_probe(folder: Path) -> Path:
    """The folder of a probe: itself, or the only one in it."""
    found = find_folders(folder, "plan.json")
    if len(found) != 1:
        raise usage_error(
            "whence report",
            f"{folder} with {len(found)} probes",
            "two probes are compared, and each folder holds one",
            "name the folders that hold plan.json",
        )
    return found[0]
