"""Tasks on a user's own files: every format, every bad row named, the same split everywhere, the data described."""

import gzip
import json
import lzma
from collections import Counter

import pytest
import torch

from whence import WhenceError
from whence.lab import data_options
from whence.lab.data.tables import read_table, table_files
from whence.lab.data.tokenizers import build_tokenizer
from whence.lab.tasks import IGNORE_INDEX, load

ROWS = [(f"{'good fine' if n % 4 else 'bad poor'} film number {n}", "pos" if n % 4 else "neg") for n in range(80)]


def write_rows(path, rows=ROWS, extra=()):
    """A table in the format of its suffix, with lines ``extra`` after the tenth row."""
    names = ("text", "label", "split")[: len(rows[0])]
    if ".jsonl" in path.name:
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    else:
        delimiter = "\t" if ".tsv" in path.name else ","
        lines = [delimiter.join(row) for row in (names, *rows)]
    lines[10:10] = extra
    content = "\n".join(lines).encode("utf-8", "surrogateescape")
    path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(content))
    return path


def labelled(path, **settings):
    return load("labelled_file", path=str(path), **settings)


def refused(build):
    with pytest.raises(WhenceError) as error:
        build()
    return str(error.value)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.jsonl.gz", "a.csv.gz", "a.tsv.xz"])
def test_every_format_gives_the_same_task(tmp_path, name):
    first, task = labelled(write_rows(tmp_path / "first.csv")), labelled(write_rows(tmp_path / name))
    assert task.settings["data_hash"] == first.settings["data_hash"] and task.class_names == ("neg", "pos")
    for split in ("test", "validation"):
        for batch, other in zip(task.evaluation(split), first.evaluation(split), strict=True):
            assert torch.equal(batch.tokens, other.tokens) and torch.equal(batch.targets, other.targets)


def test_columns_by_number_without_a_header_line(tmp_path):
    (tmp_path / "cola.tsv").write_text("\n".join(f"x\t{label}\t*\t{text}" for text, label in ROWS))
    task = labelled(tmp_path / "cola.tsv", text_column="4", label_column="2")
    assert sum(task.describe_data()["items"].values()) == len(ROWS)


def test_quotes_line_breaks_and_byte_order_mark_in_csv(tmp_path):
    (tmp_path / "a.csv").write_bytes('\ufefftext,label\r\n"a, ""b""\nc",x\r\n\r\nplain,y\r\n'.encode())
    table = read_table(tmp_path / "a.csv", ["text"])
    assert [(row.line, row.values["text"]) for row in table.rows] == [(2, 'a, "b"\nc'), (5, "plain")]
    (tmp_path / "a.tsv").write_text('text\tlabel\n"quoted\tx\n' + "y" * 200_000 + "\tz\n")
    table = read_table(tmp_path / "a.tsv", ["text"])
    assert [row.values["text"][:7] for row in table.rows] == ['"quoted', "yyyyyyy"] and not table.bad


