"""A trial: halves, rounds, records that resume, verdicts, the page and the recipe."""

import copy
import dataclasses
import gc
import json
import shutil
import zipfile
from contextlib import contextmanager

import pytest
import torch

from whence import WhenceError, hf, records
from whence.cli.mend import save_recipe
from whence.cli.mend_report import print_trial
from whence.mend import AttentionTemperature, LogN
from whence.mend import trial as trials
from whence.mend.judgement import collect_trial, find_best_slots, judge
from whence.mend.recipe import applied_recipes, apply_recipe, write_recipe
from whence.mend.trial import Trial, label_cure
from whence.mend.trial_plan import TrialPlan, split_items, split_rounds
from whence.probe.identity import identify
from whence.probe.plan import TaskSpec
from whence.probe.probed_model import tiny_random_model
from whence.report.mend import page
from whence.report.mend.published_figures import published_figures
from whence.report.mend.sentences import trial_answer
from whence.report.record_page import render_records

CURES = (LogN(trained=16), AttentionTemperature(0.5))


class Refused:
    name = "refused"

    def settings(self):
        return {}

    @contextmanager
    def apply(self, model):
        raise WhenceError("refused got a model, but it needs another; take another.")
        yield

    def controls(self):
        return ()


def small_trial(folder, **changes):
    lm = tiny_random_model()
    tasks = (TaskSpec("key-value", 8, 2, {"pairs": 3}), TaskSpec("needle", 8, 2, {"pieces": 3, "words": 6}))
    plan = TrialPlan("quick", **{"tasks": tasks, "search_items": 2, "texts": 2, "tokens": 64} | changes)
    plan = dataclasses.replace(plan, identity=identify(lm))
    return Trial(lm, plan, [spec.build() for spec in plan.tasks], folder)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    trial = small_trial(tmp_path_factory.mktemp("trial"))
    trial.run([*CURES, Refused()])
    return trial


def test_a_cure_that_does_not_know_the_family_is_named_and_the_others_are_judged(tmp_path, monkeypatch):
    def fail(self, model):
        raise KeyError("hidden_states")

    monkeypatch.setattr(LogN, "apply", fail)
    monkeypatch.setattr("whence.mend.cure.find_user_frame", lambda error: None)  # the fault is in this test's file
    trial = small_trial(tmp_path)
    trial.run(CURES)
    findings = collect_trial(trial.folder)
    (unusable,) = findings["unavailable"]
    assert unusable["name"] == LogN(trained=16).name and "failed on this model with KeyError" in unusable["reason"]


def test_halves_and_rounds_share_no_item(done):
    halves = {}
    for path in done.folder.glob("answers-*.json"):
        record = records.read(path)
        key = (record["task"], record["half"], record["round"])
        halves.setdefault(key, set()).update(row["item"] for row in record["rows"])
    for task in ("key-value", "needle"):
        search, *rounds = (halves[task, half, number] for half, number in (("search", 0), ("judge", 0), ("judge", 1)))
        further = halves[task, "search", 1]  # the untouched model alone reads them, for its best slot
        assert search | further == set(split_items(8, 0)[0]) and not search & further
        assert not search & (rounds[0] | rounds[1]) and not rounds[0] & rounds[1]
        assert rounds[0] | rounds[1] == set(split_items(8, 0)[1])
    assert split_rounds([1], 3) == [[], [], [1]]


class ShortPromptsOnly(LogN):
    """Refuses prompts that it meets only while it is measured."""

    name = "short-prompts-only"

    def rewrite(self, lm, prompt):
        if len(prompt.slots) and "JSON" not in prompt.text:
            raise WhenceError("short-prompts-only got a needle, but it needs pairs; take another task.")
        return prompt


