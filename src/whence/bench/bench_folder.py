"""The folder of a benchmarked model: its plan, one record for each finished task, and the harness's own result files.

A record belongs to one model (weights, attached mechanism, intervention), one set of settings, one version of the files and of
the code that defines the task. A task whose record exists is not run again. The results in the harness's format lie in
``results/BENCHMARK/`` beside the folders.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from whence import records
from whence.bench.corpus_counts import WITHOUT_COUNTS, count_matches
from whence.bench.harness import BenchTask, OnRequest, Settings, run_task
from whence.errors import usage_error
from whence.probe.identity import text_checksum
from whence.probe.probed_model import ProbedModel

PLAN = "bench.json"
FORMAT = 1
PACKAGES = ("torch", "transformers", "lm_eval", "sacrebleu", "rouge_score", "datasets")
Notify = Callable[[int, int, str, bool], None]  # tasks done, of how many, which, whether its record existed


@dataclasses.dataclass(frozen=True)
class BenchPlan:
    """The model and the settings of a folder."""

    model: str
    identity: dict[str, Any]
    settings: Settings

    @property
    def hash(self) -> str:
        return text_checksum(self.to_json())

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(dataclasses.asdict(self)))


def open_folder(lm: ProbedModel, plan: BenchPlan, base: Path) -> Path:
    """Create the folder of a plan, named after the model and the plan's hash, and write the plan to it."""
    name = re.sub(r"[^A-Za-z0-9._]+", "-", Path(plan.model).name)
    folder = base / f"{name}-{plan.hash}"
    path = folder / PLAN
    if not records.exists(path):
        records.write(
            path,
            {
                "format": FORMAT,
                "plan": plan.to_json(),
                "hash": plan.hash,
                "model": {"name": plan.model, **lm.about},
                "command": records.rerun_command(),
            },
        )
    elif load_plan(folder)["plan"] != plan.to_json():
        raise usage_error(
            "whence bench", f"another plan in {folder.name}", "a folder has one plan", "use another --out"
        )
    return folder


def load_plan(folder: Path) -> dict[str, Any]:
    """The content of a folder's plan file, which must have its own hash."""
    content = records.read(folder / PLAN)
    if content.get("format") != FORMAT or text_checksum(content.get("plan")) != content.get("hash"):
        raise usage_error(
            "whence report",
            f"{folder.name}/{PLAN}, which is not a plan with its own hash",
            "it is written by whence bench and never changed",
            "restore it, or run whence bench again",
        )
    return content


def run_tasks(
    lm: ProbedModel,
    plan: BenchPlan,
    tasks: Sequence[BenchTask],
    base: Path,
    batch_size: int,
    notify: Notify,
    advance: Callable[[int, int, str, int, int], None],
) -> Path:
    """Run the tasks that have no record yet, and write each record as soon as its task is finished."""
    folder = open_folder(lm, plan, base)
    store = records.RecordFolder(folder)
    for done, task in enumerate(tasks):
        name = f"{task.label}-{task.hash}.json"
        existing = store.exists(name)
        if existing:
            read_record(store, name, plan.hash)
        else:
            record = measure(lm, plan, task, folder, base, batch_size, _advance(advance, done, len(tasks), task.label))
            store.write(name, record)
        notify(done + 1, len(tasks), task.label, existing)
    return folder


def _advance(advance: Callable[[int, int, str, int, int], None], done: int, total: int, label: str) -> OnRequest:
    return lambda step, steps: advance(done, total, label, step, steps)


def measure(
    lm: ProbedModel, plan: BenchPlan, task: BenchTask, folder: Path, base: Path, batch_size: int, on_request: OnRequest
) -> dict[str, Any]:
    """Run one task, write the harness's files, and return the record."""
    started, begun = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), time.monotonic()
    results, samples = run_task(lm, task, plan.settings, batch_size, on_request)
    seconds = time.monotonic() - begun
    (key,) = results["results"]
    write_harness_files(base / "results" / task.benchmark / folder.name, task.name, results, samples)
    scores = {
        name.partition(",")[0]: float(value)
        for name, value in results["results"][key].items()
        if "," in name and "_stderr" not in name and isinstance(value, int | float)
    }
    rows = [describe_sample(sample, task.corpus) for sample in samples]
    accelerator = torch.cuda.get_device_name(lm.device) if lm.device.type == "cuda" else None
    return {
        "kind": "benchmark",
        "plan": plan.hash,
        "benchmark": task.benchmark,
        "task": task.name,
        "hash": task.hash,
        "files": task.files,
        "metric": task.metric or next((name for name in scores if all(name in row["values"] for row in rows)), None),
        "corpus": list(task.corpus),
        "higher_is_better": {
            name: value for name, value in results["higher_is_better"][key].items() if value is not None
        },
        "scores": scores,
        "items": len(rows),
        "rows": rows,
        "batch_size": batch_size,
        "seconds": round(seconds, 2),
        "started": started,
        "command": records.rerun_command(),
        "environment": records.describe_environment(PACKAGES, accelerator=accelerator),
    }


def describe_sample(sample: dict[str, Any], corpus: Sequence[str] = ()) -> dict[str, Any]:
    """The row of a record: the item, its values by metric, the answer, and the counts behind corpus metrics."""
    values = {
        name: float(sample[name])
        for name in sample["metrics"]
        if isinstance(sample.get(name), int | float)  # a corpus metric has a pair of texts here
    }
    answer = sample["filtered_resps"][0] if len(sample["filtered_resps"]) == 1 else list(sample["filtered_resps"])
    return {
        "item": sample["item"],
        "values": values,
        "answer": json.loads(json.dumps(answer, default=str)),
        "counts": {
            name: count_matches(name, str(answer), str(sample["target"]))
            for name in corpus
            if name not in WITHOUT_COUNTS
        },
        "prompt_hash": sample["prompt_hash"],
        "shortened": sample["shortened"],
    }


def write_harness_files(folder: Path, name: str, results: dict[str, Any], samples: Sequence[dict[str, Any]]) -> None:
    """Write ``results_NAME.json`` and ``samples_NAME.jsonl`` as lm-evaluation-harness writes them."""
    utilities = importlib.import_module("lm_eval.utils")
    default = utilities.handle_non_serializable
    text = json.dumps(results, indent=2, default=default, ensure_ascii=False)
    records.write_text(folder / f"results_{name}.json", text + "\n")
    lines = []
    for sample in samples:
        line = {key: value for key, value in sample.items() if key not in ("item", "shortened")}
        line["arguments"] = {
            f"gen_args_{number}": {f"arg_{place}": value for place, value in enumerate(one)}
            for number, one in enumerate(sample["arguments"])
        }
        line |= {key: utilities.sanitize_list(sample[key]) for key in ("resps", "filtered_resps")}
        lines.append(json.dumps(line | {"target": str(sample["target"])}, default=default, ensure_ascii=False))
    records.write_text(folder / f"samples_{name}.jsonl", "\n".join(lines) + "\n")


def read_record(store: records.RecordFolder, name: str, plan: str) -> dict[str, Any]:
    """A record of a plan; one of another plan is an error."""
    record = store.read(name)
    if record.get("plan") != plan:
        raise usage_error("whence bench", f"{name} of another plan", "a folder has one plan", "delete or restore it")
    return record


def read_records(folder: Path, plan: str) -> list[dict[str, Any]]:
    """All records of a folder; where a task has several, the one that was started last comes last."""
    store = records.RecordFolder(folder)
    every = [read_record(store, name, plan) for name in store.names() if name != PLAN]
    return sorted(every, key=lambda record: (record["benchmark"], record["task"], record["started"]))