BAD = {
    "a.csv": ["one field", ",pos", "no label,", "a,b,c", "caf\udce9,pos", '"open" quote,pos'],
    "a.tsv": ["one field", "\tpos", "no label\t", "a\tb\tc", "caf\udce9\tpos", "  \tpos"],
    "a.jsonl": ["{", '{"text": "", "label": 1}', '{"text": "x"}', "[1]", '"caf\udce9"', '{"text": ["x"], "label": 1}'],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_named_before_any_work(tmp_path, name):
    path = write_rows(tmp_path / name, extra=BAD[name])
    said = refused(lambda: labelled(path))
    first = 11
    assert "--data" in said and f"6 bad rows of 86 in {name}" in said and "--skip-bad-rows" in said and "1 more" in said
    assert all(f"line {line}: " in said for line in range(first, first + 5))
    task = labelled(path, skip_bad_rows=True)
    stored = task.settings["bad_rows"]
    assert stored["count"] == 6 and stored["first"][0].startswith("line 11: ")
    assert sum(stored["reasons"].values()) == 6 and any("UTF-8" in reason for reason in stored["reasons"])
    assert task.describe_data()["bad_rows"] == stored and sum(task.describe_data()["items"].values()) == 80


def test_a_quote_that_is_never_closed(tmp_path):
    path = write_rows(tmp_path / "a.csv", extra=['"open,pos'])
    said = refused(lambda: labelled(path))
    assert "line 11: a quote that is never closed" in said


def test_labels_that_cannot_be_in_every_part(tmp_path):
    path = write_rows(tmp_path / "a.csv", extra=["one,rare", "two,rare"])
    said = refused(lambda: labelled(path))
    assert "line 11: label 'rare'" in said and "2 bad rows" in said
    assert labelled(path, skip_bad_rows=True).class_names == ("neg", "pos")
    same = write_rows(tmp_path / "b.csv", [(text, "x") for text, _ in ROWS])
    assert "--label-column" in refused(lambda: labelled(same))


def test_the_split_is_stratified_and_follows_its_seed(tmp_path):
    path = write_rows(tmp_path / "a.csv")
    tasks = [labelled(path, split_seed=seed, tokens="bytes") for seed in (0, 0, 1)]
    for task in tasks:
        facts = task.describe_data()
        assert facts["items"] == {"train": 64, "test": 8, "validation": 8}
        assert facts["classes"]["neg"] == {"train": 16, "test": 2, "validation": 2}
        assert task.validation == "validation" and list(task.splits()) == ["test", "validation"]
    texts = [sorted(map(tuple, task.tests["test"].tokens.tolist())) for task in tasks]
    assert texts[0] == texts[1] != texts[2]


def test_a_split_column_decides(tmp_path):
    names = {0: "dev", 1: "TEST"}
    path = write_rows(tmp_path / "a.csv", [(*row, names.get(n % 10, "train")) for n, row in enumerate(ROWS)])
    task = labelled(path, split_column="split")
    assert task.describe_data()["items"] == {"train": 64, "test": 8, "validation": 8}
    wrong = write_rows(tmp_path / "b.csv", [(*row, "train") for row in ROWS], extra=["x,pos,later"])
    assert "'later'" in refused(lambda: labelled(wrong, split_column="split"))
    without = write_rows(tmp_path / "c.csv", [(*row, "train") for row in ROWS])
    assert "for test" in refused(lambda: labelled(without, split_column="split"))
    assert "'part'" in refused(lambda: labelled(without, split_column="part"))


def test_a_folder_of_tables_names_the_splits(tmp_path):
    write_rows(tmp_path / "train_full.tsv", ROWS[:60])
    write_rows(tmp_path / "dev.tsv", ROWS[60:])
    assert list(table_files(tmp_path)) == ["validation", "train"]
    task = labelled(tmp_path)
    assert task.describe_data()["items"] == {"train": 60, "test": 20}  # without a test table, dev decides
    write_rows(tmp_path / "dev.tsv", ROWS[60:], extra=["only"])
    assert "dev.tsv line 11: 1 fields instead of 2" in refused(lambda: labelled(tmp_path))


def test_a_folder_of_tables_without_splits_is_one_table(tmp_path):
    write_rows(tmp_path / "one.csv", ROWS[:40])
    write_rows(tmp_path / "two.csv", ROWS[40:])
    (tmp_path / "README.md").write_text("about")
    facts = labelled(tmp_path).describe_data()
    assert facts["items"] == {"train": 64, "test": 8, "validation": 8} and "README.md" in facts["notes"][0]
    write_rows(tmp_path / "two.csv", ROWS[40:], extra=["only"])
    assert "two.csv line 11: 1 fields instead of 2" in refused(lambda: labelled(tmp_path))
    (tmp_path / "two.csv").write_text("text,stars\nx,1\n")
    assert "two.csv" in (said := refused(lambda: labelled(tmp_path))) and "'label'" in said and "add the column" in said
    (tmp_path / "one.csv").rename(tmp_path / "train.csv")
    (tmp_path / "two.csv").rename(tmp_path / "train_more.csv")
    assert "train_more.csv" in (said := refused(lambda: labelled(tmp_path))) and "rename" in said


PLAIN = "text,label\n" + "".join(f"{text},{label}\n" for text, label in ROWS)
#: name of the file, content, settings, and words of the error
WRONG = {
    "semicolons": ("a.csv", PLAIN.replace(",", ";"), {}, "--text-column 'text' semicolons commas"),
    "tabs": ("a.csv", PLAIN.replace(",", "\t"), {}, "--text-column tabs .tsv"),
    "no header line": ("a.csv", PLAIN.partition("\n")[2], {}, "--text-column 'text' numbers from 1"),
    "misspelt column": ("a.csv", PLAIN, {"label_column": "lable"}, "--label-column 'lable' did you mean label?"),
    "upper case column": ("a.csv", PLAIN.title(), {}, "--text-column 'text' did you mean Text?"),
    "column of another": ("a.csv", PLAIN, {"label_column": "text"}, "'text' name another column"),
    "UTF-16": ("a.csv", PLAIN.encode("utf-16"), {}, "a.csv UTF-16 iconv"),
    "Latin-1": ("a.csv", PLAIN.replace("film", "caf\xe9").encode("latin-1"), {}, "80 bad rows UTF-8 iconv"),
    "empty": ("a.csv", "", {}, "a.csv empty"),
    "blank lines": ("a.csv", "\n\n", {}, "a.csv empty"),
    "no rows": ("a.csv", "text,label\n", {}, "0 usable rows add rows"),
    "empty JSON lines": ("a.jsonl", "", {}, "a.jsonl empty"),
    "one JSON list": ("a.jsonl", "[{}]", {}, "line 1 list object"),
    "one label": ("a.csv", PLAIN.replace(",neg", ",pos"), {}, "--label-column 'label' 'pos' another column"),
    "labels without repeats": (
        "a.csv", "text,label\n" + "".join(f"{text},{n / 7}\n" for n, (text, _) in enumerate(ROWS)), {},
        "--label-column 'label' line 2 another column",
    ),
    "missing numbers": (
        "a.jsonl", "\n".join(json.dumps({"text": text, "label": float("nan") if label == "neg" else 1}) for text, label in ROWS),
        {}, "20 bad rows line 1: no label",
    ),
    "unknown split": ("a.csv", PLAIN, {"split_column": "label"}, "'label' another column"),
    "tokens": ("a.csv", PLAIN, {"tokens": "letters"}, "--tokens 'letters' characters"),
    "damaged": ("a.csv.gz", gzip.compress(PLAIN.encode())[:-9], {}, "a.csv.gz damaged again"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_option_the_value_and_the_remedy(tmp_path, case):
    name, content, settings, words = WRONG[case]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    said = refused(lambda: labelled(tmp_path / name, **settings))
    for word in words.split():
        assert word in said


@pytest.mark.parametrize("name, remedy", [("a.json", ".jsonl"), ("a.xlsx", ".csv"), ("a.bin", "convert")])
def test_formats_that_are_neither_tables_nor_text(tmp_path, name, remedy):
    (tmp_path / name).write_bytes(b"[\0]" * 1000)
    for options in ({}, {"text_column": "text"}) if name != "a.bin" else ({},):
        said = refused(lambda options=options: load_data(tmp_path / name, **options))
        assert name in said and remedy in said and ".parquet" in said


def load_data(path, **options):
    name, settings = data_options.file_task(str(path), **options)
    return load(name, **settings)


def test_notes_on_what_a_user_may_have_meant(tmp_path):
    rows = [
        (text, label.title() if n % 8 == 0 else label, "train" if n % 5 else "test")
        for n, (text, label) in enumerate(ROWS)
    ]
    path = write_rows(tmp_path / "a.csv", rows)
    case, split = labelled(path).describe_data()["notes"]
    assert "Neg, neg" in case and "'split'" in split and "--split-column split" in split
    assert len(labelled(path, split_column="split").describe_data()["notes"]) == 1


def test_duplicates_and_label_noise_are_facts(tmp_path):
    noisy = ["Good fine film NUMBER 1!,neg", "good fine film number 2,pos"]
    facts = labelled(write_rows(tmp_path / "a.csv", extra=noisy)).describe_data()
    assert facts["duplicates"] == {
        "repeated_rows": 2, "across_parts": {}, "conflicting_texts": 1, "conflicting_rows": 2
    }  # fmt: skip
    rows = [(text, label, "test" if n % 10 == 0 else "train") for n, (text, label) in enumerate(ROWS)]
    path = write_rows(tmp_path / "b.csv", [*rows, (ROWS[1][0].upper(), "pos", "test")])
    facts = labelled(path, split_column="split").describe_data()
    assert facts["duplicates"]["across_parts"] == {"test": 1}


def test_lengths_and_truncation(tmp_path):
    facts = labelled(write_rows(tmp_path / "a.csv"), context=4).describe_data()
    assert facts["lengths"] | {"unit": ""} == {
        "unit": "", "min": 5, "median": 5, "p90": 5, "max": 5, "limit": 4, "truncated": 1.0
    }  # fmt: skip


@pytest.mark.parametrize("tokens", ["words", "bytes", "characters"])
def test_tokens(tmp_path, tokens):
    task = labelled(write_rows(tmp_path / "a.csv"), tokens=tokens, context=40)
    (batch,) = task.evaluation("test")
    assert batch.key_mask.any() and not batch.key_mask.all()
    shown = task.decode(batch.tokens[0][batch.key_mask[0]])
    separator = " " if tokens == "words" else ""
    text = separator.join(shown)
    assert text.startswith(("good fine film", "bad poor film")) and "<pad>" not in text


def test_the_vocabulary_comes_from_training(tmp_path):
    rows = [(*row, "train") for row in ROWS] + [("good zebra", "pos", "test"), ("bad zebra", "neg", "test")]
    task = labelled(write_rows(tmp_path / "a.csv", rows), split_column="split")
    assert "zebra" not in task.tokenizer.numbers and task.describe_data()["unknown"]["test"] == 0.5


def test_a_tokenizer_file(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"[UNK]": 0, "good": 1, "bad": 2, "film": 3}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "mine.json"))
    task = labelled(write_rows(tmp_path / "a.csv"), tokens=str(tmp_path / "mine.json"))
    assert task.vocab_size == 5 and task.settings["tokens"] == "tokens of mine.json"
    assert set(task.tests["test"].tokens.unique().tolist()) <= {0, 1, 2, 3, 4}
    assert "--tokens" in refused(lambda: build_tokenizer(str(tmp_path / "none.json"), []))
    (tmp_path / "broken.json").write_text("{")
    assert "broken.json" in refused(lambda: build_tokenizer(str(tmp_path / "broken.json"), []))
    assert "'letters'" in refused(lambda: build_tokenizer("letters", []))


def test_baselines_of_labelled_texts(tmp_path):
    found = labelled(write_rows(tmp_path / "a.csv")).baselines()
    assert {name: entry["kind"] for name, entry in found.items()} == {
        "majority class": "constant", "bag of words": "rule", "best possible": "ceiling"
    }  # fmt: skip
    majority = found["majority class"]["splits"]["test"]
    assert majority["accuracy"] == 0.75 and majority["balanced_accuracy"] == 0.5 and majority["mcc"] == 0
    assert found["bag of words"]["splits"]["test"]["accuracy"] == 1
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_data_must_not_change(tmp_path):
    path = write_rows(tmp_path / "a.csv")
    task, settings = data_options.file_task(str(path))
    assert task == "labelled_file" and load(task, **settings).num_classes == 2
    path.write_text(path.read_text() + "\nanother,pos")
    assert "changed" in refused(lambda: load(task, **settings))


# running text

TEXT = "".join(f"Line {n} of a text about {Counter('abcab')['a'] + n} things.\n" for n in range(400))


def test_a_text_in_three_parts(tmp_path):
    (tmp_path / "book.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    task = load("text_file", path=str(tmp_path / "book.txt.gz"), context=16, blocks=4)
    joined = b"".join(bytes(part.tolist()) for part in (task.train, task.validation_stream, task.test)).decode()
    assert joined == TEXT and len(task.test) == len(TEXT) // 10
    assert list(task.splits()) == ["test", "2x", "4x", "8x", "validation"] and task.validation == "validation"
    batch = task.evaluation("validation")[0]
    assert batch.tokens.shape == (4, 16) and torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    found = task.baselines()
    values = [found[name]["splits"]["test"]["perplexity"] for name in ("uniform", "unigram", "bigram")]
    assert values == sorted(values, reverse=True) and values[0] == pytest.approx(256)
    assert found["bigram"]["splits"]["8x"] == found["bigram"]["splits"]["test"]  # the same tokens are scored


def test_lines_that_are_not_utf8(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes(TEXT.encode() + b"caf\xe9\n" + TEXT.encode())
    said = refused(lambda: load("text_file", path=str(path)))
    assert "line 401: not UTF-8" in said and "--skip-bad-rows" in said
    task = load("text_file", path=str(path), skip_bad_rows=True)
    assert task.settings["bad_rows"]["count"] == 1


def test_a_folder_of_texts(tmp_path):
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text(TEXT)
    (tmp_path / "picture.png").write_bytes(b"png")
    task = load("text_file", path=str(tmp_path), tokens="words", context=8)
    facts = task.describe_data()
    assert facts["files"] == 12 and facts["ignored_files"] == ["picture.png"] and "whole files" in facts["split"]
    assert facts["repeated_lines"] == {} or all(0 <= share <= 1 for share in facts["repeated_lines"].values())
    for number in range(3, 12):
        (tmp_path / f"{number}.txt").unlink()
    assert "every file" in load("text_file", path=str(tmp_path)).describe_data()["split"]
    (tmp_path / "2.txt").write_text("")
    assert "2.txt line 1: empty file" in refused(lambda: load("text_file", path=str(tmp_path)))
    (tmp_path / "2.txt").unlink()
    (tmp_path / "0.txt").rename(tmp_path / "train.txt")
    (tmp_path / "1.txt").rename(tmp_path / "test.txt")
    task = load("text_file", path=str(tmp_path))
    assert task.validation is None and len(task.train) == len(task.test) == len(TEXT)


# pairs

PAIRS = [{"en": f"a man number {n} sleeps", "de": f"ein mann nummer {n} schläft"} for n in range(50)]


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, PAIRS)))
    return path


