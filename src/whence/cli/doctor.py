"""``whence doctor``"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil

FOR = {
    "plot": "drawings and figures",
    "lab": "tasks, training and studies",
    "hf": "pretrained models",
    "report": "reports with figures",
}
HELP = "Say what is installed, what is missing, and what each missing part would be needed for."

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
    for extra, packages in wanted().items():
        missing = [name for name in packages if _version(name) is None]
        mend = f'missing {", ".join(missing)}; run: pip install "whence[{extra}]"' if missing else "complete"
        print(f"extra {extra}, for {FOR[extra]}: {mend}")
    data = os.environ.get("WHENCE_DATA")
    if data is None:
        print("WHENCE_DATA is not set: speeches, wikitext2, books and sst2 are not to be had, embedded tasks are")
    else:
        found = sorted(entry.name for entry in os.scandir(data) if entry.is_dir()) if os.path.isdir(data) else []
        print(f"WHENCE_DATA: {', '.join(found) if found else 'set, but no folder with data'}")
    free = shutil.disk_usage(".").free / 2**30
    print(f"{os.cpu_count()} cores, {free:.0f} GiB free here")


def wanted() -> dict[str, list[str]]:
    """The packages of each extra, as whence itself was installed with."""
    lines = importlib.metadata.requires("whence") or []
    found = [re.match(r"([\w.-]+).*extra == ['\"](\w+)['\"]", line) for line in lines]
    return {extra: sorted(one[1] for one in found if one and one[2] == extra) for extra in FOR}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
