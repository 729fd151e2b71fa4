"""Every registry finds an object by entry point, by module and by file, and says what is wrong when it cannot."""

import hashlib
import os
import sys

import pytest
import torch
import typer

import whence
from whence import plugins
from whence.attention import backends
from whence.cli.app import add_plugin_commands
from whence.errors import WhenceError
from whence.lab.executors import LocalExecutor, load_executor
from whence.lab.study_files import find_study_file, list_study_files, load_study_file
from whence.lab.tasks import find_task_class, load
from whence.mend import load_intervention
from whence.plugin_sources import hash_source_file
from whence.position.expression import ModelDims, build_position, hash_position_sources, parse_position
from whence.probe.tasks import build_task, is_installed

PARTS = """
import torch
import whence
from whence.attention import Backend
from whence.lab.tasks import Batch, Task
from whence.probe import Item, ProbeTask


class Hill(whence.Position):
    def __init__(self, heads, height=1.0):
        super().__init__(heads=heads)
        self.height = height

    def bias(self, distance, length):
        return -self.height * distance.abs()


class Bits(Task):
    name, kind, metric, vocab_size, num_classes = "bits", "classify", "accuracy", 2, 2

    def __init__(self, length=8):
        self.context, self.settings = length, {"length": length}

    def train_batch(self, size, generator): ...
    def splits(self): return {"test": self.context}
    def evaluation(self, split): ...
    def decode(self, tokens): ...


def questions(items, word="red"):
    made = tuple(Item(f"thing {n}", f"Thing {n} is {word}.", ("Grass is green.",), (word,), ("green",)) for n in range(items))
    return ProbeTask(
        name="q", about="", head="", joint=" ", tail="{question}?", lead=" ", label="", metric="value", paired=True, items=made,
    )


class Louder:
    name = "louder"

    def __init__(self, by=2.0): self.by = by
    def settings(self): return {"by": self.by}
    def apply(self, model): ...
    def controls(self): return []


class Plain(Backend):
    name = "plain"

    def run(self, call):
        return call.v, None


class Scaled(Plain):
    def __init__(self, by=2): self.by = by
    def run(self, call): return self.by * call.v, None


plain = Plain()


class Serial:
    def __init__(self, jobs, rank=0): self.jobs, self.rank = jobs, rank
    def run(self, execute, runs, folder, on_progress): ...


def greet(): print("hello")
"""
STUDY = """
from whence.lab.arms import Arm
from whence.lab.study import Budget, Decision, Study


def studies():
    return [Study(name="s", question="?", task="copy", arms=(Arm("a", "Rotary()"),), seeds=(0,),
                  budget=Budget(steps=1), decision=Decision(baseline="a"))]
"""
GROUPS = {
    plugins.POSITIONS: "hill = outsider.parts:Hill",
    plugins.TASKS: "bits = outsider.parts:Bits",
    plugins.PROBE_TASKS: "questions = outsider.parts:questions",
    plugins.INTERVENTIONS: "louder = outsider.parts:Louder",
    plugins.EXECUTORS: "serial = outsider.parts:Serial",
    plugins.STUDIES: "outsider = outsider.studies",
    plugins.COMMANDS: "greet = outsider.parts:greet",
    backends.ENTRY_POINTS: "plain = outsider.parts:Plain",
}
DIMS = ModelDims(heads=2, head_dim=4, embed_dim=8, context=16)


