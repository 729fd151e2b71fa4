"""``whence run`` and ``whence studies``: study files, experiments in folders, --quick, and errors."""

import json
import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pack_records
from whence.cli import report
from whence.cli.app import app
from whence.errors import WhenceError
from whence.explore.results import find_reports
from whence.lab import executors, experiment_runs
from whence.lab.arms import Arm
from whence.lab.study import Budget, Decision, Study, share_family

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
EXPERIMENT = """
from dataclasses import dataclass
from pathlib import Path
from whence.lab.experiment import Experiment

@dataclass(frozen=True)
class Spec:
    numbers: tuple[int, ...] = (1, 2, 3)

def compute(spec, given, tell):
    tell("adding")
    Path("computed").open("a").write("x")
    return {"sum": sum(spec.numbers)}

def draw(record, folder):
    (folder / "sum.txt").write_text(str(record["results"]["sum"]))

def experiments():
    return [Experiment("sums", "mine", "sums", "What is the sum?", Spec(), Spec((1,)), compute, draw)]
"""


@pytest.fixture
def studies(tmp_path, monkeypatch):
    (tmp_path / "studies/deep").mkdir(parents=True)
    (tmp_path / "studies/deep/sums.py").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def whence(*arguments):
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_experiments_in_folders_are_listed_and_run(studies):
    assert "deep/sums" in whence("studies").stdout and "What is the sum?" in whence("studies").stdout
    done = whence("run", "deep/sums")
    assert done.exit_code == 0 and "results/output/sums" in done.stdout
    assert (studies / "results/output/sums/sum.txt").read_text() == "6"
    assert whence("run", "deep/sums").exit_code == 0
    assert (studies / "computed").read_text() == "x"  # the second time it only drew
    quick = whence("run", "deep/sums", "--quick")
    assert quick.exit_code == 0 and (studies / "results/output/sums/sum.txt").read_text() == "1"
    assert (studies / "results/mine/sums.json").exists() and (studies / "results/mine/quick/sums.json").exists()


def test_a_study_file_is_described_with_its_scales_and_options(studies):
    text = '"""Trains nothing.\n\nA run takes seconds.\n"""\n' + STUDY.replace(
        'scale="small"', 'scale="small", my_data=None'
    )
    (studies / "studies/mine.py").write_text(text)
    lines = whence("studies", "mine").stdout.splitlines()
    assert lines[:3] == ["Trains nothing.", "", "A run takes seconds."]
    assert "--scale: small, large (default: small)" in lines and "options: --my-data" in lines
    assert lines[-1] == "study mine: 1 arms, 1 seeds: Does it run?"
    found = json.loads(whence("studies", "mine", "--json").stdout)
    assert (found["scales"], found["default_scale"], found["options"]) == (["small", "large"], "small", ["--my-data"])
    plain = whence("studies", "deep/sums").stdout
    assert "--scale: none" in plain and "options: none" in plain and "study sums: experiment" in plain
    with pytest.raises(WhenceError, match=r"whence studies got no study min; did you mean mine"):
        whence("studies", "min")
    shown = " ".join(whence("run", "--help").stdout.replace("│", " ").split())
    assert "whence studies NAME" in shown and "whence studies NAME" in whence("studies").stderr


def test_invalid_requests_raise_one_sentence(studies):
    with pytest.raises(WhenceError, match=r"no study sums.*deep/sums"):
        whence("run", "sums")
    (studies / "studies/none.py").write_text("x = 1")
    with pytest.raises(WhenceError, match=r"none.py with 0 of studies\(\) and experiments\(\)"):
        whence("run", "none")
    assert not (studies / "results").exists()


CHAIN = """
import os
from dataclasses import dataclass
from whence.lab.experiment import Experiment

@dataclass(frozen=True)
class Spec:
    number: int

def compute(spec, given, tell):
    if spec.number == -9:
        os.kill(os.getpid(), 9)
    if spec.number < 0:
        raise ValueError("below 0")
    return {"sum": spec.number + sum(results["sum"] for results in given.values()), "process": os.getpid()}

def draw(record, folder):
    (folder / f"{record['experiment']}.txt").write_text(str(record["results"]["sum"]))

def experiments(last="100"):
    def add(name, number, *needs):
        return Experiment(name, "mine", "sums", "What is the sum?", Spec(number), Spec(number), compute, draw, needs)
    one = add("one", 1)
    return [add("three", 3, add("two", 2, one)), add("four", 4, one), add("last", int(last))]
"""


