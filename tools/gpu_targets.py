"""What the fused kernels should cost on a GPU, and what the committed rows of benchmarks/gpu.py measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from gpu_row_tables import COMPILED

Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class Target:
    """A ratio of two variants in each of some rows; the largest one is compared with the limit.

    ``base`` is a variant, or the prefix by which a variant's own name differs from that of its base.
    """

    title: str
    limit: float
    rows: tuple[str, ...]
    variants: tuple[str, ...]
    base: str
    column: str = "device"
    base_column: str = ""  # the same column unless given


USUAL = ("alibi", "epar", "power prior", "function")
ATTACHED = ("epar", "alibi", "power prior")
TARGETS = (
    Target("eager, 512 tokens, over eager flash", 1.5, ("short",), USUAL, "flash", "eager"),
    Target("compiled, 512 tokens, over compiled FlexAttention", 1.0, ("short",), USUAL, "flex, fixed", "compiled", "eager"),
    Target('compiled with mode="reduce-overhead", 512 tokens, over the same of FlexAttention', 1.0, ("short",), USUAL, "flex, fixed", "graphs"),
    Target(
        "rotary and a bias, over the same bias alone", 1.15, ("rotary 512", "rotary 3001", "rotary 5000"),
        ("rotary + alibi", "rotary + epar", "rotary + power prior"), "rotary + ",
    ),
    Target("head dim 256, over flash", 1.0, ("dim 256",), USUAL, "flash"),
    Target("head dims 80 and 96, over flash", 0.9, ("dim 80", "dim 96"), ("epar", "power prior"), "flash"),
    Target(
        "scale and bias with dense gradients, over flash", 1.0, ("scale and bias 64", "scale and bias 128"),
        ("scale and bias",), "flash",
    ),
    Target(
        "functions of the query's length, over flash", 2.0, ("query length",),
        ("fire, frozen", "epar, query, frozen", "fire", "epar, query"), "flash",
    ),
    Target(
        "tables of content, over flash", 10.0, ("content",),
        ("shaw", "shaw, keys", "query table", "swin", "transformer-xl", "grape"), "flash",
    ),
    Target("content by gated counts (CoPE), over flash", 10.0, ("content",), ("cope",), "flash"),
    Target("content of all heads (DAPE), over flash", 10.0, ("content",), ("dape",), "flash"),
    Target("head dim 128, 8192 tokens, over cuDNN", 1.25, ("tokens 8192",), ("epar", "power prior", "function"), "cudnn"),
    Target("a clock, over ALiBi", 1.1, ("clock 64", "clock 128", "clock grouped"), ("clock",), "alibi"),
    Target("a training step of an attached model, over SDPA", 1.1, ("model training",), ATTACHED, "sdpa", "eager"),
    Target("the same, compiled", 1.1, ("model training compiled",), ATTACHED, "sdpa", "eager"),
    Target("a prompt of 16384 tokens, attached, over SDPA", 1.1, ("model prefill",), ATTACHED, "sdpa", "eager"),
)  # fmt: skip


def target_table(record: dict[str, Any]) -> Table:
    """Each target with the largest ratio of its rows, and the variants that have none."""
    head = ["target", "at most", "largest measured", "result", "without a time"]
    return head, [_target_row(target, record) for target in TARGETS]


def _target_row(target: Target, record: dict[str, Any]) -> list[str]:
    ratios, missing = {}, []
    labels = record["spec"]["models"] if target.base == "sdpa" else record["spec"]["variants"]
    for row in target.rows:
        results = {one["variant"]: one for one in record["rows"].get(row, {}).get("variants", [])}
        for variant in target.variants:
            base = variant.removeprefix(target.base) if target.base.endswith(" ") else target.base
            took = _median(results.get(variant), target.column)
            of_base = _median(results.get(base), target.base_column or target.column)
            label = (
                labels.get(variant, variant).removesuffix(" attached, learnable").split(", three")[0].split(", two")[0]
            )
            where = f"{label} ({row})" if len(target.rows) > 1 and row not in label else label
            if took is None or of_base is None:
                reason = results.get(variant, {}).get("left_out", "")  # such as a comparison with float64 that failed
                missing.append(f"{where}: {reason}" if reason else where)
            else:
                ratios[where] = took / of_base
    if not ratios:
        return [target.title, f"{target.limit:g}", "-", "not measured", "; ".join(missing)]
    worst = max(ratios, key=lambda where: ratios[where])
    state = "missed" if ratios[worst] > target.limit else "met" if not missing else "met so far"
    return [target.title, f"{target.limit:g}", f"{ratios[worst]:.2f}, {worst}", state, "; ".join(missing)]


def _median(result: dict[str, Any] | None, column: str) -> float | None:
    """Median milliseconds of a forward and backward pass, or of a model's step."""
    if result is None:
        return None
    timed = result.get("milliseconds", {})
    times = result.get(column) if column in COMPILED else timed.get("both", timed).get(column)
    return statistics.median(times) if times else None
