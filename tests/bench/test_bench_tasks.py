"""The declared benchmarks: files that are found, formats that are read, scores of answers. None of it needs the harness."""

import pytest

from whence.bench.tasks.catalogue import BENCHMARKS, select_subsets
from whence.bench.tasks.files import file_checksum, find_file
from whence.bench.tasks.scores import codebleu, score_code, score_squad
from whence.errors import WhenceError
from whence.lab.answer_scores import token_f1


def rows_of(data, benchmark, subset):
    ((one,), folder) = select_subsets([benchmark], [subset], data)
    return one.read(one.locate(folder))


def test_a_subset_without_a_name_is_one_whose_files_exist(data):
    subsets, _ = select_subsets(["longbench", "codexglue", "glue"], [], data)
    assert [one.name for one in subsets] == ["qasper", "trec", "code-refinement", "cloze-maxmin-go", "sst2", "cola"]


def test_two_benchmarks_share_a_name(data):
    subsets, _ = select_subsets(["scrolls", "longbench"], ["qasper", "qmsum"], data)
    assert [one.label for one in subsets] == ["longbench-qasper", "scrolls-qmsum"]


def test_rows_of_each_format(data):
    (trec, *_), (qasper,) = rows_of(data, "longbench", "trec"), rows_of(data, "longbench", "qasper")
    assert trec["answers"] == ["Date"] and trec["all_classes"] == ["Date", "Food"]
    assert qasper["answers"] == ["nobody", "no one"] and qasper["prompt"].endswith("Answer:")
    squad = rows_of(data, "squad", "squad2")
    assert [row["answers"] for row in squad[-2:]] == [["on the Tiber"], []] and "Rome lies" in squad[0]["prompt"]
    meeting = rows_of(data, "scrolls", "qmsum")
    assert [row["answers"] for row in meeting] == [["They ship."], ["A."]] and "A: We ship." in meeting[1]["prompt"]
    (quality,) = rows_of(data, "scrolls", "quality")
    assert quality["answers"] == ["Ann", "Anna"] and quality["prompt"] == "A long text.\n\nQuestion: Who?\nAnswer:"
    hello, _ = rows_of(data, "wmt", "wmt22_zh_en")
    assert hello["prompt"] == "Chinese phrase: 你好\nEnglish phrase:" and hello["target"] == "Hello"
    (cloze,) = rows_of(data, "codexglue", "cloze-maxmin-go")
    assert (
        cloze["context"] == "largest\nreturn" and cloze["choices"] == ["max ( a )", "min ( a )"] and cloze["label"] == 0
    )
    assert [(row["sentence"], row["label"]) for row in rows_of(data, "glue", "cola")] == [
        ("It works.", 1),
        ("It work.", 0),
    ]


def test_another_pair_of_languages(tmp_path):
    (tmp_path / "benchmarks" / "wmt19_de_en").mkdir(parents=True)
    for name in ("source.de", "reference.en"):
        (tmp_path / "benchmarks" / "wmt19_de_en" / name).write_text("Haus\n")
    (row,) = rows_of(tmp_path, "wmt", "wmt19_de_en")
    assert row["prompt"].startswith("German phrase: Haus")


def test_squad_scores_answers_and_their_absence():
    answerable, impossible = {"answers": ["the Tiber", "on the Tiber"]}, {"answers": []}
    assert score_squad(answerable, ["On the Tiber."]) == {"exact": 1, "f1": 1, "HasAns_exact": 1, "HasAns_f1": 1}
    assert score_squad(answerable, ["unanswerable"])["f1"] == 0
    assert score_squad(impossible, [" Unanswerable."]) == {"exact": 1, "f1": 1, "NoAns_exact": 1, "NoAns_f1": 1}
    assert score_squad(impossible, ["Tiber"])["NoAns_f1"] == 0
    assert token_f1("on a river", "river Tiber") == pytest.approx(0.5)


def test_codebleu_compares_syntax_and_data_flow():
    pytest.importorskip("codebleu")
    program = "int f ( int a ) { int b = a + 1 ; return b ; }"
    renamed = program.replace("b", "c")
    scores = {answer: codebleu("c_sharp")([(program, answer)]) for answer in (program, renamed, "return")}
    assert scores[program] == pytest.approx(100) and scores[renamed] == pytest.approx(84.74, abs=0.01)
    assert scores["return"] < 1  # no data flow matches
    assert score_code({"target": program}, [f" {program}\n"])["codebleu"] == (program, program)
    metrics = {
        one["metric"]: one["aggregation"] for one in BENCHMARKS["codexglue"]["code-refinement"].config["metric_list"]
    }
    assert metrics["codebleu"]([(program, program)]) == pytest.approx(100) and metrics["exact"] == "mean"


def test_a_compressed_copy_is_the_same_data(data, tmp_path):
    packed = find_file(data, "benchmarks/longbench/trec.json")
    plain = tmp_path / "trec.json"
    plain.write_text(__import__("lzma").decompress(packed.read_bytes()).decode())
    assert packed.suffix == ".xz" and file_checksum(packed) == file_checksum(plain)


