"""Draw the studies of the prior from their records: ``python -m whence_papers.prior FOLDER``, such as ``results``."""

from __future__ import annotations

import sys
from pathlib import Path

from whence.errors import WhenceError, usage_error
from whence.records import RecordReader, require_folder
from whence_papers.prior.figure import draw_prior, read_runs


def write_figures(folder: Path) -> list[Path]:
    """One image for each study of the prior in a folder with records, beside the study's folder."""
    require_folder("python -m whence_papers.prior", folder, "studies")
    reader, written = RecordReader(), []
    for study in reader.find_folders(folder, "study.json"):
        records = reader.folder(study)
        if not records.read("study.json")["spec"]["name"].startswith("prior-"):
            continue
        runs = read_runs(records)
        if any(run["result"]["status"] == "done" for run in runs):
            path = folder / f"{study.name}.png"
            draw_prior(runs, path)
            written.append(path)
    if not written:
        rule, remedy = "it must have records of the study prior", "run: whence run prior --scale small"
        raise usage_error("python -m whence_papers.prior", str(folder), rule, remedy)
    return written


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m whence_papers.prior FOLDER")
    try:
        for image in write_figures(Path(sys.argv[1])):
            print(image)
    except WhenceError as error:
        sys.exit(str(error))
