"""Progress shows what runs and the time left; resuming does not spoil the estimate."""

import io
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from whence.cli import live_table, progress
from whence.cli.bench_report import print_rows
from whence.cli.fitted_table import NARROW
from whence.lab.arms import Arm
from whence.lab.study import Budget, Decision, Study
from whence.probe import tiny_random_model

STUDY = Study(
    name="little",
    question="does it run",
    task="copy",
    arms=(Arm("none", "NoPosition()"), Arm("EPAR", "Epar()")),
    seeds=(0, 1),
    budget=Budget(steps=10),
    decision=Decision(baseline="none"),
)


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setenv("COLUMNS", "120")
    return now


def at(step):
    return SimpleNamespace(step=step, steps=10, values=None)


@contextmanager
def arms_shown(folder, existing=0):
    """The callback for progress, with records of the first ``existing`` runs."""
    for run in STUDY.runs()[:existing]:
        (folder / run.file_name).write_text("{}")
    with live_table.show_arms([STUDY]) as callbacks:
        callbacks["on_round"](STUDY.runs(), folder)
        yield callbacks["on_progress"]


@pytest.mark.parametrize("terminal", [False, True])
def test_runs_that_exist_do_not_count(clock, monkeypatch, capsys, tmp_path, terminal):
    """Two of four runs have records; the third takes 30 s, so that the last takes 30 more and not 10."""
    monkeypatch.setattr(Console, "is_terminal", property(lambda self: terminal))
    with arms_shown(tmp_path, 2) as report:
        for step in range(1, 11):
            clock[0] += 3
            report(STUDY.runs()[2], at(step))
    text = capsys.readouterr().err
    assert "about 30 s left" in text and "about 10 s left" not in text and "none" in text
    if not terminal:
        assert text == "3 of 4, little, none, seed 1; about 30 s left\n"
        return
    with arms_shown(tmp_path, 4):
        pass  # nothing runs: the table is of the records
    assert "4 of 4 runs" in capsys.readouterr().err


def test_a_resumed_run_counts_from_where_it_was_resumed(clock, capsys, tmp_path):
    """The first run is resumed at step 8 and ends after 6 s more: a whole run takes 30 s, and three are left."""
    with arms_shown(tmp_path) as report:
        for step in (8, 9, 10):
            report(STUDY.runs()[0], at(step))
            clock[0] += 3
        report(STUDY.runs()[1], at(1))
    assert capsys.readouterr().err == "1 of 4, little, none, seed 0; about 90 s left\n"


def test_runs_side_by_side_share_the_time(clock, capsys, tmp_path):
    with arms_shown(tmp_path) as report:
        for step in range(1, 11):
            clock[0] += 2
            report(STUDY.runs()[0], at(step))
            report(STUDY.runs()[1], at(step))
    # two runs in 20 s: two more take 20 s; when the first is reported, the second is at step 9
    assert capsys.readouterr().err.splitlines()[1] == "2 of 4, little, EPAR, seed 0; about 20 s left"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_that_failed_or_diverged_is_named(clock, monkeypatch, capsys, tmp_path, terminal):
    """It is no longer shown as running, and counts as done."""
    monkeypatch.setattr(Console, "is_terminal", property(lambda self: terminal))
    first, second, third = STUDY.runs()[:3]
    (tmp_path / first.file_name).write_text('{"result": {"status": "diverged", "evaluations": []}}')
    with live_table.show_arms([STUDY]) as callbacks:
        callbacks["on_round"](STUDY.runs(), tmp_path)
        callbacks["on_progress"](second, at(4))
        callbacks["on_failure"](second, "failed")
        callbacks["on_progress"](third, at(10))  # as some executors report it
        callbacks["on_failure"](third, "diverged")
    text = capsys.readouterr().err
    if terminal:
        end = text[text.rindex("3 of 4 runs") :]
        assert "baseline; seed 0 diverged; seed 1 diverged" in end and "seed 0 failed" in end and "40 %" not in end
    else:
        assert "2 of 4, little, EPAR, seed 0 failed" in text and "3 of 4, little, none, seed 1 diverged" in text