@pytest.fixture
def outsider(tmp_path, monkeypatch):
    """An installed package: a folder on the path with the metadata that pip writes."""
    for name, text in {
        "parts.py": PARTS,
        "studies/mine.py": STUDY,
        "__init__.py": "",
        "broken.py": "import absent_package",
    }.items():
        (tmp_path / "outsider" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "outsider" / name).write_text(text)
    metadata = tmp_path / "outsider-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outsider\nVersion: 1.0\n")
    lines = [f"[{group}]\n{line}\nbroken = outsider.broken:Thing\n" for group, line in GROUPS.items()]
    (metadata / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(backends, "INSTALLED", {})
    yield tmp_path / "outsider"
    for name in [name for name in sys.modules if name.partition(".")[0] == "outsider"]:
        del sys.modules[name]


def test_the_groups_have_the_documented_names():
    assert sorted(GROUPS) == [
        "whence.backends", "whence.commands", "whence.executors", "whence.interventions", "whence.positions",
        "whence.probe_tasks", "whence.studies", "whence.tasks",
    ]  # fmt: skip


#: registry: how to load a name, what the result says about its arguments, and arguments with their effect
REGISTRIES = {
    "positions": ("hill", "outsider.parts:Hill", lambda text: build_position(text, DIMS).height, 1.0, "height=3.0", 3.0),
    "tasks": ("bits", "outsider.parts:Bits", lambda text: load(text).context, 8, "length=3", 3),
    "probe_tasks": (
        "questions", "outsider.parts:questions", lambda text: build_task(text, 2).items[1].answers[0], "red", "word='blue'", "blue",
    ),
    "interventions": ("louder", "outsider.parts:Louder", lambda text: load_intervention(text).by, 2.0, "by=5.0", 5.0),
    "executors": ("serial", "outsider.parts:Serial", lambda text: load_executor(text, 7).rank, 0, "rank=4", 4),
}  # fmt: skip


@pytest.mark.parametrize("registry", REGISTRIES)
def test_by_entry_point_module_and_file_with_arguments(registry, outsider):
    name, reference, use, default, arguments, changed = REGISTRIES[registry]
    file = reference.replace("outsider.parts", str(outsider / "parts.py"))
    assert use(name) == use(reference) == use(file) == default
    assert use(f"{reference}({arguments})") == use(f"{file}({arguments})") == changed
    if registry not in ("tasks", "executors"):  # their entry points take settings elsewhere
        assert use(f"{name}({arguments})") == changed


@pytest.mark.parametrize("registry", REGISTRIES)
def test_unknown_names_list_the_known_ones(registry, outsider):
    name, reference, use, *_ = REGISTRIES[registry]
    with pytest.raises(WhenceError, match=rf"nonesuch[\s\S]*{name}"):
        use("nonesuch")
    with pytest.raises(WhenceError, match=r"Nonesuch.*outsider\.parts"):
        use(f"{reference.partition(':')[0]}:Nonesuch")
    with pytest.raises(WhenceError, match=r"no module.*absent_module"):
        use("absent_module:Thing")
    with pytest.raises(WhenceError, match=r"no file.*absent\.py"):
        use("./absent.py:Thing")


@pytest.mark.parametrize("registry", REGISTRIES)
def test_a_package_that_cannot_be_imported_is_named(registry, outsider):
    use = REGISTRIES[registry][2]
    with pytest.raises(WhenceError, match=r"outsider\.broken.*absent_package"):
        use("broken")
    with pytest.raises(WhenceError, match=r"outsider\.broken, which needs absent_package"):
        use("outsider.broken:Thing")


def test_built_in_names_win_over_entry_points(outsider):
    points = outsider.parent / "outsider-1.0.dist-info" / "entry_points.txt"
    points.write_text(
        "[whence.tasks]\ncopy = outsider.parts:Bits\n[whence.positions]\nalibi = outsider.parts:Hill\nAlibi = outsider.parts:Hill\n"
        "[whence.executors]\nlocal = outsider.parts:Serial\n[whence.interventions]\nattention-temperature = outsider.parts:Louder\n"
        "[whence.commands]\nshow = outsider.parts:greet\n"
    )
    assert find_task_class("copy").__module__.startswith("whence.")
    assert isinstance(build_position("alibi", DIMS), whence.Alibi) and isinstance(
        build_position("Alibi", DIMS), whence.Alibi
    )
    assert isinstance(load_executor("local", 3), LocalExecutor)
    assert type(load_intervention("attention-temperature")).__module__.startswith("whence.")
    application = typer.Typer()
    application.command("show")(lambda: None)
    with pytest.warns(UserWarning, match=r"the command show of outsider\.parts:greet is ignored"):
        add_plugin_commands(application)
    (show,) = [command for command in application.registered_commands if command.name == "show"]
    assert show.callback.__name__ != "greet"


def test_probe_tasks_are_found_with_and_without_arguments(outsider):
    assert is_installed("questions") and is_installed("questions(word='blue')") and not is_installed("answers")


def test_executors_get_the_number_of_jobs(outsider):
    assert load_executor("serial", 7).jobs == 7 and load_executor("outsider.parts:Serial(jobs=2)", 7).jobs == 2


def test_backends_run_by_the_name_of_their_entry_point(outsider):
    q = torch.randn(1, 2, 3, 4)
    assert torch.equal(whence.attend(q, q, q, backend="plain"), q)
    assert "plain" not in backends.BACKENDS and "plain" in backends.INSTALLED  # auto never chooses it
    with pytest.raises(WhenceError, match=r"nonesuch[\s\S]*plain"):
        whence.attend(q, q, q, backend="nonesuch")
    with pytest.raises(WhenceError, match=r"outsider\.broken.*absent_package"):
        whence.attend(q, q, q, backend="broken")


def test_backends_by_module_and_file_with_arguments(outsider, monkeypatch):
    q = torch.randn(1, 2, 3, 4)
    monkeypatch.chdir(outsider)
    for text, factor in {
        "outsider.parts:Plain": 1, "outsider.parts:plain": 1, "outsider.parts:Scaled": 2, "./parts.py:Scaled": 2,
        f"{outsider / 'parts.py'}:Scaled(by=3)": 3,
    }.items():  # fmt: skip
        for _ in range(2):
            assert torch.equal(whence.attend(q, q, q, backend=text), factor * q)
        assert text not in backends.BACKENDS
    layer = whence.Attention(8, 2, backend="outsider.parts:Scaled")
    plain = whence.Attention(8, 2, backend="outsider.parts:Plain")
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(1, 3, 8)
    assert not torch.allclose(layer(x), plain(x))
    explanation = whence.explain(q, q, q, backend="outsider.parts:Scaled")
    assert explanation.why == "named by the caller" and "outsider.parts:Scaled" not in dict(explanation.others)
    for text, message in {
        "outsider.parts:Nonesuch": r"attend\(backend='outsider\.parts:Nonesuch'\).*Plain",
        "absent_module:Thing": "no module absent_module",
        "./absent.py:Thing": r"no file.*absent\.py",
        "outsider.parts:Louder": r"Louder.*subclass whence\.Backend",
        "outsider.parts:Scaled(size=3)": r"Scaled\(size=3\).*size.*correct them",
        "outsider.parts:plain(by=3)": r"plain\(by=3\).*leave them out",
        "outsider.parts:Scaled(3)": r"Scaled\(3\).*name each of them",
    }.items():
        with pytest.raises(WhenceError, match=message):
            whence.attend(q, q, q, backend=text)
        assert text not in backends.INSTALLED


@pytest.fixture
def second(outsider):
    """Another installed package, which registers the names of ``outsider`` for other objects."""
    metadata = outsider.parent / "second-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: second\nVersion: 1.0\n")
    lines = [f"[{group}]\n{line.replace('outsider.', 'second.')}\n" for group, line in GROUPS.items()]
    (metadata / "entry_points.txt").write_text("".join(lines))


