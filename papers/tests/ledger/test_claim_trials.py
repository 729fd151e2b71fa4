"""Readings of trials of cures: a tiny trial, with planted answers, packed as the committed ones are."""

import dataclasses
import functools
import re
import shutil

import pytest

import mend_figure
import mend_tables
import pack_records
from whence import records
from whence.mend import LogN, Pine
from whence.mend.judgement import collect_trial
from whence.mend.trial import Trial, cure_file, label_cure
from whence.mend.trial_plan import TrialPlan
from whence.probe.identity import identify
from whence.probe.plan import TaskSpec
from whence.probe.probed_model import tiny_random_model
from whence_papers.ledger import LedgerFolders, MissingEvidence, headlines, mend_records
from whence_papers.ledger.claims import Claim, FigureCheck
from whence_papers.ledger.mend_records import READERS, UnavailableCure, load_pairs, measure_change
from whence_papers.ledger.verdicts import judge

CURE = LogN(trained=16)
MODEL, OTHER = "quick", "llama"  # the name of the model, and its type


def run_trial(base):
    """A trial of one cure that a model can have, and one that it cannot."""
    lm = tiny_random_model()
    plan = TrialPlan("quick", (TaskSpec("key-value", 16, 3, {"pairs": 3}),), search_items=1, texts=1, tokens=32,
                     attention_items=0, identity=identify(lm))  # fmt: skip
    trial = Trial(lm, plan, [spec.build() for spec in plan.tasks], base)
    trial.run([CURE])
    refused = {"plan": plan.hash, "kind": "cure", "label": label_cure(Pine()), "cure": {"name": "pine", "settings": {}}}
    records.write(
        trial.folder / cure_file(label_cure(Pine())), {**refused, "title": "PINE", "unavailable": "it has a window."}
    )
    return trial


def plant(trial, results, before, after):
    """A copy of the trial in which so many of every 16 items are correct at each slot, without and with the cure."""
    folder = results / "mend" / trial.folder.name
    shutil.copytree(trial.folder, folder)
    for path in folder.glob("answers-*judge*.json"):
        record = records.read(path)
        counts = before if record["label"] == "untouched" else after
        for row in record["rows"]:
            row["correct"] = row["item"] % 16 < counts[record["condition"]]
        records.write(path, record)


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    return run_trial(tmp_path_factory.mktemp("results") / "mend")


def test_it_agrees_with_the_trial_itself_also_when_packed(trial, tmp_path):
    shutil.copytree(trial.folder, tmp_path / "mend" / trial.folder.name)
    folders = LedgerFolders(results=tmp_path)
    found = collect_trial(trial.folder)
    (pair,) = load_pairs(folders, MODEL, "log-n", min_items=2)
    change = measure_change([pair])
    assert pair.before.shape == (8, 3) and pair.slots == (0, 1, 2) and pair.task == "key-value"
    assert change["average_change"] == pytest.approx(found["cures"][0]["contrast"]["estimate"])
    for name in ("average", "worst", "gap"):
        assert change[f"{name}_before"] == pytest.approx(100 * found["untouched"][name]["mean"])
        assert change[f"{name}_after"] == pytest.approx(100 * found["cures"][0][name]["mean"])
    figures = READERS["cure_effect"](folders, [MODEL], "log-n", min_items=2)[0]
    folder = tmp_path / "mend" / trial.folder.name
    pack_records.pack_folder(folder, lambda record: None)
    again, where = READERS["cure_effect"](LedgerFolders(results=tmp_path), [MODEL], "log-n", min_items=2)
    assert again == figures and where == folder.as_posix() and not folder.exists()


def corrected(models):
    checks = (FigureCheck("worst_change_low", "above", 0, "0"), FigureCheck("gap_change_high", "below", 0, "0"))
    arguments = {"models": models, "cure": "log-n", "min_items": 4}
    return Claim("survey-x", "survey", "It helps.", "Il aide.", "1", "By a trial.", "read", "cure_effect", arguments=arguments, checks=checks)  # fmt: skip


@pytest.mark.parametrize(
    "before, after, verdict",
    [
        ((16, 0, 16), (16, 16, 16), "reproduced"),
        ((16, 0, 16), (0, 0, 0), "not reproduced"),  # no gap is left, because nothing is
        ((8, 8, 8), (8, 8, 8), "not reproduced"),  # no change on any item
    ],
)
def test_a_planted_effect_is_judged(trial, tmp_path, before, after, verdict):
    plant(trial, tmp_path, before, after)
    folders = LedgerFolders(results=tmp_path)
    judged = judge(corrected([MODEL]), folders)
    assert judged.verdict == verdict
    assert f"gap {100 * (max(before) - min(before)) / 16:.1f} to" in judged.reason