def test_experiments_run_in_several_processes(studies):
    """Each after those that it needs, of which each is computed once; the functions of the file are not pickled."""
    (studies / "studies/chain.py").write_text(CHAIN)
    assert whence("run", "chain", "--jobs", "2").exit_code == 0
    found = {path.stem: json.loads(path.read_text())["results"] for path in (studies / "results/mine").glob("*.json")}
    assert {name: each["sum"] for name, each in found.items()} == {
        "one": 1,
        "two": 3,
        "three": 6,
        "four": 5,
        "last": 100,
    }
    processes = {each["process"] for each in found.values()}
    assert os.getpid() not in processes and 1 <= len(processes) <= 2
    assert (studies / "results/output/sums/three.txt").read_text() == "6"
    before = {path: path.stat().st_mtime_ns for path in (studies / "results/mine").glob("*.json")}
    assert whence("run", "chain", "--jobs", "2").exit_code == 0
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def test_one_experiment_of_a_chain_fails(studies, forked_workers):
    (studies / "studies/chain.py").write_text(CHAIN)
    with pytest.raises(Exception, match=r"chain.py, line 14, in compute: ValueError: below 0"):
        whence("run", "chain", "--jobs", "2", "--last", "-5", "--out", "failed")
    assert (studies / "failed/mine/one.json").exists() and not (studies / "failed/mine/last.json").exists()
    killed = (
        r"one of 2 processes was killed, perhaps for lack of memory, so all ended; run .* with --jobs 1, and finished"
    )
    with pytest.raises(WhenceError, match=killed):
        whence("run", "chain", "--jobs", "2", "--last", "-9", "--out", "killed")


FAULTS = """
import time
from dataclasses import dataclass
from pathlib import Path
from whence.errors import WhenceError
from whence.lab.experiment import Experiment

class Mine(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

class MyRule(WhenceError):
    pass

@dataclass(frozen=True)
class Spec:
    kind: str

def compute(spec, given, tell):
    with Path("computed").open("a") as file:
        file.write(f"{spec.kind} ")
    if spec.kind == "mine":
        raise Mine(1, 2)
    if spec.kind == "rule":
        raise MyRule("two rules")
    if spec.kind == "whence":
        import whence
        whence.attend(1, 2, 3)
    if spec.kind == "sleep":
        time.sleep(20)
    time.sleep(0.3)
    return {}

def draw(record, folder):
    pass

def experiments(kinds="mine"):
    def add(kind, name, *needs):
        return Experiment(name, "mine", "out", "What?", Spec(kind), Spec(kind), compute, draw, needs)
    first, *rest = kinds.split()
    bad = add(first, "bad")
    return [bad, *(add(kind, f"n{index}") for index, kind in enumerate(rest)), add("late", "late", bad)]
"""


@pytest.fixture
def faults(studies):
    (studies / "studies/faults.py").write_text(FAULTS)
    return studies


@pytest.mark.parametrize(
    "kind, code, line",
    [
        ("mine", 1, "studies/faults.py, line 23, in compute: Mine: 1 and 2 (WHENCE_TRACEBACK=1 shows the traceback)"),
        ("rule", 2, "two rules"),
    ],
)
def test_an_error_of_an_experiment_is_the_same_line_in_several_processes(
    faults, whence_here, forked_workers, monkeypatch, kind, code, line
):
    for jobs in (1, 2):
        done = whence_here("run", "faults", "--jobs", jobs, "--kinds", kind)
        errors = [text for text in done.stderr.splitlines() if not text.endswith("computing")]
        assert (done.returncode, errors) == (code, [line])
    monkeypatch.setenv("WHENCE_TRACEBACK", "1")
    if kind == "mine":
        done = whence_here("run", "faults", "--jobs", 2, "--kinds", kind)
        assert done.returncode == 1 and done.stderr.count("Traceback") == 1 and "raise Mine(1, 2)" in done.stderr


def test_after_an_error_no_other_experiment_begins(faults, forked_workers):
    with pytest.raises(Exception, match="Mine: 1 and 2"):
        whence("run", "faults", "--jobs", "2", "--kinds", "mine x x x x x x x x")
    computed = (faults / "computed").read_text().split()
    assert computed.count("mine") == 1  # the late one would compute what it needs again
    assert "late" not in computed and computed.count("x") <= 2


def test_a_process_is_killed_between_two_experiments(faults, forked_workers, monkeypatch):
    usual, before = experiment_runs.wait, multiprocessing.active_children()

    def wait_and_kill(active, **options):
        done = usual(active, **options)
        workers = [child for child in multiprocessing.active_children() if child not in before]
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join()
        time.sleep(0.5)  # the pool has seen it
        return done

    monkeypatch.setattr(experiment_runs, "wait", wait_and_kill)
    with pytest.raises(WhenceError, match="one of 2 processes was killed"):
        whence("run", "faults", "--jobs", "2", "--kinds", "x x x x x x")


