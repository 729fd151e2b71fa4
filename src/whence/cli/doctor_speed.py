"""The measurement of ``whence doctor``: forward and backward passes of attention with a mechanism, over those of SDPA.

The variants take turns in one process, so that other work on the machine slows all of them alike. A time is the median of the
rounds, and a ratio the quotient of two times as they are printed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

#: seconds of the measurement, shared by all variants
SECONDS = 3.0
LEAST_ROUNDS = 5
HEADS, HEAD_DIM = 8, 64
#: tokens of the sequence on each device
TOKENS = {"cpu": 512, "cuda": 4096}


def measure_speed(device: str, seconds: float = SECONDS, tokens: int | None = None) -> dict[str, Any]:
    """Milliseconds of each variant, and its ratio to SDPA without position.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        seconds: how long the rounds go on; there are at least five after the warm-up.
        tokens: length of the sequence; by default one that suits the device.
    """
    import torch
    import torch.nn.functional as F

    import whence

    tokens = tokens or TOKENS[device]
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = (
        torch.randn(1, HEADS, tokens, HEAD_DIM, device=device, dtype=dtype, requires_grad=True) for _ in range(3)
    )
    upstream = torch.randn_like(q)
    positions: dict[str, whence.Position] = {
        "rotary": whence.Rotary(),
        "ALiBi": whence.Alibi(HEADS, learnable=True),
        "EPAR": whence.Epar(HEADS, context=tokens, learnable=True),
    }

    def step(position: whence.Position | None) -> float:
        began = time.perf_counter()
        if position is None:
            out, parameters = F.scaled_dot_product_attention(q, k, v, is_causal=True), []
        else:
            out, parameters = whence.attend(q, k, v, position=position, causal=True), list(position.parameters())
        torch.autograd.grad(out, (q, k, v, *parameters), upstream)
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    variants: dict[str, Callable[[], float]] = {"SDPA": lambda: step(None)}
    for name, position in positions.items():
        position.to(device)
        variants[name] = lambda position=position: step(position)  # type: ignore[misc]
    for warm_up in variants.values():
        warm_up()
    times: dict[str, list[float]] = {name: [] for name in variants}
    end = time.monotonic() + seconds
    while len(times["SDPA"]) < LEAST_ROUNDS or time.monotonic() < end:
        for name, run in variants.items():
            times[name].append(run())
    medians = {name: round(1000 * statistics.median(own), 2) for name, own in times.items()}
    rows = [
        {"name": name, "milliseconds": own, "ratio": None if name == "SDPA" else own / medians["SDPA"]}
        for name, own in medians.items()
    ]
    precision = str(dtype).removeprefix("torch.")
    setting = f"forward and backward, {tokens} tokens, {HEADS} heads of {HEAD_DIM}, {precision}, causal"
    return {"setting": setting, "device": device, "rounds": len(times["SDPA"]), "rows": rows}
