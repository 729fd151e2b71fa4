"""Host time and kernel launches of eager attention calls on short sequences, where the host and not the GPU is slow.

    python benchmarks/host_cost.py            # a minute on a GPU; writes benchmarks/records/host_cost.json
    python benchmarks/host_cost.py --stubbed  # on a CPU: kernels are counted and not launched; writes nothing

Five calls: a forward pass without gradients, a forward and backward pass, one decode step over a preallocated cache, and for
some variants forward and backward inside torch.compile (fullgraph=True) and inside torch.compile(mode="reduce-overhead"), which
replays CUDA graphs. Those with a backward pass are timed twice but for the last: as usual, where autograd hands it to a thread of
its own, and with torch.autograd.set_multithreading_enabled(False).
Host time is the time until the call returns, without waiting for the GPU; the median of calls issued one after the other,
with a synchronization between groups so that the launch queue never fills. Each variant of whence is timed only after its output and
gradients agreed with float64 in the same run. SDPA has no position; FlexAttention is compiled, with fixed ALiBi slopes.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import whence
from whence import records
from whence.attention.fused import eager

ROOT = Path(__file__).resolve().parent.parent
BATCH, HEADS, TOKENS, HEAD_DIM, CACHED = 1, 8, 16, 64, 1000
COLUMNS = {
    "forward": "forward", "both": "both", "both_one_thread": "both, 1 thread", "decode": "decode",
    "both_compiled": "compiled", "both_compiled_one_thread": "comp., 1 thread", "both_graphs": "CUDA graphs",
}  # fmt: skip
WITHOUT_CACHE = ("forward", "both", "both_one_thread")
COMPILED_CALLS = ("both_compiled", "both_compiled_one_thread", "both_graphs")
TARGETS = {"forward": 150.0, "both": 500.0, "decode": 200.0}  # microseconds
MAX_LAUNCHES = 12
MAX_ERROR = 2e-2  # relative, in bfloat16


class Bell(whence.Position):
    """A user's own function of distance, without a kernel of its own."""

    def __init__(self) -> None:
        super().__init__()
        # a bell much wider than the sequence is almost constant, and the gradient of its height almost vanishes
        self.height, self.width = (torch.nn.Parameter(torch.tensor(x)) for x in (0.5, 3.0))

    def bias(self, distance: Tensor, length: Any) -> Tensor:
        return self.height * torch.exp(-((distance / self.width) ** 2))


