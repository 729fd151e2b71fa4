"""Times on the device: steps as CUDA graphs, replayed in turns.

A graph leaves the host out. Turns let every way meet the same device: one that stood idle is slow at first, and one under
load for a tenth of a second lowers its clock, more for some kernels than for others.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

WARM = 200.0  # milliseconds of rounds before any counts
FEWEST, MOST = 5, 25  # rounds
LONG = 200.0  # milliseconds from which on there is nothing to gain from a graph, and one reading tells enough


def captured(step: Callable[[], object]) -> Callable[[], None] | None:
    """The step as a graph, or None where it cannot be captured."""
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
    except Exception as error:  # a stock kernel may refuse; the eager time remains
        print(f"  not captured: {str(error).splitlines()[0][:100]}", file=sys.stderr)
        torch.cuda.synchronize()
        return None

    def replay(kept: object = step) -> None:  # a graph reads its inputs where they lay: whoever has it needs them alive
        graph.replay()

    return replay


def milliseconds(step: Callable[[], object], repeats: int) -> list[float]:
    return rounds({"": step}, repeats)[""]


def rounds(steps: Mapping[Any, Callable[[], object]], count: int) -> dict[Any, list[float]]:
    """Times of each step, one of each a round, in another order every time: what runs before a step leaves it a cooler or
    a hotter device. All is asked for before anything is waited for, so that the device never waits for the host between
    two of them."""
    events, order = [], random.Random(0)
    for _ in range(count):
        for name, step in order.sample(list(steps.items()), len(steps)):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            step()
            end.record()
            events.append((name, begin, end))
    torch.cuda.synchronize()
    return {name: [begin.elapsed_time(end) for own, begin, end in events if own == name] for name in steps}


def launched(step: Callable[[], object], seconds: float) -> tuple[list[float], Callable[[], None] | None]:
    """Times of the step as a program runs it, and the step as a graph."""
    first = milliseconds(step, 1)
    if first[0] > LONG:
        return first, None
    repeats = max(3, min(MOST, int(seconds * 1000 / max(first[0], 1e-3))))
    return milliseconds(step, repeats), captured(step)


def in_turns(steps: Mapping[Any, Callable[[], object]], seconds: float) -> dict[Any, list[float]]:
    """Times of each step on a device that all of them keep warm; as many rounds as fit the time given to each."""
    rounds(steps, 1)
    one = max(1e-3, sum(times[0] for times in rounds(steps, 1).values()))
    rounds(steps, int(WARM / one) + 1)
    return rounds(steps, max(FEWEST, min(MOST, int(seconds * 1000 * len(steps) / one))))
