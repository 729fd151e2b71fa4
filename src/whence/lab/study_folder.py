"""The folder of a study: the files that all its runs share, and whether a record there belongs to its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence import records
from whence.errors import WhenceError, usage_error
from whence.lab import tasks
from whence.lab.run_keys import is_record_of
from whence.lab.study import Run, Study
from whence.lab.study_labels import label_study
from whence.lab.study_task import load_task

#: files of a study's folder that all its runs share
STUDY_FILES = ("study.json", "task.json", "data.json", "baselines.json")
#: what reports read from every record
RECORD_KEYS = ("parameters", "numbers", "started", "wall_seconds", "environment")


def study_folder(study: Study, base: Path) -> Path:
    """The folder of a study. If it uses code of the user, its sources must be pinned (``pin_sources``)."""
    return base / f"{study.name}-{study.hash}"


def checkpoint_path(run: Run, folder: Path) -> Path:
    """The checkpoint of a run in its study's folder. It exists while the run is unfinished, and after divergence."""
    return folder / "checkpoints" / run.weights_name


def weights_path(run: Run, folder: Path) -> Path:
    """The final weights of a run in its study's folder."""
    return folder / "weights" / run.weights_name


def write_spec(study: Study, folder: Path, planned: str | None = None) -> None:
    """Write study.json, with the command that reruns the study, unless it exists. Its notes follow the last command.

    ``planned`` is when the plan was fixed, for a study that reuses the runs of another one with the same command.
    """
    path = folder / "study.json"
    if not records.exists(path):
        about = {"hash": study.hash, "spec": study.spec(), "about": study.about, "command": records.rerun_command()}
        records.write(path, about if planned is None else about | {"planned": planned})
        return
    stored = records.read(path)
    if stored.get("hash") != study.hash:
        raise usage_error(
            f"the study {label_study(study)}",
            f"{path.parent.name}/study.json of another study",
            "a folder contains one study",
            "choose another --out or move the folder",
        )
    if stored.get("about") != study.about and path.exists():  # a packed study stays as it is
        records.write(path, stored | {"about": study.about})


def task_facts(study: Study, folder: Path, task: tasks.Task | None = None) -> dict[str, Any]:
    """What a report needs to know about the task, stored beside the records so that a report does not need the data."""
    path = folder / "task.json"
    if records.exists(path):
        return records.read(path)
    facts = {"hash": study.hash, **(task or load_task(study)).facts()}
    if folder.is_dir() or not records.exists(folder / "study.json"):  # a packed study stays as it is
        records.write(path, facts)
    return facts


def write_data_facts(study: Study, folder: Path, task: tasks.Task) -> None:
    """Write data.json, the description of the data for the report, unless it exists or the task has none."""
    path = folder / "data.json"
    if not records.exists(path) and (facts := task.describe_data()):
        records.write(path, {"hash": study.hash, "data": facts})


def write_baselines(study: Study, folder: Path, task: tasks.Task, origin: dict[str, Any]) -> None:
    """Compute the scores of the task's baselines once, for a task that has some."""
    path = folder / "baselines.json"
    if records.exists(path):
        return
    baselines = task.baselines()
    if baselines:
        records.write(path, {"hash": study.hash, "task": task.settings, "baselines": baselines, **origin})


def find_record_problem(path: Path, run: Run, reader: records.RecordReader | None = None) -> str | None:
    """What is wrong with an existing record, as a sentence. The file is not changed."""
    return read_run_record(path, run, reader)[1]


def read_run_record(
    path: Path, run: Run, reader: records.RecordReader | None = None
) -> tuple[dict[str, Any], str | None]:
    """An existing record, and what is wrong with it, as a sentence; None if it is the record of its run."""
    try:
        record = (reader or records.RecordReader()).read(path)
    except WhenceError as error:
        return {}, f"{path.name} is left alone: {error}"
    own = record.get("hash") == run.study.hash and record.get("arm") == run.arm.name and record.get("seed") == run.seed
    if not own and not is_record_of(record, run):  # a reused record has the hash of another study
        return record, f"{path.name} is left alone: it belongs to another study, arm or seed"
    if not isinstance(record.get("result"), dict) or "status" not in record["result"]:
        return record, f"{path.name} is left alone: it has no result"
    missing = [name for name in RECORD_KEYS if name not in record]
    if record["result"]["status"] == "done" and not record["result"].get("evaluations"):
        missing.append("evaluations")
    if missing:
        return record, f"{path.name} is left alone: it has no {', '.join(missing)}"
    return record, None
