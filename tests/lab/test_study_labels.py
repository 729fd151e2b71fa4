"""What a study of ``whence compare`` is called in tables and in the report."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from whence.cli.live_table import ArmTable
from whence.lab.data_options import file_task
from whence.lab.default_studies import build_studies
from whence.lab.failures import describe_error
from whence.lab.study_labels import TUNING_TASK, label_study, label_task, title_studies
from whence.lab.sweeps import build_tuning_study


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "film reviews.csv"
    path.write_text("text,stars\n" + "".join(f"word{n} {'good' if n % 2 else 'bad'},{n % 2}\n" for n in range(40)))
    name, settings = file_task(str(path), label_column="stars")
    (study,) = build_studies((name,), ("none", "rotary"), (2,), task_settings={name: settings})
    return study


def render_text(renderable):
    console = Console(width=100, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()


def test_a_study_of_a_file_is_called_as_the_file(study):
    assert study.name == "compare-film-reviews" and label_study(study) == "film reviews.csv"
    assert label_study(build_tuning_study(study, {"lr": (1e-3, 1e-2)})) == "film reviews.csv (sweep)"
    table = ArmTable([study])
    run = next(iter(study.runs()))
    lines = [
        table.on_progress(run, SimpleNamespace(step=1, steps=1, values=None)),
        table.on_look(study, None),
        render_text(table.render(100)),
    ]
    assert all("film reviews.csv" in line and "compare-" not in line for line in lines)


def test_the_title_names_arms_and_data_or_counts_them(study):
    assert title_studies([study]) == "none and rotary on film reviews.csv"
    assert title_studies(build_studies()) == "6 positions on copy and recall"


def test_a_failed_run_is_named_by_the_task_as_written():
    study = build_studies()[0]
    failed = describe_error(study.runs()[0], ValueError("out of paper"))
    assert f"of {label_study(study)} failed: ValueError: out of paper" in str(failed)
    assert "compare-" not in failed.describe() and failed.failure.task == study.task
    settings = {"task": "labelled_file", "settings": {"path": "data/reviews.csv"}}
    assert label_task(TUNING_TASK, settings) == "reviews.csv (sweep)"
