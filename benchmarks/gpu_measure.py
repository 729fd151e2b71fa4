"""Check a variant of attention against float64, then time it: eagerly, compiled and as a CUDA graph.

A variant that fails the comparison is recorded as wrong and is not timed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpu_timing import DEVICE, MAX_ROUNDS, synchronize, time_eager_and_capture, time_interleaved, time_step
from gpu_variants import AUTO, GLUON, attend, choose_backend, learnable_parameters, make_variant, random_inputs
from whence.attention.fused.tile_configs import FEW_PAIRS, LONG_QUERIES

CHECKED_TOKENS = 512  # in the comparison with float64
MAX_DENSE_BYTES = 24 * 2**30  # of scores, for a dense variant
MAX_ERROR = 2e-2  # relative; typical bfloat16 errors are 3e-3
#: a parameter's gradient is a sum in which most cancels: eager bfloat16 code has errors up to 4e-2 in those of FIRE
MAX_PARAMETER_ERROR = 5e-2


def relative_errors(name: str, shape: tuple[int, ...]) -> dict[str, float]:
    """Relative errors of the output and the gradients against float64, on a shorter sequence with the same kernels."""
    torch.manual_seed(1)
    shape, tokens = checked_shape(name, shape)
    run, parameters, position = make_variant(name, shape, tokens)
    inputs, grad_out = random_inputs(shape, tokens)
    out = run(*inputs)
    results = [out, *torch.autograd.grad(out, [*inputs, *parameters], grad_out)]
    double_position = None if position is None else copy.deepcopy(position).double()
    exact_inputs = [x.detach().double().requires_grad_(True) for x in inputs]
    exact_out = attend(double_position, *exact_inputs, backend="reference")
    double_parameters = [] if double_position is None or not parameters else learnable_parameters(double_position)
    exact = [exact_out, *torch.autograd.grad(exact_out, [*exact_inputs, *double_parameters], grad_out.double())]
    titles = ["out", "dq", "dk", "dv", *(f"parameter {i}" for i in range(len(parameters)))]
    # a parameter that moves all scores of a row equally, as the last bias of FIRE, has no gradient in exact arithmetic
    largest = max((x.norm().item() for x in exact[4:]), default=0.0)
    return {
        title: ((a.double() - x.reshape(a.shape)).norm() / x.norm()).item()
        for title, a, x in zip(titles, results, exact, strict=True)
        if not (title.startswith("parameter") and x.norm().item() < 1e-9 * largest)
    }


def checked_shape(name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """The least work that takes the kernels of a shape, and its tokens."""
    batch, heads, kv_heads, length, head_dim = shape
    group_size, tokens = heads // kv_heads, CHECKED_TOKENS if DEVICE == "cuda" else min(length, CHECKED_TOKENS)
    if length > LONG_QUERIES or name.endswith(GLUON):  # other tiles: just enough tokens, and so many pairs select Gluon
        heads, kv_heads, tokens = max(4, group_size), max(1, 4 // group_size), LONG_QUERIES + 64
    elif DEVICE == "cuda" and batch * heads * length**2 > FEW_PAIRS:
        tokens, groups = length, FEW_PAIRS // (group_size * length**2) + 1
        batch, kv_heads = -(-groups // kv_heads), min(groups, kv_heads)
        return (batch, group_size * kv_heads, kv_heads, length, head_dim), tokens
    return (1, heads, kv_heads, length, head_dim), tokens


def check_variant(job: tuple[str, tuple[int, ...]]) -> dict[str, Any]:
    """Compare a variant with float64, in a worker process. This also compiles its kernels."""
    name, shape = job
    row: dict[str, Any] = {"variant": name, "shape": list(shape)}
    batch, heads, _, length, _ = shape
    if name == "eager" and batch * heads * length**2 * 2 * 6 > MAX_DENSE_BYTES:
        return row | {"left_out": "a dense matrix of scores would not fit"}
    if name == "flex, learnable" and batch * heads * length**2 > 16 * 16384**2:
        return row | {"left_out": "over the time budget at this length"}
    try:
        row["errors"] = relative_errors(name, shape)
        if DEVICE == "cuda":  # the kernels for this length and without gradients, compiled here in parallel
            compile_for_shape(name, shape)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        return row | {"left_out": f"failed: {reason}"}
    allowed = {title: MAX_PARAMETER_ERROR if title.startswith("parameter") else MAX_ERROR for title in row["errors"]}
    if not all(error < allowed[title] for title, error in row["errors"].items()):  # NaN fails, too
        wrong = {name: str(error) for name, error in row["errors"].items()}
        return row | {"errors": wrong, "left_out": "wrong: the comparison with float64 failed"}
    return row


def compile_for_shape(name: str, shape: tuple[int, ...]) -> None:
    """Run a variant once at its own shape, with and without gradients: its kernels then come from the cache on disk."""
    run, parameters, _ = make_variant(name, shape, shape[3])
    inputs, grad_out = random_inputs(shape, shape[3])
    torch.autograd.grad(run(*inputs), [*inputs, *parameters], grad_out)
    with torch.no_grad():
        run(*inputs)


def measure_memory(step: Callable[[], object]) -> float | None:
    """Peak memory of a step beyond what is allocated before it, in MiB; None without a GPU."""
    if DEVICE == "cpu":
        return None
    synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def time_compiled(
    run: Callable[..., Tensor],
    inputs: list[Tensor],
    parameters: list[Tensor],
    grad_out: Tensor,
    budget: float,
    *,
    graphs: bool = False,
) -> list[float]:
    """Milliseconds of a forward and backward pass inside ``torch.compile``. Raise if results differ from the eager ones.

    ``graphs``: with mode="reduce-overhead", which replays CUDA graphs.
    """
    torch.compiler.reset()
    how: dict[str, Any] = {"mode": "reduce-overhead"} if graphs else {}
    if DEVICE == "cpu":
        how = {"backend": "aot_eager"}
    compiled = torch.compile(run, fullgraph=True, dynamic=False, **how)

    def both(function: Callable[..., Tensor] = compiled) -> tuple[Tensor, ...]:
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        out = function(*inputs)
        return out, *torch.autograd.grad(out, [*inputs, *parameters], grad_out)

    for _ in range(2 * graphs):  # warm up and capture
        both()
    for got, wanted in zip(both(), both(run), strict=True):
        error = ((got.double() - wanted.double()).norm() / wanted.double().norm()).item()
        if not error < MAX_ERROR:
            raise ArithmeticError(f"wrong: compiled and eager results differ by {error:.1e}")
    first = time_step(both, 1)
    return time_step(both, max(3, min(MAX_ROUNDS, int(budget * 1000 / max(first[0], 1e-3)))))


def prepare_variant(row: dict[str, Any], budget: float) -> dict[str, Callable[[], None]]:
    """Write memory and eager times of a checked variant into its row; return its passes as CUDA graphs.

    A row with the key ``compiled`` gets the times inside ``torch.compile`` there, and those with CUDA graphs as ``graphs``.
    """
    name, shape = row["variant"], tuple(row["shape"])
    length = shape[3]
    torch.manual_seed(0)
    run, parameters, position = make_variant(name, shape, length)
    inputs, grad_out = random_inputs(shape, length)

    def both() -> object:
        return torch.autograd.grad(run(*inputs), [*inputs, *parameters], grad_out)

    def forward() -> object:
        with torch.no_grad():
            return run(*inputs)

    both()
    forward()  # compile the kernels without gradients, too
    row["extra_megabytes"] = measure_memory(both)
    if name in AUTO:
        row["backend"] = choose_backend(name, shape, position)
    graphs = {}
    row["milliseconds"] = {}
    for passes, step in (("forward", forward), ("both", both)):
        eager, graph = time_eager_and_capture(step, budget / 3)
        row["milliseconds"][passes] = {"eager": eager, "device": []}
        if graph is not None:
            graphs[passes] = graph
    if "compiled" in row and not name.startswith("flex"):  # FlexAttention is compiled in any case
        row["compiled"] = time_compiled(run, inputs, parameters, grad_out, budget / 3)
    if "compiled" in row:
        row["graphs"] = time_compiled(run, inputs, parameters, grad_out, budget / 3, graphs=True)
    return graphs


def measure(rows: list[dict[str, Any]], budget: float, report_progress: Callable[[str], None]) -> None:
    """Write times and memory of the variants of one shape into their rows."""
    graphs: dict[tuple[int, str], Callable[[], None]] = {}
    for number, row in enumerate(rows):
        if "left_out" in row:
            continue
        report_progress(f"{row['variant']}, {row['shape']}")
        try:
            graphs |= {(number, passes): graph for passes, graph in prepare_variant(row, budget).items()}
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            row["left_out"] = f"failed: {reason}"
            row.pop("milliseconds", None)  # incomplete
    report_progress("interleaved replays")
    for passes in ("forward", "both"):
        steps = {number: graph for (number, graph_passes), graph in graphs.items() if graph_passes == passes}
        for number, times in time_interleaved(steps, budget if passes == "both" else budget / 3).items():
            rows[number]["milliseconds"][passes]["device"] = times
