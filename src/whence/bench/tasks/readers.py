"""The formats of the benchmarks' files: each reader turns the text of files into rows for lm-evaluation-harness.

A row is a dictionary with an ``id``. Rows of generated answers have ``prompt`` and ``target`` (one accepted answer, for the
log); all accepted answers are in ``answers``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from whence.bench.tasks.files import DESCRIPTION, read_lines, read_text
from whence.errors import WhenceError, usage_error

Row = dict[str, Any]
Reader = Callable[[list[Path]], list[Row]]
CLOZE_WORDS = ("max", "min")


def read_longbench(files: list[Path]) -> list[Row]:
    """MiniLongBench: an object of {id: {origin_prompt, gold}}; ``gold`` is a list of answers, or has classes as well."""
    path = files[0]
    rows = []
    for name, item in _parse(path, dict).items():
        gold = _field(path, item, "gold", (list, dict))
        prompt = _field(path, item, "origin_prompt", str)
        answers = _field(path, gold, "answers", list) if isinstance(gold, dict) else gold
        if not answers:
            raise _malformed(path, f"item {name} without an answer")
        rows.append(
            {
                "id": str(name),
                "prompt": prompt,
                "answers": list(answers),
                "target": answers[0],
                "all_classes": list(_field(path, gold, "all_classes", list)) if isinstance(gold, dict) else [],
            }
        )
    return rows


def read_squad(files: list[Path]) -> list[Row]:
    """SQuAD 2.0. A question without an answer has an empty list of answers."""
    path, rows = files[0], []
    for article in _field(path, _parse(path, dict), "data", list):
        for paragraph in _field(path, article, "paragraphs", list):
            context = _field(path, paragraph, "context", str)
            for question in _field(path, paragraph, "qas", list):
                found = _field(path, question, "answers", list)
                answers = sorted({_field(path, answer, "text", str) for answer in found})
                rows.append(
                    {
                        "id": _field(path, question, "id"),
                        "prompt": (
                            "Answer the question in a few words of the background. If the background does not contain "
                            f"the answer, write: unanswerable\n\nTitle: {_field(path, article, 'title')}\n\nBackground: "
                            f"{context}\n\nQuestion: {_field(path, question, 'question', str).strip()}\n\nAnswer:"
                        ),
                        "answers": answers,
                        "target": answers[0] if answers else "unanswerable",
                    }
                )
    return rows


def read_qmsum(files: list[Path]) -> list[Row]:
    """QMSum as published: one meeting a line, with its transcript and its general and specific queries."""
    path, rows = files[0], []
    for number, meeting in enumerate(_parse_lines(path)):
        text = "\n".join(
            f"{_field(path, turn, 'speaker')}: {_field(path, turn, 'content')}"
            for turn in _field(path, meeting, "meeting_transcripts", list)
        )
        lists = [name for name in ("general_query_list", "specific_query_list") if name in meeting]
        queries = [one for name in lists for one in _field(path, meeting, name, list)]
        for place, one in enumerate(queries):
            query, answer = (_field(path, one, name, str) for name in ("query", "answer"))
            rows.append(_question(f"{number}-{place}", text, query, [answer]))
    return rows


def read_scrolls_questions(files: list[Path]) -> list[Row]:
    """SCROLLS with a query: a line has ``id``, ``input`` (query, blank line, text) and ``output``."""
    rows = []
    for name, text, answers in _scrolls_items(files[0]):
        query, _, context = text.partition("\n\n")
        rows.append(_question(name, context, query, answers))
    return rows


def read_scrolls_summaries(files: list[Path]) -> list[Row]:
    """SCROLLS without a query: the text is summarized."""
    return [
        _question(name, text, "What is a summary of the preceding text?", answers)
        for name, text, answers in _scrolls_items(files[0])
    ]


def _scrolls_items(path: Path) -> list[tuple[str, str, list[str]]]:
    """Items with all their answers; SCROLLS repeats an item for each of its answers."""
    items: dict[str, tuple[str, str, list[str]]] = {}
    for line in _parse_lines(path):
        name = str(_field(path, line, "id"))
        items.setdefault(name, (name, _field(path, line, "input", str), []))[2].append(
            _field(path, line, "output", str)
        )
    return list(items.values())


def _question(name: str, text: str, query: str, answers: list[str]) -> Row:
    return {"id": name, "prompt": f"{text}\n\nQuestion: {query}\nAnswer:", "answers": answers, "target": answers[0]}


def read_pairs(source: str, target: str) -> Reader:
    """A reader of two files with as many lines: the source and its reference. The two words introduce them in a prompt."""

    def read(files: list[Path]) -> list[Row]:
        sources, references = (read_lines(path) for path in files)
        if len(sources) != len(references):
            raise usage_error(
                "whence bench",
                f"{files[0].name} with {len(sources)} lines and {files[1].name} with {len(references)}",
                "each line of a source has its reference",
                "copy both files again",
            )
        return [
            {
                "id": str(number),
                "prompt": f"{source} {one.strip()}\n{target}",
                "answers": [reference.strip()],
                "target": reference.strip(),
            }
            for number, (one, reference) in enumerate(zip(sources, references, strict=True))
        ]

    return read


def read_cloze(files: list[Path]) -> list[Row]:
    """CodeXGLUE's ClozeTesting: tokens of code with one <mask>, and a file of answers (``idx<CODESPLIT>answer`` a line)."""
    path, answers_path = files
    answers = dict(line.split("<CODESPLIT>", 1) for line in read_lines(answers_path) if "<CODESPLIT>" in line)
    rows = []
    for item in _parse(path, list):
        name = _field(path, item, "idx")
        if name not in answers:
            raise _malformed(answers_path, f"no answer of {name}")
        words, code = (" ".join(map(str, _field(path, item, key, list))) for key in ("nl_tokens", "pl_tokens"))
        before, _, after = code.partition("<mask>")
        if answers[name].strip() not in CLOZE_WORDS:
            raise _malformed(answers_path, f"the answer {answers[name].strip()!r} of {name}")
        rows.append(
            {
                "id": name,
                "context": f"{words}\n{before.rstrip()}",
                "choices": [f"{word}{after}" for word in CLOZE_WORDS],
                "label": CLOZE_WORDS.index(answers[name].strip()),
            }
        )
    return rows


