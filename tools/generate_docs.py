"""Generate the tables of docs/ and the figures of README and docs/ from the catalogue, the backends and committed records.

python tools/generate_docs.py           # write tables and figures
python tools/generate_docs.py --check   # fail if a table is out of date
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import bench_tables
import discovery_tables
import gpu_figures as gpu
import gpu_row_tables
import gpu_targets
import length_figures
import mend_figure
import mend_tables
import simulation_tables
from api_tables import ACTS, api, markdown
from whence import records
from whence.attention.backends import BACKENDS
from whence.lab.results import collect_findings, collect_study, load_study
from whence.lab.study import PERCENT_METRICS
from whence.mend.catalogue import CURES
from whence.position.catalogue import CATALOGUE, SHORT_NAMES, describe_learning
from whence.probe.findings import findings as probe_findings
from whence.report.comparison.verdicts import headline
from whence.report.image_files import write_png
from whence.report.probe.figures import curves_figure, explanations_figure
from whence_papers import FOLDER
from whence_papers.epar import conditions
from whence_papers.prior.figure import draw_prior, read_runs
from whence_papers.speeches.figure import draw_maps, draw_training

ROOT = Path(__file__).resolve().parents[1]


def mechanisms() -> str:
    rows = []
    for entry in CATALOGUE:
        position = entry.make(4, 16)
        acts = "; ".join(text for hook, text in ACTS.items() if hook in position.effects) or "none"
        learns = "learnable" if position.trainable else "fixed"
        remark = describe_learning(position)
        if remark:
            learns += ", with `learnable=True`" if position.trainable and remark.startswith("learns") else f"; {remark}"
        keys = "past keys only" if position.causal_only else "all keys"
        rows.append([f"`{entry.name}`", entry.idea, acts, learns, keys, entry.source])
    return markdown(["mechanism", "idea", "effect", "parameters", "defined for", "source"], rows)


def short_names() -> str:
    rows = [[f"`{name}`", f"`{text}`"] for name, text in SHORT_NAMES.items()]
    return markdown(["short name", "stands for"], rows)


#: what ``Backend.effects`` does not say: effects that a backend takes in part
PARTLY = {
    ("flex", "content_bias"): "content_bias of a function of `from_score_mod` alone",
    ("triton", "content_bias"): "content_bias as a table",
    ("triton", "value_bias"): "value_bias as a table",
}


def backends() -> str:
    rows = []
    for name, s in BACKENDS.items():
        effects = ", ".join(
            PARTLY.get((name, h), h)
            for h in ("score_scale", "bias", "content_bias", "value_bias", "sink", "clock")
            if h in s.effects or (name, h) in PARTLY
        )
        weights = "yes" if s.returns_weights else "no"
        rows.append([f"`{name}`", s.purpose, effects, s.gradients, s.memory, weights, s.tracing, s.devices, s.dtypes])
    head = [
        "backend",
        "for",
        "score effects",
        "gradients",
        "memory",
        "returns weights",
        "traced by",
        "devices",
        "dtypes",
    ]
    return markdown(head, rows)


def speed(record: dict[str, Any]) -> str:
    """Forward and backward of learnable position against the floor, from the committed record."""
    spec, where = record["spec"], record["environment"]
    rows = []
    both = [r for r in record["rows"] if r["passes"] == "both"]
    for length in spec["lengths"]:
        for name in ("Epar", "Alibi"):
            found = {r["variant"]: r for r in both if r["length"] == length and r["mechanism"] == name}
            floor = statistics.median(found["floor"]["seconds"])
            cells = [f"{name}, learnable", str(length), f"{floor:.2f} s"]
            for variant in ("whence", "dense", "sdpa"):
                cells.append(_ratio(found.get(variant), floor))
            cells += [_megabytes(found.get(variant)) for variant in ("whence", "dense", "sdpa")]
            rows.append(cells)
    head = ["forward + backward", "tokens", "SDPA, no position", "whence", "plain torch", "SDPA, dense bias"]
    head += ["whence, extra memory", "plain torch", "SDPA, dense bias"]
    note = (
        f"Times are multiples of position-free SDPA in the same run: {spec['heads']} heads of head_dim {spec['head_dim']}, batch "
        f"{spec['batch']}, causal, {spec['dtype']}, median of up to {spec['rounds']} rounds on {spec['threads']} cores "
        f"({where['machine']['processor']}, torch {where['packages']['torch']}). An SDPA mask cannot express a `score_scale`. "
        f"Record: `benchmarks/records/cpu.json`; run `make bench` to repeat."
    )
    return markdown(head, rows) + "\n\n" + note


def capture_memory(record: dict[str, Any]) -> str:
    """Memory of capture, from the committed record: the forward pass alone, with one recorder, with all."""
    sizes = {variant: f"{found['bytes'] / 1e9:.1f}" for variant, found in record["results"].items()}
    alone, everything = sizes.pop("plain"), sizes.pop("everything")
    return (
        f"On a CPU a forward pass of {record['about']['length']} tokens of SmolLM2 takes {alone} GB beyond the model; "
        f"{min(sizes.values(), key=float)} to {max(sizes.values(), key=float)} GB with one recorder on all layers, and "
        f"{everything} GB with all recorders at once. Record: `benchmarks/records/capture.json`; run `python benchmarks/capture.py` "
        "to repeat."
    )


def gpu_tables() -> str:
    """The GPU's tables, from committed records."""
    folder = ROOT / "benchmarks" / "records"
    attention, training = records.read(folder / "gpu.json"), records.read(folder / "train_step.json")
    host = records.read(folder / "host_cost.json")
    tables = [
        gpu.attention_rows(attention), gpu.launched_rows(attention), gpu.training_rows(training), gpu.decode_rows(attention),
        gpu.memory_rows(attention), gpu.host_rows(host),
    ]  # fmt: skip
    notes = [
        gpu.describe_setup(attention, training), gpu.describe_host_cost(host),
        gpu.describe_tests(records.read(folder / "gpu_tests.json")),
    ]  # fmt: skip
    if (folder / "gpu_rows.json").is_file():
        measured = records.read(folder / "gpu_rows.json")
        tables += [gpu_targets.target_table(measured), *gpu_row_tables.row_tables(measured)]
        notes.append(gpu_row_tables.describe_rows(measured))
    return "\n\n".join([*(markdown(head, rows) for head, rows in tables), *notes])


