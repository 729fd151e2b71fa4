"""Build both wheels, install them outside the checkout and run the README's commands in their quick form.

python tools/check_installed.py

First only the library without extras is installed: `import whence` must work, and a command whose extra is missing must
name it in one line. Then the extras and whence-papers are installed. The environment and the working folder are
temporary, so nothing of the checkout is visible.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BELL = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
#: commands of one line share a folder and run in order; the lines run side by side
COMMANDS = (
    ("whence probe --quick --out probe",),
    (
        "whence compare --task retrieval --position rotary --position ./bell.py:Bell --steps 2 --seeds 1 --jobs 1 --out compare",
        "whence report compare",
    ),
    ("whence hypotheses --quick --out hypotheses",),
    ("whence run coverage --quick --out results",),
    ("whence doctor",),
    ("whence show ./bell.py:Bell --out bell.png",),
    ("whence studies",),
    ("whence claims --source pointer",),
)
#: variables that could show a command the checkout, or make each command compile what it imports again
REMOVED = ("PYTHONPATH", "VIRTUAL_ENV", "WHENCE_DATA", "WHENCE_COMMIT", "PYTHONDONTWRITEBYTECODE")
PARALLEL = os.cpu_count() or 1


def main() -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        dist, work, venv = folder / "dist", folder / "work", folder / "venv"
        work.mkdir()
        run([sys.executable, "-m", "venv", venv], work)
        pip = [venv / "bin/python", "-m", "pip", "--disable-pip-version-check"]
        # an older pip, as python brings, takes twice the time
        run([*pip, "install", "--quiet", "--constraint", ROOT / "constraints.txt", "--upgrade", "pip"], work)
        build = [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", dist]
        with ThreadPoolExecutor() as pool:
            for future in [pool.submit(run, [*build, project], ROOT) for project in (ROOT, ROOT / "papers")]:
                future.result()
        library, papers = next(dist.glob("whence-*.whl")), next(dist.glob("whence_papers-*.whl"))
        for wheel in (library, papers):
            check_contents(wheel)
        # --no-compile: the commands import a small part of the packages, and compile that themselves
        install = [*pip, "install", "--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt"]
        run([*install, library], work)
        run([venv / "bin/python", "-c", "import whence; print(whence.__file__)"], work)
        refused = run([venv / "bin/whence", "compare"], work, check=False)
        lines = refused.stderr.strip().splitlines()
        if refused.returncode != 2 or len(lines) != 1 or 'pip install "whence[cli]"' not in lines[0]:
            sys.exit(f"`whence compare` without extras must name the extra in one line:\n{refused.stderr}")
        run([*install, f"{library}[plot,hf,lab,report]", papers], work)
        (work / "bell.py").write_text(BELL.partition("\nposition = ")[0])
        (work / "readme.py").write_text(BELL)
        run([venv / "bin/python", "readme.py"], work)
        with ThreadPoolExecutor(PARALLEL) as pool:
            for future in [pool.submit(run_commands, line, venv, work) for line in COMMANDS]:
                future.result()
    print(f"installed wheels work ({time.monotonic() - started:.0f} s)")


def check_contents(wheel: Path) -> None:
    """The type marker is in the wheel, and its description has no image or link that needs the repository."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    if not any(name.endswith("/py.typed") for name in names):
        sys.exit(f"{wheel.name} has no py.typed")
    relative = [link for link in re.findall(r"\]\((.*?)\)", metadata) if not link.startswith(("http", "#"))]
    if "Description-Content-Type: text/markdown" not in metadata or relative:
        sys.exit(f"the description of {wheel.name} is missing or has links into the repository: {relative}")


def run_commands(commands: tuple[str, ...], venv: Path, work: Path) -> None:
    for command in commands:
        before = time.monotonic()
        words = command.split()
        run([venv / "bin" / words[0], *words[1:]], work)
        print(f"{time.monotonic() - before:5.1f} s  {command}", flush=True)


def run(command: list[object], folder: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with an environment that does not lead to the checkout."""
    environment = {k: v for k, v in os.environ.items() if k not in REMOVED}
    environment.setdefault("OMP_NUM_THREADS", "1")  # commands run side by side
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        sys.exit(f"failed: {' '.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done


if __name__ == "__main__":
    main()