def test_a_cure_that_refuses_a_prompt_is_named_and_the_others_are_judged(tmp_path):
    trial = small_trial(tmp_path)
    trial.run([ShortPromptsOnly(trained=16), CURES[1]])
    shutil.make_archive(str(trial.folder), "zip", trial.folder)  # packed records resume too
    shutil.rmtree(trial.folder)
    trial.run([ShortPromptsOnly(trained=16)])
    findings = collect_trial(trial.folder)
    assert [one["name"] for one in findings["cures"]] == [CURES[1].name]
    (refused,) = findings["unavailable"]
    assert refused["name"] == "short-prompts-only" and "take another task" in refused["reason"]
    assert not findings["missing"]


class Searching(LogN):
    """Keeps the prompts on which it may choose its settings, and ends the trial."""

    def search(self, lm, prompts):
        raise InterruptedError([prompt.text for prompt in prompts])


def test_settings_are_chosen_on_the_search_half(tmp_path):
    trial = small_trial(tmp_path)
    with pytest.raises(WhenceError, match=r"--cure got refused,.*it needs another.*name another cure"):
        trial.run([Refused()])
    assert [path.name for path in trial.folder.iterdir()] == [trials.PLAN]  # nothing was measured
    with pytest.raises(InterruptedError) as stopped:
        trial.run([Searching()])
    expected = [
        task.prompt(task.items[item], slot).text
        for spec, task in zip(trial.plan.tasks, trial.tasks, strict=True)
        for slot in spec.select_slots(task)
        for item in split_items(8, 0)[0][:2]
    ]
    assert stopped.value.args[0] == expected


def answers_of(values, half="judge"):
    """The records of one task with two slots in two rounds, from the correctness of each item in each slot."""
    return [
        {
            "task": "key-value", "condition": slot, "half": half, "round": number, "gold_attention": [],
            "rows": [{"item": item, "correct": values[item][slot]} for item in items],
        }
        for number, items in enumerate(((0, 1, 2), (3, 4, 5)))
        for slot in (0, 1)
    ]  # fmt: skip


def test_verdicts_are_corrected_for_cures_and_rounds():
    plan = TrialPlan("m", (TaskSpec("key-value", 12, 2),), rounds=2)
    untouched = {"key-value": answers_of([(0, 0)] * 6)}
    cured = {"key-value": answers_of([(1, 1), (1, 1), (1, 0), (1, 1), (0, 1), (1, 1)])}
    one = judge(plan, {"untouched": untouched, "a": cured})
    many = judge(plan, {"untouched": untouched, **dict.fromkeys("abcdefgh", cured)})
    single = judge(dataclasses.replace(plan, rounds=1), {"untouched": untouched, "a": cured})
    assert one.plan.looks == (3, 6) and single.plan.looks == (6,)

    def width(comparison):
        interval = comparison.contrasts[0].interval
        return interval.high - interval.low

    assert one.contrasts[0].estimate == pytest.approx(100 * 10 / 12)
    other = {"key-value": answers_of([(0, 1), (1, 0), (0, 0), (0, 1), (1, 1), (0, 0)])}
    two = judge(plan, {"untouched": untouched, "a": cured, "b": other})
    assert width(single) < width(one) < width(two) and len(many.contrasts) == 8


def judge_alike(items):
    """The verdict on a cure that changes no answer, judged by so many items, beside one that changes half of them."""
    answers = [
        {"task": "key-value", "condition": slot, "half": "judge", "round": 0, "gold_attention": [],
         "rows": [{"item": item, "correct": item % 2} for item in range(items)]}
        for slot in (0, 1)
    ]  # fmt: skip
    other = [{**one, "rows": [{**row, "correct": 1} for row in one["rows"]]} for one in answers]
    plan = TrialPlan("m", (TaskSpec("key-value", 2 * items, 2),), rounds=1)
    arms = {"untouched": answers, "same": answers, "other": other}
    comparison = judge(plan, {label: {"key-value": own} for label, own in arms.items()})
    assert comparison.contrasts[1].verdict == "better"
    return comparison.contrasts[0]