def gpu_support() -> str:
    """Which GPUs the fused kernels ran on, and for which they were compiled."""
    folder = ROOT / "benchmarks" / "records"
    compiled, tests = records.read(folder / "compile_targets.json"), records.read(folder / "gpu_tests.json")
    return markdown(*gpu.support_rows(compiled, tests)) + "\n\n" + gpu.describe_compiled(compiled)


def plain_files() -> str:
    """The comparisons on plain files: each arm beside the baselines, with the verdict."""
    rows = []
    for packed in sorted((ROOT / "benchmarks" / "records" / "plain_files").glob("*.zip")):
        folder = packed.with_suffix("")
        study = load_study(folder)
        found = collect_study(study, folder)
        percent, split = found["metric"] in PERCENT_METRICS, found["split"]

        def show(value: float, percent: bool = percent) -> str:
            return f"{100 * value:.1f} %" if percent else f"{value:.3g}"

        arms = [arm for arm in found["arms"] if arm["values"].get(split)]
        values = [f"{arm['name']} {show(statistics.fmean(arm['values'][split].values()))}" for arm in arms]
        levels = [
            f"{one['name']} {show(one['splits'][split][found['metric']])}"
            for one in found["baselines"]
            if found["metric"] in one["splits"].get(split, {}) and one["kind"] != "ceiling"
        ]
        items = ", ".join(f"{count:,} {part}" for part, count in found["data"]["items"].items())
        data, seeds = Path(study.task_settings["path"]).name, max(len(arm["values"][split]) for arm in arms)
        rows.append(
            [
                f"`{data}` ({items})",
                found["metric"].replace("mcc", "MCC"),
                ", ".join(values),
                ", ".join(levels),
                str(seeds),
                headline(found),
            ]
        )
    return markdown(["data", "metric", "arms", "baselines", "seeds", "verdict"], rows)


def _ratio(row: dict[str, Any] | None, floor: float) -> str:
    if row is None:
        return "-"
    return "no room" if row["seconds"] is None else f"{statistics.median(row['seconds']) / floor:.2f}x"


def _megabytes(row: dict[str, Any] | None) -> str:
    return "-" if row is None else "no room" if row["extra_megabytes"] is None else f"{row['extra_megabytes']:.0f} MB"


def cures() -> str:
    """The built-in cures with their classes, settings and papers."""
    rows = []
    for name, kind in CURES.items():
        settings = list(inspect.signature(kind).parameters)
        about = (inspect.getdoc(kind) or "").partition("\n")[0]
        rows.append([f"`{name}`", f"`{kind.__name__}`", about, ", ".join(f"`{one}`" for one in settings), kind.paper])
    return markdown(["name", "class", "what it does", "settings", "paper"], rows)


