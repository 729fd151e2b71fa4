"""Compilation on a CPU: registers, spills and shared memory for compute capability 9.0."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.experimental.gluon import language as gl

from configs import CONFIGS, Config
from direct_cases import KINDS
from launches import KERNELS
from roles import HEAD_DIM, WARPS


def argument_types(config: Config) -> dict[str, str]:
    """The types of a kernel's arguments, as Triton writes them."""
    tile_layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    row_layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    described = dict.fromkeys(("Q", "GRAD_OUT", "OUT", "DQ", "DK", "DV"), 64) | dict.fromkeys(("K", "V"), config.keys)
    result = {}
    for name in KERNELS[config.kernel].arg_names:
        if name in described:
            result[name] = f"tensordesc<bf16[1, 1, {described[name]}, {HEAD_DIM.value}],{tile_layout!r}>"
        elif name in ("LSE", "DELTA") and config.kernel == "dkdv":
            result[name] = f"tensordesc<fp32[1, 64],{row_layout!r}>"
        elif name in ("LSE", "DELTA", "TABLE", "DERIVATIVES", "PARTIAL_SUMS"):
            result[name] = "*fp32"
        else:
            result[name] = "fp32" if name.startswith("qk_") else "i32"
    return result


def constants_of(config: Config, kind: str) -> dict[str, Any]:
    has_scale, has_bias, derivs, amplitude = KINDS[kind]
    tables = {"HAS_SCORE_SCALE": has_scale, "HAS_BIAS": has_bias}
    if config.kernel == "dkdv":
        return {"STAGES": config.stages, "TURNS": config.turns, "PREFETCH": config.prefetch, **tables}
    own = {
        "KEYS": config.keys,
        "STAGES": config.stages,
        "AHEAD": config.ahead,
        "HELD": config.held,
        "TURNS": config.turns,
        "PREFETCH": config.prefetch,
    }
    return own | tables | {"DERIVS": derivs, "DERIV_WIDTH": (1, 1, 2, 4)[derivs], "AMPLITUDE": amplitude}


def compile_facts(config: Config, kind: str) -> dict[str, Any]:
    """Registers, spills and shared memory of a kernel for compute capability 9.0, and what its loops hold.

    Consumers have CONSUMER_REGISTERS registers a thread while they run; the compiler prints those at the start.
    """
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource  # not public: no other command depends on it

    kernel, constants = KERNELS[config.kernel], constants_of(config, kind)
    signature = argument_types(config) | dict.fromkeys(constants, "constexpr")
    source = GluonASTSource(
        kernel, signature, {(kernel.arg_names.index(name),): x for name, x in constants.items()}, {}
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": WARPS.value})
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        ptx, binary = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        ptx.write_text(compiled.asm["ptx"])
        command = [tools / "ptxas", "-v", "-arch=sm_90a", ptx, "-o", binary]
        log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        disassembly = subprocess.run(
            [tools / "nvdisasm", "-c", binary], capture_output=True, text=True, check=True
        ).stdout
    spills = [int(x) for x in re.findall(r"(\d+) bytes spill", log)]
    loops = [loop for loop in find_loops(disassembly) if loop["stores"] == 0]
    return {
        "config": config.name, "kind": kind, "shared": compiled.metadata.shared,
        "registers": int(re.findall(r"Used (\d+) registers", log)[0]), "spill_bytes": spills,
        "serialized": "serialized" in log, "loops": loops,
    }  # fmt: skip


def find_loops(disassembly: str) -> list[dict[str, int]]:
    """Instructions, products, and stores and loads of spilled registers of the innermost loops with products."""
    labels: dict[str, int] = {}
    instructions: list[str] = []
    for line in disassembly.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif instruction := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?);", line):
            instructions.append(instruction[1])
    ranges = []
    for end, instruction in enumerate(instructions):
        branch = re.search(r"BRA.*`\((\.L_x_\d+)\)", instruction)
        if branch and labels.get(branch[1], end) < end:
            ranges.append((labels[branch[1]], end + 1))
    names = {
        "products": "HGMMA",
        "spill_stores": "STL",
        "spill_loads": "LDL",
        "table_loads": "LDG",
        "stores": "UTMASTG",
    }
    found = []
    for first, end in ranges:
        body = instructions[first:end]
        counts = {name: sum(x in y for y in body) for name, x in names.items()}
        is_innermost = not any(first <= a and b <= end and (a, b) != (first, end) and b - a > 100 for a, b in ranges)
        if counts["products"] and is_innermost:
            found.append({"instructions": end - first, **counts})
    return found


def compile_all(out: Path | None) -> None:
    rows = []
    print(f"Triton {triton.__version__}")
    for config in CONFIGS:
        for kind in ("none", "scale", "bias") if config.kernel == "dkdv" else KINDS:
            row = compile_facts(config, kind)
            rows.append(row)
            loops = ", ".join(
                f"{x['instructions']} instructions with {x['spill_stores']} + {x['spill_loads']} spills"
                for x in row["loops"]
            )
            print(
                f"{row['config']:28} {kind:22} {row['shared'] / 1024:6.1f} of 227 KiB, spills {row['spill_bytes']} bytes; loops: {loops}"
                + ("; PRODUCTS SERIALIZED" if row["serialized"] else "")
                + ("; TOO LARGE" if row["shared"] > 227 * 1024 else ""),
                flush=True,
            )
    if out is not None:
        out.write_text(json.dumps(rows, indent=1))
