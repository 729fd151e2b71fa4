"""Rows of measurements beside the table of ``gpu.py``: other head dimensions, lengths, rotation, query lengths, and models.

A row is one shape with the variants that are compared on it; its ratios come from one process. Every variant is compared
with float64 first, in parallel processes. A row that exceeds its time limit keeps what was measured. The record is
written after each row, and a later run of other rows adds to it.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import gpu_models
from gpu_measure import MAX_ERROR, MAX_PARAMETER_ERROR, check_variant, measure
from gpu_timing import DEVICE
from gpu_variants import GLUON, ROW_LABELS
from whence import records

POSITION_FREE = ("flash", "cudnn")
USUAL = (*POSITION_FREE, "flex, fixed", "none", "alibi", "epar", "power prior", "function")
ROTATED = ("flash", "alibi", "rotary + alibi", "epar", "rotary + epar", "power prior", "rotary + power prior")
#: each forward kernel of a mechanism beside the other; measured with WHENCE_GLUON=0, or both are the same
GLUON_PAIRS = tuple(
    name + kernel for name in ("none", "epar", "power prior", "function", "scale and bias") for kernel in ("", GLUON)
)
CHECK_PROCESSES = 12


@dataclass(frozen=True)
class Row:
    """One shape ``(batch, heads, kv_heads, tokens, head_dim)`` with its variants, or a measurement of ``gpu_models``."""

    shape: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    variants: tuple[str, ...] = ()
    compiled: bool = False  # whether the variants are also timed inside torch.compile
    model: str = ""
    limit: float = 0.0  # seconds, if it needs more than others


ROWS: dict[str, Row] = {
    "short": Row((16, 16, 16, 512, 64), USUAL, compiled=True),
    "rotary 512": Row((16, 16, 16, 512, 64), ROTATED),
    "rotary 3001": Row((4, 16, 16, 3001, 64), ROTATED),
    "rotary 5000": Row((2, 12, 4, 5000, 128), ROTATED),
    "dim 80": Row((2, 12, 4, 5000, 80), USUAL),
    "dim 96": Row((2, 12, 4, 5000, 96), USUAL),
    "dim 256": Row((1, 16, 16, 8192, 256), USUAL),
    "tokens 8192": Row((2, 16, 16, 8192, 128), USUAL, compiled=True),
    "tokens 65536": Row((1, 16, 4, 65536, 128), (*POSITION_FREE, "flex, fixed", "alibi, skipping", "epar", "function")),
    "scale and bias 64": Row((4, 16, 16, 4096, 64), (*POSITION_FREE, "function", "scale and bias")),
    "scale and bias 128": Row((4, 16, 16, 4096, 128), (*POSITION_FREE, "function", "scale and bias")),
    "clock 64": Row((4, 16, 16, 4096, 64), ("alibi", "clock", *POSITION_FREE)),  # ratios to ALiBi
    "clock 128": Row((2, 16, 16, 8192, 128), ("alibi", "clock", *POSITION_FREE)),
    "clock grouped": Row((2, 12, 4, 5000, 128), ("alibi", "clock", *POSITION_FREE)),
    "gluon 128": Row((4, 16, 16, 4096, 128), (*POSITION_FREE, *GLUON_PAIRS)),
    "query length": Row(
        (1, 16, 16, 4096, 64), (*POSITION_FREE, "fire, frozen", "epar, query, frozen", "fire", "epar, query")
    ),
    "content": Row(
        (1, 16, 16, 4096, 64),
        (*POSITION_FREE, "shaw", "shaw, keys", "query table", "swin", "transformer-xl", "grape", "cope", "dape"),
    ),
    "model training": Row(model="training"),
    "model prefill": Row(model="prefill"),
    "model training compiled": Row(model="training compiled", limit=480),
    "model decoding compiled": Row(model="decoding compiled", limit=240),
}
TINY = (1, 4, 2, 24, 16)  # of a dry run


class RowTimeout(BaseException):
    """The time limit of a row. Not an Exception, because a failure of one variant is recorded and does not end its row."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``RowTimeout`` inside the block after these seconds."""

    def stop(*_: object) -> None:
        raise RowTimeout

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(names: list[str], budget: float, limit: float, out: Path, *, dry_run: bool = False) -> None:
    """Measure rows, print each, and write the record after each."""
    if dry_run == torch.cuda.is_available():
        raise SystemExit(
            "--dry-run is for machines without a GPU"
            if dry_run
            else "benchmarks/gpu.py needs a CUDA device; try --dry-run"
        )
    rows = {name: replace(ROWS[name], shape=TINY) if dry_run else ROWS[name] for name in names}
    accelerator = torch.cuda.get_device_name() if DEVICE == "cuda" else "none: a dry run"
    record: dict[str, Any] = {
        "command": "python benchmarks/gpu.py --rows all" + (" --dry-run" if dry_run else ""),
        "spec": {
            "dtype": "bfloat16",
            "causal": True,
            "allowed_error": MAX_ERROR,
            "allowed_parameter_error": MAX_PARAMETER_ERROR,
            "variants": ROW_LABELS,
            "models": gpu_models.LABELS,
        },
        "environment": {},
        "rows": {},
    }
    if out.exists() and not dry_run:  # rows of earlier runs, each with its own environment
        record["rows"] = records.read(out)["rows"]
    record["environment"] = records.describe_environment(("torch", "triton", "transformers"), accelerator=accelerator)
    started = time.monotonic()
    checked = check_rows(rows, limit)
    print(f"{time.monotonic() - started:4.0f} s  compared with float64", file=sys.stderr, flush=True)
    for name, row in rows.items():
        began = time.monotonic()
        results = measure_row(name, row, checked.get(name, []), budget, max(limit, row.limit))
        record["rows"][name] = {
            "shape": list(row.shape) if row.variants else None,
            "seconds": time.monotonic() - began,
            "environment": record["environment"],
            "variants": results,
        }
        records.write(out, record)  # after each row, so that an interruption loses one
        print(format_row(name, row, results), flush=True)
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