def generated_parts() -> dict[str, dict[str, Callable[[], str]]]:
    """The generated parts of each page, by the name in their markers ``<!-- name -->``."""
    folder = ROOT / "benchmarks" / "records"
    performance = {
        "speed": lambda: speed(records.read(folder / "cpu.json")),
        "capture": lambda: capture_memory(records.read(folder / "capture.json")),
        "gpu": gpu_tables,
        "gpu-support": gpu_support,
    }
    simulation = records.read(folder / "statistics.json")
    simulated = {
        "simulated-limits": simulation_tables.limit_rows,
        "simulated-errors": simulation_tables.error_rows, "simulated-many-seeds": simulation_tables.many_seeds_rows,
        "simulated-candidates": simulation_tables.candidate_rows,
        "simulated-power": simulation_tables.power_rows, "simulated-looks": simulation_tables.look_rows,
        "simulated-comparison": simulation_tables.comparison_rows,
        "simulated-scales": simulation_tables.scale_rows,
        "simulated-equivalence": simulation_tables.equivalence_rows, "simulated-further": simulation_tables.further_rows,
    }  # fmt: skip
    return {
        "statistics.md": {name: lambda rows=rows: markdown(*rows(simulation)) for name, rows in simulated.items()},
        "comparing.md": {"plain-files": plain_files},
        "mechanisms.md": {"mechanisms": mechanisms, "short-names": short_names},
        "benchmarks.md": {"before-after": bench_tables.before_after},
        "mending.md": {"cures": cures},
        "backends-and-masks.md": {"backends": backends},
        "gpu-performance.md": performance,
        "discover.md": {
            "planted": lambda: discovery_tables.planted_curves(records.read(folder / "discovery_planted.json")),
            "planted-2": lambda: discovery_tables.planted_curves(records.read(folder / "discovery_planted_2.json")),
            "planted-teachers": lambda: discovery_tables.learned_curves(
                records.read(folder / "discovery_teachers.json")
            ),
            "gpu-run": lambda: discovery_tables.comparison_table(
                folder / "discover-gpu" / "discovered-topics-e7492cc5c869"
            ),
            "planted-teachers-2": lambda: discovery_tables.learned_curves(
                records.read(folder / "discovery_teachers_2.json")
            ),
        },
        "api.md": {"api": api},
    }


def slow_parts() -> dict[str, dict[str, Callable[[], str]]]:
    """Generated parts that take minutes, because trials are judged again. They are written with the figures, not checked."""
    return {"mending.md": {"trials": mend_tables.trial_tables, "published": mend_tables.published_table}}


def render(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """A page with its generated parts replaced."""
    for name, make in parts.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        body = make()
        text, count = pattern.subn(lambda match, body=body: f"{match[1]}{body}\n{match[2]}", text)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"{count} places for <!-- {name} -->, expected 1")
    return text


def draw_example(text: str, out: Path) -> None:
    """Run the README's first example and keep the picture it draws."""
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            torch.manual_seed(0)
            exec(compile(example, "README.md", "exec"), {})
            picture = Path("bell.png").read_bytes()
        finally:
            os.chdir(here)
    out.parent.mkdir(exist_ok=True)
    out.write_bytes(picture)


def draw_conditions(out: Path) -> None:
    """When EPAR helps, from the committed records of its study."""
    found = collect_findings(records.find_folders(FOLDER / "results/epar_when", "study.json"), "", "")
    conditions.write_figure(found["studies"], out)


def draw_prior_study(name: str, out: Path) -> None:
    """The prior in a Qwen-style model, from the committed records of one study."""
    reader = records.RecordReader()
    folders = [reader.folder(folder) for folder in reader.find_folders(FOLDER / "results", "study.json")]
    (study,) = (one for one in folders if one.read("study.json")["spec"]["name"] == name)
    draw_prior(read_runs(study), out)


def draw_probe(curves: Path, why: Path) -> None:
    """What position does to a pretrained model, and why, from the committed records of its probe."""
    folders = records.find_folders(FOLDER / "results/probe", "plan.json")
    folder = max(folders, key=lambda folder: len(records.read(folder / "plan.json")["tasks"]))
    found = probe_findings(folder, "")
    write_png(curves_figure(found), curves)
    write_png(explanations_figure(found), why)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="Write nothing; fail if a page is out of date.")
    check = parser.parse_args().check
    for page, parts in generated_parts().items():
        path = ROOT / "docs" / page
        text = path.read_text()
        new = render(text, parts)
        if check and new != text:
            sys.exit(f"docs/{page} is out of date; run: make docs")
        path.write_text(new)
    if check:
        return
    for page, parts in slow_parts().items():
        path = ROOT / "docs" / page
        path.write_text(render(path.read_text(), parts))
    draw_example((ROOT / "README.md").read_text(), ROOT / "docs" / "bell.png")
    gpu.draw(records.read(ROOT / "benchmarks" / "records" / "gpu.json"), ROOT / "docs" / "gpu.png")
    simulation_tables.draw(
        records.read(ROOT / "benchmarks" / "records" / "statistics.json"), ROOT / "docs" / "power.png"
    )
    draw_probe(ROOT / "docs" / "probe.png", ROOT / "docs" / "probe-why.png")
    draw_conditions(ROOT / "docs" / "epar_when.png")
    draw_prior_study("prior-gpu", ROOT / "docs" / "prior.png")
    draw_prior_study("prior-gpu-134m", ROOT / "docs" / "prior_134m.png")
    draw_training(FOLDER / "results", ROOT / "docs" / "speeches.png")
    draw_maps(FOLDER / "results", ROOT / "docs" / "speeches-maps.png")
    bench_tables.write_page(ROOT / "docs" / bench_tables.PAGE)
    length_figures.draw(ROOT / "docs")
    mend_figure.draw(FOLDER / "results", mend_figure.PICTURE)
    print("docs/ is up to date")


if __name__ == "__main__":
    main()
