"""Tables and the figure of GPU performance, from the committed records in benchmarks/records."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

ORDER = ("alibi", "alibi, skipping", "epar", "power prior", "function", "t5")
OTHERS = ("flex, fixed", "flex, learnable", "eager")
#: rows of the figure, from top to bottom; the other two of OTHERS are too slow for its axis
DRAWN = ("none", *ORDER, "flex, fixed")
COLORS = {"none": "#9aa7b1", "flex, fixed": "#7a5a9e"}


def median_milliseconds(row: dict[str, Any], passes: str = "both") -> float:
    """Median device time; eager time where no CUDA graph was captured."""
    times = row["milliseconds"][passes]
    return statistics.median(times["device"] or times["eager"])


def shape_text(shape: list[int]) -> str:
    """A shape as text.

    >>> shape_text([4, 16, 16, 4096, 64]), shape_text([1, 32, 8, 32768, 128])
    ('4 x 16 heads, 4096 tokens, head dim 64', '1 x 32/8 heads, 32768 tokens, head dim 128')
    """
    batch, heads, kv_heads, length, head_dim = shape
    head_text = f"{heads}" if heads == kv_heads else f"{heads}/{kv_heads}"
    return f"{batch} x {head_text} heads, {length} tokens, head dim {head_dim}"


def by_shape(record: dict[str, Any]) -> list[tuple[list[int], dict[str, dict[str, Any]]]]:
    shapes = [list(s) for s in dict.fromkeys(tuple(row["shape"]) for row in record["rows"])]
    return [(shape, {row["variant"]: row for row in record["rows"] if row["shape"] == shape}) for shape in shapes]


def attention_rows(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Forward and backward time as multiples of position-free SDPA flash, one column per shape."""
    shapes = by_shape(record)
    head = ["forward + backward, times SDPA flash", *(shape_text(shape) for shape, _ in shapes)]
    rows = [["SDPA flash, no position", *(f"{median_milliseconds(here['flash']):.2f} ms" for _, here in shapes)]]
    for name in ("cudnn", "none", *ORDER, *OTHERS):
        cells = [record["spec"]["variants"][name]]
        for _, here in shapes:
            cells.append(_cell(here.get(name), median_milliseconds(here["flash"])))
        rows.append(cells)
    return head, rows