def test_a_cure_that_changes_no_item_is_equivalent_only_with_enough_items():
    for items, verdict in ((16, "undecided"), (216, "undecided"), (217, "equivalent")):
        found = judge_alike(items)
        assert found.verdict == verdict and found.estimate == 0 and found.p == 1
        assert (found.interval.high < 2) == (verdict == "equivalent")
        assert (found.seeds_needed == 1) == (items == 216)
    assert 0.98**217 < 0.05 / 2 / 2 < 0.98**216  # the probability of no difference if 2 % of all items differ


def test_the_best_slot_is_that_of_the_search_half():
    """A slot that is best by chance in the judging half would seem to be harmed by every cure."""
    plan = TrialPlan("m", (TaskSpec("key-value", 12, 2),), rounds=2)
    search, judging = answers_of([(0, 1)] * 6, "search"), answers_of([(1, 0)] * 6)
    assert find_best_slots(plan, search + judging) == ({"key-value": 1}, {"key-value": 6})
    incomplete = [one for one in search if (one["condition"], one["round"]) != (1, 1)]
    assert find_best_slots(plan, incomplete) == ({"key-value": 1}, {"key-value": 3})  # the items of both slots


def test_findings(done, monkeypatch, capsys, tmp_path):
    findings = collect_trial(done.folder)
    assert {cure["name"] for cure in findings["cures"]} == {"log-n", "attention-temperature"}
    assert findings["unavailable"][0]["name"] == "refused" and "needs another" in findings["unavailable"][0]["reason"]
    assert not findings["missing"]
    for cure in findings["cures"]:
        contrast = cure["contrast"]
        assert contrast["second"] == "untouched" and contrast["seeds"] == 8 and cure["verdict"] in trials_verdicts()
        difference = 100 * (cure["average"]["mean"] - findings["untouched"]["average"]["mean"])
        assert contrast["estimate"] == pytest.approx(difference)
        interval = contrast["interval"]
        assert interval is None or -100 <= interval["low"] <= interval["high"] <= 100
        assert cure["ratios"]["tokens_read"] == 1 and cure["ratios"]["prompt_seconds"] > 0
        assert cure["perplexity"]["ratio"] > 0 and set(cure["attention"]) == {"key-value", "needle"}
    assert findings["best_slot_items"] == {"key-value": 4, "needle": 4}
    text = page(findings)
    assert "search half, from 4 items of each task" in text
    assert text.index("Does a cure help?") < text.index("What does each cure do") < text.index("Does attention follow")
    assert "needs another" in text and "src=" not in text and "What the papers report" not in text
    check_published_figures(findings)
    monkeypatch.setenv("COLUMNS", "40")
    print_trial(findings)
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 40 and "…" not in table and "attention-temperature" in table
    check_two_settings_of_one_cure(done, tmp_path, capsys)


def check_two_settings_of_one_cure(done, tmp_path, capsys):
    """Two cures of one name are shown with the settings that differ."""
    folder = tmp_path / done.folder.name
    shutil.copytree(done.folder, folder)
    first, second = (label_cure(cure) for cure in (CURES[0], LogN(trained=32)))
    for path in folder.glob(f"*-{first}*.json"):
        text = path.read_text().replace(first, second).replace('"trained": 16', '"trained": 32')
        path.with_name(path.name.replace(first, second)).write_text(text)
    findings = collect_trial(folder)
    print_trial(findings)
    shown, text = capsys.readouterr().out, page(findings)
    assert "…" not in shown and all(f"trained={size}" in shown for size in (16, 32))
    assert all(f"log-n(trained={size})</t" in text and f"(trained={size})</h3>" in text for size in (16, 32))