BOTH = r"outsider\.{0} and second\.{0}.*uninstall one of the packages"


@pytest.mark.parametrize("registry", REGISTRIES)
def test_a_name_of_two_packages_is_an_error(registry, second):
    name, reference, use, *_ = REGISTRIES[registry]
    with pytest.raises(WhenceError, match=rf"{name}.*{BOTH.format(reference.partition('.')[2])}"):
        use(name)


def test_a_backend_a_command_or_studies_of_two_packages_are_an_error(second, outsider, tmp_path):
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(WhenceError, match=rf"plain.*{BOTH.format('parts:Plain')}"):
        whence.attend(q, q, q, backend="plain")
    application = typer.Typer()
    add_plugin_commands(application)
    (command,) = [command for command in application.registered_commands if command.name == "greet"]
    with pytest.raises(WhenceError, match=rf"whence greet .*{BOTH.format('parts:greet')}"):
        command.callback()
    with pytest.raises(WhenceError, match=rf"outsider.*{BOTH.format('studies')}"):
        find_study_file("mine", tmp_path / "own")
    mine = outsider / "studies" / "mine.py"
    assert find_study_file(str(mine), tmp_path / "own") == mine  # a path needs no name


def test_studies_of_packages_and_of_a_folder(outsider, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "other.py").write_text(STUDY)
    points = outsider.parent / "outsider-1.0.dist-info" / "entry_points.txt"
    points.write_text(f"[{plugins.STUDIES}]\nbroken = absent_package.studies\noutsider = outsider.studies\n")
    with pytest.warns(UserWarning, match=r"absent_package\.studies.*ignored"):
        files = list_study_files(tmp_path / "own")
    assert files["mine"] == outsider / "studies" / "mine.py" and files["other"] == tmp_path / "own" / "other.py"
    points.write_text(f"[{plugins.STUDIES}]\noutsider = outsider.studies\n")
    (study,) = load_study_file(find_study_file("mine", tmp_path / "own"))
    assert study.name == "s" and find_study_file(str(outsider / "studies" / "mine.py"), tmp_path).is_file()
    with pytest.raises(WhenceError, match=r"no study nonesuch.*mine"):
        find_study_file("nonesuch", tmp_path / "own")
    other = outsider / "others"  # as another package would have it, with a study of the same name
    other.mkdir()
    for path in (other / "__init__.py", outsider / "studies" / "__init__.py", other / "mine.py", other / "more.py"):
        path.write_text(STUDY if path.stem != "__init__" else "")
    points.write_text(f"[{plugins.STUDIES}]\noutsider = outsider.studies\nothers = outsider.others\n")
    with pytest.raises(WhenceError, match=r"the study mine,.*(studies|others)/mine\.py and .*/mine\.py.*by its path"):
        find_study_file("mine", tmp_path / "own")
    (other / "mine.py").unlink()
    assert {"mine", "more"} <= list_study_files(tmp_path / "own").keys()


