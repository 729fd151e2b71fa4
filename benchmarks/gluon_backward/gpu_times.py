"""Times on a GPU: some configurations, the Triton kernels and SDPA, all interleaved."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

import gpu_timing
import gpu_variants
from configs import CONFIGS
from gpu_calls import Backward, make_call, patched, recorded_launches
from launches import KERNELS
from roles import HEAD_DIM
from workers import report


def time_shape(mechanism: str, shape: tuple[int, ...], numbers: list[int]) -> None:
    """In a process of its own: times of some configurations, the Triton kernels and SDPA, all interleaved."""
    both, _, inputs, grad_out = make_call(mechanism, shape, torch.bfloat16)
    steps: dict[str, Callable[[], object]] = {}
    for name in ("flash", "cudnn"):
        run, *_ = gpu_variants.make_variant(name, (*shape, HEAD_DIM.value), shape[3])
        steps[f"{name} both"] = lambda run=run: torch.autograd.grad(run(*inputs), inputs, grad_out)
    steps |= {f"triton {name}": x for name, x in recorded_launches(both).items() if name in KERNELS}
    steps["triton both"] = both
    configs = [CONFIGS[i] for i in numbers]
    for config in configs:
        backward = Backward(*((config, None) if config.kernel == "dq" else (None, config)))
        with patched(backward):
            both()
        steps[config.name] = backward.launches[config.kernel]
    times = time_graphs(steps)
    report(what="times", mechanism=mechanism, shape=shape, milliseconds=times)
    fastest = [min((x for x in configs if x.kernel == k), key=lambda x: times[x.name], default=None) for k in KERNELS]
    if None in fastest:
        return
    backward = Backward(*fastest)

    def patched_both() -> object:
        with patched(backward):
            return both()

    title = " + ".join(x.name for x in fastest if x is not None)
    again = {name: steps[name] for name in ("flash both", "cudnn both", "triton both")} | {
        f"both: {title}": patched_both
    }
    report(what="times", mechanism=mechanism, shape=shape, milliseconds=time_graphs(again))


def time_graphs(steps: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Medians of interleaved replays, in milliseconds."""
    graphs = {name: gpu_timing.capture_graph(step) for name, step in steps.items()}
    times = gpu_timing.time_interleaved({name: x for name, x in graphs.items() if x is not None}, 0.25)
    return {name: statistics.median(x) for name, x in times.items()}


def print_times(row: dict[str, Any]) -> None:
    batch, heads, _, length = row["shape"]
    times = row["milliseconds"]
    pairs = batch * heads * length**2 / 2
    print(
        f"\n{row['mechanism']}, {batch} x {heads} heads x {length} tokens; ratios below 1 are faster than the named one"
    )
    for name, ms in times.items():
        line = f"  {name:58} {ms:8.3f} ms"
        is_dq, is_dkdv = (
            name.endswith(" dq") or name.startswith("dq"),
            name.endswith(" dkdv") or name.startswith("dkdv"),
        )
        if is_dq or is_dkdv:
            line += f"  {(3 if is_dq else 4) * 2 * HEAD_DIM.value * pairs / ms / 1e9:6.0f} TFLOP/s"
            line += f"  {ms / times['triton dq' if is_dq else 'triton dkdv']:5.2f} of Triton"
        else:
            others = (("triton both", "Triton"), ("flash both", "flash"), ("cudnn both", "cuDNN"))
            line += "  " + ", ".join(f"{ms / times[other]:.2f} of {title}" for other, title in others if other in times)
        print(line)