def check_published_figures(findings):
    """A cure with published figures has those of the tasks that the trial has, beside its own."""
    cure = {**findings["cures"][0], "name": "ms-poe", "title": "Ms-PoE"}
    shown = published_figures({**findings, "cures": [cure]})
    before, after = (
        100 * sum(point["mean"] for point in side["curves"]["key-value"]["points"]) / 2
        for side in (findings["untouched"], cure)
    )
    assert f"collapses. Here, key-value, average: {before:.1f} → {after:.1f}." in shown
    assert "10 documents" not in shown and "7 billion parameters" in shown


def test_the_answer_is_no_only_if_every_cure_is_decided():
    def answer(*verdicts):
        return trial_answer({"cures": [{"verdict": one} for one in verdicts]})

    assert answer("equivalent", "worse").startswith("No: 2 cures") and "1 equivalent, 1 worse" in answer(
        "equivalent", "worse"
    )
    assert answer("worse", "undecided").startswith("Not shown: 2 cures") and "1 undecided" in answer(
        "worse", "undecided"
    )


def trials_verdicts():
    return ("better", "worse", "equivalent", "undecided")


def test_resume_measures_nothing_twice(done, monkeypatch):
    monkeypatch.setattr(trials.measurement, "score_and_attend", lambda *args: pytest.fail("measured again"))
    progress = []
    done.run(CURES, lambda *one: progress.append(one))
    assert all(from_disk for *_, from_disk in progress) and progress[-1][0] == progress[-1][1] == len(progress)


def check_what_the_time_did_not_reach(folder, capsys):
    """A cure that was not begun is missing in the report, which is about the untouched model alone."""
    findings = collect_trial(folder)
    assert findings["missing"][1:] == [f"log-n(trained={size}) (nothing is complete)" for size in (16, 17)]
    assert "log-n(trained=17)" in page(findings) and "first 0 cures" not in page(findings)
    for name, words in ((None, "no cure has been measured yet"), ("log-n", "log-n has no verdict yet; run the same")):
        assert save_recipe(folder, findings, None, [], name) is None
        assert f"no recipe: {words}" in capsys.readouterr().out
    refused = {**findings, "unavailable": [{"name": "pine", "display_name": "pine"}]}
    assert save_recipe(folder, refused, None, [], "pine") is None and "pine cannot be" in capsys.readouterr().out


def test_a_stopped_trial_names_what_is_missing_and_resumes(tmp_path, capsys):
    trial = small_trial(tmp_path)

    def stop(count, total, description, from_disk):
        if description.startswith(("attention-temperature", "log-n(")):
            raise InterruptedError(description)

    with pytest.raises(InterruptedError):
        trial.run(CURES, stop)
    findings = collect_trial(trial.folder)
    assert [cure["name"] for cure in findings["cures"]] == ["log-n"]
    assert any("attention-temperature" in one and "nothing is complete" in one for one in findings["missing"])
    assert "Not measured yet" in render_records(trial.folder)
    with pytest.raises(InterruptedError, match="trained=16"):  # two settings of one cure are told apart meanwhile too
        small_trial(tmp_path / "two").run([LogN(trained=16), LogN(trained=17)], stop)
    check_what_the_time_did_not_reach(small_trial(tmp_path / "two").folder, capsys)


def test_records_of_other_settings_are_refused(done, tmp_path):
    assert label_cure(LogN(trained=16)) != label_cure(LogN(trained=17))
    trial = small_trial(tmp_path)
    trial.run(CURES[:1])
    path = next(trial.folder.glob("answers-log-n*"))
    records.write(path, {**records.read(path), "cure": None})
    with pytest.raises(WhenceError, match=f"{path.name}.*delete it"):
        small_trial(tmp_path).run(CURES[:1])


class Reversing(LogN):
    """Reads prompts in other letters."""

    name = "reversing"

    def rewrite(self, lm, prompt):
        return dataclasses.replace(prompt, text=prompt.text.swapcase())