def test_the_model_that_speaks_against_a_claim_counts(trial, tmp_path, monkeypatch):
    plant(trial, tmp_path, (16, 0, 16), (16, 16, 16))
    folders = LedgerFolders(results=tmp_path)
    (pair,) = load_pairs(folders, OTHER, "log-n", min_items=2)
    assert judge(corrected([MODEL, OTHER]), folders).verdict == "reproduced"
    figures = READERS["compare_models"](folders, [MODEL, OTHER], "log-n", min_items=2)[0]
    assert figures["difference"] == 0 and figures["apart"] <= 0
    worse = dataclasses.replace(pair, after=pair.before)
    load = mend_records.load_pairs
    monkeypatch.setattr(mend_records, "load_pairs", lambda f, model, *a: [worse] if model == OTHER else load(f, model, *a))  # fmt: skip
    judged = judge(corrected([MODEL, OTHER]), folders)
    assert judged.verdict == "not reproduced" and judged.evidence.figures["gap_left"] == 1
    figures = READERS["compare_models"](folders, [MODEL, OTHER], "log-n", min_items=2)[0]
    assert figures["difference"] == pytest.approx(100 / 3) and figures["apart"] > 30


def test_what_is_missing_is_waited_for(trial):
    folders = LedgerFolders(results=trial.folder.parents[1])
    for models, cure, settings in (
        (["another"], "log-n", {}),
        ([MODEL, "another"], "log-n", {"min_items": 2}),
        ([MODEL], "ms-poe", {}),
        ([MODEL], "log-n", {}),  # too few items
        ([MODEL], "log-n", {"min_items": 2, "tasks": ["documents"]}),
    ):
        with pytest.raises(MissingEvidence, match=f"the trial of {cure} on {models[-1]}"):
            READERS["cure_effect"](folders, models, cure, **settings)
    with pytest.raises(MissingEvidence, match=r"a model that can have pine.*it has a window"):
        READERS["cure_effect"](folders, [MODEL], "pine")
    with pytest.raises(UnavailableCure):
        load_pairs(folders, MODEL, "pine")


def test_headlines_beside_ours(trial, tmp_path, monkeypatch):
    head, rows = headlines.headline_rows(LedgerFolders(results=tmp_path))
    assert all(len(row) == len(head) and set(row[-2:]) == {headlines.NO_TRIAL} for row in rows)
    plant(trial, tmp_path, (16, 0, 8), (16, 16, 16))
    folders = LedgerFolders(results=tmp_path)
    monkeypatch.setattr(headlines, "load_pairs", functools.partial(load_pairs, min_items=2))
    one = headlines.Headline("log-n", "a paper", "average", "1.0 → 2.0", "average", ("key-value",))
    text = headlines.describe_ours(folders, one, MODEL)
    assert re.fullmatch(r"[\d.]+ → 100\.0 \(\+[\d.]+ to \+[\d.]+\)", text)
    middle = dataclasses.replace(one, statistic="middle")
    assert headlines.describe_ours(folders, middle, MODEL) == "0.0 → 100.0 (+100.0 to +100.0)"
    assert headlines.describe_ours(folders, dataclasses.replace(one, cure="pine"), MODEL) == "not applicable"
    assert headlines.describe_untouched(folders, MODEL, ("key-value",)).startswith("100.0, 0.0, ")


def test_tables_and_the_picture_of_trials(trial, tmp_path):
    assert mend_tables.trial_tables(tmp_path) == mend_tables.NO_TRIALS
    assert not mend_figure.draw(tmp_path, tmp_path / "mend.png")
    plant(trial, tmp_path, (16, 0, 8), (16, 16, 16))
    assert not mend_figure.draw(tmp_path, tmp_path / "mend.png", models={"Tiny": MODEL})  # too few items
    table = mend_tables.trial_tables(tmp_path, {"Tiny": MODEL})
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ")[1:] for row in table.splitlines() if row.startswith("|")}
    assert rows["cure"][0] == "key-value, 3 keys" and rows["none: accuracy in %"][0].endswith("(gap 100.0)")
    assert rows["Log-n temperature"][0].startswith("**better** +") and rows["PINE"][0] == "not applicable"
    models = {"Tiny": mend_figure.load_cures(LedgerFolders(results=tmp_path), MODEL, min_items=2)}
    assert [one.cure for one in models["Tiny"]] == ["log-n"]
    figure = mend_figure.draw_trials(models, {"key-value": "key-value, 3 keys"})
    (panel,) = figure.axes
    lines = {bars.get_label(): bars.lines[0].get_ydata().tolist() for bars in panel.containers}
    assert lines["without a cure"][:2] == [100, 0] and lines["Log-n temperature"] == [100, 100, 100]
    assert "Tiny, 8 items a slot: Log-n temperature +" in figure._supxlabel.get_text().replace("\n", " ")
    order = ["needle", "key-value-of-100", "key-value-of-20"]
    assert sorted(order, key=mend_figure.by_length) == ["key-value-of-20", "key-value-of-100", "needle"]
