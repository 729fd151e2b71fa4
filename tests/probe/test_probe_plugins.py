"""A probe with code of the user: a mechanism, an intervention, and a task that an installed package registers."""

import importlib.metadata
import json
import shlex

import pytest

from whence import plugins
from whence.cli.app import app
from whence.cli.probe_options import rerun_command
from whence.errors import WhenceError
from whence.probe import build_task, load, run_folder
from whence.probe.identity import identify

pytestmark = pytest.mark.usefixtures("no_figures")
SMALL = ("--task", "key-value", "--items", "2", "--length", "2", "--slots", "2", "--score", "likelihood")
BELL = """
import torch
from whence import Position

class Bell(Position):
    def __init__(self, width: float = 3.0) -> None:
        super().__init__()
        self.width = width

    def bias(self, distance, context):
        return -{strength} * (distance / self.width) ** 2
"""
SHARPEN = """
from contextlib import contextmanager

class Sharpen:
    name = "sharpen"

    def __init__(self, strength=2.0):
        self.strength = strength

    def settings(self):
        return {{"strength": self.strength}}

    @contextmanager
    def apply(self, model):
        hook = model.lm_head.register_forward_hook(lambda module, given, out: out * self.strength * {extra})
        try:
            yield
        finally:
            hook.remove()

    def controls(self):
        return ()
"""
TASK = """
from whence.probe import Item, ProbeTask

def Colors(items, words=2):
    made = tuple(Item(f"q{n}", f"gold {n}", ("x",) * words, (f"a{n}",), (f"b{n}", f"c{n}")) for n in range(items))
    return ProbeTask("colors", "mine", "Read.\\n", "\\n", "\\nQuestion: {question}\\nAnswer:", " ", "", "value", False, made)
"""


def run(*options):
    app(["probe", *map(str, options)], standalone_mode=False)


def probability(folder):
    record = json.loads((folder / "key-value-of-2-000-0000.json").read_text())
    return [row["probability"] for row in record["rows"]], record["identity"]


def only_folder(out, known=()):
    [folder] = [path for path in out.iterdir() if path not in known]
    return folder


@pytest.mark.parametrize(
    "option, file, name, first, second",
    [
        ("--position", "bell.py", "Bell(width=2.0)", BELL.format(strength=1), BELL.format(strength=3)),
        ("--intervention", "sharpen.py", "Sharpen(strength=3.0)", SHARPEN.format(extra=1), SHARPEN.format(extra=2)),
    ],
)
def test_code_of_the_user_acts_and_is_part_of_the_identity(
    tmp_path, monkeypatch, capsys, option, file, name, first, second
):
    monkeypatch.chdir(tmp_path)
    out, text = tmp_path / "out", f"./{file}:{name}"
    run("--quick", *SMALL, "--only", "measure", "--out", out)
    plain = only_folder(out)
    (tmp_path / file).write_text(first)
    run("--quick", *SMALL, option, text, "--only", "measure", "--out", out)
    changed = only_folder(out, [plain])
    assert probability(plain)[0] != probability(changed)[0]
    identity, key = probability(changed)[1], {"--position": "attached", "--intervention": "intervention"}[option]
    assert identity[key] and not probability(plain)[1].get(key)
    plan = run_folder.load_plan(changed)[0]
    assert getattr(plan, option.strip("-")) == text
    command = rerun_command(plan, "cpu")
    assert f"{option} {shlex.quote(text)}" in command
    (tmp_path / file).write_text(second)  # the same name and settings, another formula
    run("--quick", *SMALL, option, text, "--only", "measure", "--out", out)
    again = only_folder(out, [plain, changed])
    assert probability(again)[1] != identity and probability(again)[0] != probability(changed)[0]
    (tmp_path / file).unlink()
    capsys.readouterr()
    app(["report", str(changed)], standalone_mode=False)
    output = capsys.readouterr().out
    assert "report:" in output and name.split("(")[0].lower() in (changed / "report.html").read_text().lower()
    assert text.split("(")[0] in (changed / "report.html").read_text()  # in the command that runs it again


