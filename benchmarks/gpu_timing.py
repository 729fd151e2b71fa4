"""CUDA event timing of steps, eager or as CUDA graphs, interleaved.

A CUDA graph excludes host overhead. Interleaving exposes every variant to the same device state: an idle device is slow
at first, and a device under load for a tenth of a second lowers its clock, more for some kernels than for others. Without a
GPU, a clock of the host takes the place of the events, and nothing is captured: for dry runs.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WARMUP_MS = 200.0 if DEVICE == "cuda" else 0.0  # of untimed rounds
MIN_ROUNDS, MAX_ROUNDS = 5, 25
LONG_STEP_MS = 200.0  # a longer step gains nothing from a graph, and one measurement is enough


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class HostEvent:
    """A clock of the host with the interface of a CUDA event."""

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: HostEvent) -> float:
        return (end.seconds - self.seconds) * 1000


def make_event() -> Any:
    return torch.cuda.Event(enable_timing=True) if DEVICE == "cuda" else HostEvent()


def capture_graph(step: Callable[[], object]) -> Callable[[], None] | None:
    """The step as a CUDA graph, or None if it cannot be captured."""
    if DEVICE == "cpu":
        return None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except Exception as error:  # some kernels cannot be captured; the eager time remains
        print(f"  not captured: {str(error).splitlines()[0][:100]}", file=sys.stderr)
        torch.cuda.synchronize()
        return None

    def replay(alive: object = step) -> None:  # the default keeps the tensors alive that the graph reads by address
        graph.replay()

    return replay


def time_step(step: Callable[[], object], repeats: int) -> list[float]:
    return time_rounds({"": step}, repeats)[""]


def time_rounds(steps: Mapping[Any, Callable[[], object]], count: int) -> dict[Any, list[float]]:
    """Milliseconds of each step, one run per round in a random order, since the previous step affects the clock.

    Everything is enqueued before the first synchronization, so that the device never waits for the host.
    """
    events, order = [], random.Random(0)
    for _ in range(count):
        for name, step in order.sample(list(steps.items()), len(steps)):
            start, end = make_event(), make_event()
            start.record()
            step()
            end.record()
            events.append((name, start, end))
    synchronize()
    return {
        name: [start.elapsed_time(end) for event_name, start, end in events if event_name == name] for name in steps
    }


def time_eager_and_capture(step: Callable[[], object], seconds: float) -> tuple[list[float], Callable[[], None] | None]:
    """Eager times of the step, launches included, and the step as a CUDA graph."""
    first = time_step(step, 1)
    if first[0] > LONG_STEP_MS:
        return first, None
    repeats = max(3, min(MAX_ROUNDS, int(seconds * 1000 / max(first[0], 1e-3))))
    return time_step(step, repeats), capture_graph(step)


def time_interleaved(steps: Mapping[Any, Callable[[], object]], seconds: float) -> dict[Any, list[float]]:
    """Milliseconds of each step on a warm device; as many rounds as fit into the given seconds per step."""
    if not steps:
        return {}
    time_rounds(steps, 1)
    round_ms = max(1e-3, sum(times[0] for times in time_rounds(steps, 1).values()))
    time_rounds(steps, int(WARMUP_MS / round_ms) + 1)
    return time_rounds(steps, max(MIN_ROUNDS, min(MAX_ROUNDS, int(seconds * 1000 * len(steps) / round_ms))))