@pytest.mark.parametrize(
    ("benchmarks", "subsets", "parts"),
    [
        (["longbensh"], [], ("--benchmark", "longbensh", "did you mean longbench?")),
        (["gleu"], [], ("--benchmark", "gleu", "did you mean glue?")),
        (["nobench"], [], ("got nobench, but the benchmarks are longbench, scrolls", "; choose one of them.")),
        (["trec"], [], ("--benchmark", "trec", "did you mean --benchmark longbench --subset trec?")),
        (["wmt_zh_en"], [], ("--benchmark", "wmt_zh_en", "did you mean --benchmark wmt --subset wmt22_zh_en?")),
        (["longbench"], ["treck"], ("--subset", "treck", "did you mean trec?")),
        (["longbench"], ["lcc"], ("benchmarks/longbench/lcc.json", "docs/benchmarks.md", "--data")),
        (["codexglue"], ["cloze-maxmin-ruby"], ("ClozeTesting-maxmin/ruby.json", "docs/benchmarks.md")),
    ],
)
def test_unknown_names_and_missing_files(data, benchmarks, subsets, parts):
    with pytest.raises(WhenceError) as error:
        select_subsets(benchmarks, subsets, data)
    assert all(part in str(error.value) for part in parts), error.value


def test_no_data_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("WHENCE_DATA", raising=False)
    with pytest.raises(WhenceError, match=r"WHENCE_DATA.*docs/benchmarks\.md.*--data"):
        select_subsets(["squad"], [], None)
    with pytest.raises(WhenceError, match=r"squad2/dev\.json"):
        select_subsets(["squad"], [], tmp_path)


@pytest.mark.parametrize(
    ("benchmark", "subset", "text", "part"),
    [
        ("longbench", "trec", "{", "no JSON at line 1"),
        ("longbench", "trec", '{"0": {"gold": []}}', "without origin_prompt"),
        ("longbench", "trec", '{"0": {"gold": [], "origin_prompt": "a"}}', "item 0 without an answer"),
        (
            "longbench",
            "trec",
            '{"0": {"gold": {"answers": ["a"]}, "origin_prompt": "a"}}',
            "without all_classes (list)",
        ),
        ("squad", "squad2", "[]", "a list"),
        ("squad", "squad2", '{"data": 3}', "without data (list)"),
        ("squad", "squad2", '{"data": [{"title": 3}]}', "without paragraphs (list)"),
        ("squad", "squad2", '{"data": [{"title": "a", "paragraphs": [{"context": "b"}]}]}', "without qas (list)"),
        ("squad", "squad2", '{"data": [{"title": "a", "paragraphs": [{"qas": []}]}]}', "without context (str)"),
        (
            "squad",
            "squad2",
            '{"data": [{"title": "a", "paragraphs": [{"context": "b", "qas": [{"id": "c"}]}]}]}',
            "without answers (list)",
        ),
        (
            "squad",
            "squad2",
            '{"data": [{"paragraphs": [{"context": "b", "qas": [{"id": "c", "answers": ["d"]}]}]}]}',
            "without text (str)",
        ),
        ("scrolls", "qmsum", "3", "without meeting_transcripts (list)"),
        ("scrolls", "qmsum", '{"meeting_transcripts": [{"speaker": "A"}]}', "without content"),
        (
            "scrolls",
            "qmsum",
            '{"meeting_transcripts": [], "general_query_list": [{"query": "a"}]}',
            "without answer (str)",
        ),
        ("scrolls", "quality", '{"id": 1, "input": null, "output": "a"}', "without input (str)"),
        ("glue", "sst2", "sentence\tlabel\nfine\t2\n", "line 2"),
        ("glue", "rte", "sentence1\tlabel\na\tentailment\n", "no column sentence2"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, benchmark, subset, text, part):
    one = BENCHMARKS[benchmark][subset]
    path = tmp_path / one.files[0]
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(WhenceError) as error:
        one.read(one.locate(tmp_path))
    assert part in str(error.value) and path.name in str(error.value)


@pytest.mark.parametrize(
    ("item", "answer", "part"),
    [
        ('{"idx": "a", "nl_tokens": ["b"]}', "max", "go.json with an item without pl_tokens (list)"),
        ('{"idx": "a", "nl_tokens": [], "pl_tokens": []}', "mean", "go.txt with the answer 'mean' of a"),
    ],
)
def test_a_damaged_cloze_test_is_named(tmp_path, item, answer, part):
    one = BENCHMARKS["codexglue"]["cloze-maxmin-go"]
    for name, text in zip(one.files, (f"[{item}]", f"a<CODESPLIT>{answer}\n"), strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(WhenceError) as error:
        one.read(one.locate(tmp_path))
    assert part in str(error.value)


def test_references_of_another_length(tmp_path):
    one = BENCHMARKS["wmt"]["wmt22_zh_en"]
    for name, text in zip(one.files, ("a\nb\n", "a\n"), strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(WhenceError, match=r"source\.zh with 2 lines and reference\.en with 1"):
        one.read(one.locate(tmp_path))
