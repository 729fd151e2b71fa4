"""The figure of conditions says what the records say: another record, another verdict."""

import csv
import json
import random
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from whence import records
from whence.cli.app import app
from whence.lab.arms import parse_arm
from whence.lab.results import collect_findings
from whence.lab.study import Budget, Decision, Study
from whence.lab.study_folder import study_folder, write_spec
from whence_papers.epar import conditions

SEEDS = tuple(range(7))
ENVIRONMENT = records.describe_environment()  # asks git: once, not for each record
QUESTIONS = ("Length: short", "Noise: none", "Length: long")
STUDIES = [
    Study(
        name=f"condition-{number}", question=question, task="copy", task_settings={"string": 4 + number, "items": 4},
        arms=(parse_arm("epar"), parse_arm("none"), parse_arm("alibi")), seeds=SEEDS, budget=Budget(steps=1),
        decision=Decision(baseline="epar", comparisons=6),
    )
    for number, question in enumerate(QUESTIONS)
]  # fmt: skip


def write_study(study, base, means):
    """Made-up records: each arm's accuracy lies around its mean, by seed."""
    folder = study_folder(study, base)
    write_spec(study, folder)
    for run in study.runs():
        noise = 0.001 * random.Random(f"{run.arm.name} {run.seed}").gauss(0, 1)
        value = means[run.arm.name] + 0.004 * (run.seed - 3) + noise
        records.write(
            folder / run.file_name,
            {
                "hash": study.hash, "arm": run.arm.name, "seed": run.seed, "parameters": 10, "wall_seconds": 1.0,
                "started": "2026-01-01T00:00:00+00:00", "environment": ENVIRONMENT,
                "numbers": {"before": {}, "after": {}},
                "result": {
                    "status": "done", "losses": [],
                    "evaluations": [{"step": 1, "splits": {"test": {"value": value}}}],
                },
            },
        )  # fmt: skip
    return folder


def cells(folder):
    with (folder / "conditions.csv").open() as file:
        return {(row["condition"], row["against"]): row for row in csv.DictReader(file)}


@pytest.fixture
def base(tmp_path):
    for study in STUDIES:
        write_study(study, tmp_path, {"epar": 0.80, "none": 0.60, "alibi": 0.801})
    return tmp_path


def draw_conditions(base, *options):
    return CliRunner().invoke(app, ["conditions", str(base), *options])


def test_a_verdict_flips_with_the_records(base):
    assert f"conditions: {base / 'conditions.png'}" in draw_conditions(base).output.replace("\n", "")
    assert (base / "conditions.png").read_bytes()[:4] == b"\x89PNG"
    before = cells(base)
    assert {key: row["verdict"] for key, row in before.items()} == {
        (condition, against): "wins" if against == "none" else "undecided"
        for condition in ("short", "none", "long")
        for against in ("none", "alibi")
    }
    won = before["short", "none"]
    assert float(won["difference"]) == pytest.approx(20, abs=0.3) and float(won["low"]) > 0
    assert float(won["low"]) < 20 < float(won["high"])
    assert won["group"] == "Length" and won["comparisons"] == "6" and won["seeds"] == "7"

    write_study(STUDIES[0], base, {"epar": 0.80, "none": 0.95, "alibi": 0.60})
    found = json.loads(draw_conditions(base, "--json").stdout)
    assert found["figure"] == str(base / "conditions.png") and found["table"] == str(base / "conditions.csv")
    assert [one["condition"] for one in found["conditions"]] == ["short", "long", "none"]
    assert {cell["against"]: cell["verdict"] for cell in found["conditions"][0]["cells"]} == {
        "none": "loses",
        "alibi": "wins",
    }
    after = cells(base)
    assert after["short", "none"]["verdict"] == "loses"
    assert float(after["short", "none"]["difference"]) == pytest.approx(-15, abs=0.3)
    assert after["short", "alibi"]["verdict"] == "wins"
    assert after["long", "none"] == before["long", "none"]


def test_rows_of_a_group_stand_together(base):
    studies = collect_findings([study_folder(study, base) for study in STUDIES], "", "")["studies"]
    assert [row.condition for row in conditions.build_rows(studies)] == ["short", "long", "none"]


def test_a_study_that_is_not_finished_is_shown_as_not_compared(base):
    folder = study_folder(STUDIES[1], base)
    (folder / STUDIES[1].runs()[0].file_name).unlink()
    assert draw_conditions(base).exit_code == 0
    row = cells(base)["none", "none"]
    assert row["verdict"] == "not compared" and row["difference"] == ""
    assert row["words"] == "not every seed of epar has a record"


def test_what_is_drawn_is_what_the_rows_say(base):
    studies = collect_findings([study_folder(study, base) for study in STUDIES], "", "")["studies"]
    drawn = conditions.draw_figure(conditions.build_rows(studies), "epar", "points")
    assert [axes.get_title() for axes in drawn.axes] == ["against none", "against alibi"]
    for axes, sign in zip(drawn.axes, "▲○", strict=True):
        said = [text.get_text() for text in axes.texts]
        assert len(said) == 3 and all(text.startswith(sign) for text in said)
    assert drawn.axes[0].texts[0].get_text().startswith("▲ +20.")


def test_an_added_condition_reports_its_correction(base):
    later = replace(STUDIES[2], name="condition-3", decision=Decision(baseline="epar", comparisons=8))
    folder = write_study(later, base, {"epar": 0.80, "none": 0.60, "alibi": 0.801})
    studies = collect_findings([*(study_folder(study, base) for study in STUDIES), folder], "", "")["studies"]
    drawn = conditions.draw_figure(conditions.build_rows(studies), "epar", "points")
    assert any("7 seeds per arm. Paired differences; p and intervals are corrected for 6 or 8 comparisons" in text.get_text()
               for text in drawn.texts)  # fmt: skip


def test_studies_that_differ_in_more_than_their_condition_make_no_figure(base, tmp_path):
    studies = collect_findings([study_folder(study, base) for study in STUDIES], "", "")["studies"]
    assert conditions.are_comparable(studies) and not conditions.are_comparable(studies[:2])
    other = replace(STUDIES[0], name="other", arms=(parse_arm("epar"), parse_arm("none"), parse_arm("t5")))
    folder = write_study(other, base, {"epar": 0.8, "none": 0.7, "t5": 0.7})
    assert not conditions.are_comparable([*studies, *collect_findings([folder], "", "")["studies"]])
    refused = draw_conditions(base)
    assert refused.exit_code != 0 and "4 studies" in str(refused.exception) and "folder" in str(refused.exception)
    assert not (base / "conditions.png").exists()
