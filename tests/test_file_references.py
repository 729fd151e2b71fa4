"""Objects by file: paths of any name, files without a class name, source hashes, duplicate names."""

import hashlib
import importlib.metadata
import os
import sys

import pytest
import torch

import whence
from whence import plugins
from whence.errors import WhenceError
from whence.lab import tasks
from whence.lab.executors import load_executor
from whence.lab.study_files import find_study_file
from whence.mend.protocol import load_intervention
from whence.plugin_sources import find_sibling_modules, hash_source_file
from whence.position.expression import ModelDims, build_position, parse_position, rebase_position
from whence.probe.tasks import build_task

DIMS = ModelDims(heads=2, head_dim=8, embed_dim=16, context=32)
BELL = """
import whence

class Bell(whence.Position):
    def __init__(self, heads):
        super().__init__(heads=heads)

    def bias(self, distance, length):
        return -distance.abs()

def relative(score, b, h, q_idx, kv_idx):
    return score - (q_idx - kv_idx).abs()

def build(heads):
    return Bell(heads)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bell.py").write_text(BELL)
    return tmp_path


@pytest.mark.parametrize("name", ["my bell.py", "a+b.py", "bell (1).py", "a + b(2) + c.py", "[x].py"])
def test_a_path_may_contain_any_character(folder, name):
    (folder / name).write_text(BELL)
    for prefix in ("./", f"{folder}/"):
        assert type(build_position(f"{prefix}{name}:Bell(heads=2)", DIMS)).__name__ == "Bell"
        both = build_position(f"rotary + {prefix}{name}:Bell + {prefix}bell.py:Bell()", DIMS)
        assert [type(part).__name__ for part in both.parts] == ["Rotary", "Bell", "Bell"]
    assert type(build_position(f"./{name}", DIMS)).__name__ == "Bell"


def test_a_file_with_one_mechanism_needs_no_class_name(folder):
    expression = parse_position("./bell.py + rotary")
    assert expression.text == "./bell.py:Bell() + Rotary()"
    assert build_position("bell.py(heads=2)", DIMS).heads == 2


def test_a_file_with_several_mechanisms_lists_them(folder):
    (folder / "two.py").write_text(BELL + "\nclass Wide(Bell):\n    pass\n")
    with pytest.raises(WhenceError, match=r"two\.py.*Bell and Wide.*write \./two\.py:Bell"):
        parse_position("./two.py")
    (folder / "none.py").write_text("x = 1\n")
    with pytest.raises(WhenceError, match=r"none\.py.*none.*whence\.Position"):
        parse_position("./none.py")


def test_a_score_mod_is_a_mechanism(folder):
    position = build_position("./bell.py:relative", DIMS)
    q = torch.randn(1, 2, 5, 8)
    own = whence.attend(q, q, q, position=build_position("./bell.py:Bell", DIMS))
    assert torch.allclose(whence.attend(q, q, q, position=position), own, atol=1e-6)
    assert build_position("./bell.py:build", DIMS).heads == 2
    with pytest.raises(WhenceError, match=r"relative\(size=.*remove or rename size"):
        parse_position("./bell.py:relative(size=3)")


def test_a_misspelled_name_in_a_file_is_suggested(folder):
    with pytest.raises(WhenceError, match=r"no Bel in \./bell\.py.*did you mean Bell\?"):
        parse_position("./bell.py:Bel")


def test_paths_of_a_config_start_from_its_folder(folder):
    assert rebase_position("rotary + ./bell.py:Bell", folder / "sub") == f"rotary + {folder}/sub/bell.py:Bell"
    assert rebase_position("./bell.py:Bell", folder) == "./bell.py:Bell"
    assert rebase_position("/a/b.py:Bell + alibi", folder / "sub") == "/a/b.py:Bell + alibi"


def test_names_of_classes_from_files_are_readable(folder):
    kind = type(build_position("./bell.py:Bell", DIMS))
    assert plugins.display_name(kind) == "bell.py:Bell"
    (folder / "wrong.py").write_text("class Other:\n    pass\n")
    for refuse in (parse_position, tasks.find_task_class):
        with pytest.raises(WhenceError) as error:
            refuse("./wrong.py:Other")
        assert "the class Other" in str(error.value) and "whence_file_" not in str(error.value)


# --- source hashes -----------------------------------------------------------------------------------------------------
def test_modules_beside_a_file_are_part_of_its_hash(folder):
    plain = hash_source_file(parse_position("./bell.py:Bell").terms[0].factory)
    assert plain == hashlib.sha256((folder / "bell.py").read_bytes()).hexdigest()
    (folder / "bell.py").write_text("import os, helper_of_bell\nfrom parts_of_bell.deep import one\n" + BELL)
    (folder / "helper_of_bell.py").write_text("import second_helper_of_bell\n")
    (folder / "second_helper_of_bell.py").write_text("x = 1\n")
    (folder / "unused.py").write_text("x = 1\n")
    (folder / "parts_of_bell").mkdir()
    (folder / "parts_of_bell" / "__init__.py").write_text("")
    (folder / "parts_of_bell" / "deep.py").write_text("from . import beside\none = 1\n")
    (folder / "parts_of_bell" / "beside.py").write_text("")
    names = [
        path.relative_to(folder.resolve()).as_posix() for path in find_sibling_modules((folder / "bell.py").resolve())
    ]
    assert names == [
        "helper_of_bell.py", "parts_of_bell/__init__.py", "parts_of_bell/beside.py", "parts_of_bell/deep.py", "second_helper_of_bell.py",
    ]  # fmt: skip
    factory = parse_position("./bell.py:Bell").terms[0].factory
    before = hash_source_file(factory)
    (folder / "unused.py").write_text("x = 2\n")
    assert hash_source_file(factory) == before
    (folder / "second_helper_of_bell.py").write_text("x = 2\n")
    assert hash_source_file(factory) != before


def test_modules_of_the_same_name_in_two_folders_are_an_error(folder):
    for name, text in (("first", "x = 1\n"), ("second", "x = 2\n")):
        (folder / name).mkdir()
        (folder / name / "bell.py").write_text("import random\nfrom shared_name_of_bells import x\n" + BELL)
        (folder / name / "shared_name_of_bells.py").write_text(text)
        (folder / name / "random.py").write_text("")  # the installed module wins, which is no error
    try:
        assert parse_position("./first/bell.py:Bell") == parse_position("./first/bell.py:Bell")
        with pytest.raises(WhenceError, match=r"second/bell.py.*shared_name_of_bells.*rename one of the two"):
            parse_position("./second/bell.py:Bell")
    finally:
        sys.modules.pop("shared_name_of_bells", None)


# --- names -------------------------------------------------------------------------------------------------------------
def test_a_name_of_two_packages_is_an_error_that_names_both(folder, monkeypatch):
    def points(group=""):
        return [
            importlib.metadata.EntryPoint("twice", f"{package}:Thing", group)
            for package in ("one_package", "other_package")
        ]

    monkeypatch.setattr(importlib.metadata, "entry_points", points)
    q = torch.ones(1, 1, 2, 2)
    for load in (
        parse_position,
        tasks.find_task_class,
        load_intervention,
        lambda name: load_executor(name, 1),
        lambda name: build_task(name, 2),
        lambda name: whence.attend(q, q, q, backend=name),
    ):
        with pytest.raises(WhenceError, match=r"twice.*one_package:Thing and other_package:Thing.*uninstall"):
            load("twice")


def test_unknown_names_are_suggested(folder):
    for load, wrong, right in (
        (tasks.find_task_class, "retreival", "retrieval"),
        (lambda name: build_task(name, 2), "needel", "needle"),
        (lambda name: load_executor(name, 1), "locl", "local"),
        (load_intervention, "attention-temprature", "attention-temperature"),
        (lambda name: find_study_file(name, folder), "bel", "bell"),
    ):
        with pytest.raises(WhenceError, match=rf"{wrong}.*did you mean {right}\?"):
            load(wrong)
    with pytest.raises(WhenceError, match=r"'copy'.*symbol=3.*did you mean symbols\?"):
        tasks.load("copy", symbol=3)


def test_incomplete_objects_name_every_missing_method(folder):
    (folder / "incomplete.py").write_text(
        "from whence.lab.tasks import Task\n"
        "class Half(Task):\n    def splits(self): return {}\n"
        "class NoRun:\n    pass\n"
        "class WrongRun:\n    def run(self, runs): pass\n"
        "class NoControls:\n    name = 'x'\n    def apply(self, model): pass\n"
    )
    with pytest.raises(WhenceError, match=r"Half without decode, evaluation, train_batch.*write def decode"):
        tasks.find_task_class("./incomplete.py:Half")
    with pytest.raises(WhenceError, match=r"Half without"):
        tasks.find_task_class("./incomplete.py")
    with pytest.raises(WhenceError, match=r"NoRun without run.*def run\(self, execute, runs, folder, on_progress\)"):
        load_executor("./incomplete.py:NoRun", 1)
    with pytest.raises(WhenceError, match=r"WrongRun\.run.*def run\(self, execute, runs, folder, on_progress\)"):
        load_executor("./incomplete.py:WrongRun", 1)
    with pytest.raises(WhenceError, match=r"NoControls without settings, controls.*add settings, controls"):
        load_intervention("./incomplete.py:NoControls")


def test_a_config_file_in_another_folder(folder):
    from whence.cli.compare_config import rebase_values

    sub = folder / "sub"
    values = {"position": ["rotary", "./bell.py:Bell"], "task": "./t.py:T", "data": "book.txt", "seeds": 2}
    assert rebase_values(values, sub) == {
        "position": ["rotary", f"{sub}/bell.py:Bell"], "task": f"{sub}/t.py:T", "data": os.fspath(sub / "book.txt"), "seeds": 2,
    }  # fmt: skip