def test_commands_of_packages(outsider):
    application = typer.Typer()
    add_plugin_commands(application)
    commands = {command.name: command for command in application.registered_commands}
    assert commands["greet"].callback.__name__ == "greet" and "absent_package" in commands["broken"].help
    with pytest.raises(WhenceError, match=r"whence broken is unavailable.*absent_package"):
        commands["broken"].callback()


def test_what_a_registry_refuses(outsider):
    for use in (load_executor, lambda text, jobs: load(text), lambda text, jobs: parse_position(text)):
        with pytest.raises(WhenceError, match=r"Louder|Batch"):
            use("outsider.parts:Louder" if use is not load_executor else "outsider.parts:Batch", 1)
    with pytest.raises(WhenceError, match=r"Bits.*settings"):
        load_intervention("outsider.parts:Bits")
    with pytest.raises(WhenceError, match=r"the setting width.*length"):
        load("outsider.parts:Bits", width=3)


# --- plugins.py itself -----------------------------------------------------------------------------------------------


def test_a_file_is_loaded_once_for_each_content(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "one.py"
    file.write_text("class One: pass\nsize = 1")
    os.utime(file, (1e9, 1e9))
    first, again = (plugins.load_module(str(file), "test") for _ in range(2))
    assert first is again and first.size == 1
    file.write_text("class One: pass\nsize = 2")
    os.utime(file, (1e9, 1e9))  # cached bytecode of the first text would fit this size and time
    assert plugins.load_module(str(file), "test").size == 2
    other = tmp_path / "other" / "one.py"
    other.parent.mkdir()
    other.write_text(file.read_text())
    assert plugins.load_module(str(other), "test").One is not plugins.load_module(str(file), "test").One


def test_a_file_that_fails_leaves_nothing_behind(tmp_path):
    (tmp_path / "half.py").write_text("value = 1\nraise RuntimeError('half way')")
    before, path = set(sys.modules), list(sys.path)
    for _ in range(2):
        with pytest.raises(WhenceError, match=r"half\.py.*RuntimeError: half way"):
            plugins.load_module(str(tmp_path / "half.py"), "test")
    assert set(sys.modules) == before and sys.path == path
    (tmp_path / "wrong.py").write_text("import whence\nwhence.Alibi(0)")
    with pytest.raises(WhenceError, match=r"^Alibi\(heads="):  # an error of whence needs no second explanation
        plugins.load_module(str(tmp_path / "wrong.py"), "test")
    (tmp_path / "odd.py").write_text("x = (\n")
    with pytest.raises(WhenceError, match=r"odd\.py, line 1: SyntaxError"):
        plugins.load_module(str(tmp_path / "odd.py"), "test")


def test_modules_beside_a_file_and_in_the_working_directory_are_found(tmp_path, monkeypatch):
    (tmp_path / "beside_it.py").write_text("number = 5")
    (tmp_path / "entry.py").write_text("from beside_it import number")
    assert plugins.load_module(str(tmp_path / "entry.py"), "test").number == 5
    (tmp_path / "in_the_directory.py").write_text("number = 6")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    assert plugins.load_module("in_the_directory", "test").number == 6
    assert sys.path == path
    for name in ("beside_it", "in_the_directory"):
        del sys.modules[name]


@pytest.mark.parametrize(
    "text, message",
    [
        ("m:Thing(3)", "name each of them"),
        ("m:Thing(**{})", "name each of them"),
        ("m:Thing(a=1, a=2)", "keep one a="),
        ("m:Thing(a=open('x'))", "write a number"),
        ("m:Thing(a=1e999)", "finite"),
        ("m:Thing(a=[1, -1e999])", "finite"),
        ("m:Thing(a=", "name the class|correct the syntax"),
        ("m:Thing(a=1)(b=2)", "correct the syntax"),
        ("m:", "name the class"),
        ("m:3", "name the class"),
    ],
)
def test_arguments_are_keyword_literals(text, message):
    with pytest.raises(WhenceError, match=message):
        plugins.parse_reference(text)


def test_references_are_split():
    assert plugins.parse_reference(" ./a b.py:Thing (x=[1, 'y'], z=None) ") == plugins.PluginReference(
        "./a b.py", "Thing", {"x": [1, "y"], "z": None}
    )
    assert plugins.split_reference("m.n:Thing") == ("m.n", "Thing", None)
    assert not plugins.is_reference("Thing(a=':')") and plugins.is_reference("m:Thing(a=':')")
    assert (
        plugins.parse_arguments("", "x")
        == plugins.parse_arguments(None, "x")
        == plugins.parse_arguments("()", "x")
        == {}
    )


def test_the_source_of_a_users_class_is_hashed(outsider):
    digest = hashlib.sha256((outsider / "parts.py").read_bytes()).hexdigest()
    assert hash_position_sources("rotary + outsider.parts:Hill + hill") == {
        "outsider.parts:Hill": digest,
        "hill": digest,
    }
    assert hash_source_file(len) is None and hash_source_file(3) is None
