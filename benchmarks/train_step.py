"""Time of one training step of a small decoder on a GPU: learnable positions against rotary on the SDPA kernels.

    python benchmarks/train_step.py                # minutes on an H200; writes benchmarks/records/train_step.json
    python benchmarks/train_step.py --variants epar --steps 3

12 layers, embedding dimension 768, 12 heads, 4096 tokens, bfloat16, AdamW, the whole model in one ``torch.compile``
graph. Variants: rotary as commonly written on the flash kernel of SDPA, the same on its cuDNN kernel, rotary of whence, and on
the kernel of whence no position, learnable EPAR and the learnable power prior. The cost of a mechanism is its time over that
of no position, which is the same model on the same kernel. Before timing, the gradients of each model on a short sequence are compared with
the dense reference in float32. Each step is timed eagerly (launched from Python, so a slow host limits it) and as a
CUDA graph (device time only).
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
from gpu_timing import capture_graph, time_interleaved, time_step
from whence import records
from whence.position.no_position import NoPosition

ROOT = Path(__file__).resolve().parent.parent
LAYERS, EMBED_DIM, HEADS, TOKENS, BATCH, VOCAB_SIZE = 12, 768, 12, 4096, 4, 50304
VARIANTS = {
    "flash": "rotary, SDPA flash",
    "cudnn": "rotary, SDPA cuDNN",
    "rotary": "rotary through whence, SDPA flash",
    "none": "no position",
    "epar": "EPAR, learnable",
    "power prior": "power prior, learnable",
}


def make_position(variant: str) -> whence.Position:
    if variant == "epar":
        return whence.Epar(HEADS, learnable=True, context=TOKENS, beta=4.0)
    if variant == "power prior":
        return whence.PowerPrior(HEADS, alpha=0.01, beta=0.6)
    if variant == "none":
        return NoPosition()
    return whence.Rotary()


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary as commonly written: split halves of each head, cosines from a table."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class SdpaRotary(nn.Module):
    """Rotary from a table, then SDPA: the baseline."""

    def __init__(self) -> None:
        super().__init__()
        frequencies = 10000.0 ** (-torch.arange(0, EMBED_DIM // HEADS, 2) / (EMBED_DIM // HEADS))
        angle = torch.arange(TOKENS)[:, None] * frequencies
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cos", angle.cos().bfloat16())
        self.register_buffer("sin", angle.sin().bfloat16())

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cos, sin = (table[: q.shape[2]].to(q.dtype) for table in (self.cos, self.sin))
        return F.scaled_dot_product_attention(apply_rotary(q, cos, sin), apply_rotary(k, cos, sin), v, is_causal=True)


class WhenceAttention(nn.Module):
    def __init__(self, position: whence.Position, backend: str) -> None:
        super().__init__()
        self.position, self.backend = position, backend

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return whence.attend(q, k, v, position=self.position, causal=True, backend=self.backend)


class Block(nn.Module):
    def __init__(self, attend: nn.Module) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(EMBED_DIM), nn.RMSNorm(EMBED_DIM)
        self.qkv_proj = nn.Linear(EMBED_DIM, 3 * EMBED_DIM, bias=False)
        self.out_proj = nn.Linear(EMBED_DIM, EMBED_DIM, bias=False)
        self.up, self.down = (
            nn.Linear(EMBED_DIM, 4 * EMBED_DIM, bias=False),
            nn.Linear(4 * EMBED_DIM, EMBED_DIM, bias=False),
        )
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens = x.shape[:2]
        q, k, v = self.qkv_proj(self.attention_norm(x)).view(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        out = self.attend(q, k, v)
        x = x + self.out_proj(out.transpose(1, 2).reshape(batch, tokens, EMBED_DIM))
        return x + self.down(F.gelu(self.up(self.ffn_norm(x))))


class Decoder(nn.Module):
    def __init__(self, variant: str, backend: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB_SIZE, EMBED_DIM)
        use_sdpa = backend == "stock"
        self.blocks = nn.ModuleList(
            Block(SdpaRotary() if use_sdpa else WhenceAttention(make_position(variant), backend)) for _ in range(LAYERS)
        )
        self.norm = nn.RMSNorm(EMBED_DIM)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def build(variant: str, backend: str, dtype: torch.dtype) -> Decoder:
    """The same weights for every variant; positions stay in float32."""
    torch.manual_seed(0)
    model = Decoder(variant, backend).cuda()
    with torch.no_grad():
        for parameter in model.embed.parameters():
            parameter.mul_(0.02)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding | nn.RMSNorm):
            module.to(dtype)
    return model


def choose_kernel(variant: str) -> None:
    torch.backends.cuda.enable_flash_sdp(variant != "cudnn")
    torch.backends.cuda.enable_cudnn_sdp(variant == "cudnn")
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)


def gradient_error(variant: str, backend: str) -> float:
    """The largest relative gradient error of QKV projections and positions on a short sequence.

    The dense reference is in float32. A wrong mask or position changes these gradients by half or more.
    """
    tokens = torch.randint(VOCAB_SIZE, (1, 513), generator=torch.Generator().manual_seed(3)).cuda()
    gradients = []
    for used, dtype in ((backend, torch.bfloat16), ("reference", torch.float32)):
        model = build(variant, used, dtype)
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        parameters = [p for name, p in model.named_parameters() if "qkv_proj" in name or "position" in name]
        gradients.append([p.grad.double() for p in parameters if p.grad is not None])
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(*gradients, strict=True))


def measure(variant: str, steps: int, barrier: Any, device_lock: Any) -> dict[str, Any]:
    """In a worker process: all variants are compiled first, then timed one after the other."""
    try:
        row, step = prepare(variant)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        row, step = {"variant": variant, "left_out": f"failed: {reason}"}, None
    torch.cuda.empty_cache()
    print(f"  {VARIANTS[variant]}: ready", file=sys.stderr, flush=True)
    barrier.wait(timeout=500)
    if step is None:
        return row
    with device_lock:
        step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        row["milliseconds"] = time_step(step, steps)
        row["peak_megabytes"] = torch.cuda.max_memory_allocated() / 2**20
        row["last_loss"] = step().item()
        row["captured_milliseconds"] = []
        try:
            graph = capture_graph(step)
            row["captured_milliseconds"] = [] if graph is None else time_interleaved({variant: graph}, 1.0)[variant]
        except Exception as error:  # keep the eager measurements
            row["not_captured"] = str(error).strip().splitlines()[0][:300] if str(error).strip() else repr(error)
    return row


def prepare(variant: str) -> tuple[dict[str, Any], Callable[[], Tensor] | None]:
    backend = {"flash": "stock", "cudnn": "stock", "rotary": "sdpa"}.get(variant, "triton")
    choose_kernel(variant)
    row: dict[str, Any] = {"variant": variant, "gradient_error": gradient_error(variant, backend)}
    if not row["gradient_error"] < 0.15:
        row["gradient_error"] = str(row["gradient_error"])
        return row | {"left_out": "wrong: gradients differ from the reference"}, None
    model = build(variant, backend, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=True)
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    tokens = torch.randint(VOCAB_SIZE, (BATCH, TOKENS + 1), generator=torch.Generator().manual_seed(1)).cuda()

    def step() -> Tensor:
        loss = compiled(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    started = time.monotonic()
    row["first_losses"] = [step().item() for _ in range(3)]
    row["seconds_to_compile"] = time.monotonic() - started
    return row, step


def worker(variant: str, steps: int, barrier: Any, device_lock: Any, results: Any) -> None:
    try:
        row = measure(variant, steps, barrier, device_lock)
    except Exception as error:  # keep the rows of the other variants
        row = {"variant": variant, "left_out": f"failed: {error!r}"[:300]}
    results.put(row)


def format_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'':36}{'ms a step':>10}{'/flash':>8}{'/cuDNN':>8}{'as a graph':>12}{'/flash':>8}{'/cuDNN':>8}{'peak MB':>9}"
    ]
    for row in rows:
        if "left_out" in row:
            lines.append(f"{VARIANTS[row['variant']]:36}  {row['left_out']}")
            continue
        plain, graph = (format_ratios(row["variant"], rows, kind) for kind in ("milliseconds", "captured_milliseconds"))
        lines.append(f"{VARIANTS[row['variant']]:36}{plain:>26}{graph:>28}{row['peak_megabytes']:>9.0f}")
    return "\n".join(lines)


def format_ratios(variant: str, rows: list[dict[str, Any]], kind: str) -> str:
    """The median time of a variant and its ratios to the SDPA baselines."""
    medians = {row["variant"]: statistics.median(row[kind]) for row in rows if row.get(kind)}
    if variant not in medians:
        return "not captured"
    ratios = "".join(
        f"{medians[variant] / medians[b]:>8.3f}" if b in medians else f"{'':8}" for b in ("flash", "cudnn")
    )
    return f"{medians[variant]:.2f}{ratios}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), help="Variants to measure."
    )
    parser.add_argument("--steps", type=int, default=20, help="Timed steps per variant.")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "records" / "train_step.json", help="Path of the record."
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/train_step.py needs a CUDA device")
    environment = records.describe_environment(("torch", "triton"), accelerator=torch.cuda.get_device_name())
    # the cache key of compiled graphs does not include the enabled SDPA kernels: variants would share graphs
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    spawn = multiprocessing.get_context("spawn")
    barrier, device_lock, results = spawn.Barrier(len(args.variants)), spawn.Lock(), spawn.Queue()
    print("compiling the models in parallel", file=sys.stderr, flush=True)
    workers = [
        spawn.Process(target=worker, args=(variant, args.steps, barrier, device_lock, results))
        for variant in args.variants
    ]
    for process in workers:
        process.start()
    by_variant = {row["variant"]: row for row in (results.get(timeout=580) for _ in workers)}
    for process in workers:
        process.join()
    rows = [by_variant[variant] for variant in args.variants]
    spec = {
        "layers": LAYERS, "embed_dim": EMBED_DIM, "heads": HEADS, "tokens": TOKENS, "batch": BATCH, "vocabulary": VOCAB_SIZE,
        "dtype": "bfloat16", "optimizer": "AdamW, fused", "variants": VARIANTS,
    }  # fmt: skip
    record = {
        "command": f"python benchmarks/train_step.py --steps {args.steps}",
        "spec": spec,
        "environment": environment,
        "rows": rows,
    }
    if args.variants == list(VARIANTS):
        records.write(args.out, record)
    print(format_table(rows))


if __name__ == "__main__":
    main()