OWN = "a function of your own"
POSITIONS: dict[str, Callable[[], whence.Position]] = {
    "no position": whence.NoPosition,
    "EPAR, learnable": lambda: whence.Epar(HEADS, learnable=True),
    "ALiBi, learnable": lambda: whence.Alibi(HEADS, learnable=True),
    "power prior, learnable": lambda: whence.PowerPrior(HEADS, alpha=0.1),
    "rotary + EPAR, learnable": lambda: whence.Rotary() + whence.Epar(HEADS, learnable=True),
    "rotary + ALiBi, fixed": lambda: whence.Rotary() + whence.Alibi(HEADS),
    "T5 buckets": lambda: whence.T5Bias(HEADS, std=1.0),
    OWN: Bell,
    "clock: a gate per head": lambda: whence.ForgetGate(HEAD_DIM, HEADS, form="bias"),
}
#: rows that are also compiled, which takes seconds for each
COMPILED = ("no position", "EPAR, learnable", "ALiBi, learnable", OWN)
#: rows with padding or segments, without a decode step: the position and the arguments of ``attend``
MASKED: dict[str, tuple[str, dict[str, Tensor]]] = {
    "EPAR, learnable, padding": ("EPAR, learnable", {"lengths": torch.tensor([TOKENS - 3])}),
    "T5 buckets, segments": ("T5 buckets", {"segment_ids": torch.arange(TOKENS) // 6}),
}


class Variant:
    """The calls of one way to compute attention. ``attend`` takes q, k, v and a cache or None."""

    def __init__(
        self, attend: Callable[..., Tensor], parameters: list[Tensor], device: str, dtype: torch.dtype
    ) -> None:
        generator = torch.Generator().manual_seed(0)

        def draw(tokens: int) -> Tensor:
            return torch.randn(BATCH, HEADS, tokens, HEAD_DIM, generator=generator).to(device, dtype)

        self.attend, self.parameters = attend, parameters
        self.inputs = [draw(TOKENS).requires_grad_() for _ in range(3)]
        self.grad_out, self.step = draw(TOKENS), [draw(1) for _ in range(3)]
        self.prefix = [draw(CACHED) for _ in range(3)]
        self.cache: Any = None
        self.compiled = torch.compile(lambda q, k, v: attend(q, k, v, None), fullgraph=True)
        self.graphed = torch.compile(lambda q, k, v: attend(q, k, v, None), fullgraph=True, mode="reduce-overhead")

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.attend(*self.inputs, None)

    def both(self) -> list[Tensor]:
        out = self.attend(*self.inputs, None)
        return [out, *torch.autograd.grad(out, [*self.inputs, *self.parameters], self.grad_out)]

    def both_compiled(self) -> list[Tensor]:
        out = self.compiled(*self.inputs)
        return [out, *torch.autograd.grad(out, [*self.inputs, *self.parameters], self.grad_out)]

    def both_one_thread(self) -> list[Tensor]:
        with torch.autograd.set_multithreading_enabled(False):
            return self.both()

    def both_compiled_one_thread(self) -> list[Tensor]:
        with torch.autograd.set_multithreading_enabled(False):
            return self.both_compiled()

    def both_graphs(self) -> list[Tensor]:
        """The results are overwritten by the next call."""
        torch.compiler.cudagraph_mark_step_begin()
        out = self.graphed(*self.inputs)
        return [out, *torch.autograd.grad(out, [*self.inputs, *self.parameters], self.grad_out)]

    def decode(self) -> Tensor:
        with torch.no_grad():
            return self.attend(*self.step, self.cache)

    def fill_cache(self) -> None:
        """A cache of CACHED tokens; the tokens of earlier decode steps are forgotten."""


class WhenceVariant(Variant):
    def __init__(
        self,
        make: Callable[[], whence.Position],
        device: str,
        dtype: torch.dtype,
        masks: dict[str, Tensor] | None = None,
    ) -> None:
        self.position = make().to(device)
        self.masks: dict[str, Any] = {name: mask.to(device) for name, mask in (masks or {}).items()}

        def attend(q: Tensor, k: Tensor, v: Tensor, cache: Any) -> Tensor:
            masks = self.masks if cache is None else {}
            if "clock" in self.position.effects:
                masks = masks | {"clock": self.position.clock(k[:, 0])}  # reads the number of tokens
            return whence.attend(q, k, v, position=self.position, causal=True, cache=cache, backend="triton", **masks)

        super().__init__(attend, [p for p in self.position.parameters() if p.requires_grad], device, dtype)

    def fill_cache(self) -> None:
        if self.cache is None:
            self.cache = whence.KVCache(capacity=4 * CACHED)
        self.cache.reset()
        with torch.no_grad():
            self.attend(*self.prefix, self.cache)

    def relative_errors(self, *, compiled: bool) -> list[float]:
        """Of the output, the gradients, a decode step and a compiled call against float64."""
        exact_position = copy.deepcopy(self.position).double()
        inputs = [x.detach().double().requires_grad_() for x in self.inputs]

        def attend_exactly(q: Tensor, k: Tensor, v: Tensor, **masks: Any) -> Tensor:
            clock = exact_position.clock(k[:, 0]) if "clock" in exact_position.effects else None
            return whence.attend(
                q, k, v, position=exact_position, clock=clock, causal=True, backend="reference", **masks
            )

        out = attend_exactly(*inputs, **self.masks)
        parameters = [p for p in exact_position.parameters() if p.requires_grad]
        exact = [out, *torch.autograd.grad(out, [*inputs, *parameters], self.grad_out.double())]
        self.fill_cache()
        for _ in range(2):  # the first call of a signature is validated, the second follows its plan
            results, last = self.both(), self.decode()
        whole = [torch.cat([a, b, b], 2).double() for a, b in zip(self.prefix, self.step, strict=True)]
        pairs = [*zip(results, exact, strict=True), (last, attend_exactly(*whole)[:, :, -1:])]
        if compiled:
            pairs += zip(self.both_compiled(), exact, strict=True)
            for _ in range(3):  # warm up, capture, replay
                replayed = [x.clone() for x in self.both_graphs()]
            pairs += zip(replayed, exact, strict=True)
        return [float((a.detach().double() - b.detach()).norm() / b.norm().clamp(min=1e-3)) for a, b in pairs]


class SdpaVariant(Variant):
    """Position-free attention with the cache that a plain loop would write."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        def attend(q: Tensor, k: Tensor, v: Tensor, cache: Any) -> Tensor:
            if cache is None:
                return scaled_dot_product_attention(q, k, v, is_causal=True)
            start = self.used
            self.used += 1
            cache[0][:, :, start : start + 1] = k
            cache[1][:, :, start : start + 1] = v
            return scaled_dot_product_attention(q, cache[0][:, :, : start + 1], cache[1][:, :, : start + 1])

        super().__init__(attend, [], device, dtype)
        shape = (BATCH, HEADS, 4 * CACHED, HEAD_DIM)
        self.cache = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(2)]

    def fill_cache(self) -> None:
        self.used = CACHED


class FlexVariant(Variant):
    """Compiled FlexAttention with fixed ALiBi slopes; no decode step, because each length would compile again."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        slopes = whence.Alibi(HEADS).slope().reshape(-1).to(device)
        mask = create_block_mask(lambda b, h, i, j: j <= i, None, None, TOKENS, TOKENS, device=device)
        compiled = torch.compile(flex_attention, fullgraph=True)

        def bias(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score - slopes[h] * (i - j)

        def attend(q: Tensor, k: Tensor, v: Tensor, cache: Any) -> Tensor:
            return compiled(q, k, v, score_mod=bias, block_mask=mask)

        super().__init__(attend, [], device, dtype)


class HookVariant(Variant):
    """The operators of a function of one's own on the distances of the call, without attention."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        position, distance = Bell().to(device), torch.arange(TOKENS, device=device, dtype=torch.float32)
        super().__init__(
            lambda q, k, v, cache: position.bias(distance, TOKENS), [*position.parameters()], device, dtype
        )
        self.grad_out = distance

    def both(self) -> list[Tensor]:
        out = self.attend(*self.inputs, None)
        return [out, *torch.autograd.grad(out, self.parameters, self.grad_out)]


def _check_nothing(*arguments: Any, **options: Any) -> None:
    """A function, because torch.compile does not trace a mock."""


@contextmanager
def stubbed_launches(counts: list[int]) -> Iterator[None]:
    """Count kernels instead of launching them, so that the host path can be timed without a GPU."""
    from triton.runtime.interpreter import InterpretedFunction

    from whence.attention.fused.direct_launch import DirectLaunch

    def count(self: Any, *arguments: Any) -> None:
        counts[0] += 1

    def count_at(self: Any, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **options: count(self)

    with (
        mock.patch("whence.attention.fused.planned_masks.is_regular", return_value=True),  # no kernel has written it
        mock.patch.object(DirectLaunch, "__call__", count),
        mock.patch.object(InterpretedFunction, "__getitem__", count_at),
        mock.patch("whence.attention.attend.require_finite_hooks", _check_nothing),  # not called on a GPU
    ):
        yield


def count_launches(call: Callable[[], object], counts: list[int] | None) -> int:
    """Kernels, copies and fills of one call."""
    if counts is not None:
        counts[0] = 0
        call()
        return counts[0]
    activities = [torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())


def time_host(call: Callable[[], object], prepare: Callable[[], None], groups: int, size: int) -> list[float]:
    """Microseconds per call, one number for each group of calls."""
    on_gpu, times = torch.cuda.is_available(), []
    for _ in range(groups + 1):  # the first group warms up
        prepare()
        if on_gpu:
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(size):
            call()
        times.append((time.perf_counter() - started) / size * 1e6)
    return times[1:]


def measure(variant: Variant, calls: list[str], groups: int, counts: list[int] | None) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in calls:
        call = getattr(variant, name)
        prepare = variant.fill_cache if name == "decode" else lambda: None
        prepare()
        for _ in range(3):
            call()
        launches = count_launches(call, counts)
        row[name] = {"launches": launches, "microseconds": time_host(call, prepare, groups, 20)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stubbed", action="store_true", help="Count kernels instead of launching them.")
    parser.add_argument("--plans", choices=["on", "off", "default"], default="default", help="Use launch plans.")
    parser.add_argument(
        "--without-flex", action="store_true", help="Leave out FlexAttention, which compiles for seconds."
    )
    parser.add_argument("--without-compile", action="store_true", help="Leave out calls inside torch.compile.")
    parser.add_argument("--groups", type=int, default=25, help="Timed groups of 20 calls.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "host_cost.json")
    args = parser.parse_args()
    if args.stubbed:
        os.environ["TRITON_INTERPRET"] = "1"
    elif not torch.cuda.is_available():
        raise SystemExit("benchmarks/host_cost.py needs a CUDA device; pass --stubbed to time the host path on a CPU")
    if args.plans != "default":
        eager.ENABLED = args.plans == "on"
    device, dtype = ("cpu", torch.float32) if args.stubbed else ("cuda", torch.bfloat16)
    every, rows = [call for call in COLUMNS if call not in COMPILED_CALLS], {}
    print(f"{'host us (launches)':28}" + "".join(f"{title:>16}" for title in COLUMNS.values()))

    def show(name: str, row: dict[str, Any]) -> None:
        rows[name] = row
        cells = [
            f"{statistics.median(row[call]['microseconds']):.0f} ({row[call]['launches']})" if call in row else "-"
            for call in COLUMNS
        ]
        print(
            f"{name:28}" + "".join(f"{cell:>16}" for cell in cells) + ("  " + row.get("left_out", "")),
            flush=True,
        )

    if not args.stubbed:
        calls = every if args.without_compile else [*COLUMNS]
        show("SDPA, no position", measure(SdpaVariant(device, dtype), calls, args.groups, None))
        if not args.without_flex:
            try:
                flex = FlexVariant(device, dtype)
                row = measure(flex, [*WITHOUT_CACHE], args.groups, None)
                row |= {} if args.without_compile else measure(flex, ["both_graphs"], args.groups, None)
            except Exception as error:  # the others are measured without it
                row = {"left_out": f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"}
            show("FlexAttention, ALiBi fixed", row)
        show(f"{OWN}: its operators alone", measure(HookVariant(device, dtype), [*WITHOUT_CACHE], args.groups, None))
    for name in (*POSITIONS, *MASKED):
        position, masks = MASKED.get(name, (name, {}))
        variant = WhenceVariant(POSITIONS[position], device, dtype, masks)
        compiled = name in COMPILED and not args.without_compile
        calls = [*WITHOUT_CACHE] if masks else [*COLUMNS] if compiled else every
        if args.stubbed:  # there are no CUDA graphs
            calls = [call for call in calls if call != "both_graphs"]
        if args.stubbed:
            counts = [0]
            with stubbed_launches(counts):
                show(name, measure(variant, calls, args.groups, counts))
            continue
        errors = variant.relative_errors(compiled=compiled)
        if max(errors) > MAX_ERROR:
            show(name, {"errors": errors, "left_out": "wrong: the comparison with float64 failed"})
            continue
        show(name, {"errors": errors, **measure(variant, calls, args.groups, None)})
    if not args.stubbed:
        environment = records.describe_environment(("torch", "triton"), accelerator=torch.cuda.get_device_name())
        shape = {
            "batch": BATCH,
            "heads": HEADS,
            "tokens": TOKENS,
            "head_dim": HEAD_DIM,
            "cached": CACHED,
            "dtype": str(dtype),
        }
        content = {
            "command": "python benchmarks/host_cost.py", "environment": environment, "shape": shape, "plans": eager.ENABLED,
            "targets": TARGETS, "max_launches": MAX_LAUNCHES, "variants": rows,
        }  # fmt: skip
        records.write(args.out, content)


if __name__ == "__main__":
    main()