def test_an_interrupt_ends_the_processes_of_experiments(faults, forked_workers, monkeypatch):
    before = multiprocessing.active_children()

    def interrupt(*given, **options):
        deadline = time.monotonic() + 60
        while Path("computed").read_text().count("sleep") < 2 if Path("computed").exists() else True:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment_runs, "wait", interrupt)
    assert whence("run", "faults", "--jobs", "2", "--kinds", "sleep sleep").exit_code == 130
    workers = [child for child in multiprocessing.active_children() if child not in before]
    for worker in workers:
        worker.join(5)
    alive = [worker for worker in workers if worker.is_alive()]
    for worker in alive:
        worker.kill()
    assert not alive


def test_experiments_use_all_cores_by_default(studies, monkeypatch):
    found = []
    monkeypatch.setattr(executors, "default_jobs", lambda: 5)
    monkeypatch.setattr(experiment_runs, "compute_experiments", lambda *given, jobs, **options: found.append(jobs))
    for options in ((), ("--quick",), ("--jobs", "3")):
        assert whence("run", "deep/sums", *options).exit_code == 0
    assert found == [5, 1, 3]


@pytest.mark.parametrize("option, value", [("--shard", "1/2"), ("--executor", "slurm")])
def test_experiments_refuse_options_of_studies(studies, option, value):
    with pytest.raises(
        WhenceError, match=rf"run {option} got {value}, but sums.py has experiments.*leave out {option}"
    ):
        whence("run", "deep/sums", option, value)
    assert not (studies / "computed").exists()


def test_a_study_has_no_quick_form(studies):
    (studies / "studies/compared.py").write_text(STUDY)
    with pytest.raises(WhenceError, match="only experiments have a quick form"):
        whence("run", "compared", "--quick")


def test_one_experiment_of_a_file(studies):
    two = EXPERIMENT.replace("def experiments", "def one").replace("return [", "return ")[:-2] + "\n"
    two += (
        "\ndef experiments():\n    from dataclasses import replace\n    return [one(), replace(one(), name='other')]\n"
    )
    (studies / "studies/two.py").write_text(two)
    done = whence("run", "two", "--only", "other")  # one record: no other process
    assert done.exit_code == 0 and "other: results/mine/other.json" in done.stdout and "sums:" not in done.stdout
    with pytest.raises(WhenceError, match=r"--only got others.*two.py has sums, other"):
        whence("run", "two", "--only", "others")


def test_arguments_of_a_study_file_are_options(studies):
    text = "def studies(my_seeds='1', other=None):\n    raise ValueError(f'{my_seeds} and {other}')\n"
    (studies / "studies/own.py").write_text(text)
    with pytest.raises(WhenceError, match="ValueError: 3 and x=y"):
        whence("run", "own", "--my-seeds", "3", "--other=x=y")
    with pytest.raises(WhenceError, match=r"got --my-seed;.*--my-seeds.*the options of own.py are --my-seeds, --other"):
        whence("run", "own", "--my-seed", "3")
    with pytest.raises(
        WhenceError, match=r"got --tasks, but the options of own.py are --my-seeds, --other; leave it out"
    ):
        whence("run", "own", "--tasks", "3")
    with pytest.raises(WhenceError, match=r"got --other, but .*--name value"):
        whence("run", "own", "--other")
    with pytest.raises(WhenceError, match=r"got --job;.*--jobs.*sums.py has no options of its own"):
        whence("run", "deep/sums", "--job", "2")


