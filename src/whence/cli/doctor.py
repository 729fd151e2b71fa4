"""``whence doctor``"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil

PURPOSES = {
    "cli": "the command whence",
    "plot": "figures",
    "lab": "tasks, training and studies",
    "hf": "pretrained models",
    "data": "Hugging Face datasets, Parquet files and tokenizer files",
    "translation": "BLEU and chrF of translations",
    "report": "reports with figures",
    "ray": "runs on a Ray cluster",
    "slurm": "runs on a Slurm cluster",
    "peft": "adapters that cures train and load",
    "bench": "benchmarks through lm-evaluation-harness",
}
HELP = "Show what is installed, what is missing, and what each extra is for."

EXAMPLES = """Example:

whence doctor"""


def doctor() -> None:
    import torch

    import whence

    print(f"whence {whence.__version__}, Python {platform.python_version()}, torch {torch.__version__}")
    if torch.cuda.is_available():
        print(f"GPU: {torch.cuda.get_device_name()}; triton {_version('triton') or 'missing: no fused kernels'}")
    else:
        print("GPU: none; the blockwise and sdpa backends run on the CPU")
    for extra, packages in list_extras().items():
        missing = [name for name in packages if _version(name) is None]
        status = f'missing {", ".join(missing)}; run: pip install "whence[{extra}]"' if missing else "complete"
        print(f"extra {extra}, for {PURPOSES[extra]}: {status}")
    data = os.environ.get("WHENCE_DATA")
    if data is None:
        print("WHENCE_DATA is not set: wikitext2, wikitext103, books and sst2 are unavailable; built-in tasks work")
    else:
        folders = sorted(entry.name for entry in os.scandir(data) if entry.is_dir()) if os.path.isdir(data) else []
        print(f"WHENCE_DATA: {', '.join(folders) if folders else 'set, but it has no folders'}")
    free = shutil.disk_usage(".").free / 2**30
    print(f"{os.cpu_count()} cores, {free:.0f} GiB free here")


def list_extras() -> dict[str, list[str]]:
    """The packages of each extra, from the metadata of the installed package."""
    lines = importlib.metadata.requires("whence") or []
    matches = [re.match(r"([\w.-]+).*extra == ['\"](\w+)['\"]", line) for line in lines]
    return {extra: sorted(match[1] for match in matches if match and match[2] == extra) for extra in PURPOSES}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