def read_glue(columns: Mapping[str, str | int], label: str | int, labels: tuple[str, ...]) -> Reader:
    """A reader of GLUE's tables.

    Args:
        columns: for each field of a row, the column's name, or its index in a table without a header.
        label: the column of the label.
        labels: the labels in the order of their numbers.
    """

    def read(files: list[Path]) -> list[Row]:
        path = files[0]
        lines = [line.split("\t") for line in read_lines(path)]
        places: dict[str | int, int] = {number: number for number in range(len(lines[0]))}
        first = 0
        if isinstance(label, str):
            places, first = {name: number for number, name in enumerate(lines[0])}, 1
            unknown = [name for name in (*columns.values(), label) if name not in places]
            if unknown:
                raise _malformed(path, f"no column {unknown[0]}")
        rows: list[Row] = []
        for number, cells in enumerate(lines[first:], start=first + 1):
            if len(cells) < len(lines[0]) or cells[places[label]].strip() not in labels:
                raise _malformed(path, f"line {number} without a label of {', '.join(labels)}")
            fields = {field: cells[places[column]].strip() for field, column in columns.items()}
            rows.append({"id": str(number), **fields, "label": labels.index(cells[places[label]].strip())})
        return rows

    return read


def _parse(path: Path, kind: type) -> Any:
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise _malformed(path, f"no JSON at line {error.lineno}") from None
    if not isinstance(content, kind):
        raise _malformed(path, f"a {type(content).__name__}")
    return content


def _parse_lines(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            raise _malformed(path, f"no JSON at line {number}") from None
    return rows


def _field(path: Path, item: Any, name: str, kind: type | tuple[type, ...] = object) -> Any:
    if not isinstance(item, dict) or not isinstance(item.get(name), kind) or name not in item:
        kinds = kind if isinstance(kind, tuple) else (kind,)
        what = "" if kind is object else f" ({' or '.join(one.__name__ for one in kinds)})"
        raise _malformed(path, f"an item without {name}{what}")
    return item[name]


def _malformed(path: Path, got: str) -> WhenceError:
    return usage_error(
        "whence bench",
        f"{path} with {got}",
        "it must have the published format",
        f"copy it again; {DESCRIPTION} describes it",
    )
