"""The command line: what it says, how it ends, and that a small comparison goes through to its page.

Most commands run in this process, where torch is loaded already; three run as a user's would, in processes of their own.
"""

import hashlib
import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STUDY = """
from whence.lab.arms import Arm
from whence.lab.study import Budget, Decision, Study

SCALES = {"small": 1, "large": 2}

def studies(scale="small"):
    return [Study(
        name="mine", question="Does it run?", task="retrieval", arms=(Arm("none", "NoPosition()"),), seeds=(0,),
        task_settings={"pairs": 2, "keys": 16, "values": 4, "items": 8},
        model={"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16},
        budget=Budget(steps=SCALES[scale]), decision=Decision(baseline="none"),
    )]
"""
SMALL = ["--task", "retrieval", "--position", "none", "--position", "alibi", "--seeds", "1", "--steps", "4"]


def whence(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "whence", *arguments], capture_output=True, text=True, cwd=cwd, timeout=300
    )  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch, whence_here):
    """The same in this process and in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return whence_here


def test_help_names_every_command_and_has_examples(here):
    whole = here("--help")
    assert whole.returncode == 0
    for command in ("compare", "studies", "run", "report", "show", "doctor"):
        assert command in whole.stdout
    assert "Epar(learnable=True)" in here("compare", "--help").stdout
    for command in ("compare", "studies", "run", "report", "show", "doctor", "probe"):
        said = here(command, "--help").stdout
        assert "Example" in said and f"whence {command}" in said.split("Example")[1], command


def test_help_lists_every_task_and_position(here):
    from whence.cli.compare import EXAMPLES
    from whence.lab.tasks import TASKS
    from whence.position.catalogue import SHORT_NAMES

    tasks, positions = EXAMPLES.split("Tasks: ")[1].split("Positions: ")
    for names, listed in ((TASKS, tasks), (SHORT_NAMES, positions.split("; or")[0])):
        words = listed.replace(";", ",").replace("from the folder of WHENCE_DATA also ", "").rstrip(".\n ").split(",")
        assert sorted(word.strip() for word in words) == sorted(names)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["compare", "--position", "flurb"], "unknown mechanism flurb"),
        (["compare", "--task", "chess"], "chess"),
        (["compare", "--baseline", "rotary", "--position", "none"], "the baseline must be one of the arms"),
        (["compare", "--config", "none.toml"], "no file none.toml"),
        (["compare", "--seeds", "0"], "greater than or equal to 1"),
        (["run", "nothing"], "no study nothing"),
        (["report", "nowhere"], "no study.json"),
        (["show", "Alibi(x=1)"], "x"),
        (["show", "alibi", "--out", "alibi.doc"], "alibi.doc"),
        (["show", "alibi", "--out", "none/alibi.png"], "none/alibi.png"),
    ],
)
def test_bad_requests_end_with_one_sentence_and_2(here, tmp_path, arguments, said):
    done = here(*arguments)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_a_process_of_its_own_ends_so_too(tmp_path):
    done = whence("compare", "--position", "flurb", cwd=tmp_path)
    assert done.returncode == 2 and "unknown mechanism flurb" in done.stderr and "Traceback" not in done.stderr


def test_a_small_comparison_and_its_page(here, tmp_path):
    done = whence("compare", *SMALL, "--jobs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = tmp_path / "build" / "compare" / "report.html"
    first = page.read_text()
    assert "alibi" in first and "\x1b[" not in done.stdout + done.stderr  # no terminal, no colour
    assert "1 of 2" in done.stderr
    title, *arms, last = done.stdout.splitlines()
    assert title.startswith("compare-retrieval, accuracy (%) on test: Undecided") and last.startswith("report: ")
    assert sorted(line.split()[0] for line in arms) == ["alibi", "none"] and max(map(len, [title, *arms])) <= 100
    assert any(line.endswith("  baseline") for line in arms)
    again = here("report", "build/compare", "--out", "again.html")
    assert again.returncode == 0 and (tmp_path / "again.html").stat().st_size > 10_000
    for made in (first, (tmp_path / "again.html").read_text()):  # both say how to run it again, not how to report again
        assert f"<pre><code>whence compare {' '.join(SMALL)} --jobs 1</code></pre>" in made
    record = next((tmp_path / "build" / "compare").glob("*/*seed0.json"))
    record.write_text("{")
    broken = here("compare", *SMALL, "--jobs", "1")
    assert broken.returncode == 1 and f"{record.name} is left alone" in broken.stderr
    assert f"{record.name} is left alone" in here("report", "build/compare").stderr
    assert f"{record.name} is left alone" in page.read_text()


@pytest.mark.parametrize(
    "text, said",
    [
        ("def studies(:", "mine.py, line 1: invalid syntax"),
        ("\nimport nothing_such", "mine.py, line 2: ModuleNotFoundError"),
        ("def studies():\n    return [1 / 0]", "mine.py, line 2: ZeroDivisionError"),
    ],
)
def test_a_fault_in_a_study_file_is_one_sentence_with_its_line(here, tmp_path, text, said):
    (tmp_path / "mine.py").write_text(text)
    done = here("run", "mine.py")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_a_study_file_with_several_scales(here, tmp_path):
    (tmp_path / "mine.py").write_text(STUDY)
    (tmp_path / "plain.py").write_text(STUDY.replace('scale="small"', "").replace("SCALES[scale]", "1"))
    for name, said in (("mine.py", "small, large"), ("plain.py", "one only")):
        refused = here("run", name, "--scale", "moon")
        assert refused.returncode == 2 and "'moon'" in refused.stderr and said in refused.stderr
    done = here("run", "mine.py", "--scale", "large", "--jobs", "1", "--out", "out")
    assert done.returncode == 0 and (tmp_path / "out" / "report.html").exists(), done.stderr


def test_on_a_terminal_there_are_bars(tmp_path):
    # a terminal takes another way than a pipe, and users have terminals
    code = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
    run = [sys.executable, "-c", "from whence.cli import main; main()", "compare", *SMALL, "--jobs", "1"]
    done = subprocess.run([sys.executable, "-c", code, *run], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout[-800:]
    assert "2/2" in done.stdout and "report: build/compare/report.html" in done.stdout


def test_options_from_a_file(here, tmp_path):
    (tmp_path / "mine.toml").write_text('task = ["retrieval"]\nposition = ["none"]\nseeds = 1\nsteps = 2\n')
    assert here("compare", "--config", "mine.toml", "--jobs", "1").returncode == 0
    (tmp_path / "one.toml").write_text('task = "retrieval"\nposition = "none"\nsteps = 2\njobs = 1\nout = "one"\n')
    assert here("compare", "--seeds", "2", "--config", "one.toml").returncode == 0  # what is typed wins
    assert len(list((tmp_path / "one").glob("*/*seed*.json"))) == 2
    for text, said in (
        ("sedes = 1", "sedes in bad.toml"),
        ("seeds = 0", "greater than or equal to 1"),
        ('steps = "some"', "--steps"),
        ("task = ", "bad.toml"),
    ):
        (tmp_path / "bad.toml").write_text(text + "\n")
        done = here("compare", "--config", "bad.toml")
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_doctor_knows_what_each_extra_has(here, monkeypatch):
    from whence.cli import doctor

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = [f"{line}; extra == '{extra}'" for extra, packages in declared.items() for line in packages]
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: lines)
    assert set(declared) - {"dev", "all"} == set(doctor.PURPOSES)
    assert {"accelerate", "datasets", "pooch", "scipy"} <= set(doctor.list_extras()["lab"])
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "datasets" else "1")
    said = here("doctor").stdout
    assert 'studies: missing datasets; run: pip install "whence[lab]"' in said and "models: complete" in said


def test_doctor_and_show(here, tmp_path):
    assert "extra lab, for tasks, training and studies: " in here("doctor").stdout
    shown = here("show", "alibi")
    assert shown.returncode == 0 and (tmp_path / "position.png").stat().st_size > 1000


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
def plugins(here, tmp_path):
    for name, source in FILES.items():
        (tmp_path / name).write_text(source)
    return here


def test_mechanism_task_and_executor_of_ones_own(plugins, tmp_path):
    """By module and by file, with resume and report."""
    order = [
        "compare", "--task", "./parity.py:Parity(length=8)", "--position", "none", "--position", "./bell.py:Bell(width=3)",
        "--position", "bell:Bell", "--executor", "serial:Serial", "--seeds", "1", "--steps", "2",
    ]  # fmt: skip
    done = plugins(*order)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "build/compare").glob("compare-parity-Parity-*")
    assert len((tmp_path / "ran.txt").read_text().split()) == 3
    record = json.loads(next(folder.glob("*bell-py*seed0.json")).read_text())
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


FAULTY = """
import contextlib
import torch
from whence import Position

