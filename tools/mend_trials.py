"""The trials of cures on a GPU that the ledger and the README read: two models, four tasks, every cure.

    python tools/mend_trials.py train-in2 smollm2 --text books/train.txt.xz       # an IN2 adapter in build/in2/smollm2
    python tools/mend_trials.py train-in2 gemma3 --text books/train.txt.xz
    python tools/mend_trials.py run smollm2 gemma3 --jobs 8 --minutes 20
    python tools/pack_records.py papers/src/whence_papers/results/mend             # after the folders were copied there
    python tools/mend_trials.py recipe smollm2 TRIAL scale-channel                # recipe.json in the folder of a trial

Both models are converted before: ``python -m whence.hf`` with the wheels that ``whence.hf.gguf`` names. A killed run resumes. Each
trial is one ``whence mend`` command, which its records hold. IN2 is tried last, where its adapter exists by then.
"""

from __future__ import annotations

import argparse
import lzma
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from whence import records
from whence.hf.gguf import cache_folder
from whence.mend.catalogue import CURES

#: the task, its length and the slots of the gold
TASKS = (("key-value", 20, 3), ("documents", 10, 5), ("needle", 20, 5), ("key-value", 10, 5))
ITEMS = 400  # half of them choose settings, 200 judge
ADAPTERS = Path("build/in2")
SMALLEST = 1_000  # tokens in a batch
CHARACTERS = 2_000_000  # of the text that IN2 examples are made from


def model_name(name: str) -> str:
    """What ``whence mend`` calls a model: SmolLM2 by its name, Gemma by its converted folder."""
    if name == "smollm2":
        return name
    found = sorted(cache_folder().glob("gguf-*"))
    if len(found) != 1:
        sys.exit(f"{len(found)} converted models in {cache_folder()}; convert the wheels of Gemma 3 270M alone")
    link = Path("build/models/gemma3-270m")
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.symlink_to(found[0])
    return str(link)


def train_in2(name: str, text: Path, device: str) -> None:
    """Train the adapter of a model: 400 steps of four contexts of up to 2,048 tokens."""
    from whence.mend.in2_training import train_in2 as train
    from whence.probe import probed_model

    began = time.time()
    with lzma.open(text, "rt", encoding="utf-8") as file:
        words = file.read(CHARACTERS)
    lm = probed_model.load(model_name(name), device, "bfloat16")

    def report(step: int, loss: float) -> None:
        if step % 20 == 0:
            print(f"{name}: step {step}, loss {loss:.3f}, {time.time() - began:.0f} s", flush=True)

    train(lm.model, lm.tokenizer, words, ADAPTERS / name, steps=400, batch_size=4, checkpoint_every=400, report=report)
    print(f"{name}: trained in {time.time() - began:.0f} s", flush=True)


@dataclass(frozen=True)
class Job:
    """Some cures of one trial. Processes may share the folder of a trial: every record has a file of its own."""

    name: str
    model: str
    task: tuple[str, int, int]
    cures: tuple[str, ...]
    adapter: Path | None = None

    def command(self, seconds: float, tokens: int, out: Path) -> list[str]:
        task, length, slots = self.task
        return [
            sys.executable, "-m", "whence", "mend", self.model, *(word for cure in self.cures for word in ("--cure", cure)),
            "--task", task, "--length", str(length), "--slots", str(slots), "--items", str(ITEMS),
            "--device", "cuda", "--dtype", "bfloat16", "--batch-tokens", str(tokens), "--budget", f"{seconds:.0f}s",
            "--out", str(out),
        ]  # fmt: skip


def list_jobs(names: list[str], parts: int) -> list[Job]:
    """The jobs of every trial, the longest tasks first: all cures but IN2 in ``parts`` processes, and then IN2 alone."""
    ordinary = [cure for cure in CURES if cure != "in2"]
    groups = [tuple(ordinary[part::parts]) for part in range(parts)]
    jobs, last = [], []
    for task in TASKS:
        for name in names:
            model, label = model_name(name), f"{name}-{task[0]}-{task[1]}"
            jobs += [Job(f"{label}-{number}", model, task, group) for number, group in enumerate(groups)]
            last.append(Job(f"{label}-in2", model, task, (f"in2(adapter='{ADAPTERS / name}')",), ADAPTERS / name))
    return jobs + last


def run(options: argparse.Namespace) -> None:
    """Every job, several at a time, until the time limit. A job that fails is repeated with half as many tokens in a batch."""
    deadline = time.time() + 60 * options.minutes
    options.logs.mkdir(parents=True, exist_ok=True)

    def execute(job: Job) -> None:
        if job.adapter is not None and not job.adapter.exists():
            print(f"{job.name}: skipped, because there is no {job.adapter}; train-in2 makes it", flush=True)
            return
        tokens, code = options.tokens, 1
        while code and tokens >= SMALLEST:
            left = deadline - time.time()
            if left < 30:
                print(f"{job.name}: the time limit is near", flush=True)
                return
            began = time.time()
            with (options.logs / f"{job.name}-{tokens}.log").open("w") as log:
                command = job.command(left, tokens, options.out)
                code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ).returncode
            print(f"{job.name}: exit code {code} after {time.time() - began:.0f} s", flush=True)
            tokens //= 2

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(execute, list_jobs(options.models, options.parts)))


def write_recipe(name: str, folder: Path, cure: str) -> None:
    """Write the recipe of a cure from the records of a trial, packed or not. Nothing is measured."""
    from whence.cli.mend import save_recipe
    from whence.mend.judgement import collect_trial
    from whence.probe import probed_model

    path = save_recipe(folder, collect_trial(folder), probed_model.load(model_name(name)).model, [], cure)
    if path is not None:
        command = f"python tools/mend_trials.py recipe {name} {folder} {cure}"
        records.write(path, records.read(path) | {"command": command})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subparsers = parser.add_subparsers(dest="command", required=True)
    own = subparsers.add_parser("train-in2", help="Train the IN2 adapter of a model.")
    own.add_argument("model", choices=("smollm2", "gemma3"))
    own.add_argument("--text", type=Path, required=True, help="A text file in the xz format.")
    own.add_argument("--device", default="cuda")
    own = subparsers.add_parser("run", help="Run or resume the trials.")
    own.add_argument("models", nargs="+", choices=("smollm2", "gemma3"))
    own.add_argument("--minutes", type=float, default=20.0, help="Time limit; rerun to resume.")
    own.add_argument("--jobs", type=int, default=8, help="Processes at a time.")
    own.add_argument("--parts", type=int, default=2, help="Processes of each trial.")
    own.add_argument("--tokens", type=int, default=16_000, help="Tokens in a batch, at first.")
    own.add_argument("--out", type=Path, default=Path("build/mend"), help="Folder for the records.")
    own.add_argument("--logs", type=Path, default=Path("build/logs"))
    own = subparsers.add_parser("recipe", help="Write the recipe of a cure from the records of a trial.")
    own.add_argument("model", choices=("smollm2", "gemma3"))
    own.add_argument("folder", type=Path, help="Folder of the trial, packed or not.")
    own.add_argument("cure", help="Name of the cure.")
    options = parser.parse_args()
    if options.command == "train-in2":
        train_in2(options.model, options.text, options.device)
    elif options.command == "recipe":
        write_recipe(options.model, options.folder, options.cure)
    else:
        run(options)


if __name__ == "__main__":
    main()