def test_a_cure_that_rewrites_prompts_gets_its_own_tokens(tmp_path):
    trial = small_trial(tmp_path)
    part = trial.rounds[0][0]
    plain = trial._prompts(part)
    first = trial._tokenize(part, plain)
    assert trial._tokenize(part, list(plain)) is first
    other = trial._tokenize(part, [Reversing(trained=16).rewrite(trial.lm, prompt) for prompt in plain])
    assert [one.branches.shared for one in other] != [one.branches.shared for one in first]
    assert trial._tokenize(part, plain) is first


def test_generation(tmp_path):
    tasks = (TaskSpec("key-value", 4, 2, {"pairs": 2}),)
    trial = small_trial(tmp_path, tasks=tasks, score="generation", rounds=1)
    trial.run(CURES[:1])
    findings = collect_trial(trial.folder)
    assert findings["cures"][0]["curves"]["key-value"]["score"] == "generation"


def test_bad_plans():
    task = TaskSpec("key-value", 3)
    with pytest.raises(WhenceError, match=r"--items.*3 items.*4 or more"):
        TrialPlan("m", (task,))
    with pytest.raises(WhenceError, match=r"--margin.*0"):
        TrialPlan("m", (dataclasses.replace(task, items=8),), margin=0)


def test_recipe(done, tmp_path):
    findings = collect_trial(done.folder)
    cure = next(one for one in findings["cures"] if one["name"] == "log-n")
    path = write_recipe(done.folder, findings, cure, done.lm.model, CURES[0])
    content = json.loads(path.read_text())
    assert content["evidence"]["verdict"] == cure["verdict"] and content["settings"]["trained"] == 16
    assert len(content["evidence"]["records"]) > 12
    model = tiny_random_model().model.to(torch.bfloat16).float()  # another precision of the same weights is accepted
    ids = torch.arange(40)[None]
    with torch.no_grad():
        before = model(ids).logits
        with CURES[0].apply(model):
            expected = model(ids).logits
        hf.apply_recipe(model, path)  # a server that drops the result keeps the cure
        gc.collect()
        assert torch.equal(model(ids).logits, expected) and not torch.equal(expected, before)
        assert torch.equal(copy.deepcopy(model)(ids).logits, expected)
        with pytest.raises(WhenceError, match=r"log-n.*applied once.*remove"):
            hf.apply_recipe(model, path)
        (applied,) = applied_recipes(model)
        second = tmp_path / "second.json"
        records.write(second, content | {"cure": "log-n(trained=4)"})
        with (
            hf.apply_recipe(model, second),
            pytest.raises(WhenceError, match="applied after it; remove that one first"),
        ):
            applied.remove()
        assert torch.equal(model(ids).logits, expected)
        applied.remove()
        applied.remove()
        assert torch.equal(model(ids).logits, before) and not applied_recipes(model)
        with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
            packed.write(path, "recipe.json")
        for folder in (path.parent, tmp_path / "packed"):
            with hf.apply_recipe(model, folder):
                assert torch.equal(model(ids).logits, expected)
        assert torch.equal(model(ids).logits, before)
    with pytest.raises(WhenceError, match=r"apply_recipe\(path\).*no\.json.*check the path"):
        apply_recipe(model, path.parent / "no.json")
    broken = tmp_path / "broken.json"
    records.write(broken, content | {"model": {"name": "quick"}})
    with pytest.raises(WhenceError, match=r"broken\.json.*checksum; write one with whence mend"):
        apply_recipe(model, broken)
    with pytest.raises(WhenceError, match=r"apply_recipe\(model\) got a str.*from_pretrained"):
        apply_recipe("quick", path)
    prompts = tmp_path / "reorder.json"
    records.write(prompts, content | {"cure": "reorder"})
    with pytest.warns(UserWarning, match=r"reorder changes prompts.*rewrite"):
        apply_recipe(model, prompts).remove()
    other = tiny_random_model(seed=1).model
    with pytest.raises(WhenceError, match=r"checksum.*force=True"):
        apply_recipe(other, path)
    with pytest.warns(UserWarning, match="another model"):
        apply_recipe(other, path, force=True).remove()