def test_studies_of_one_folder_keep_their_reports(studies):
    """report.html is of the last command; each study has one in its own folder; whence report writes one page of all."""
    changes = {"mine": "Does it", "other": "Will it", "third": "Can it"}
    for name, words in changes.items():
        text = STUDY.replace('name="mine", question="Does it', f'name="{name}", question="{words}')
        (studies / f"studies/{name}.py").write_text(text)
    assert "other stud" not in whence("run", "mine", "--jobs", "1").output
    done = whence("run", "other", "--jobs", "1")

    def find(name):
        (folder,) = (path for path in Path("results").glob(f"{name}-*") if path.is_dir())
        return folder / "report.html"

    mine, other = find("mine"), find("other")
    assert (
        f"It holds other; results has 1 other study. Its report is {mine}. One page of all: whence report results"
        in (done.stderr)
    )
    page = Path("results/report.html")
    assert "Will it run?" in page.read_text() and "Does it run?" not in page.read_text()
    assert "Does it run?" in mine.read_text() and "Will it run?" not in mine.read_text()
    assert other.read_text() == page.read_text()
    assert [one.path for one in find_reports(Path("results"))] == [mine, page]  # the page holds the other one
    mine.unlink()  # as of a version that wrote none
    told = whence("run", "third", "--jobs", "1").stderr
    assert f"2 other studies. 1 of them keep a report in its own folder, such as {other}. One page of all, and" in told
    kept = other.read_text()
    assert whence("report", "results").exit_code == 0
    assert all(f"{words} run?" in page.read_text() for words in changes.values())
    assert "<title>Does it run?</title>" in mine.read_text() and "Will it run?" not in mine.read_text()
    assert other.read_text() == kept
    assert f"Each keeps a report in its own folder, such as {mine}." in whence("run", "third", "--jobs", "1").stderr


def test_an_own_report_names_the_studies_of_its_family(studies):
    """Its intervals hold together with those of studies that it does not show."""
    text = STUDY.replace('(Arm("none", "NoPosition()"),)', '(Arm("none", "NoPosition()"), Arm("alibi", "Alibi()"))')
    text = text.replace("seeds=(0,)", "seeds=(0, 1)")
    two = text.replace("def studies", "def one").replace("return [", "return ", 1).replace("    )]", "    )")
    two += "\ndef studies():\n    from dataclasses import replace\n    return [one(), replace(one(), name='other', question='Will it run?')]\n"
    (studies / "studies/two.py").write_text(two)
    assert whence("run", "two", "--jobs", "1").exit_code == 0
    for name, other, question in (("mine", "other", "Does it"), ("other", "mine", "Will it")):
        (page,) = Path("results").glob(f"{name}-*/report.html")
        assert f"<title>{question} run?</title>" in page.read_text()
        assert f"for 2 comparisons, those of this study and of {other}, which another page shows" in page.read_text()
    assert "for 2 comparisons. No" in Path("results/report.html").read_text()


def test_a_family_of_stated_size_is_known_if_all_its_studies_are_there():
    study = Study(
        name="s", question="q", task="copy", arms=(Arm("a", "none"), Arm("b", "alibi")), seeds=(0,), budget=Budget(steps=1),
        decision=Decision(baseline="a"),
    )  # fmt: skip
    two = share_family([study, replace(study, name="t")])
    assert report._find_family([*two, study], 0) == [0, 1] and report._find_family([*two, study], 2) == [2]
    assert report._find_family(two[:1], 0) == report._find_family([*two, *two], 0) == []
    with_hashes = [{"name": "copy", "hash": "1"}, {"name": "copy", "hash": "2"}, {"name": "recall", "hash": "3"}]
    assert report._tell_apart(with_hashes) == ["copy 1", "copy 2", "recall"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("def studies(:", "mine.py, line 1: invalid syntax"),
        ("\nimport nothing_such", "mine.py, line 2: ModuleNotFoundError"),
        ("def studies():\n    return [1 / 0]", "mine.py, line 2: ZeroDivisionError"),
    ],
)
def test_a_fault_in_a_study_file_is_one_sentence_with_its_line(run_whence, tmp_path, text, message):
    (tmp_path / "mine.py").write_text(text)
    done = run_whence("run", "mine.py")
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_a_study_file_with_several_scales(run_whence, tmp_path):
    (tmp_path / "mine.py").write_text(STUDY)
    (tmp_path / "plain.py").write_text(STUDY.replace('scale="small"', "").replace("SCALES[scale]", "1"))
    for name, message in (("mine.py", "small, large"), ("plain.py", "leave out --scale")):
        refused = run_whence("run", name, "--scale", "moon")
        assert refused.returncode == 2 and "'moon'" in refused.stderr and message in refused.stderr
    done = run_whence("run", "mine.py", "--scale", "large", "--jobs", "1", "--out", "out")
    assert done.returncode == 0 and (tmp_path / "out" / "report.html").exists(), done.stderr
    # of a packed study, too, a report is written, and nothing is trained again
    (folder,) = (path.parent for path in (tmp_path / "out").glob("*/study.json"))
    (tmp_path / "out" / "report.html").unlink()
    pack_records.pack_folder(folder, lambda record: None)
    done = run_whence("run", "mine.py", "--scale", "large", "--jobs", "1", "--out", "out")
    assert done.returncode == 0 and "Does it run?" in (tmp_path / "out" / "report.html").read_text(), done.stderr
    assert not list(folder.glob("*-seed0.json"))
