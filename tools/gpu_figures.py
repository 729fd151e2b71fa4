"""What the README says about speed on a GPU: tables and a picture from the committed records."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

ORDER = ("alibi", "alibi, skipping", "epar", "power prior", "function", "t5")
OTHERS = ("flex, fixed", "flex, learnable", "eager")


def middle(row: dict[str, Any], passes: str = "both") -> float:
    """Median milliseconds on the device; eager steps where no graph could be recorded."""
    times = row["milliseconds"][passes]
    return statistics.median(times["device"] or times["eager"])


def shape_text(shape: list[int]) -> str:
    """A shape in words.

    >>> shape_text([4, 16, 16, 4096, 64]), shape_text([1, 32, 8, 32768, 128])
    ('4 x 16 heads, 4096 tokens, width 64', '1 x 32/8 heads, 32768 tokens, width 128')
    """
    batch, heads, groups, length, width = shape
    shown = f"{heads}" if heads == groups else f"{heads}/{groups}"
    return f"{batch} x {shown} heads, {length} tokens, width {width}"


def by_shape(record: dict[str, Any]) -> list[tuple[list[int], dict[str, dict[str, Any]]]]:
    shapes = [list(s) for s in dict.fromkeys(tuple(row["shape"]) for row in record["rows"])]
    return [(shape, {row["way"]: row for row in record["rows"] if row["shape"] == shape}) for shape in shapes]


def attention_rows(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Forward and backward as multiples of position-free SDPA flash, one column a shape."""
    shapes = by_shape(record)
    head = ["forward + backward, times SDPA flash", *(shape_text(shape) for shape, _ in shapes)]
    rows = [["SDPA flash, no position", *(f"{middle(here['flash']):.2f} ms" for _, here in shapes)]]
    for name in ("cudnn", "none", *ORDER, *OTHERS):
        cells = [record["spec"]["ways"][name]]
        for _, here in shapes:
            cells.append(_cell(here.get(name), middle(here["flash"])))
        rows.append(cells)
    return head, rows


