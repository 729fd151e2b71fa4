"""Tiny files in the layout of the data folder, and the harness without its description of the machine, which takes seconds."""

import json
import lzma

import pytest

LONG = "Passage one. " + "Nothing happens here. " * 60 + "\n\nQuestion: who? Answer:"
FILES = {
    "benchmarks/longbench/trec.json": json.dumps(
        {
            str(n): {
                "origin_prompt": f"Question {n}? Type:",
                "gold": {"all_classes": ["Date", "Food"], "answers": ["Date"]},
            }
            for n in range(3)
        }
    ),
    "benchmarks/longbench/qasper.json": json.dumps({"0": {"origin_prompt": LONG, "gold": ["nobody", "no one"]}}),
    "benchmarks/squad2/dev.json": json.dumps(
        {
            "data": [
                {
                    "title": "Rome",
                    "paragraphs": [
                        {
                            "context": "Rome lies on the Tiber.",
                            "qas": [
                                {"id": f"a{n}", "question": "Where?", "answers": [{"text": "on the Tiber"}]}
                                for n in range(4)
                            ]
                            + [{"id": "none", "question": "When?", "answers": []}],
                        }
                    ],
                }
            ]
        }
    ),
    "benchmarks/qmsum/val.jsonl": json.dumps(
        {
            "meeting_transcripts": [{"speaker": "A", "content": "We ship."}],
            "general_query_list": [{"query": "What?", "answer": "They ship."}],
            "specific_query_list": [{"query": "Who?", "answer": "A."}],
        }
    ),
    "benchmarks/scrolls/quality/validation.jsonl": "\n".join(
        json.dumps({"id": "q", "input": "Who?\n\nA long text.", "output": answer}) for answer in ("Ann", "Anna")
    ),
    "benchmarks/wmt22_zh_en/source.zh": "你好\n再见\n",
    "benchmarks/wmt22_zh_en/reference.en": "Hello\nGoodbye\n",
    "benchmarks/codexglue/code-refinement/test.buggy-fixed.buggy": "int a ;\nint b ;\n",
    "benchmarks/codexglue/code-refinement/test.buggy-fixed.fixed": "int c ;\nint d ;\n",
    "benchmarks/codexglue/code-refinement/valid.buggy-fixed.buggy": "int x ;\nint y ;\n",
    "benchmarks/codexglue/code-refinement/valid.buggy-fixed.fixed": "int u ;\nint v ;\n",
    "benchmarks/codexglue/ClozeTesting-maxmin/go.json": json.dumps(
        [{"idx": "maxmin-1", "nl_tokens": ["largest"], "pl_tokens": ["return", "<mask>", "(", "a", ")"]}]
    ),
    "benchmarks/codexglue/ClozeTesting-maxmin/answers/go.txt": "maxmin-1<CODESPLIT>max\n",
    "glue/SST-2/dev.tsv": "sentence\tlabel\n" + "".join(f"film {n} is good\t{n % 2}\n" for n in range(6)),
    "glue/CoLA/dev.tsv": "x\t1\t\tIt works.\nx\t0\t*\tIt work.\n",
}


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A data folder; every other file is compressed."""
    folder = tmp_path_factory.mktemp("data")
    for number, (name, text) in enumerate(FILES.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % 2:
            path.write_text(text, encoding="utf-8")
        else:
            path.with_name(path.name + ".xz").write_bytes(lzma.compress(text.encode()))
    return folder


@pytest.fixture
def harness(monkeypatch):
    """lm-evaluation-harness, without the description of the machine in its results."""
    pytest.importorskip("lm_eval", reason='needs the extra bench: pip install "whence[bench]"')
    import lm_eval.evaluator

    monkeypatch.setattr(lm_eval.evaluator, "add_env_info", lambda results: None)
    return lm_eval


@pytest.fixture
def bench(harness, data, tmp_path, monkeypatch, whence_here):
    """``whence bench`` with the tiny model, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WHENCE_DATA", raising=False)

    def run(*options, model="quick"):
        return whence_here("bench", model, "--quick", "--data", data, "--out", "out", *options)

    return run
