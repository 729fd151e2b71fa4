"""Summarization: generated reports, QMSum, papers of arXiv and own files, scored with ROUGE."""

import json

import pytest
import torch

from whence import WhenceError
from whence.lab import training
from whence.lab.arms import parse_arm
from whence.lab.tasks import load
from whence.lab.tasks.baselines import text_baselines
from whence.lab.tasks.pairs import arrange_sequences, arrange_sides
from whence.lab.tasks.summary_scores import score_summaries

MODEL = {"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16, "dropout": 0.0}


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))


def meetings(count):
    for n in range(count):
        turns = [{"speaker": "Ada", "content": f"turn {k} of {n}"} for k in range(4)]
        general = [{"query": "Summarize it.", "answer": f"Ada said {n}."}]
        specific = [{"query": "What came last?", "answer": f"Turn 3 of {n}.", "relevant_text_span": [["2", "3"]]}]
        yield {"meeting_transcripts": turns, "general_query_list": general, "specific_query_list": specific}


def test_reports_are_summarized_and_scored():
    task = load("reports", reports=40, test_reports=6, sentences=3, context=32, summaries=3)
    assert (
        task.metric == "rougeL" and task.higher_is_better and task.prediction_metrics == ("rouge1", "rouge2", "rougeL")
    )
    source, summary = task.parts["test"].texts[0]
    sentences = source.split(". ")
    assert summary.startswith(sentences[0]) and summary.endswith(sentences[-1])
    model = task.build_model(MODEL, parse_arm("sinusoidal"), 0)
    row = training.evaluate_split(task, model, "test", torch.device("cpu"))
    references = [target for _, target in task.parts["test"].texts[:3]]
    assert {name: row[name] for name in task.prediction_metrics} == score_summaries(
        task.translate(model, task.parts["test"].sources[:3]), references
    )
    assert row["value"] == row["rougeL"] and 0 <= row["rougeL"] <= 1
    notes = task.notes(model)
    assert "rouge-score" in notes["signatures"]["rougeL"] and len(notes["translations"]) == 5
    (panel,) = type(task).panels({"sinusoidal": [{"notes": notes}]}, {})
    assert panel["title"] == "Summaries" and panel["rows"][1] == ["reference", summary]
    rules = task.baselines()
    assert rules["opening of the source"]["splits"]["test"].keys() == set(task.prediction_metrics)
    assert rules["bigram"]["kind"] == "rule" and rules["most frequent target"]["kind"] == "constant"
    ranked = [rules[name]["splits"]["test"]["rougeL"] for name in ("most frequent target", "opening of the source")]
    assert ranked[0] < ranked[1] < 1  # a summary begins with the first sentence of its report


def test_answers_without_a_model():
    train = [("a b c d", "a b"), ("e f g", "e f"), ("x y", "a b")]
    tests = {"test": [("p q r", "p q"), ("m n o", "m n"), ("z", "a b"), ("s", "s")]}

    def share_equal(texts, references):
        return {"equal": sum(map(str.__eq__, texts, references)) / len(references)}

    shares = {
        name: one["splits"]["test"]["equal"]
        for shorten in (True, False)
        for name, one in text_baselines(train, tests, share_equal, shorten).items()
    }
    assert shares == {"most frequent target": 1 / 4, "opening of the source": 3 / 4, "copy of the source": 1 / 4}


def test_scores_are_those_of_rouge_score():
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"], use_stemmer=True)
    own, reference = "the cats sat on a mat", "the cat sits on the mat"
    assert score_summaries([own], [reference])["rougeL"] == scorer.score(reference, own)["rougeL"].fmeasure
    assert score_summaries([reference, ""], [reference, own])["rougeL"] == 0.5


def test_targets_have_a_limit_of_their_own():
    pairs = [([7] * 9, [9] * 9)]
    tokens, targets, sources = arrange_sides(pairs, 6, 3)
    assert (tokens.tolist(), targets.tolist(), sources.tolist()) == ([[1, 9, 9]], [[9, 9, 9]], [[7] * 6])
    assert arrange_sequences(pairs, 8, 2)[0].tolist() == [[7, 7, 7, 7, 7, 1, 9, 9]]


def test_qmsum(tmp_path, monkeypatch):
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    write_lines(tmp_path / "benchmarks/qmsum/val.jsonl", meetings(10))
    task = load("qmsum", train_part="val", context=32, target_context=8, summaries=0)
    assert task.describe_data()["items"] == {"train": 16, "test": 2, "validation": 2} and task.metric == "perplexity"
    texts = dict(text for part in task.parts.values() for text in part.texts)
    last = next(source for source in texts if source.startswith("What"))
    assert "turn 2" in last and "turn 1" not in last
    whole = load("qmsum", train_part="val", span="whole", context=32, target_context=8, summaries=0)
    assert all("turn 1" in source for source, _ in whole.parts["train"].texts)
    train, test = ({target.split()[-1] for _, target in task.parts[part].texts} for part in ("train", "test"))
    assert not train & test  # meetings stay whole
    with pytest.raises(WhenceError, match=r'qmsum/train.jsonl.*train_part="val"'):
        load("qmsum")


def test_papers(tmp_path, monkeypatch):
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    published = [
        {"article_text": [f"one {n} .", "two ."], "abstract_text": ["<S> a . </S>", "<S> b . </S>"]} for n in range(3)
    ]
    for part in ("train", "val", "test"):
        write_lines(tmp_path / f"arxiv/{part}.txt", [*published, {"article_text": [], "abstract_text": []}])
    task = load("arxiv", context=16, target_context=8, summaries=1, texts=2)
    assert task.parts["train"].texts == (("one 0 .\ntwo .", "a . b ."), ("one 1 .\ntwo .", "a . b ."))
    assert task.describe_data()["items"] == {"train": 2, "test": 3, "validation": 3}
    write_lines(tmp_path / "mine.jsonl", [{"article": f"text {n}", "abstract": "short"} for n in range(10)])
    mine = load("arxiv", path=str(tmp_path / "mine.jsonl"), context=16, summaries=0)
    assert mine.describe_data()["items"] == {"train": 8, "test": 1, "validation": 1}
    for content, got in (("[]", "a list at line 1"), ('{"article": "x"}', "no abstract"), ("no", "no JSON at line 1")):
        (tmp_path / "faulty.jsonl").write_text(content)
        with pytest.raises(WhenceError, match=got):
            load("arxiv", path=str(tmp_path / "faulty.jsonl"))


def test_own_pairs_are_summarized(tmp_path):
    write_lines(tmp_path / "pairs.jsonl", [{"text": f"a b c {n}", "summary": f"c {n}"} for n in range(20)])
    settings = {
        "path": str(tmp_path / "pairs.jsonl"),
        "source_column": "text",
        "target_column": "summary",
        "context": 12,
    }
    task = load("pairs_file", **settings, summaries=2, target_context=4)
    assert task.prediction_metrics == ("rouge1", "rouge2", "rougeL")
    row = training.evaluate_split(task, task.build_model(MODEL, parse_arm("none"), 0), "test", torch.device("cpu"))
    assert "rougeL" in row and "bleu" not in row
    assert not {"summaries", "target_context"} & load("pairs_file", **settings).settings.keys()
    for wrong, got in (({"summaries": -1}, "summaries=-1"), ({"target_context": -1}, "target_context=-1")):
        with pytest.raises(WhenceError, match=got):
            load("pairs_file", **settings, **wrong)
