"""What ``whence doctor`` finds on a machine: versions, memory, devices, kernels, extras, data and weights.

``problems`` lists what is broken, each with its remedy. What is merely absent is not a problem.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

from whence.errors import WhenceError

#: what each extra adds
PURPOSES = {
    "cli": "the command whence",
    "plot": "figures",
    "lab": "tasks, training and studies",
    "hf": "pretrained models",
    "data": "Hugging Face datasets, Parquet files and tokenizer files",
    "translation": "BLEU and chrF of translations",
    "summarization": "ROUGE of summaries",
    "report": "reports with figures",
    "ray": "runs on a Ray cluster",
    "slurm": "runs on a Slurm cluster",
    "peft": "adapters that cures train and load",
    "bench": "benchmarks through lm-evaluation-harness",
    "explore": "the local web page of whence explore",
    "docs": "the documentation as a site",
    "discover": "symbolic regression as challenger of whence discover",
}
#: what each data set is for, and the path in the data folder that shows that it is there
DATA_SETS = {
    "wikitext2": ("wikitext2/test.txt", "language modelling on Wikipedia"),
    "wikitext103": ("wikitext103/test.txt", "language modelling on more of Wikipedia"),
    "books": ("books/test.txt.xz", "language modelling on books"),
    "sst2": ("glue/SST-2/dev.tsv", "sentiment of film reviews"),
    "glue": ("glue", "classification of sentences and pairs"),
    "squad": ("squad/train-v2.0.json", "questions about passages"),
    "qmsum": ("qmsum/train.jsonl", "summaries of meetings"),
    "arxiv": ("arxiv/train.txt", "summaries of scientific papers"),
    "multi30k": ("multi30k/train.en.gz", "translation of image descriptions"),
    "wmt14": ("wmt14/train.en.gz", "translation of news"),
    "lost_in_the_middle": ("lost_in_the_middle/nq-open-oracle.jsonl.gz", "questions over documents, for whence probe"),
    "benchmarks": ("benchmarks", "files of whence bench"),
}
#: calls of attention that users make, with a position for each
CALLS = {
    "a learnable function of distance": "Alibi(learnable=True)",
    "rotary or no position": "rotary",
    "a position that depends on content": "cope",
}
TYPICAL_TOKENS = 2048
#: the error of attention that rounding explains, by the name of the dtype
LARGEST_GAP = {"float32": 1e-4, "bfloat16": 3e-2}
GIB = 2**30


def collect_facts() -> dict[str, Any]:
    """Everything except the speed, in the types of JSON."""
    problems: list[str] = []
    device = describe_device(problems)
    faults: list[str] = []
    kernels, why_not_fused = describe_kernels(device["type"], faults)
    problems += faults
    return {
        "versions": describe_versions(problems),
        "machine": describe_machine(),
        "device": device,
        "kernels": kernels,
        "why_not_fused": why_not_fused,
        "attention_works": not faults,
        "extras": describe_extras(),
        "data": describe_data(problems),
        "weights": describe_weights(problems),
        "here": describe_here(),
        "problems": problems,
    }


def describe_versions(problems: list[str]) -> dict[str, str]:
    import torch
    from packaging.requirements import Requirement

    import whence

    versions = {"whence": whence.__version__, "python": platform.python_version(), "torch": torch.__version__}
    for line in read_requirements():
        required = Requirement(line)
        if required.name == "torch" and not required.specifier.contains(torch.__version__, prereleases=True):
            problems.append(
                f'torch {torch.__version__} is installed, whence needs torch{required.specifier}; run: pip install --upgrade "torch{required.specifier}"'
            )
    return versions


def describe_machine() -> dict[str, Any]:
    import psutil
    import torch

    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cores": cores,
        "threads": torch.get_num_threads(),
        "memory_gib": memory.total / GIB,
        "free_memory_gib": memory.available / GIB,
    }


def describe_device(problems: list[str]) -> dict[str, Any]:
    """The GPU that torch uses, or why there is none."""
    import torch

    if torch.cuda.is_available():
        free, total = (number / GIB for number in torch.cuda.mem_get_info())
        major, minor = torch.cuda.get_device_capability()
        count = torch.cuda.device_count()
        several = f"{count} x " if count > 1 else ""
        text = f"{several}{torch.cuda.get_device_name()}, compute capability {major}.{minor}, {free:.0f} of {total:.0f} GiB free"
        return {"type": "cuda", "name": torch.cuda.get_device_name(), "count": count, "capability": [major, minor],
                "memory_gib": total, "free_memory_gib": free, "text": text}  # fmt: skip
    text = "none; everything runs on the processor"
    if shutil.which("nvidia-smi"):
        build = "is built without CUDA" if torch.version.cuda is None else f"is built for CUDA {torch.version.cuda}"
        text = f"not usable: the machine has an NVIDIA driver, but torch {build}"
        problems.append(
            f"torch {torch.__version__} cannot use the GPU ({build}); install a torch that matches the driver (pytorch.org)"
        )
    return {"type": "cpu", "name": None, "count": 0, "text": text}


def describe_kernels(device: str, problems: list[str]) -> tuple[list[dict[str, str]], str | None]:
    """Which backend runs typical calls and why; and why the fused kernels run none of them, or None if they do.

    Each call is also computed on a small input and compared with the reference.
    """
    import torch

    from whence.attention import attend, explain
    from whence.position.expression import ModelDims, build_position

    kernels = []
    why_not_fused: list[str] = []
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    for call, name in CALLS.items():
        position = build_position(name, ModelDims(4, 32, 128, TYPICAL_TOKENS)).to(device)
        long = torch.empty(1, 4, TYPICAL_TOKENS, 32, device=device, dtype=dtype)
        q, k, v = torch.randn(3, 1, 4, 64, 32, generator=torch.Generator().manual_seed(0)).to(device, dtype)
        explanation = explain(long, long, long, position=position, causal=True)
        kernels.append({"call": call, "backend": explanation.backend, "why": explanation.why})
        why_not_fused += [why for one, why in explanation.others if one == "triton"]
        try:
            got = attend(q, k, v, position=position, causal=True, backend=explanation.backend)
        except Exception as error:  # of a compiler or a driver
            problems.append(
                f"the backend {explanation.backend} fails: {type(error).__name__}: {error}; please report it"
            )
            continue
        exact = attend(q.double(), k.double(), v.double(), position=position.double(), causal=True, backend="reference")
        gap = (got.double() - exact).abs().max().item()
        if not gap <= LARGEST_GAP[str(dtype).removeprefix("torch.")]:
            problems.append(
                f"the backend {explanation.backend} differs from the reference by {gap:.2g}; please report it"
            )
    fused = any(kernel["backend"] == "triton" for kernel in kernels)
    return kernels, None if fused or not why_not_fused else why_not_fused[0]


def describe_extras() -> list[dict[str, Any]]:
    """Each extra: what it adds, whether its packages are installed, and how to install it."""
    extras = []
    for name, requirements in list_extras().items():
        installed = {one: find_version(one.name) for one in requirements}
        missing = sorted(one.name for one, version in installed.items() if version is None)
        outdated = sorted(
            f"{one.name} {version}, needs {one.specifier}"
            for one, version in installed.items()
            if version is not None and not one.specifier.contains(version, prereleases=True)
        )
        state = "missing" if missing else "too old" if outdated else "installed" if requirements else "unknown"
        extras.append({
            "name": name, "purpose": PURPOSES[name], "state": state, "missing": missing, "outdated": outdated,
            "install": f'pip install "whence[{name}]"',
        })  # fmt: skip
    return extras


def list_extras() -> dict[str, list[Any]]:
    """The requirements of each extra, from the metadata of the installed package; none if that is older than the extra."""
    from packaging.requirements import Requirement

    lines = [Requirement(line) for line in read_requirements()]
    return {
        extra: [
            line
            for line in lines
            if line.marker and line.name != "whence"
            and line.marker.evaluate({"extra": extra}) and not line.marker.evaluate({"extra": ""})
        ]
        for extra in PURPOSES
    }  # fmt: skip


def read_requirements() -> list[str]:
    """What the installed whence requires, with and without extras; nothing if it runs from its sources alone."""
    try:
        return importlib.metadata.requires("whence") or []
    except importlib.metadata.PackageNotFoundError:
        return []


def find_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_data(problems: list[str]) -> dict[str, Any]:
    """Where WHENCE_DATA points, and which data sets are there."""
    from whence.lab.data.corpora import ORIGINS, VARIABLE

    named = os.environ.get(VARIABLE)
    folder = Path(named).expanduser() if named else None
    if folder is None:
        text = f"{VARIABLE} is not set; built-in tasks work, data sets need it"
    elif folder.is_dir():
        text = f"{folder} ({VARIABLE})"
    else:
        text = f"{folder} ({VARIABLE}) is not a folder"
        problems.append(f"{VARIABLE} names {folder}, which is not a folder; create it, or correct the variable")
    sets = []
    for name, (path, purpose) in DATA_SETS.items():
        remedy = ORIGINS.get(name, "see docs/benchmarks.md")
        parts = {} if folder is None else find_parts(name, folder)
        found = any(parts.values()) if parts else folder is not None and (folder / path).exists()
        missing_parts = [part for part, is_there in parts.items() if found and not is_there]
        sets.append(
            {"name": name, "purpose": purpose, "found": found, "missing_parts": missing_parts, "remedy": remedy}
        )
    return {"folder": None if folder is None else str(folder), "text": text, "sets": sets}


def find_parts(name: str, folder: Path) -> dict[str, bool]:
    """Whether the published parts of a data set are there; empty for a task that does not train on the development part alone."""
    from whence.lab.data.squad import PUBLISHED
    from whence.lab.data.tables import COMPRESSED
    from whence.lab.tasks.summarization import Arxiv, Qmsum

    paths: dict[str, list[str]] = {}
    if name == "squad":
        paths = {"training": list(PUBLISHED["train"]), "development": list(PUBLISHED["dev"])}
    elif name in ("arxiv", "qmsum"):
        stems = (Arxiv if name == "arxiv" else Qmsum).stems
        paths = {
            part: [f"{stem}{suffix}" for stem in stems[key] for suffix in (".jsonl", ".txt")]
            for part, key in (("training", "train"), ("development", "val"))
        }
    return {
        part: any((folder / f"{path}{suffix}").is_file() for path in own for suffix in ("", *COMPRESSED))
        for part, own in paths.items()
    }


def describe_weights(problems: list[str]) -> dict[str, Any]:
    """Where converted models are cached, and which are there and complete."""
    from whence import records
    from whence.hf.gguf import CHECKSUMS, FETCH_SMOLLM2, cache_folder, smollm2_folder

    cache = cache_folder()
    origin = "WHENCE_CACHE" if os.environ.get("WHENCE_CACHE") else "the default; WHENCE_CACHE changes it"
    writable = is_writable(cache)
    text = f"{cache} ({origin}), {'writable' if writable else 'not writable'}"
    if not writable:
        problems.append(f"the cache {cache} is not writable; set WHENCE_CACHE to a folder that is")
    models: list[dict[str, Any]] = [
        {
            "name": "smollm2",
            "purpose": "SmolLM2-135M-Instruct",
            "found": smollm2_folder().is_dir(),
            "remedy": FETCH_SMOLLM2,
        }
    ]
    if cache.is_dir():
        others = sorted(path for path in cache.iterdir() if path.is_dir() and path.name.startswith("gguf-"))
        models += [{"name": path.name[:11], "purpose": str(path), "found": True, "remedy": ""} for path in others]
    for folder in [smollm2_folder(), *(Path(one["purpose"]) for one in models[1:])]:
        if folder.is_dir():
            try:
                names = list(records.read(folder / CHECKSUMS)["sha256"])
            except (WhenceError, OSError, ValueError, KeyError):
                names = [CHECKSUMS]
            absent = [name for name in names if not (folder / name).is_file()]
            if absent:
                problems.append(
                    f"the model in {folder} is incomplete ({absent[0]} is missing); delete the folder and convert it again"
                )
    return {"folder": str(cache), "writable": writable, "text": text, "models": models}


def describe_here() -> dict[str, Any]:
    """The current folder, where commands write ``build/``."""
    here, free = Path.cwd(), shutil.disk_usage(".").free / GIB
    writable = is_writable(here)
    access = "writable" if writable else "not writable"
    return {
        "folder": str(here),
        "writable": writable,
        "free_gib": free,
        "text": f"{here}, {access}, {free:.0f} GiB free",
    }


def is_writable(folder: Path) -> bool:
    """Whether files can be created in a folder, or in the nearest existing folder above it."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return True
    except OSError:
        return False