def test_pairs_score_the_target_alone(pairs):
    task = load("pairs_file", path=str(pairs), source_column="en", target_column="de", context=16)
    assert task.describe_data()["items"] == {"train": 40, "test": 5, "validation": 5}
    for batch in (*task.evaluation("test"), task.train_batch(4, torch.Generator().manual_seed(0))):
        for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
            words, scored = task.decode(tokens), targets != IGNORE_INDEX
            middle = words.index("<sep>")
            assert words[:3] == ["a", "man", "number"] and not scored[:middle].any()
            answer = task.decode(targets[scored])
            assert answer[:3] == ["ein", "mann", "nummer"] and answer[-1] == "<end>"
            assert torch.equal(targets[middle : middle + len(answer) - 1], tokens[middle + 1 : middle + len(answer)])
    assert sum(len(batch.tokens) for batch in task.epoch(7, torch.Generator())) == 40
    found = task.baselines()
    values = [found[name]["splits"]["test"]["perplexity"] for name in ("uniform", "unigram", "bigram")]
    assert values == sorted(values, reverse=True) and found["bigram"]["kind"] == "rule"


def test_pairs_that_are_cut_have_no_end(pairs):
    task = load("pairs_file", path=str(pairs), source_column="en", target_column="de", context=8)
    for batch in task.evaluation("test"):
        scored = batch.targets[batch.targets != IGNORE_INDEX]
        assert "<end>" not in task.decode(scored) and batch.tokens.shape[1] == 8
        assert ((batch.targets != IGNORE_INDEX).sum(1) == 4).all()
    assert task.describe_data()["lengths"]["truncated"] == 1


