"""``whence doctor`` and ``whence show``."""

import json
import tomllib
from pathlib import Path

import pytest

from whence.attention.backends import BACKENDS
from whence.cli import doctor_facts, doctor_speed
from whence.cli.doctor import describe_speed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def doctor(run_whence, tmp_path, monkeypatch):
    """The command in a place where nothing is missing but data."""
    monkeypatch.setenv("WHENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    monkeypatch.setattr(doctor_facts.shutil, "which", lambda name: None)

    def run(*options):
        return run_whence("doctor", "--no-speed", *options)

    return run


def declare(monkeypatch):
    """Make the installed package declare what pyproject.toml does, whenever it was installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [f"{line.partition(';')[0]}; extra == '{extra}'" for extra, own in extras.items() for line in own]
    monkeypatch.setattr(doctor_facts, "read_requirements", lambda: [*project["dependencies"], *lines])
    return extras


def test_every_extra_is_described_with_its_install_line(doctor, monkeypatch):
    declared = declare(monkeypatch)
    assert set(declared) - {"dev", "all"} == set(doctor_facts.PURPOSES)
    versions = {"datasets": None, "matplotlib": "3.0"}
    monkeypatch.setattr(doctor_facts, "find_version", lambda package: versions.get(package, "9999"))
    found = {extra["name"]: extra for extra in json.loads(doctor("--json").stdout)["extras"]}
    assert found["lab"]["state"] == "missing" and found["lab"]["missing"] == ["datasets"]
    assert found["plot"]["state"] == "too old" and found["plot"]["outdated"] == ["matplotlib 3.0, needs >=3.9"]
    assert found["hf"]["state"] == "installed"
    lines = doctor().stdout.splitlines()
    assert '  lab: missing: tasks, training and studies (datasets); run: pip install "whence[lab]"' in lines
    assert "  hf: installed: pretrained models" in lines


def test_a_machine_without_extras_gpu_and_data_is_not_broken(doctor, monkeypatch):
    monkeypatch.delenv("WHENCE_DATA")
    monkeypatch.setattr(doctor_facts, "read_requirements", lambda: [])
    done = doctor("--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["problems"] == [] and found["command"] == "doctor"
    assert {extra["state"] for extra in found["extras"]} == {"unknown"}
    assert not any(one["found"] for one in found["data"]["sets"]) and "not set" in found["data"]["text"]
    assert found["speed"] is None and found["machine"]["memory_gib"] > 0


@pytest.mark.parametrize("width", [80, 40])
def test_lines_fit_a_terminal(doctor, monkeypatch, width):
    from rich.text import Text

    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    lines = [Text.from_ansi(line).plain for line in doctor().stdout.splitlines()]
    assert "Nothing is broken." in lines and max(map(len, lines)) <= width


def test_data_that_is_there_is_found(doctor, tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books/test.txt.xz").touch()
    found = json.loads(doctor("--json").stdout)["data"]
    assert [one["name"] for one in found["sets"] if one["found"]] == ["books"] and found["folder"] == str(tmp_path)


@pytest.mark.parametrize(
    "name, training, development",
    [
        ("squad", "squad/train-v2.0.json", "benchmarks/squad2/dev.json.xz"),
        ("qmsum", "qmsum/train.jsonl.gz", "benchmarks/qmsum/val.jsonl.xz"),
        ("arxiv", "arxiv/train.txt", "arxiv/val.txt"),
    ],
)
def test_a_development_part_without_the_training_part_is_found(doctor, tmp_path, name, training, development):
    """The studies train on it."""
    (path := tmp_path / development).parent.mkdir(parents=True)
    path.touch()
    (line,) = [one for one in doctor().stdout.splitlines() if one.startswith(f"  {name}: ")]
    assert (
        line.startswith(f"  {name}: found (development part; the training part is missing): ") and "; put train" in line
    )
    (path := tmp_path / training).parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    (line,) = [one for one in doctor().stdout.splitlines() if one.startswith(f"  {name}: ")]
    assert line.startswith(f"  {name}: found: ") and "put" not in line


def test_the_paths_of_data_sets_are_those_that_tasks_read(monkeypatch, tmp_path):
    """Without data every loader names the folder of its file."""
    from whence.errors import WhenceError
    from whence.lab.tasks import TASKS, load

    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    for name, info in TASKS.items():
        if not info.is_bundled:
            folder = doctor_facts.DATA_SETS[name][0].partition("/")[0]
            with pytest.raises(WhenceError, match=f"no .*{folder}/"):
                load(name)


@pytest.mark.parametrize(
    "variable, value, remedy",
    [("WHENCE_DATA", "nowhere", "create it, or correct"), ("WHENCE_CACHE", "file/cache", "set WHENCE_CACHE to a")],
)
def test_a_variable_that_names_no_usable_folder_is_broken(doctor, tmp_path, monkeypatch, variable, value, remedy):
    (tmp_path / "file").touch()
    monkeypatch.setenv(variable, str(tmp_path / value))
    done = doctor()
    assert done.returncode == 1 and value in done.stdout and remedy in done.stdout


def test_an_incomplete_model_is_broken(doctor, tmp_path):
    (tmp_path / "cache/smollm2").mkdir(parents=True)
    done = doctor("--json")
    (problem,) = json.loads(done.stdout)["problems"]
    assert done.returncode == 1 and "smollm2" in problem and "convert it again" in problem


@pytest.mark.parametrize("fault", ["wrong", "raises"])
def test_a_backend_that_fails_is_broken_and_not_timed(run_whence, tmp_path, monkeypatch, fault):
    def run(call):
        if fault == "raises":
            raise RuntimeError("no driver")
        return call.v * 0, None

    monkeypatch.setattr(BACKENDS["sdpa"], "run", run)
    done = run_whence("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["speed"] is None
    assert [("sdpa" in problem, "report" in problem) for problem in found["problems"]] == [(True, True)]


def test_an_old_torch_is_broken(doctor, monkeypatch):
    monkeypatch.setattr(doctor_facts, "read_requirements", lambda: ["torch>=99"])
    done = doctor()
    assert done.returncode == 1 and 'pip install --upgrade "torch>=99"' in done.stdout


def test_speed_is_a_ratio_to_sdpa(monkeypatch):
    rounds = [(1, 8.0, 1, 1), (2, 8.0, 2, 2), (4, 2.0, 4, 4), (8, 4.0, 8, 8), (16, 6.128, 16, 16)]  # milliseconds
    steps = [(1, 1, 1, 1), *rounds]  # the first warms up
    clock = iter([tick for own in steps for step in own for tick in (0.0, step / 1000)])
    monkeypatch.setattr(doctor_speed.time, "perf_counter", lambda: next(clock))
    found = doctor_speed.measure_speed("cpu", seconds=0, tokens=8)
    assert found["rounds"] == 5
    assert [(row["name"], row["milliseconds"]) for row in found["rows"]] == [
        ("SDPA", 4), ("rotary", 6.13), ("ALiBi", 4), ("EPAR", 4),
    ]  # fmt: skip
    printed = [text for _, text, _ in describe_speed(found)]
    assert printed[:2] == ["4.00 ms", "6.13 ms, 1.53 times SDPA"] and round(6.13 / 4.00, 2) == 1.53


def test_a_gpu_is_described_and_one_that_torch_cannot_use_is_broken(doctor, monkeypatch):
    import torch

    monkeypatch.setattr(doctor_facts.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = doctor()
    assert done.returncode == 1 and "cannot use the GPU" in done.stdout and "matches the driver" in done.stdout
    fakes = {"is_available": True, "device_count": 2, "get_device_name": "H100", "get_device_capability": (9, 0)}
    for name, value in {**fakes, "mem_get_info": (60 * 2**30, 80 * 2**30)}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    problems = []
    text = doctor_facts.describe_device(problems)["text"]
    assert text == "2 x H100, compute capability 9.0, 60 of 80 GiB free" and not problems


def test_show_draws(run_whence, tmp_path):
    done = run_whence("show", "alibi")
    assert done.returncode == 0 and (tmp_path / "position.png").stat().st_size > 1000
    assert "\nlearns nothing; Alibi learns with learnable=True\n" in done.stdout
    shown = run_whence("show", "kerple", "--json", "--out", "kerple.svg")
    found = json.loads(shown.stdout)
    assert "learns 8 numbers; Kerple is fixed with learnable=False" in shown.stderr
    assert (
        found["command"] == "show" and found["position"].startswith("Kerple(heads=4") and found["image"] == "kerple.svg"
    )
    assert found["effects"] == ["bias"] and found["parameters"] == 8
