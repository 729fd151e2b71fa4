"""The time of one training step of a small decoder: learnable position against rotary on torch's own kernels.

    python benchmarks/train_step.py                # minutes on an H200; writes benchmarks/records/train_step.json
    python benchmarks/train_step.py --only epar --steps 3

12 layers, 768 wide, 12 heads, 4096 tokens, bfloat16, the whole model in one ``torch.compile`` graph, AdamW. The same
model with: rotary as it is commonly written on SDPA's flash kernel, the same on its cuDNN kernel, rotary through whence,
learnable EPAR, learnable power prior. Before a model is timed, its gradients on a short text are held against the dense
reference in float32. Each step is timed as a program runs it, launched from Python, and again as a CUDA graph, which is
the device's work alone: on a slow host the first is the host's time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import whence
from gpu_timing import captured, in_turns, milliseconds
from whence import records

ROOT = Path(__file__).resolve().parent.parent
LAYERS, WIDTH, HEADS, TOKENS, BATCH, VOCABULARY = 12, 768, 12, 4096, 4, 50304
WAYS = {
    "flash": "rotary, SDPA flash",
    "cudnn": "rotary, SDPA cuDNN",
    "rotary": "rotary through whence, SDPA flash",
    "epar": "EPAR, learnable",
    "power prior": "power prior, learnable",
}


def position_of(way: str) -> whence.Position:
    if way == "epar":
        return whence.Epar(HEADS, learnable=True, context=TOKENS, beta=4.0)
    if way == "power prior":
        return whence.PowerPrior(HEADS, alpha=0.01, beta=0.6)
    return whence.Rotary()


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary as it is commonly written: halves of each head, cosines from a table."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Stock(nn.Module):
    """Rotary from a table, then torch's own attention: what whence is compared with."""

    def __init__(self) -> None:
        super().__init__()
        frequencies = 10000.0 ** (-torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS))
        angle = torch.arange(TOKENS)[:, None] * frequencies
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cos", angle.cos().bfloat16())
        self.register_buffer("sin", angle.sin().bfloat16())

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cos, sin = (table[: q.shape[2]].to(q.dtype) for table in (self.cos, self.sin))
        return F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True)


class Whence(nn.Module):
    def __init__(self, position: whence.Position, backend: str) -> None:
        super().__init__()
        self.position, self.backend = position, backend

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return whence.attend(q, k, v, position=self.position, causal=True, backend=self.backend)


class Block(nn.Module):
    def __init__(self, attend: nn.Module) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.back = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens = x.shape[:2]
        q, k, v = self.project(self.before(x)).view(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        out = self.attend(q, k, v)
        x = x + self.back(out.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Decoder(nn.Module):
    def __init__(self, way: str, backend: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        stock = backend == "stock"
        self.blocks = nn.ModuleList(
            Block(Stock() if stock else Whence(position_of(way), backend)) for _ in range(LAYERS)
        )
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def build(way: str, backend: str, dtype: torch.dtype) -> Decoder:
    """The same weights for every way; positions stay in float32."""
    torch.manual_seed(0)
    model = Decoder(way, backend).cuda()
    with torch.no_grad():
        for parameter in model.embed.parameters():
            parameter.mul_(0.02)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding | nn.RMSNorm):
            module.to(dtype)
    return model


def choose_kernel(way: str) -> None:
    torch.backends.cuda.enable_flash_sdp(way != "cudnn")
    torch.backends.cuda.enable_cudnn_sdp(way == "cudnn")
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)


def gradient_error(way: str, backend: str) -> float:
    """The worst relative error of the attention's weights' and positions' gradients on a short text, against the dense
    reference in float32; a wrong mask or position moves them by half and more."""
    tokens = torch.randint(VOCABULARY, (1, 513), generator=torch.Generator().manual_seed(3)).cuda()
    found = []
    for used, dtype in ((backend, torch.bfloat16), ("reference", torch.float32)):
        model = build(way, used, dtype)
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        learnt = [p for name, p in model.named_parameters() if "project" in name or "position" in name]
        found.append([p.grad.double() for p in learnt if p.grad is not None])
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(*found, strict=True))