# the command's choice of a task


def test_which_task_a_file_becomes(tmp_path, pairs):
    table = write_rows(tmp_path / "a.csv")
    (tmp_path / "book.txt").write_text(TEXT)
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"body": line}) for line in TEXT.splitlines()))
    choose = data_options.file_task
    assert choose(str(table))[0] == "labelled_file"
    assert choose(str(tmp_path / "book.txt"), tokens="characters")[1]["tokens"] == "characters"
    name, settings = choose(str(tmp_path / "texts.jsonl"), text_column="body")
    assert name == "text_file" and load(name, **settings).validation == "validation"
    assert choose(str(pairs), source_column="en", target_column="de")[0] == "pairs_file"
    for options, word in (
        ({"source_column": "en"}, "--target-column"),
        ({"source_column": "en", "target_column": "de", "label_column": "x"}, "--label-column"),
    ):
        assert word in refused(lambda options=options: choose(str(pairs), **options))
    assert "--text-column" in refused(lambda: choose(str(tmp_path / "book.txt"), text_column="x"))
    assert "none.csv" in refused(lambda: choose(str(tmp_path / "none.csv")))


def test_a_table_with_too_few_rows_for_a_test_part(tmp_path):
    path = tmp_path / "few.csv"
    path.write_text("text\n" + "a row of a few words\n" * 9)
    said = refused(lambda: load("text_file", path=str(path), text_column="text", context=4))
    assert "--data" in said and "few.csv with 9 rows" in said and "add rows: 10" in said
    path.write_text("text\n" + "a row of a few words and many more words after it\n" * 10)
    task = load("text_file", path=str(path), text_column="text", context=4, lengths=[1])
    assert task.settings["split_column"] == ""