def test_an_intervention_is_active_in_the_explanations_too(tmp_path, capsys):
    text = "attention-temperature(temperature=4)"
    run("--quick", *SMALL, "--intervention", text, "--out", tmp_path)
    folder = only_folder(tmp_path)
    record = json.loads((folder / "explain-geometry.json").read_text())
    assert record["identity"]["intervention"]["settings"] == {"temperature": 4.0}
    assert "attention-temperature(temperature=4.0)" in (folder / "report.html").read_text()
    run(
        "--quick",
        *SMALL,
        "--intervention",
        "attention-temperature(temperature=1)",
        "--only",
        "measure",
        "--out",
        tmp_path,
    )
    other = only_folder(tmp_path, [folder])
    assert probability(folder)[0] != probability(other)[0]


def test_a_position_from_python_is_in_the_identity():
    lm = load("quick", position="alibi")
    assert identify(lm)["attached"][0]["position"].startswith("Alibi") and not identify(load("quick"))["attached"]


def test_a_rotation_takes_the_place_of_the_models_own(tmp_path):
    """The rotation of the tiny model is that of Rotary(), so replacing one by the other changes nothing."""
    values = {}
    for options in ((), ("--position", "Rotary()", "--replace-rotary"), ("--position", "none", "--replace-rotary")):
        out = tmp_path / str(len(values))
        run("--quick", *SMALL, *options, "--only", "measure", "--out", out)
        folder = only_folder(out)
        values[options], identity = probability(folder)
        plan = run_folder.load_plan(folder)[0]
        assert plan.keep_rotary == (not options) and ("--replace-rotary" in rerun_command(plan, "cpu")) == bool(options)
        assert [one["own_rotation"] for one in identity["attached"]] == ["removed"] * bool(options)
    own, same, without = values.values()
    assert same == pytest.approx(own, rel=1e-4) and without != pytest.approx(own, rel=1e-4)
    with pytest.raises(WhenceError, match="--replace-rotary"):
        run("--quick", *SMALL, "--position", "rotary", "--out", tmp_path)
    with pytest.raises(WhenceError, match=r"--replace-rotary\) without a position"):
        run("--quick", *SMALL, "--replace-rotary", "--out", tmp_path)
    with pytest.raises(WhenceError, match=r"--endpoint.*--replace-rotary"):
        run("m", "--endpoint", "http://x/v1", "--replace-rotary", "--out", tmp_path)


def test_wrong_names_are_errors_with_the_option(tmp_path):
    with pytest.raises(WhenceError, match=r"--intervention nothing.*attention-temperature"):
        run("--quick", *SMALL, "--intervention", "nothing", "--out", tmp_path)
    with pytest.raises(WhenceError, match="nothing"):
        run("--quick", *SMALL, "--position", "nothing", "--out", tmp_path)
    with pytest.raises(WhenceError, match=r"--endpoint.*--position"):
        run("m", "--endpoint", "http://x/v1", "--position", "alibi", "--out", tmp_path)


def test_an_installed_package_adds_a_task(tmp_path, monkeypatch):
    (tmp_path / "colors_here.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    point = importlib.metadata.EntryPoint("colors", "colors_here:Colors", plugins.PROBE_TASKS)
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group="": [point] if group == plugins.PROBE_TASKS else []
    )
    assert build_task("colors", 2).slots == 3 and build_task("colors(words=4)", 2).slots == 5
    options = ("--items", "2", "--score", "likelihood", "--only", "measure", "--out", tmp_path / "out")
    run("--quick", "--task", "colors(words=4)", *options)
    folder = only_folder(tmp_path / "out")
    plan, about = run_folder.load_plan(folder)
    assert about["tasks"][0]["slots"] == 5 and plan.tasks[0].items_hash
    assert "--task 'colors(words=4)'" in rerun_command(plan, "cpu")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group="": [])
    assert run_folder.load_plan(folder)[0] == plan  # a report does not need the package
    with pytest.raises(WhenceError, match="colors"):
        build_task("colors", 2)
