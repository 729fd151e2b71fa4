"""An arm whose perplexity explodes beyond all bounds: its report is written, and the other arms are judged."""

import json
import math
import re

import pytest
from small_study import ARMS, build_study

from whence.cli.app import app
from whence.lab import results, runner
from whence.lab.study import Budget, Decision
from whence.lab.tasks.base import LARGEST_CROSS_ENTROPY, compute_metric
from whence.report.comparison.sentences import summary_lines
from whence.statistics.samples import LARGEST

#: mean cross-entropy by arm and seed
LOSSES = {"none": (2.0, 2.1, 2.05), "alibi": (1.5, 1.6, 1.56), "EPAR": (1000.0, 900.0, 1000.0)}


def test_the_largest_perplexity_can_be_judged():
    for loss in (700.0, 1000.0, math.inf):
        assert LARGEST / 100 < compute_metric("perplexity", {"cross_entropy": loss}) < LARGEST
    assert compute_metric("perplexity", {"cross_entropy": 600.0}) == math.exp(600.0) and LARGEST_CROSS_ENTROPY > 600


@pytest.mark.parametrize("scale", ["value", "log"])
def test_an_exploding_arm_has_a_report(scale, tmp_path, monkeypatch):
    decision = Decision(baseline="none", metric="perplexity", perplexity_scale=scale)
    study = build_study(seeds=(0, 1, 2), budget=Budget(steps=1, batch_size=4), decision=decision)
    folder = runner.run_study(study, tmp_path / "results").folder
    for run in study.runs():
        path = folder / run.file_name
        record = json.loads(path.read_text())
        for row in record["result"]["evaluations"][-1]["splits"].values():
            row["cross_entropy"] = LOSSES[run.arm.name][run.seed]
            row["value"] = compute_metric("perplexity", row)
        path.write_text(json.dumps(record))
    monkeypatch.chdir(tmp_path)
    app(["report", "results"], standalone_mode=False)
    text = (tmp_path / "results/report.html").read_text()
    shown = "\n".join(summary_lines(results.collect_findings([folder], "a title", "a command")["studies"]))
    assert "EPAR" in text and [arm.name for arm in ARMS] == list(LOSSES)
    if scale == "log":
        assert "alibi is better than none by 39.1 %" in shown and "EPAR is worse than none by 5.9 × 10³⁰⁰ %" in shown
        assert "5.9 × 10³⁰⁰" in text and "Means are geometric." in text
    assert "e+2" not in shown and not re.search(r">[^<>]*\b(nan|e\+30)", text)