def test_the_time_limit_is_held_after_a_finished_piece(clock):
    with progress.show_progress(minutes=1) as shown:
        shown.finish(1, 3, "a")
        clock[0] = 61.0
        with pytest.raises(progress.OutOfTime):
            shown.finish(2, 3, "b")
        shown.finish(3, 3, "c")  # nothing is left to stop


def test_another_stage_has_its_own_estimate(clock, capsys, tmp_path):
    with progress.show_progress() as shown:
        for done in (1, 2):
            clock[0] += 100
            shown.finish(done, 2, "slow")
        clock[0] += 1
        shown.finish(1, 4, "quick")
    assert capsys.readouterr().err.splitlines()[-1] == "1 of 4, quick; about 3 s left"


def test_a_long_piece_of_work_is_stopped(monkeypatch):
    """A forward pass within a quarter of the limit beyond it is allowed; the next one is not."""
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    model = tiny_random_model().model
    with progress.stop_forward_passes(model, minutes=1):
        for now[0] in (0.0, 60.0, 75.0):
            model(torch.arange(3)[None])
        now[0] = 75.1
        with pytest.raises(progress.OutOfTime):
            model(torch.arange(3)[None])
    model(torch.arange(3)[None])


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_numbers_and_the_time_left_are_never_cut(clock, width):
    console = Console(width=width, color_system=None, file=io.StringIO())
    bars = progress.make_bars(console)
    shown = progress.ProgressBars(bars)
    shown.begin("read documents")
    console.print(bars.get_renderable())
    assert "?" not in console.file.getvalue() and "/" not in console.file.getvalue()
    console.file.truncate(console.file.seek(0))
    clock[0] += 60
    shown.finish(3, 42, "probe key-value, 10 keys, likelihood, items [1] to 20")
    shown.advance(3, 42, "a request", 12, 200)
    console.print(bars.get_renderable())
    text = console.file.getvalue()
    whole, part = text.splitlines()
    assert max(len(whole), len(part)) <= width and whole.startswith("probe key-value")
    words = "3/42 13 min left" if width < NARROW else "3/42 about 13 min left"
    assert whole.endswith(words) and "a request" in part and part.rstrip().endswith("12/200")
    assert ("╸" in text or "━" in text) == (width >= NARROW)
    assert ("items [1] to 20" in whole) == (width == 120)  # no markup


@pytest.mark.parametrize("width, shown, left_out", [
    (20, ("50.0 %",), ("interval", "seeds")),
    (40, ("mean", "50.0 %", "seed 1, 40 %", "copy on test", "baseline"), ("interval",)),
    (80, ("seeds", "50.0 %", "95 % interval", "seed 1, 40 %", "copy"), ()),
    (120, ("Rotary() + Epar(learnable=True)", "95 % interval"), ("…",)),
])  # fmt: skip
def test_the_table_of_arms_fits_the_terminal(clock, width, shown, left_out, tmp_path):
    arms = (STUDY.arms[0], Arm("Rotary() + Epar(learnable=True)", "Rotary() + Epar(learnable=True)"))
    study = replace(STUDY, name="copy", arms=arms, seeds=(0, 1))
    table = live_table.ArmTable([study], 600)
    table.on_round(study.runs(), tmp_path)
    for run in study.runs()[:2]:
        table.on_progress(run, SimpleNamespace(step=10, steps=10, values={"test": 0.5}))
    table.on_progress(study.runs()[3], at(4))
    console = Console(width=width, color_system=None, file=io.StringIO())
    console.print(table.render(width))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width and "2 of 4 runs" in text.replace("\n", " ")
    assert all(words in text for words in shown) and not any(words in text for words in left_out)


def test_scores_of_benchmarks_are_whole_on_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    head = ("task", "metric", "score (95% interval)", "items")
    print_rows("Benchmarks", head, [["squad", "F1, unanswerable", "0.0% (0.0 to 65.8)", "2"], ["", "[b]", "1%", "3"]])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40 and lines[1].rstrip() == "squad" and lines[-1].strip() == "[b]: score 1%, items 3"
    assert " ".join(lines[2].split() + lines[3].split()) == "F1, unanswerable: score 0.0% (0.0 to 65.8), items 2"