def measure(way: str, steps: int, ready: Any, turn: Any) -> dict[str, Any]:
    """In a process of its own: everything is compiled before anybody is timed, and then one is timed after the other."""
    try:
        row, step = prepare(way)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        row, step = {"way": way, "left_out": f"failed: {reason}"}, None
    torch.cuda.empty_cache()
    print(f"  {WAYS[way]}: ready", file=sys.stderr, flush=True)
    ready.wait(timeout=500)
    if step is None:
        return row
    with turn:
        step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        row["milliseconds"] = milliseconds(step, steps)
        row["peak_megabytes"] = torch.cuda.max_memory_allocated() / 2**20
        row["last_loss"] = step().item()
        row["captured_milliseconds"] = []
        try:
            graph = captured(step)
            row["captured_milliseconds"] = [] if graph is None else in_turns({way: graph}, 1.0)[way]
        except Exception as error:  # what was measured until here stays
            row["not_captured"] = str(error).strip().splitlines()[0][:300] if str(error).strip() else repr(error)
    return row


def prepare(way: str) -> tuple[dict[str, Any], Callable[[], Tensor] | None]:
    backend = {"flash": "stock", "cudnn": "stock", "rotary": "sdpa"}.get(way, "triton")
    choose_kernel(way)
    row: dict[str, Any] = {"way": way, "gradient_error": gradient_error(way, backend)}
    if not row["gradient_error"] < 0.15:
        row["gradient_error"] = str(row["gradient_error"])
        return row | {"left_out": "wrong: gradients differ from the reference's"}, None
    model = build(way, backend, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=True)
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    tokens = torch.randint(VOCABULARY, (BATCH, TOKENS + 1), generator=torch.Generator().manual_seed(1)).cuda()

    def step() -> Tensor:
        loss = compiled(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    begun = time.monotonic()
    row["first_losses"] = [step().item() for _ in range(3)]
    row["seconds_to_compile"] = time.monotonic() - begun
    return row, step


def worker(way: str, steps: int, ready: Any, turn: Any, results: Any) -> None:
    try:
        row = measure(way, steps, ready, turn)
    except Exception as error:  # the others' rows are not to be lost
        row = {"way": way, "left_out": f"failed: {error!r}"[:300]}
    results.put(row)


def table_of(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'':36}{'ms a step':>10}{'/flash':>8}{'/cuDNN':>8}{'as a graph':>12}{'/flash':>8}{'/cuDNN':>8}{'peak MB':>9}"
    ]
    for row in rows:
        if "left_out" in row:
            lines.append(f"{WAYS[row['way']]:36}  {row['left_out']}")
            continue
        plain, graph = (compared(row["way"], rows, kind) for kind in ("milliseconds", "captured_milliseconds"))
        lines.append(f"{WAYS[row['way']]:36}{plain:>26}{graph:>28}{row['peak_megabytes']:>9.0f}")
    return "\n".join(lines)


def compared(way: str, rows: list[dict[str, Any]], kind: str) -> str:
    """The median time of a way, and its ratios to torch's own kernels."""
    known = {row["way"]: statistics.median(row[kind]) for row in rows if row.get(kind)}
    if way not in known:
        return "not captured"
    ratios = "".join(f"{known[way] / known[b]:>8.3f}" if b in known else f"{'':8}" for b in ("flash", "cudnn"))
    return f"{known[way]:.2f}{ratios}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each way")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "train_step.json")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/train_step.py measures on a CUDA device, and there is none here")
    where = records.describe_environment(("torch", "triton"), accelerator=torch.cuda.get_device_name())
    # torch keeps compiled graphs under their source, which does not say which of SDPA's kernels was allowed: one way
    # would run what another compiled
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    fresh = multiprocessing.get_context("spawn")
    ready, turn, results = fresh.Barrier(len(given.only)), fresh.Lock(), fresh.Queue()
    print("compiling the models, side by side", file=sys.stderr, flush=True)
    workers = [fresh.Process(target=worker, args=(way, given.steps, ready, turn, results)) for way in given.only]
    for process in workers:
        process.start()
    found = {row["way"]: row for row in (results.get(timeout=580) for _ in workers)}
    for process in workers:
        process.join()
    rows = [found[way] for way in given.only]
    spec = {
        "layers": LAYERS, "width": WIDTH, "heads": HEADS, "tokens": TOKENS, "batch": BATCH, "vocabulary": VOCABULARY,
        "dtype": "bfloat16", "optimizer": "AdamW, fused", "ways": WAYS,
    }  # fmt: skip
    record = {
        "command": f"python benchmarks/train_step.py --steps {given.steps}",
        "spec": spec,
        "environment": where,
        "rows": rows,
    }
    if given.only == list(WAYS):
        records.write(given.out, record)
    print(table_of(rows))


if __name__ == "__main__":
    main()