def check_rows(rows: dict[str, Row], limit: float) -> dict[str, list[dict[str, Any]]]:
    """Compare every variant of every row with float64; on a GPU in parallel processes, which also compile the kernels."""
    jobs = [(name, variant) for name, row in rows.items() for variant in row.variants]
    arguments = [(variant, rows[name].shape) for name, variant in jobs]
    if DEVICE == "cpu" or not jobs:
        checked = [check_variant(argument) for argument in arguments]
    else:
        checked = []
        with multiprocessing.get_context("spawn").Pool(min(CHECK_PROCESSES, len(jobs))) as pool:
            waiting = [pool.apply_async(check_variant, (argument,)) for argument in arguments]
            deadline = time.monotonic() + limit * max(1, len(jobs) / CHECK_PROCESSES)
            for (variant, shape), result in zip(arguments, waiting, strict=True):
                try:
                    checked.append(result.get(timeout=max(0.1, deadline - time.monotonic())))
                except multiprocessing.TimeoutError:
                    left_out = "not compared with float64 within the time limit"
                    checked.append({"variant": variant, "shape": list(shape), "left_out": left_out})
            pool.terminate()
    results: dict[str, list[dict[str, Any]]] = {}
    for (name, _), result in zip(jobs, checked, strict=True):
        results.setdefault(name, []).append(result | ({"compiled": []} if rows[name].compiled else {}))
    return results


def measure_row(
    name: str, row: Row, results: list[dict[str, Any]], budget: float, limit: float
) -> list[dict[str, Any]]:
    """The results of a row, with what was measured before its time limit."""

    def report_progress(words: str) -> None:
        print(f"        {name}: {words}", file=sys.stderr, flush=True)

    try:
        with time_limit(limit):
            if row.model:
                gpu_models.measure(row.model, results, budget, limit, report_progress)
            else:
                measure(results, budget, report_progress)
    except RowTimeout:
        for result in results:
            if "milliseconds" not in result:
                result.setdefault("left_out", f"over the time limit of {limit:g} s")
    return results


def median(times: list[float] | None) -> float | None:
    return statistics.median(times) if times else None


def format_row(name: str, row: Row, results: list[dict[str, Any]]) -> str:
    """A table of a row: device time, eager and compiled time, and ratios to the first variant of each column."""
    if row.model:
        return gpu_models.format_rows(name, results)
    batch, heads, kv_heads, tokens, head_dim = row.shape
    lines = [f"\n{name}: batch {batch}, heads {heads}/{kv_heads}, {tokens} tokens, head_dim {head_dim}"]
    lines.append(
        f"{'forward + backward':48}{'device':>9}{'/first':>8}{'eager':>9}{'/first':>8}{'compiled':>9}{'fwd':>9}{'error':>9}"
    )
    first: dict[str, float] = {}
    for result in results:
        label = ROW_LABELS[result["variant"]] + (f" ({result['backend']})" if "backend" in result else "")
        if "left_out" in result or "both" not in result.get("milliseconds", {}):
            lines.append(f"{label:48}  {result.get('left_out', 'not timed')}")
            continue
        both = result["milliseconds"]["both"]
        columns = {"device": median(both["device"]), "eager": median(both["eager"])}
        text = f"{label:48}"
        for column, value in columns.items():
            if value is not None:
                first.setdefault(column, value)
            text += f"{'-':>9}{'':8}" if value is None else f"{value:>9.3f}{value / first[column]:>8.2f}"
        forward = result["milliseconds"]["forward"]
        for value in (median(result.get("compiled")), median(forward["device"] or forward["eager"])):
            text += f"{'-':>9}" if value is None else f"{value:>9.3f}"
        lines.append(text + f"{max(result['errors'].values()):>9.1e}")
    return "\n".join(lines)
