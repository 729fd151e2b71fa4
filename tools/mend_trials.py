"""The trials of cures on a GPU that the ledger and the README read: two models, four tasks, every cure.

    python tools/mend_trials.py train-in2 smollm2 --text books/train.txt.xz       # an IN2 adapter in build/in2/smollm2
    python tools/mend_trials.py train-in2 gemma3 --text books/train.txt.xz
    python tools/mend_trials.py run smollm2 gemma3 --jobs 8 --minutes 20
    python tools/pack_records.py papers/src/whence_papers/results/mend             # after the folders were copied there

Both models are converted before: ``python -m whence.hf`` with the wheels that ``whence.hf.gguf`` names. A killed run resumes. Each
trial is one ``whence mend`` command, which its records hold. IN2 is tried last, once its adapter exists.
"""

from __future__ import annotations

import argparse
import lzma
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from whence.hf.gguf import cache_folder
from whence.mend.catalogue import CURES

#: the task, its length and the slots of the gold
TASKS = (("key-value", 20, 3), ("documents", 10, 5), ("needle", 20, 5), ("key-value", 10, 5))
ITEMS = 400  # half of them choose settings, 200 judge
ADAPTERS = Path("build/in2")
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


def commands(names: list[str], minutes: float, out: Path, in2: bool) -> Iterator[list[str]]:
    """The ``whence mend`` command of every trial, the longest tasks first: all cures but IN2, or IN2 alone."""
    for task, length, slots in TASKS:
        for name in names:
            cures = [f"in2(adapter='{ADAPTERS / name}')"] if in2 else [cure for cure in CURES if cure != "in2"]
            yield [
                sys.executable, "-m", "whence", "mend", model_name(name), *(word for cure in cures for word in ("--cure", cure)),
                "--task", task, "--length", str(length), "--slots", str(slots), "--items", str(ITEMS),
                "--device", "cuda", "--dtype", "bfloat16", "--batch-tokens", "16000", "--budget", f"{minutes:g}m",
                "--out", str(out),
            ]  # fmt: skip


def run(names: list[str], minutes: float, out: Path, jobs: int, logs: Path) -> None:
    """Every trial, then IN2 in every trial, several at a time, until the time limit."""
    deadline = time.time() + 60 * minutes
    logs.mkdir(parents=True, exist_ok=True)

    def execute(numbered: tuple[int, list[str]]) -> None:
        number, command = numbered
        left = (deadline - time.time()) / 60
        if left < 0.5:
            print(f"trial {number}: not started, the time limit is near", flush=True)
            return
        command[command.index("--budget") + 1] = f"{left * 60:.0f}s"
        with (logs / f"{'-'.join(names)}-{number}.log").open("w") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ).returncode
        print(
            f"trial {number}: exit code {code}, {' '.join(command[3:5])} ... {left:.1f} minutes were left", flush=True
        )

    every = [*commands(names, minutes, out, in2=False), *commands(names, minutes, out, in2=True)]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(execute, enumerate(every)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subparsers = parser.add_subparsers(dest="command", required=True)
    own = subparsers.add_parser("train-in2", help="Train the IN2 adapter of a model.")
    own.add_argument("model", choices=("smollm2", "gemma3"))
    own.add_argument("--text", type=Path, required=True, help="A text file in the xz format.")
    own.add_argument("--device", default="cuda")
    own = subparsers.add_parser("run", help="Run or resume the trials.")
    own.add_argument("models", nargs="+", choices=("smollm2", "gemma3"))
    own.add_argument("--minutes", type=float, default=20.0, help="Time limit.")
    own.add_argument("--jobs", type=int, default=8, help="Trials at a time.")
    own.add_argument("--out", type=Path, default=Path("build/mend"), help="Folder for the records.")
    own.add_argument("--logs", type=Path, default=Path("build/logs"))
    options = parser.parse_args()
    if options.command == "train-in2":
        train_in2(options.model, options.text, options.device)
    else:
        run(options.models, options.minutes, options.out, options.jobs, options.logs)


if __name__ == "__main__":
    main()
