"""``whence bench`` with the tiny random model: all benchmarks, resuming, comparing, own tasks, and errors in the options."""

import importlib
import json

import pytest
import torch

from whence import hf, mend
from whence.errors import WhenceError
from whence.probe.probed_model import tiny_random_model


def test_every_benchmark_then_resume(bench, tmp_path, whence_here):
    names = ("longbench", "scrolls", "wmt", "codexglue", "glue", "squad")
    subsets = ("qasper", "trec", "qmsum", "wmt22_zh_en", "code-refinement", "sst2", "squad2")
    options = [part for name in names for part in ("--benchmark", name)]
    options += [part for name in subsets for part in ("--subset", name)] + ["--items", "2", "--max-length", "128"]
    done = bench(*options)
    assert done.returncode == 0, done.stderr
    folder = next((tmp_path / "out").glob("quick-*"))
    stored = {path.name.rpartition("-")[0]: json.loads(path.read_text()) for path in folder.glob("*-*.json")}
    assert {record["benchmark"] for record in stored.values()} == set(names)
    assert stored["squad-squad2"]["items"] == 2 and stored["squad-squad2"]["environment"]["packages"]["lm_eval"]
    assert stored["longbench-qasper"]["rows"][0]["shortened"] and not stored["glue-sst2"]["rows"][0]["shortened"]
    assert {"bleu", "chrf", "sentence_chrf"} <= set(stored["wmt-wmt22_zh_en"]["scores"])
    results = tmp_path / "out" / "results" / "longbench" / folder.name
    found = json.loads((results / "results_trec.json").read_text())  # as the harness writes it
    assert found["results"]["longbench-trec"]["sample_len"] == 2 and found["config"]["model"] == "quick"
    samples = [json.loads(line) for line in (results / "samples_trec.jsonl").read_text().splitlines()]
    assert [sample["doc"]["answers"] for sample in samples] == [["Date"], ["Date"]]
    page = (folder / "report.html").read_text()
    assert "LongBench score" in page and "ROUGE-L" in page and "cannot be compared with published" in page
    assert done.stderr.count("already measured") == 0
    again = bench(*options)
    assert again.stderr.count("already measured") == len(stored)
    (folder / "report.html").unlink()
    assert whence_here("report", "out").returncode == 0 and (folder / "report.html").is_file()


def test_a_cure_compared_with_the_model_and_its_records(bench, tmp_path, whence_here):
    task = ("--benchmark", "glue", "--subset", "sst2")
    done = bench(*task, "--intervention", "log-n(trained=8)", "--compare", "quick", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tasks"][0]["metrics"] and "undecided" in found["comparison"]["answer"]
    (page,) = (tmp_path / "out").glob("*/comparison.html")
    assert "1 undecided" in page.read_text() and "log-n" in page.read_text()
    before, after = sorted((tmp_path / "out").glob("quick-*"), key=lambda folder: (folder / "comparison.html").exists())
    more = bench("--benchmark", "wmt", "--intervention", "log-n(trained=8)", "--compare", "quick")
    assert more.returncode == 0 and "on 1 task:" in more.stdout, more.stdout  # not also sst2, which both have
    again = bench(*task, "--position", "alibi", "--replace-rotary", "--compare", before)
    assert again.returncode == 0 and "Alibi" in again.stdout, again.stderr
    (attached,) = (
        plan
        for path in (tmp_path / "out").glob("quick-*/bench.json")
        if (plan := json.loads(path.read_text())["plan"]["identity"]["attached"])
    )
    assert {one["own_rotation"] for one in attached} == {"removed"}
    both = whence_here("report", before, after, "--label", "plain", "--label", "cured", "--out", "two.html")
    assert both.returncode == 0 and "cured compared with plain" in (tmp_path / "two.html").read_text()
    same = bench(*task, "--compare", "quick")
    assert same.returncode == 2 and "--compare" in same.stderr and "must differ" in same.stderr


def test_git_is_asked_for_the_commit_in_a_checkout_only(bench, tmp_path):
    task = ("--benchmark", "glue", "--subset", "sst2")
    outside = bench(*task)
    assert outside.returncode == 0 and "fatal" not in outside.stderr
    (results,) = (tmp_path / "out" / "results" / "glue").glob("*/results_sst2.json")
    assert json.loads(results.read_text())["git_hash"] is None
    (tmp_path / ".git").mkdir()  # broken, which git says
    inside = bench(*task, "--items", "2")
    assert inside.returncode == 0 and "fatal" in inside.stderr


def test_a_recipe(bench, tmp_path):
    from whence.mend.recipe import model_checksum

    recipe = {"format": 1, "cure": "log-n(trained=8)", "settings": {}, "model": {"name": "quick", "checksum": ""}}
    recipe["model"]["checksum"] = model_checksum(tiny_random_model().model)
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    done = bench("--benchmark", "glue", "--subset", "sst2", "--recipe", "recipe.json")
    assert done.returncode == 0 and "log-n" in done.stdout, done.stderr
    (tmp_path / "pine.json").write_text(json.dumps(recipe | {"cure": "pine"}))
    refused = bench("--benchmark", "glue", "--recipe", "pine.json")
    assert refused.returncode == 2 and "--recipe got pine" in refused.stderr and "documents" in refused.stderr


def test_a_task_file_and_a_budget(bench, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"q": "1 + 1 =", "a": "2"}\n{"q": "1 + 2 =", "a": "3"}\n')
    (tmp_path / "task.yaml").write_text(
        "task: sums\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\n"
        "output_type: multiple_choice\ndoc_to_text: q\ndoc_to_choice: ['2', '3']\ndoc_to_target: a\n"
        "metric_list: [{metric: acc}]\n"
    )
    done = bench("--task", "task.yaml", "--benchmark", "glue", "--subset", "sst2", "--budget", "0.001s")
    assert done.returncode == 0 and "run the same command to resume" in done.stderr, done.stderr
    done = bench("--task", "task.yaml", "--benchmark", "glue", "--subset", "sst2")
    assert "already measured" in done.stderr and "sums" in done.stdout, done.stderr
    (path,) = (tmp_path / "out").glob("quick-*/task-sums-*.json")
    record = json.loads(path.read_text())
    assert record["metric"] == "acc" and record["items"] == 2 and list(record["files"]) == ["task.yaml"]


@pytest.mark.parametrize("reason", [None, "the hub cannot be reached"])
def test_a_named_task_asks_no_hub_that_cannot_be_reached(harness, monkeypatch, reason):
    """The index of the harness's tasks takes many seconds, so one that only fails stands in for it."""
    import huggingface_hub.constants
    import lm_eval.tasks
    from datasets import config

    from whence.bench.harness import named_task

    modules, seen = (huggingface_hub.constants, config), []
    for module in modules:
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)

    class Manager:
        def __init__(self, **options):
            pass

        def load(self, names):
            seen.extend(module.HF_HUB_OFFLINE for module in modules)
            raise ConnectionError("no data")

    monkeypatch.setattr(lm_eval.tasks, "TaskManager", Manager)
    monkeypatch.setattr(importlib.import_module("whence.hf.load"), "why_hub_offline", lambda: reason)
    with pytest.raises(WhenceError, match=r"hellaswag.*no data.*download its data first") as error:
        named_task("hellaswag")
    assert seen == [reason is not None] * 2 and ("cannot be reached" in str(error.value)) == (reason is not None)
    assert not any(module.HF_HUB_OFFLINE for module in modules)


