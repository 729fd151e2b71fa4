"""Kill a study with SIGKILL at random moments, resume it each time, and compare its records with an undisturbed run's.

    python benchmarks/kills.py                              # 100 kills, some minutes; writes benchmarks/records/kills.json
    python benchmarks/kills.py --kills 10 --seed 1 --out build/kills.json

Every attempt is a forked process that runs the study in the same folder. Half of the kills come after a random delay, the
others shortly after a random phase has begun, because writing a file takes only milliseconds. A study that is complete is
compared file by file, and a new folder begins, until the number of kills is reached. Times are the only values that may
differ. No partial file and no checkpoint may be left.
"""

from __future__ import annotations

import argparse
import functools
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # threads do not survive a fork

from whence import records
from whence.lab import checkpoints, runner, training
from whence.lab.arms import parse_arm
from whence.lab.study import Budget, Decision, Study
from whence.lab.study_folder import study_folder

ROOT = Path(__file__).resolve().parent.parent
PHASES = ("setup", "training", "evaluation", "checkpoint", "weights", "record")
#: seconds between two checkpoints of a run
SAVE_EVERY = 0.02
#: seconds between the beginning of a phase and a kill, at most: about as long as the phase takes
DELAYS = {"training": 0.1, "evaluation": 0.01, "checkpoint": 0.01, "weights": 0.002, "record": 0.002}
#: values of a record that depend on the time of day
TIMES = ("started", "wall_seconds")
STUDY = Study(
    name="kills",
    question="Does a run that was killed and resumed end like an undisturbed one?",
    task="retrieval",
    task_settings={"pairs": 2, "keys": 16, "values": 4, "items": 8},
    model={"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16, "dropout": 0.1},
    arms=(parse_arm("none"), parse_arm("Rotary() + Epar(learnable=True)")),
    seeds=(0, 1),
    budget=Budget(steps=30, batch_size=4, evaluate_every=10, schedule="cosine", warmup_steps=5),
    decision=Decision(baseline="none"),
)


class PhaseBoard:
    """The current phase of a child process and how often each phase has begun, in memory that parent and child share."""

    LAYOUT = struct.Struct(f"{1 + len(PHASES)}i")

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, self.LAYOUT.size)

    def read(self) -> tuple[str, dict[str, int]]:
        current, *counts = self.LAYOUT.unpack(self.memory[:])
        return PHASES[current], dict(zip(PHASES, counts, strict=True))

    def clear(self) -> None:
        self.memory[:] = bytes(self.LAYOUT.size)

    @contextmanager
    def enter(self, phase: str) -> Iterator[None]:
        current, *counts = self.LAYOUT.unpack(self.memory[:])
        index = PHASES.index(phase)
        counts[index] += 1
        self.memory[:] = self.LAYOUT.pack(index, *counts)
        try:
            yield
        finally:
            self.memory[:] = self.LAYOUT.pack(current, *counts)

    def track(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def tracked(*arguments: Any, **named: Any) -> Any:
            with self.enter(phase):
                return function(*arguments, **named)

        return tracked


def load_packages() -> None:
    """Import what training imports late, so that forked children need not. Training here would start threads."""
    import accelerate  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch._dynamo
    import torch.distributed.checkpoint.state_dict  # noqa: F401

    runner.validate_study(STUDY)


def run_child(folder: Path, board: PhaseBoard | None) -> int:
    """Fork a process that runs the study; return its id. With a board it saves many checkpoints and shows its phases."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if board is not None:
            training.train = board.track("training", functools.partial(training.train, save_every=SAVE_EVERY))
            training.evaluate = board.track("evaluation", training.evaluate)
            checkpoints.save = board.track("checkpoint", checkpoints.save)
            checkpoints.save_weights = board.track("weights", checkpoints.save_weights)
            records.write = board.track("record", records.write)
        outcome = runner.run_study(STUDY, folder)
        errors = [*outcome.problems, *map(str, outcome.failed)]
        code = 1 if errors else 0
        if errors:
            print("\n".join(errors), file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def choose_moment(random_numbers: random.Random, lifetime: float) -> Callable[[float, dict[str, int]], bool]:
    """A function of the seconds since the start and the phases begun: whether to kill now."""
    if random_numbers.random() < 0.5:
        limit = random_numbers.uniform(0, lifetime)
        return lambda elapsed, begun: elapsed >= limit
    phase = random_numbers.choice(list(DELAYS))
    count = random_numbers.randint(1, 8 if phase in ("evaluation", "checkpoint") else 1)
    delay, since = random_numbers.uniform(0, DELAYS[phase]), []

    def is_due(elapsed: float, begun: dict[str, int]) -> bool:
        if begun[phase] >= count:
            since.append(elapsed)
        return bool(since) and elapsed - since[0] >= delay

    return is_due


def never(elapsed: float, begun: dict[str, int]) -> bool:
    return False


def run_and_kill(folder: Path, board: PhaseBoard, is_due: Callable[[float, dict[str, int]], bool]) -> str | None:
    """Run the study in a child; return the phase in which it was killed, or None if it ended by itself."""
    board.clear()
    began, child = time.monotonic(), run_child(folder, board)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if is_due(time.monotonic() - began, board.read()[1]):
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            break
        time.sleep(0.0005)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return board.read()[0]
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"a child ended with status {status}")
    return None


def read_folder(base: Path) -> dict[str, Any]:
    """The content of every file of a study's folder, without times and lock files."""
    folder, content = study_folder(STUDY, base), {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".json":
            record = records.read(path)
            content[name] = {key: value for key, value in record.items() if key not in TIMES}
        elif path.is_file() and path.suffix != ".lock":
            content[name] = path.read_bytes()
    return content


def kill_repeatedly(kills: int, seed: int, base: Path) -> dict[str, Any]:
    """Kill and resume until the number of kills is reached and the last study is complete; return what was found."""
    load_packages()
    began, undisturbed = time.monotonic(), base / "undisturbed"
    status = os.waitpid(run_child(undisturbed, None), 0)[1]
    if status != 0:
        raise SystemExit("the undisturbed run failed")
    lifetime, expected = 0.6 * (time.monotonic() - began), read_folder(undisturbed)
    random_numbers, board = random.Random(seed), PhaseBoard()
    by_phase = dict.fromkeys(PHASES, 0)
    attempts: list[int] = []  # of each completed study
    different: list[str] = []
    while sum(by_phase.values()) < kills:
        folder, count, ended = base / f"killed{len(attempts)}", 0, False
        while not ended:
            is_last = sum(by_phase.values()) >= kills  # it ends by itself
            moment = never if is_last else choose_moment(random_numbers, lifetime)
            phase, count = run_and_kill(folder, board, moment), count + 1
            if phase is None:
                ended = True
            else:
                by_phase[phase] += 1
        actual = read_folder(folder)
        different += [
            f"killed{len(attempts)}/{name}"
            for name in sorted(actual.keys() | expected.keys())
            if actual.get(name) != expected.get(name)
        ]
        attempts.append(count)
        print(f"{sum(by_phase.values())} kills, {len(attempts)} studies, {len(different)} differences", file=sys.stderr)
    return {
        "kills": sum(by_phase.values()), "by_phase": by_phase, "studies": len(attempts), "attempts": attempts,
        "files_compared": len(expected) * len(attempts), "different": different, "seconds": time.monotonic() - began,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "kills.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = kill_repeatedly(options.kills, options.seed, Path(folder))
    command = f"python benchmarks/kills.py --kills {options.kills} --seed {options.seed}"
    about = {"seed": options.seed, "spec": STUDY.spec(), "command": command}
    records.write(options.out, result | about | {"environment": records.describe_environment()})
    if result["different"]:
        raise SystemExit(f"not as undisturbed: {', '.join(result['different'])}")


if __name__ == "__main__":
    main()
