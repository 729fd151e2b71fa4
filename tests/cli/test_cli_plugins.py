"""Mechanisms, tasks, executors and commands from the user's modules, files and packages."""

import hashlib
import importlib.metadata
import json

import pytest

FILES = {
    "bell.py": """
import torch
from whence import Position

class Bell(Position):
    def __init__(self, heads, width=2.0):
        super().__init__()
        self.heads, self.width = heads, width
    def bias(self, distance, length):
        return -(distance / self.width).square().expand(self.heads, -1)
""",
    "parity.py": """
import torch
from whence.lab.tasks import IGNORE_INDEX, Batch, Task

class Parity(Task):
    name, kind, metric, vocab_size = "parity", "retrieve", "accuracy", 2
    def __init__(self, length=6):
        self.context, self.settings = length, {"task": "parity", "length": length}
    def train_batch(self, size, generator):
        tokens = torch.randint(2, (size, self.context), generator=generator)
        targets = torch.full_like(tokens, IGNORE_INDEX)
        targets[:, -1] = tokens.sum(1) % 2
        return Batch(tokens, targets)
    def splits(self):
        return {"test": self.context}
    def evaluation(self, split):
        return [self.train_batch(16, torch.Generator().manual_seed(1))]
    def decode(self, tokens):
        return [str(int(token)) for token in tokens]
""",
    "serial.py": """
class Serial:
    def __init__(self, log="ran.txt"):
        self.log = log
    def run(self, execute, runs, folder, on_progress):
        for run in runs:
            open(self.log, "a").write(run.file_name + chr(10))
            yield run, execute(run, folder, lambda progress: None)
""",
    "broken.py": "import nonesuch_package",
}


@pytest.fixture
def plugins(run_whence, tmp_path):
    for name, source in FILES.items():
        (tmp_path / name).write_text(source)
    return run_whence


def test_custom_mechanism_task_and_executor(plugins, tmp_path):
    """By module and by file, with resume and report."""
    order = [
        "compare", "--task", "./parity.py:Parity(length=8)", "--position", "none", "--position", "./bell.py:Bell(width=3)",
        "--position", "bell:Bell", "--executor", "serial:Serial", "--seeds", "1", "--steps", "2", "--baseline", "./bell.py:Bell(width=3)",
    ]  # fmt: skip
    done = plugins(*order)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "build/compare").glob("compare-parity-Parity-*")
    assert len((tmp_path / "ran.txt").read_text().split()) == 3
    spec = json.loads((folder / "study.json").read_text())["spec"]
    assert [arm["name"] for arm in spec["arms"]] == ["none", "Bell(width=3)", "bell:Bell"]
    assert spec["decision"]["baseline"] == "Bell(width=3)" and spec["arms"][1]["position"] == "./bell.py:Bell(width=3)"
    record = json.loads(next(folder.glob("Bell-width*seed0.json")).read_text())
    assert record["task"] == {"task": "parity", "length": 8} and "./parity.py" in record["command"]
    sources = record["environment"]["plugin_sources"]
    assert sources["./parity.py:Parity"] == hashlib.sha256(FILES["parity.py"].encode()).hexdigest()
    assert hashlib.sha256(FILES["bell.py"].encode()).hexdigest() in sources.values()
    assert plugins(*order).returncode == 0 and len((tmp_path / "ran.txt").read_text().split()) == 3  # nothing ran again
    again = plugins("report", "build/compare", "--out", "again.html")
    assert again.returncode == 0 and "Bell(width=3)" in (tmp_path / "again.html").read_text()


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["--task", "./broken.py:Task"], ("./broken.py", "nonesuch_package")),
        (["--task", "./parity.py:Nothing"], ("Nothing", "./parity.py")),
        (["--task", "./parity.py:Parity(size=1)"], ("size", "length")),
        (["--task", "copy", "--task", "copy"], ("--task", "'copy' twice")),
        (["--position", "rotary", "--position", "Rotary()"], ("'rotary' and 'Rotary()'",)),
        (["--position", "Rotary", "--position", "Rotary( )"], ("'Rotary' and 'Rotary( )'",)),
        (["--position", "Alibi(scale=1e999)"], ("scale=inf", "finite")),
        (["--executor", "moon"], ("moon", "local")),
        (["--executor", "./serial.py:Serial(size=1)"], ("size",)),
        (["--executor", "./parity.py:Batch"], ("Batch", "run")),
        (["--data", "none.csv"], ("none.csv",)),
        (["--data", "bell.py", "--text-column", "x"], ("--text-column", "'x'")),
        (["--label-column", "x"], ("--label-column", "--data")),
    ],
)
def test_a_faulty_plugin_or_option_is_one_sentence(plugins, arguments, parts):
    done = plugins("compare", *arguments)
    assert done.returncode == 2 and all(part in done.stderr for part in parts), done.stderr
    assert "Traceback" not in done.stderr and "unknown task" not in done.stderr


def test_changed_code_of_the_user_makes_another_study(plugins, tmp_path):
    order = [
        "compare", "--task", "./parity.py:Parity", "--position", "none", "--position", "./bell.py:Bell",
        "--seeds", "1", "--steps", "2", "--jobs", "1",
    ]  # fmt: skip

    def folders():
        return set((tmp_path / "build/compare").glob("compare-parity-Parity-*"))

    assert plugins(*order).returncode == 0
    (first,) = folders()
    sources = json.loads((first / "study.json").read_text())["spec"]["sources"]
    assert set(sources) == {"./parity.py:Parity", "./bell.py:Bell"}
    for count, name, old, new in ((2, "bell.py", "square()", "abs()"), (3, "parity.py", "sum(1)", "sum(1).add(1)")):
        (tmp_path / name).write_text(FILES[name].replace(old, new))
        done = plugins(*order)
        assert done.returncode == 0 and "2 of 2" in done.stderr and len(folders()) == count, done.stderr
    for name, source in FILES.items():
        (tmp_path / name).write_text(source)
    done = plugins(*order)
    assert done.returncode == 0 and "of 2" not in done.stderr and len(folders()) == 3  # the first study again
    for gone in (False, True):  # changed code is not used, and missing code not needed
        for name in ("bell.py", "parity.py"):
            (tmp_path / name).write_text("raise ValueError")
            if gone:
                (tmp_path / name).unlink()
        alone = plugins("report", str(first))
        assert alone.returncode == 0 and "Bell" in (first / "report.html").read_text(), alone.stderr


def test_commands_of_other_packages(run_whence, monkeypatch):
    import typer

    from whence.cli import app

    points = [
        importlib.metadata.EntryPoint(name, value, "whence.commands")
        for name, value in (("broken", "nonesuch_package:command"), ("compare", "json:dumps"))
    ]
    monkeypatch.setattr(app, "entry_points", lambda group: {point.name: point for point in points})
    application = typer.Typer()
    application.command("compare")(lambda: None)
    with pytest.warns(UserWarning, match=r"compare of json:dumps is ignored.*rename"):
        app.add_plugin_commands(application)
    assert [command.name for command in application.registered_commands] == ["compare", "broken"]
    monkeypatch.setattr(app, "app", application)
    done = run_whence("broken", "--id", "x", "word")
    assert done.returncode == 2 and "broken is unavailable" in done.stderr and "nonesuch_package" in done.stderr
