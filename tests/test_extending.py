"""The package of docs/extending.md, outside the repository, from the command line and from Python."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "extending.md").read_text()
FILES = {match[1]: match[2] for match in re.finditer(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)}
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.strip().splitlines()]
ENTRY_POINTS = tomllib.loads(re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1])["project"]["entry-points"]
#: added to the page's probes: the same path through plug-ins with fewer questions
SMALL = "--items 1 --slots 2 --score likelihood"
PYTHON = """
import torch, whence
from my_ideas.bell import Bell
from my_ideas.sharpen import Sharpen
from whence.lab.tasks import load
from whence.mend import load_intervention
from whence.position.expression import ModelDims, build_position

whence.check(Bell(4))
q = k = v = torch.randn(1, 4, 6, 8)
slow, fast = (whence.attend(q, k, v, causal=True, backend=name) for name in ("slow", "reference"))
assert slow.shape == fast.shape and torch.allclose(slow, fast, atol=1e-5)
assert "slow" in str(whence.explain(q, k, v))
assert torch.equal(slow, whence.attend(q, k, v, causal=True, backend="my_ideas.slow:Slow"))
dims = ModelDims(heads=2, head_dim=8, embed_dim=16, context=32, causal=True)
assert isinstance(build_position("bell", dims), Bell) and len(build_position("rotary + my_ideas.bell:Bell", dims).parts) == 2
assert load("my_ideas.parity:Parity", length=4).context == 4
sharpen = load_intervention("sharpen(strength=3.0)")
assert isinstance(sharpen, Sharpen) and [control.settings() for control in sharpen.controls()] == [{"strength": 1.0}]
print("python done")
"""


@pytest.fixture(scope="module")
def installed_package(tmp_path_factory):
    """An installed package: its folder on the path, with the metadata that pip would write."""
    folder = tmp_path_factory.mktemp("stranger")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "my_ideas" / "__init__.py").touch()
    metadata = folder / "my_ideas-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-ideas\nVersion: 1.0\n")
    groups = (
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in ENTRY_POINTS.items()
    )
    (metadata / "entry_points.txt").write_text("".join(groups))
    (folder / "work").mkdir()
    return folder


#: one process for both: the Python of a user, then every command of the page
DRIVER = """
import shlex, sys, traceback
from whence.cli import main, probe_report
from whence.report.probe import figures

# tests/probe draws; here the tables that stand for figures show the same numbers
figures.find_spec = lambda name: None
probe_report.write_figures = lambda *about: None
code, *lines = sys.stdin.read().split(chr(0))
try:
    exec(code)
except Exception:
    traceback.print_exc()
for line in lines:
    sys.argv = shlex.split(line)
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"{line}: exit code {ended.code}")
"""


@pytest.fixture(scope="module")
def process(installed_package):
    """A process that sees the installed package and not this test's folder."""
    path = os.pathsep.join([str(installed_package), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", DRIVER], cwd=installed_package / "work", capture_output=True, text=True,
        input=chr(0).join([PYTHON, *map(shorten, COMMANDS)]), env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip


def shorten(command):
    """One process, and fewer questions: tests/cli and tests/lab have user code in workers."""
    if command.startswith(("whence compare", "whence run")):
        return f"{command} --jobs 1"
    if not command.startswith("whence probe"):
        return command
    return f"{command} {SMALL}" if "--task" in command else f"{command} --task key-value --length 2 {SMALL}"


def test_from_python(process):
    assert "python done" in process.stdout, process.stderr[-3000:]


def test_from_the_command_line(installed_package, process):
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-3000:]
    assert process.stdout.endswith("hello\n")
    for words in map(shlex.split, COMMANDS):
        if words[1] in ("compare", "probe", "run"):
            out = installed_package / "work" / words[words.index("--out") + 1]
            assert list(out.rglob("report.html")), words
            texts = [path.read_text() for path in out.rglob("*.json")]
            named = ("my_ideas", '"bell"', '"parity"', '"colors"')
            assert any(name in text for text in texts for name in named), words