def test_examples_before_the_question(bench, tmp_path):
    done = bench("--benchmark", "codexglue", "--subset", "code-refinement", "--shots", "1", "--max-length", "256")
    assert done.returncode == 0, done.stderr
    (samples,) = (tmp_path / "out" / "results" / "codexglue").glob("*/samples_*.jsonl")
    prompt = json.loads(samples.read_text().splitlines()[0])["arguments"]["gen_args_0"]["arg_0"]
    assert prompt.count("Buggy code:") == 2
    refused = bench("--benchmark", "squad", "--shots", "1")
    assert refused.returncode == 2 and "--shots" in refused.stderr and "squad2" in refused.stderr


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ((), ("--benchmark", "none", "longbench")),
        (("--subset", "trec"), ("--subset", "trec", "add --benchmark")),
        (("--task", "no.yaml"), ("--task", "no.yaml", "check the path")),
        (("--benchmark", "glue", "--intervention", "reorder"), ("--intervention", "reorder", "whence mend")),
        (("--benchmark", "glue", "--recipe", "no.json"), ("--recipe", "no.json")),
        (("--benchmark", "glue", "--max-length", "9000"), ("--max-length", "9000", "8192")),
        (("--benchmark", "longbench", "--max-length", "17"), ("--max-length", "larger")),
        (("--benchmark", "glue", "--budget", "soon"), ("--budget", "soon", "20m")),
    ],
)
def test_wrong_options(bench, options, parts):
    done = bench(*options)
    assert done.returncode == 2 and all(part in done.stderr for part in parts), done.stderr


def test_a_cure_learns_where_the_prompt_of_a_choice_ends():
    """Choices of different length in one padded batch score as each alone, with the end of its prompt stated."""
    from whence.bench.harness import Settings, wrap_model

    lm, choices = tiny_random_model(), [([5, 6, 7, 8], [9, 10, 11]), ([5, 6, 7, 8], [12]), ([3, 4], [9, 0, 11, 2])]
    plain = [
        score
        for score, _ in wrap_model(lm, Settings(), 8, print)._loglikelihood_tokens([("", *one) for one in choices])
    ]
    with mend.ScaleChannel(3, -4.0, [0, 1]).apply(lm.model), torch.no_grad():
        found = wrap_model(lm, Settings(), 8, print)._loglikelihood_tokens([("", *one) for one in choices])
        for (prompt, choice), (score, _), before in zip(choices, found, plain, strict=True):
            with hf.request(lm.model, prompt_ends=[len(prompt)]):
                rows = lm.model(torch.tensor([prompt + choice])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
            assert score == pytest.approx(float(rows.gather(1, torch.tensor(choice)[:, None]).sum()), abs=1e-4)
            assert abs(score - before) > 1e-3


def test_the_middle_of_a_long_prompt_is_cut():
    from whence.bench.harness import cut_middle

    lm = tiny_random_model()
    text = "".join(chr(97 + n % 26) for n in range(100))
    assert cut_middle(lm, text, 100) == text
    assert cut_middle(lm, text, 11) == text[:5] + text[-6:]
    assert len(cut_middle(lm, "äöü" * 30, 21).encode()) <= 33  # bytes of cut characters become signs


def test_without_the_extra_the_error_names_it(whence_here, data, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lm_eval", None)
    done = whence_here("bench", "--quick", "--benchmark", "glue", "--data", data)
    assert done.returncode == 2 and "whence[bench]" in done.stderr
