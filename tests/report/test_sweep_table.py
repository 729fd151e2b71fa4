"""The table of a sweep on the page and on a terminal."""

import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from whence.cli.compare_sweep import SweepTable, choice_lines
from whence.lab.default_studies import build_studies
from whence.lab.sweeps import build_tuning_study
from whence.report.comparison.sweep_table import sweep_section
from whence.report.comparison.units import Units

UNITS = Units("accuracy (%)", False, 100, 100, 1)


def tries(arm, means, chosen):
    combinations = [{"lr": lr, "layers": layers} for lr in (0.001, 0.01) for layers in (1, 2)]
    return [
        {"arm": arm, "settings": settings, "mean": mean, "chosen": index == chosen}
        for index, (settings, mean) in enumerate(zip(combinations, means, strict=True))
    ]


@pytest.fixture
def sweep():
    return {
        "settings": {"lr": [0.001, 0.01], "layers": [1, 2]}, "tries_per_arm": 4, "seeds": [1_000_000], "split": "validation",
        "metric": "accuracy",
        "tries": [*tries("none", (0.1, 0.2, 0.3, 0.4), 3), *tries("<rotary>", (None, 0.9, 0.5, 0.6), 1)],
    }  # fmt: skip


def test_a_row_for_each_combination_and_a_column_for_each_arm(sweep):
    html = sweep_section(sweep, UNITS, {})
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in html.split("<tr>")[1:]]
    assert rows == [
        ["lr", "layers", "none", "&lt;rotary&gt;"],
        ["0.001", "1", "10.0", "no value"],
        ["0.001", "2", "20.0", "<strong>✓ 90.0</strong>"],
        ["0.01", "1", "30.0", "50.0"],
        ["0.01", "2", "<strong>✓ 40.0</strong>", "60.0"],
    ]
    for words in (
        "4 tries of each arm",
        "on validation data",
        "No try evaluated test data",
        "only the comparison does",
    ):
        assert words in html
    assert "largest value of lr was chosen for none; values beyond 0.01" in html
    assert "smallest value of lr was chosen for &lt;rotary&gt;" in html
    assert "largest value of layers was chosen for every arm" in html and "smallest value of layers" not in html
    assert "mean of the seeds" in sweep_section(sweep | {"seeds": [1, 2]}, UNITS, {})


def test_the_choice_on_a_terminal(sweep):
    first, *arms = choice_lines("reviews.csv", sweep)
    assert first == "reviews.csv: chosen by accuracy on validation data, from 4 tries of each arm:"
    assert arms == ["  none      40.0 %  lr=0.01, layers=2", "  <rotary>  90.0 %  lr=0.001, layers=2"]


def test_tries_in_progress_on_a_terminal():
    (study,) = build_studies(("copy",), ("none", "rotary; heads=2"), (3,))
    tuning = build_tuning_study(study, {"lr": (1e-3, 1e-2)})
    table = SweepTable([tuning], 60)
    runs = list(tuning.runs())
    table.on_round(runs, Path("nowhere"))
    for run, value in zip(runs, (0.25, 0.75), strict=False):
        table.on_progress(run, SimpleNamespace(step=10, steps=10, values={"validation": value}))
    table.on_progress(runs[2], SimpleNamespace(step=5, steps=10, values=None))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table.render(100))
    text = console.export_text()
    assert re.search(r"none +│ 2 of 2 │ 25\.0 % │ +75\.0 %", text)
    assert re.search(r"rotary; heads=2 │ 0 of 2 │ +│ +│ lr=0\.001: 50 %", text)
    assert "1000000" not in text and "baseline" not in text