def launched_rows(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The same for eager calls launched from Python."""

    def eager_milliseconds(row: dict[str, Any]) -> float:
        return statistics.median(row["milliseconds"]["both"]["eager"])

    shapes = by_shape(record)
    head = ["the same, eager calls launched from Python", *(shape_text(shape) for shape, _ in shapes)]
    rows = [["SDPA flash, no position", *(f"{eager_milliseconds(here['flash']):.2f} ms" for _, here in shapes)]]
    for name in ("cudnn", "none", *ORDER):
        ratios = [eager_milliseconds(here[name]) / eager_milliseconds(here["flash"]) for _, here in shapes]
        rows.append([record["spec"]["variants"][name], *(f"{ratio:.2f}x" for ratio in ratios)])
    return head, rows


def _cell(row: dict[str, Any] | None, flash: float) -> str:
    if row is None or "milliseconds" not in row:
        return "-"
    ratio = median_milliseconds(row) / flash
    star = "" if row["milliseconds"]["both"]["device"] else "*"
    return (f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x") + star


def memory_rows(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Peak memory of forward and backward, beyond the inputs."""
    shapes = by_shape(record)
    head = ["peak extra memory", *(shape_text(shape) for shape, _ in shapes)]
    rows = []
    for name in ("flash", "epar", "function", "flex, fixed", "eager"):
        cells = [record["spec"]["variants"][name]]
        for _, here in shapes:
            found = here.get(name, {}).get("extra_megabytes")
            cells.append("-" if found is None else f"{found:.0f} MB")
        rows.append(cells)
    return head, rows


def decode_rows(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    measured = [row for row in record["decode"] if row.get("milliseconds")]
    speeds = {row["variant"]: row["bytes"] / statistics.median(row["milliseconds"]) / 1e9 for row in measured}
    copying = max(speed for name, speed in speeds.items() if name.startswith("copy"))
    head = ["one query per head over 65536 keys (batch 8, 32/8 heads, head dim 128)", "ms", "of copy bandwidth"]
    rows = [["fastest of three plain copies", "", f"{copying:.2f} TB/s"]]
    for row in measured:
        name = row["variant"]
        if not name.startswith("copy"):
            took = statistics.median(row["milliseconds"])
            rows.append([record["spec"]["variants"][name], f"{took:.2f}", f"{speeds[name] / copying:.0%}"])
    return head, rows


def training_rows(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Eager training steps, and CUDA graphs where the record has them for every variant."""
    known = {row["variant"]: row for row in record["rows"] if "milliseconds" in row}
    spec = record["spec"]
    head = [
        f"one step of a decoder: {spec['layers']} layers, embed dim {spec['embed_dim']}, {spec['batch']} x {spec['tokens']} tokens"
    ]
    rows = [[spec["variants"][name]] for name in known]
    for kind, title in (("milliseconds", "ms"), ("captured_milliseconds", "ms as a CUDA graph")):
        if not all(row.get(kind) for row in known.values()):
            continue
        head += [title, "/ rotary on flash", "/ rotary on cuDNN"]
        took = {name: statistics.median(row[kind]) for name, row in known.items()}
        for name, row in zip(known, rows, strict=True):
            row += [f"{took[name]:.1f}", *(f"{took[name] / took[base]:.2f}x" for base in ("flash", "cudnn"))]
    memory = [f"{row['peak_megabytes'] / 1024:.1f} GB" for row in known.values()]
    return [*head, "peak memory"], [[*row, peak] for row, peak in zip(rows, memory, strict=True)]


def host_rows(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Host time and launches of eager calls; a star marks a time above its target."""
    shape, targets = record["shape"], record["targets"]
    titles = {
        "forward": "forward", "both": "forward + backward", "both_one_thread": "the same in one thread",
        "decode": f"decode step over {shape['cached']} keys",
        "both_compiled": "forward + backward, compiled", "both_compiled_one_thread": "the same in one thread",
        "both_graphs": 'the same, mode="reduce-overhead"',
    }  # fmt: skip
    variants = record["variants"]
    calls = [call for call in titles if call in targets or any(call in variant for variant in variants.values())]
    where = f"{shape['batch']} x {shape['heads']} heads, {shape['tokens']} tokens, head dim {shape['head_dim']}"
    rows = []
    for name, variant in variants.items():
        own, cells = "errors" in variant, [name]  # errors: of a call of whence, compared with float64
        for call in calls:
            if call in variant:
                took = statistics.median(variant[call]["microseconds"])
                missed = own and took > targets.get(call, math.inf)
                cells.append(f"{took:.0f} us{'*' * missed}, {variant[call]['launches']} launches")
            else:
                cells.append("-")
        rows.append(cells)
    return [f"host time of an eager call, {where}", *(titles[call] for call in calls)], rows


def describe_host_cost(record: dict[str, Any]) -> str:
    """Which targets of host time are met."""
    targets, where = record["targets"], record["environment"]
    own = {name: variant for name, variant in record["variants"].items() if "errors" in variant}
    missed = [
        f"{name} ({call})" for call, target in targets.items() for name, variant in own.items()
        if call in variant and statistics.median(variant[call]["microseconds"]) > target
    ]  # fmt: skip
    limits = ", ".join(f"{target:.0f} us ({call})" for call, target in targets.items())
    most, dtype = record["max_launches"], record["shape"]["dtype"].removeprefix("torch.")
    spread = own["EPAR, learnable"]["both"]["microseconds"]
    above = [name for name, v in own.items() if any(v[call]["launches"] > most for call in targets if call in v)]
    return (
        f"Host time is the median time until a call returns, in {dtype}, while the GPU works on. Targets: {limits} and "
        f"{most} launches. Missed, with a star: {', '.join(missed) or 'none'}. More launches: {', '.join(above) or 'none'}. "
        "Each variant agreed with float64 in the same run. Medians of one run vary: forward and "
        f"backward of EPAR took {min(spread):.0f} to {max(spread):.0f} us in groups of 20 calls. Record: `benchmarks/records/host_cost.json` "
        f"(commit {str(where['commit'])[:9]}); run `{record['command']}` to repeat."
    )


def support_rows(compiled: dict[str, Any], tests: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """What ran on which GPU, and what was compiled for it and never ran."""
    head = ["GPU", "tiles loaded by", "largest head dim: half precision, float32", "state"]
    rows = [[
        f"compute capability 9.0 ({tests['environment']['machine']['accelerator']})", "TMA", "256, 256",
        f"run: {tests['tests']['passed']} GPU tests passed, {len(tests['tests']['failed'])} failed",
    ]]  # fmt: skip
    for target in compiled["spec"]["targets"]:
        here = [row for row in compiled["kernels"] if row["target"] == target]
        dims = [
            max((row["head_dim"] for row in here if row["dtype"] == dtype), default="-")
            for dtype in ("bfloat16", "float32")
        ]
        worst = max(here, key=lambda row: row["shared"])
        nvidia = target.startswith("sm_")
        name = f"compute capability {target[3:-1]}.{target[-1]}" if nvidia else f"AMD {target}"
        state = "compiled, not run" if nvidia else "compiled, not run; the backend refuses AMD"
        used = f"one program needs up to {worst['shared'] / 1024:.0f} of {worst['limit'] // 1024} KiB of shared memory"
        if worst["shared"] > worst["limit"]:
            large = sum(row["shared"] > row["limit"] for row in here)
            need = "needs" if large == 1 else "need"
            used = f"{large} of {len(here)} kernels {need} more than the {worst['limit'] // 1024} KiB of shared memory"
        rows.append([name, "pointers", f"{dims[0]}, {dims[1]}", f"{state}; {used}"])
    return head, rows


def describe_compiled(record: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in record["environment"]["packages"].items())
    positions = "; ".join(record["spec"]["positions"])
    return (
        f"Compiled ahead of time ({packages}) for these mechanisms: {positions}; causal, with gradients, with padding and deterministic "
        f"gradients, and a decode step: {len(record['kernels'])} kernels. Record: `benchmarks/records/compile_targets.json`; run "
        f"`{record['command']}` to repeat; `--positions` takes others."
    )


def describe_tests(record: dict[str, Any]) -> str:
    """The result of the GPU tests."""
    tests, where = record["tests"], record["environment"]
    return (
        f"GPU tests, which compare outputs and gradients with float64: {tests['passed']} passed, {len(tests['failed'])} failed; "
        f"compute-sanitizer on a small case of every kernel: {record['memory']['message'].lower()}. Record: "
        f"`benchmarks/records/gpu_tests.json` (commit {str(where['commit'])[:9]}); run `{record['command']}` to repeat."
    )


def describe_setup(attention: dict[str, Any], training: dict[str, Any]) -> str:
    where = attention["environment"]
    machine = where["machine"].get("accelerator", "a GPU")
    packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
    return (
        f"Causal, bfloat16, {machine}, {packages}. All learnable parameters get gradients. Attention times are medians of CUDA "
        "graph replays: device time without host overhead (a star marks eager steps, where no graph was captured). Eager calls "
        "on short sequences are limited by the host, as the second table shows; calls in a compiled model are not. Training "
        "steps are timed eagerly and as a CUDA graph. Each attention variant was timed only after its output and all gradients "
        "agreed with float64 in the same run, each model after its gradients agreed with the dense reference; a dash marks a "
        "variant that was not measured, with the reason in the record. Models whose name says rotary use rotary "
        "positions, the others do not. A copy reads and writes; decode only reads. Records: `benchmarks/records/gpu.json` "
        f"and `benchmarks/records/train_step.json` (commits {str(where['commit'])[:9]} and "
        f"{str(training['environment']['commit'])[:9]}); run `make gpu-bench` to repeat."
    )


def draw(record: dict[str, Any], out: Path) -> None:
    """Draw a bar of each variant of ``DRAWN`` for each shape, relative to SDPA flash and cuDNN."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shapes = by_shape(record)
    figure, axes = plt.subplots(1, len(shapes), figsize=(13, 4.3), sharey=True, layout="constrained")
    names = list(reversed(DRAWN))
    plate = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # keeps lines from crossing the numbers
    for axis, (shape, here) in zip(axes, shapes, strict=True):
        flash = median_milliseconds(here["flash"])
        lengths = [median_milliseconds(here[n]) / flash if "milliseconds" in here.get(n, {}) else 0.0 for n in names]
        axis.barh(range(len(names)), lengths, color=[COLORS.get(n, "#2b6ca3") for n in names], height=0.66)
        for place, length in enumerate(lengths):
            axis.text(
                length + 0.02,
                place,
                f"{length:.2f}" if length else "not measured",
                va="center",
                fontsize=8,
                zorder=3,
                bbox=plate,
            )
        axis.axvline(1.0, color="#b5541c", linewidth=1.4)
        axis.axvline(median_milliseconds(here["cudnn"]) / flash, color="#6a6a6a", linewidth=1.2, linestyle="--")
        axis.set_title(shape_text(shape).replace(" heads, ", " heads\n"), fontsize=9)
        axis.set_xlim(0, max(1.35, 1.2 * max(lengths)))
        axis.set_yticks(range(len(names)), [record["spec"]["variants"][n] for n in names], fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(axis="x", labelsize=8)
    figure.supxlabel(
        "forward + backward time (CUDA graphs, bfloat16) relative to position-free SDPA flash (orange); dashed: SDPA cuDNN; shorter is faster",
        fontsize=9,
    )
    figure.savefig(out, dpi=130, metadata={"Software": None})
    plt.close(figure)