def launched_rows(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The same as Python launches it, call by call and without a compiler."""

    def took(row: dict[str, Any]) -> float:
        return statistics.median(row["milliseconds"]["both"]["eager"])

    shapes = by_shape(record)
    head = ["the same, each call launched from Python", *(shape_text(shape) for shape, _ in shapes)]
    rows = [["SDPA flash, no position", *(f"{took(here['flash']):.2f} ms" for _, here in shapes)]]
    for name in ("cudnn", "none", *ORDER):
        ratios = [took(here[name]) / took(here["flash"]) for _, here in shapes]
        rows.append([record["spec"]["ways"][name], *(f"{ratio:.2f}x" for ratio in ratios)])
    return head, rows


def _cell(row: dict[str, Any] | None, flash: float) -> str:
    if row is None or "milliseconds" not in row:
        return "-"
    ratio = middle(row) / flash
    star = "" if row["milliseconds"]["both"]["device"] else "*"
    return (f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x") + star


def memory_rows(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Peak memory of forward and backward, beyond inputs."""
    shapes = by_shape(record)
    head = ["peak extra memory", *(shape_text(shape) for shape, _ in shapes)]
    rows = []
    for name in ("flash", "epar", "function", "flex, fixed", "eager"):
        cells = [record["spec"]["ways"][name]]
        for _, here in shapes:
            found = here.get(name, {}).get("extra_megabytes")
            cells.append("-" if found is None else f"{found:.0f} MB")
        rows.append(cells)
    return head, rows


def decode_rows(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    measured = [row for row in record["decode"] if row.get("milliseconds")]
    speeds = {row["way"]: row["bytes"] / statistics.median(row["milliseconds"]) / 1e9 for row in measured}
    copying = max(speed for name, speed in speeds.items() if name.startswith("copy"))
    head = ["one query a head against 65536 keys (batch 8, 32/8 heads, width 128)", "ms", "of copy bandwidth"]
    rows = [["the fastest of three plain copies", "", f"{copying:.2f} TB/s"]]
    for row in measured:
        name = row["way"]
        if not name.startswith("copy"):
            took = statistics.median(row["milliseconds"])
            rows.append([record["spec"]["ways"][name], f"{took:.2f}", f"{speeds[name] / copying:.0%}"])
    return head, rows


def training_rows(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A step launched from Python, and as a CUDA graph where the record has that of every way."""
    known = {row["way"]: row for row in record["rows"] if "milliseconds" in row}
    spec = record["spec"]
    head = [
        f"one step of a decoder: {spec['layers']} layers, {spec['width']} wide, {spec['batch']} x {spec['tokens']} tokens"
    ]
    rows = [[spec["ways"][name]] for name in known]
    for kind, title in (("milliseconds", "ms"), ("captured_milliseconds", "ms as a CUDA graph")):
        if not all(row.get(kind) for row in known.values()):
            continue
        head += [title, "/ rotary on flash", "/ rotary on cuDNN"]
        took = {name: statistics.median(row[kind]) for name, row in known.items()}
        for name, row in zip(known, rows, strict=True):
            row += [f"{took[name]:.1f}", *(f"{took[name] / took[base]:.2f}x" for base in ("flash", "cudnn"))]
    memory = [f"{row['peak_megabytes'] / 1024:.1f} GB" for row in known.values()]
    return [*head, "peak memory"], [[*row, peak] for row, peak in zip(rows, memory, strict=True)]


def tests_note(record: dict[str, Any]) -> str:
    """How the tests on a GPU ended."""
    tests, where = record["tests"], record["environment"]
    return (
        f"Tests on a GPU, with every gradient against float64: {tests['passed']} passed, {len(tests['failed'])} failed; "
        f"compute-sanitizer on a small case of every kernel: {record['memory']['said'].lower()}. Record: "
        f"`benchmarks/records/gpu_tests.json` (commit {str(where['commit'])[:9]}); `{record['command']}` tests again."
    )


def note(attention: dict[str, Any], training: dict[str, Any]) -> str:
    where = attention["environment"]
    machine = where["machine"].get("accelerator", "a GPU")
    packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
    return (
        f"Causal, bfloat16, {machine}, {packages}. Everything that learns gets its gradient. Times of attention are "
        "medians of CUDA graph replays, the work of the device without the host's (a star: eager steps, where no graph was "
        "recorded). Launched one by one from Python, calls on short texts wait for the host, which the second table shows; in a "
        "compiled model they do not. A training step is timed as it is launched from Python, "
        "where a slow host sets the pace, and as a CUDA graph, the device's work alone. Each way of attention was timed only after its output and all gradients "
        "agreed with float64 in the same run, each model after its gradients agreed with the dense reference; a dash is a "
        "way that was left out, with the reason in the record. The models with EPAR and the power prior do not rotate, the "
        "others do. A copy reads and writes, decoding reads. Records: `benchmarks/records/gpu.json` and "
        f"`benchmarks/records/train_step.json` (commits {str(where['commit'])[:9]} and "
        f"{str(training['environment']['commit'])[:9]}); `make gpu-bench` measures again."
    )


def draw(record: dict[str, Any], out: Path) -> None:
    """Bars of every way over the shapes, against flash and cuDNN."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shapes = by_shape(record)
    figure, axes = plt.subplots(1, len(shapes), figsize=(13, 3.9), sharey=True, layout="constrained")
    names = list(reversed(("none", *ORDER)))
    plate = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # so that no line runs through a number
    for axis, (shape, here) in zip(axes, shapes, strict=True):
        flash = middle(here["flash"])
        lengths = [middle(here[n]) / flash if "milliseconds" in here.get(n, {}) else 0.0 for n in names]
        axis.barh(
            range(len(names)), lengths, color=["#9aa7b1" if n == "none" else "#2b6ca3" for n in names], height=0.66
        )
        for place, length in enumerate(lengths):
            axis.text(
                length + 0.02,
                place,
                f"{length:.2f}" if length else "left out",
                va="center",
                fontsize=8,
                zorder=3,
                bbox=plate,
            )
        axis.axvline(1.0, color="#b5541c", linewidth=1.4)
        axis.axvline(middle(here["cudnn"]) / flash, color="#6a6a6a", linewidth=1.2, linestyle="--")
        axis.set_title(shape_text(shape).replace(" heads, ", " heads\n"), fontsize=9)
        axis.set_xlim(0, max(1.35, 1.2 * max(lengths)))
        axis.set_yticks(range(len(names)), [record["spec"]["ways"][n] for n in names], fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(axis="x", labelsize=8)
    figure.supxlabel(
        "forward + backward over position-free SDPA flash (orange); dashed: position-free SDPA cuDNN; shorter is faster",
        fontsize=9,
    )
    figure.savefig(out, dpi=130, metadata={"Software": None})
    plt.close(figure)