class Faulty(Position):
    def bias(self, distance, length):
        return torch.zeros(2) @ torch.zeros(3)

@contextlib.contextmanager
def around():
    yield

class Failing:
    def run(self, execute, runs, folder, on_progress):
        return [(run, KeyError("x")) for run in runs]
"""


def test_an_error_in_the_users_code_is_one_line(here, tmp_path, monkeypatch):
    (tmp_path / "faulty.py").write_text(FAULTY)
    order = ["compare", "--task", "retrieval", "--position", "./faulty.py:Faulty", "--seeds", "1", "--steps", "2"]
    for command in (["show", "./faulty.py:Faulty"], [*order, "--jobs", "1"]):
        done = here(*command)
        (line,) = [line for line in done.stderr.splitlines() if "faulty.py, line" in line]
        assert done.returncode == 1 and line.startswith("faulty.py, line 8, in bias: RuntimeError: ")
        assert "WHENCE_TRACEBACK=1" in line and "Traceback" not in done.stderr
    order[order.index("./faulty.py:Faulty")] = "none"
    done = here(*order, "--executor", "./faulty.py:Failing")
    assert done.returncode == 1 and "seed0.json failed: KeyError: 'x'" in done.stderr
    monkeypatch.setenv("WHENCE_TRACEBACK", "1")
    with pytest.raises(RuntimeError):
        here("show", "./faulty.py:Faulty")


def test_an_error_of_whence_keeps_its_traceback(here, tmp_path, monkeypatch):
    """Also where the user's context manager encloses it."""
    from whence import plotting
    from whence.cli import app
    from whence.plugins import load_module
    from whence.statistics import samples

    (tmp_path / "faulty.py").write_text(FAULTY)
    around = load_module("./faulty.py", "").around

    def fail():
        with around():
            samples.mean(object())

    with pytest.raises(TypeError) as caught:
        fail()
    assert app.find_user_frame(caught.value) is None
    monkeypatch.setattr(plotting, "show", None)  # called by whence
    with pytest.raises(TypeError):
        here("show", "alibi")


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", *SMALL, "--out", "/proc/nope"],
        ["compare", *SMALL, "--out", "rev.csv/x"],
        ["show", "alibi", "--out", "/proc/x.png"],
    ],
)
def test_an_output_path_that_cannot_be_created_is_one_sentence(here, tmp_path, arguments):
    (tmp_path / "rev.csv").write_text("")
    done = here(*arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert arguments[-1] in done.stderr and "choose another" in done.stderr


def test_commands_of_other_packages(here, monkeypatch):
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
    done = here("broken", "--id", "x", "word")
    assert done.returncode == 2 and "broken is unavailable" in done.stderr and "nonesuch_package" in done.stderr


def test_a_package_that_fails_to_import_is_not_called_missing(tmp_path, monkeypatch):
    from whence.errors import MissingExtra, require_package

    (tmp_path / "half_installed.py").write_text("import nonesuch_package")
    (tmp_path / "old_package.py").write_text("from json import nothing_such")
    monkeypatch.syspath_prepend(tmp_path)
    for package, reason in (("half_installed", "nonesuch_package"), ("old_package", "nothing_such")):
        with pytest.raises(MissingExtra, match=rf"installed {package} fails to import.*{reason}.*pip install"):
            require_package(package, "drawing", "plot")


def test_data_of_ones_own(here, tmp_path):
    rows = [f"{'good fine' if number % 2 else 'bad poor'} film {number},{number % 2}" for number in range(60)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,stars", *rows]))
    (tmp_path / "book.txt").write_text("It was a dark and stormy night. " * 400)
    small = ["--position", "none", "--seeds", "1", "--steps", "2", "--jobs", "1"]
    done = here("compare", "--data", "reviews.csv", "--label-column", "stars", *small)
    assert done.returncode == 0, done.stderr
    done = here("compare", "--data", "book.txt", *small)
    assert done.returncode == 0, done.stderr
    names = sorted(path.name.rsplit("-", 1)[0] for path in (tmp_path / "build/compare").glob("compare-*"))
    assert names == ["compare-book", "compare-reviews"]
    (tmp_path / "book.txt").write_text("Another text. " * 800)
    assert here("compare", "--data", "book.txt", *small).returncode == 0  # other data, another study
    assert len(list((tmp_path / "build/compare").glob("compare-book-*"))) == 2
    refused = here("compare", "--data", "reviews.csv", *small)
    assert refused.returncode == 2 and "text, stars" in refused.stderr and "--label-column" in refused.stderr


@pytest.mark.parametrize(
    "arguments, package",
    [
        (["compare", *SMALL, "--jobs", "1"], "accelerate"),
        (["show", "alibi"], "matplotlib"),
        (["probe", "--quick"], "transformers"),
    ],
)
def test_a_missing_package_is_one_line(here, tmp_path, monkeypatch, arguments, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    done = here(*arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert package in line and "pip install" in line