def test_a_split_column_of_texts(tmp_path):
    words = {"Train": "alpha beta", "dev": "gamma gamma", "TEST": "delta delta"}
    rows = [f"{text * 20},{part}" for _ in range(10) for part, text in words.items()]
    path = tmp_path / "texts.csv"

    def build(rows, **settings):
        path.write_text("\n".join(["body,part", *rows]))
        chosen = {"text_column": "body", "split_column": "part", **settings}
        return load("text_file", path=str(path), **chosen)

    task = build(rows)
    assert data_options.file_task(str(path), text_column="body", split_column="part")[0] == "text_file"
    assert build(rows).settings["split_column"] == "part"
    assert task.describe_data()["split"] == "the parts that the column 'part' names"
    shown = {split: "".join(task.decode(task.evaluation(split)[0].tokens[0])) for split in task.splits()}
    assert "delta" in shown["test"] and "gamma" in shown["validation"] and "alpha" not in "".join(shown.values())
    assert "--split-column part" in build(rows, split_column="").describe_data()["notes"][0]
    for wrong, settings, expected in (
        ([*rows, "epsilon,later"], {}, ["'later'", "--skip-bad-rows"]),
        ([*rows, "epsilon,"], {}, ["line 32", "--skip-bad-rows"]),
        ([row for row in rows if "Train" in row], {}, ["only train", "rows of test"]),
        ([row for row in rows if "TEST" in row], {}, ["only test", "rows of train"]),
        (rows, {"split_column": "fold"}, ["--split-column", "'fold'"]),
        (rows, {"split_column": "body"}, ["'body'", "another column"]),
    ):
        said = refused(lambda wrong=wrong, settings=settings: build(wrong, **settings))
        assert [word for word in expected if word not in said] == []
    (tmp_path / "book.txt").write_text(TEXT)
    said = refused(lambda: data_options.file_task(str(tmp_path / "book.txt"), split_column="part"))
    assert "--split-column" in said and "'part'" in said and "leave it out" in said


def test_texts_without_a_training_part_are_refused(tmp_path):
    for part in ("dev", "test"):
        (tmp_path / f"{part}.csv").write_text("text\n" + "some words\n" * 5)
    with pytest.raises(WhenceError, match=r"--data.*only .*test.*name starts with train"):
        load("text_file", path=str(tmp_path), text_column="text")


def test_every_line_inside_an_open_quote_is_a_bad_row(tmp_path):
    lines = ["text,label", *(f"row {number},a" for number in range(20))]
    lines[5] = '"open,a'
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    table = read_table(tmp_path / "rows.csv", ["text", "label"])
    assert [row.line for row in table.bad] == list(range(6, 22)) and len(table.rows) == 4
    quoted = ["text,label", *(f'"row {number}","a"' for number in range(20))]
    quoted[5] = '"open,"a"'
    (tmp_path / "rows.csv").write_text("\n".join(quoted) + "\n")
    table = read_table(tmp_path / "rows.csv", ["text", "label"])
    assert len(table.rows) + len(table.bad) == 20 and table.bad[0].line == 6
