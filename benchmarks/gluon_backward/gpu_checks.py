"""Checks on a GPU: each configuration against float64 and against the Triton kernels."""

from __future__ import annotations

import itertools
import json
from typing import Any

import torch

from configs import CONFIGS, Config
from direct_cases import KINDS, direct_case, is_accurate
from gpu_calls import (
    MECHANISMS,
    TIMED_SHAPES,
    Backward,
    describe_on_gpu,
    exact_results,
    launch_on_gpu,
    make_call,
    patched,
)
from gpu_timing import DEVICE
from whence.attention.fused import packing, tile_configs
from workers import report

#: batch, heads, key heads, tokens; dtype
CHECKED_CALLS = (
    (1, 2, 2, 128, "bfloat16"), (2, 4, 2, 200, "bfloat16"), (2, 4, 1, 1000, "float16"), (1, 3, 3, 300, "bfloat16"),
    (1, 4, 4, 4096, "bfloat16"), (1, 4, 2, 4096, "bfloat16"),
)  # fmt: skip
ROUNDING = 2e-4  # added to twice the error of the Triton kernels


def check_config(number: int) -> None:
    """In a process of its own: compare one configuration with float64 and with the Triton kernels."""
    tile_configs.FEW_PAIRS = 0  # short sequences by the kernels of long ones
    config = CONFIGS[number]
    pair = (config, None) if config.kernel == "dq" else (None, config)
    programs = packing.num_multiprocessors(torch.device(DEVICE))
    for kind in KINDS if config.kernel == "dq" else ("none", "scale", "bias"):
        for shape in ((1, 2, 2, 300), (2, 4, 2, 1000)):
            for used in (programs, 3):  # with 3 programs, each computes many tiles
                errors = direct_case([config], kind, (*shape, used), launch_on_gpu, describe_on_gpu, device=DEVICE)
                report(
                    what="direct", config=config.name, kind=kind, shape=shape, errors=errors, passed=is_accurate(errors)
                )
    checked = ("dq",) if config.kernel == "dq" else ("dk", "dv")
    for mechanism in MECHANISMS:
        for *shape, dtype in CHECKED_CALLS:
            if dtype == "float16" and mechanism != "epar":
                continue
            both, position, inputs, grad_out = make_call(mechanism, tuple(shape), getattr(torch, dtype))
            exact, triton_results = exact_results(position, inputs, grad_out), both()
            with patched(Backward(*pair, poison=True)):
                results, again = both(), both()
            names = ["out", "dq", "dk", "dv", *(f"parameter {i}" for i in range(len(exact) - 4))]
            rows = {}
            for name, a, b, wanted, twice in zip(names, triton_results, results, exact, again, strict=True):
                if name in checked or (name.startswith("parameter") and config.kernel == "dq"):
                    errors = [((x.double() - wanted).norm() / wanted.norm()).item() for x in (a, b)]
                    rows[name] = {"triton": errors[0], "gluon": errors[1], "repeats": torch.equal(b, twice)}
            # the gradient of a parameter is a sum that cancels: its two errors are two draws; the direct cases bound them closer
            passed = all(
                x["gluon"] <= 2 * x["triton"] + (2e-2 if name.startswith("parameter") else ROUNDING) and x["repeats"]
                for name, x in rows.items()
            )
            report(
                what="check",
                config=config.name,
                mechanism=mechanism,
                shape=shape,
                dtype=dtype,
                errors=rows,
                passed=passed,
            )
    for mechanism, shape in itertools.product(MECHANISMS, TIMED_SHAPES):  # against the Triton kernels
        both, *_ = make_call(mechanism, shape, torch.bfloat16)
        wanted = both()
        with patched(Backward(*pair, poison=True)):
            results = [both() for _ in range(3)]
        differences = [
            ((a.double() - b.double()).norm() / b.double().norm()).item()
            for a, b in zip(results[0], wanted, strict=True)
        ]
        repeats = all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))
        passed = repeats and all(x < (1e-2 if i < 4 else 5e-2) for i, x in enumerate(differences))
        report(
            what="large", config=config.name, mechanism=mechanism, shape=shape, differences=differences, repeats=repeats, passed=passed
        )  # fmt: skip


def summarize_checks(rows: list[dict[str, Any]], failures: dict[str, str], config: Config) -> bool:
    """Print one line; whether everything about a configuration was right."""
    own = [row for row in rows if row.get("config") == config.name]
    expected = len(MECHANISMS) * (len(CHECKED_CALLS) + len(TIMED_SHAPES)) - 2  # float16 with one mechanism
    expected += 4 * (len(KINDS) if config.kernel == "dq" else 3)
    wrong = [row for row in own if not row["passed"]]
    passed = len(own) == expected and not wrong and config.name not in failures
    ratios = [
        x["gluon"] / x["triton"]
        for row in own
        if row["what"] == "check"
        for n, x in row["errors"].items()
        if n[0] == "d"
    ]
    ratio = f", errors at most {max(ratios):.2f} of the Triton kernels'" if ratios else ""
    print(
        f"{config.name:28} {'passed' if passed else 'NOT PASSED'}: {len(own) - len(wrong)} of {expected} comparisons{ratio}"
    )
    for row in wrong[:4]:
        print(
            f"    wrong: {json.dumps({name: x for name, x in row.items() if name not in ('config', 'passed')})[:500]}"
        )
    if config.name in failures:
        print(f"    {failures[config.name]}")
    return passed
