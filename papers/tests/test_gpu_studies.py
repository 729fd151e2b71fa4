"""The driver of studies on a GPU, with a small study on a CPU: records are packed, and a second call trains nothing."""

import argparse
import subprocess
import sys
from dataclasses import replace

import pytest

import gpu_studies
from whence.lab import run_execution
from whence.lab.arms import parse_arm
from whence.lab.study import Budget, Decision, Study
from whence_papers import FOLDER

STUDY = Study(
    name="small", question="?", task="topics", task_settings={"context": 16, "blocks": 2},
    model={"embed_dim": 8, "heads": 2, "layers": 1, "ffn_dim": 8, "dropout": 0.0}, arms=(parse_arm("rotary"), parse_arm("none")),
    seeds=(0,), budget=Budget(steps=2, batch_size=2),
    decision=Decision(baseline="rotary"),
)  # fmt: skip


def test_names_are_studies():
    assert all((FOLDER / f"studies/{name}.py").is_file() for name in gpu_studies.DATA)
    names = [study.name for study in gpu_studies.load_studies("glue", [], False)]
    assert names == ["glue-gpu-sst2"] and gpu_studies.load_studies("glue", ["other"], False) == []
    (checkins,) = gpu_studies.load_studies("next_location", [], False)
    assert checkins.name == "next-location-forms-foursquare"


def test_a_trial_is_small_and_named_so():
    trial = gpu_studies.shrink_study(
        replace(STUDY, budget=Budget(epochs=3, batch_size=2), arms=(*STUDY.arms, parse_arm("alibi")))
    )
    assert trial.name == "trial-small" and trial.budget.steps == 4 and trial.budget.epochs is None
    assert [run.arm.name for run in trial.runs()] == ["rotary", "alibi"]


def test_records_are_packed_and_a_rerun_trains_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(gpu_studies, "load_studies", lambda *given: [STUDY])
    options = argparse.Namespace(
        names=["glue"],
        carried=tmp_path,
        out=tmp_path / "out",
        only=[],
        jobs=1,
        minutes=5.0,
        trial=False,
        no_sharing=True,
    )
    assert gpu_studies.run(options) == 0
    (packed,) = (tmp_path / "out").iterdir()
    first = packed.read_bytes()
    # another machine, which has the packed file alone
    other = argparse.Namespace(**vars(options) | {"carried": tmp_path / "other"})
    (tmp_path / "other/results").mkdir(parents=True)
    (tmp_path / "other/results" / packed.name).write_bytes(first)
    monkeypatch.setattr(run_execution, "train_run", lambda *given: pytest.fail("trained again"))
    assert gpu_studies.run(other) == 0 and packed.read_bytes() == first
    assert gpu_studies.run(argparse.Namespace(**vars(options) | {"minutes": 0.1})) == 0
    assert "small: not started" in capsys.readouterr().out


def test_what_a_study_reads_travels(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("WHENCE_DATA", raising=False)
    with pytest.raises(SystemExit, match="WHENCE_DATA"):
        gpu_studies.prepare(tmp_path / "carried")
    for name in ("multi30k", "benchmarks/qmsum", "books", "speeches"):
        (tmp_path / "data" / name).mkdir(parents=True)
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path / "data"))
    gpu_studies.prepare(tmp_path / "carried", ["translation", "summarization", "prior"])
    packages = tmp_path / "carried/packages"
    assert {path.name for path in (tmp_path / "carried/data").iterdir()} == {"multi30k", "benchmarks", "books"}
    assert list((tmp_path / "carried/results").glob("prior-gpu-*.zip"))  # begun, and resumed there
    # sacrebleu and rouge-score import from there alone, with the versions that records name
    code = (
        f"import sys; sys.path[:] = [{str(packages)!r}, *(path for path in sys.path if 'site-packages' not in path)]\n"
        "import lxml, sacrebleu, importlib.metadata as metadata; assert 'carried' in lxml.__file__, lxml.__file__\n"
        "print(sacrebleu.__version__, metadata.version('rouge-score'))"
    )
    monkeypatch.delenv("PYTHONPATH", raising=False)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0 and len(found.stdout.split()) == 2, found.stderr
    monkeypatch.setattr(gpu_studies, "LIMIT", 0.01)
    with pytest.raises(SystemExit, match="fewer studies"):
        gpu_studies.prepare(tmp_path / "carried", ["translation"])
