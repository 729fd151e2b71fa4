"""Questions about passages in the format of SQuAD (Rajpurkar et al. 2018, arXiv 1806.03822), and passages with shuffled sentences.

A file is SQuAD's own JSON, ``{"data": [{"title", "paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"text",
"answer_start"}]}]}]}]}``, or JSON Lines as Hugging Face writes it, one question a line with ``context``, ``question`` and
``answers: {"text": [...], "answer_start": [...]}``. A question without answers is unanswerable. Files may be compressed.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from whence.errors import WhenceError, usage_error
from whence.lab.data.corpora import ORIGINS, content_hash, data_folder
from whence.lab.data.rows import SPLIT_NAMES
from whence.lab.data.splits import stratified_split
from whence.lab.data.tables import COMPRESSED, decode_text, plain_suffix

#: places of the published parts in the data folder, without the suffix of a compression
PUBLISHED = {
    "train": ("squad/train-v2.0.json", "squad/train-v1.1.json", "squad/train.json"),
    "dev": ("squad/dev-v2.0.json", "squad/dev-v1.1.json", "squad/dev.json", "benchmarks/squad2/dev.json"),
}
SUFFIXES = (".json", ".jsonl")
#: articles from which on a single file is split by article; one with fewer is split by context
MIN_ARTICLES = 10
#: the end of a sentence: the space after a closing mark
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+")


@dataclass(frozen=True)
class Question:
    """A question about a context, with its accepted answers as texts and their first characters; none if unanswerable."""

    id: str
    title: str
    context: str
    question: str
    answers: tuple[tuple[str, int], ...] = ()

    @property
    def references(self) -> list[str]:
        return [text for text, _ in self.answers]


def read_questions(path: Path) -> list[Question]:
    """All questions of a file, with the answers at the characters that the file names."""
    text = decode_text(path)
    found = list(_read_lines(path, text) if plain_suffix(path) == ".jsonl" else _read_articles(path, text))
    if not found:
        raise _malformed(path, "no question")
    for one in found:
        for answer, start in one.answers:
            if one.context[start : start + len(answer)] != answer:
                got = f"question {one.id}, whose answer {answer!r} is not at character {start} of its context"
                raise _malformed(path, got)
    return found


def _read_articles(path: Path, text: str) -> Iterator[Question]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise _malformed(path, f"no JSON at line {error.lineno}") from None
    for number, article in enumerate(_field(path, content, "data", list)):
        title = str(article.get("title", number)) if isinstance(article, dict) else ""
        for paragraph in _field(path, article, "paragraphs", list):
            context = _field(path, paragraph, "context", str)
            for item in _field(path, paragraph, "qas", list):
                answers = [
                    (_field(path, one, "text", str), _field(path, one, "answer_start", int))
                    for one in _field(path, item, "answers", list)
                ]
                yield _question(path, item, title, context, answers)


def _read_lines(path: Path, text: str) -> Iterator[Question]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except json.JSONDecodeError:
            raise _malformed(path, f"no JSON at line {number}") from None
        answers = _field(path, item, "answers", dict)
        texts, starts = (_field(path, answers, name, list) for name in ("text", "answer_start"))
        if len(texts) != len(starts):
            raise _malformed(path, f"{len(texts)} answers and {len(starts)} places at line {number}")
        context = _field(path, item, "context", str)
        yield _question(path, item, str(item.get("title", context)), context, list(zip(texts, starts, strict=True)))


def _question(
    path: Path, item: Mapping[str, Any], title: str, context: str, answers: Sequence[tuple[str, int]]
) -> Question:
    unique = tuple(dict.fromkeys(answers))
    return Question(str(item.get("id", "")), title, context, _field(path, item, "question", str).strip(), unique)


def _field(path: Path, item: Any, name: str, kind: type) -> Any:
    if not isinstance(item, dict) or not isinstance(item.get(name), kind):
        raise _malformed(path, f"an item without {name} ({kind.__name__})")
    return item[name]


def _malformed(path: Path, got: str) -> WhenceError:
    rule = "it must have the format of SQuAD: JSON, or JSON Lines with context, question and answers"
    return usage_error("--data", f"{path.name} with {got}", rule, "correct the file")


def find_question_files(path: Path) -> dict[str, Path]:
    """The files of a folder by part, from names that start with train, dev or test; of one file, itself under the name ""."""
    if not path.exists():
        raise usage_error("--data", f"no file {path}", "it must name a file or a folder", "check the path")
    files = [path] if path.is_file() else [file for file in sorted(path.iterdir()) if file.is_file()]
    known = [file for file in files if plain_suffix(file) in SUFFIXES]
    if not known:
        got = f"{path.name} without a .json or .jsonl file" if path.is_dir() else path.name
        raise usage_error("--data", got, "questions are read from .json or .jsonl files", "check the path")
    if path.is_file():
        return {"": path}
    parts: dict[str, Path] = {}
    for file in known:
        part = SPLIT_NAMES.get(re.split(r"[^a-z]", file.name.lower())[0])
        if part in parts:
            got = f"{parts[part].name} and {file.name}"
            raise usage_error(
                "--data", got, f"a folder has one file of the part {part}", "remove or rename one of them"
            )
        if part is not None:
            parts[part] = file
    if "train" not in parts or len(parts) < 2:
        got = f"{path.name} with {', '.join(file.name for file in known)}"
        rule = "names that start with train, dev or test give the parts"
        raise usage_error("--data", got, rule, "rename the files, or name one file, whose articles are split")
    return parts


def find_published_file(subject: str, part: str) -> Path:
    """A published part in the data folder, plain or compressed."""
    folder = data_folder(subject, ORIGINS["squad"])
    names = PUBLISHED[part]
    for name in names:
        for suffix in ("", *COMPRESSED):
            if (folder / f"{name}{suffix}").is_file():
                return folder / f"{name}{suffix}"
    otherwise = ', or set train_part="dev" to train on a part of the development set' if part == "train" else ""
    raise usage_error(
        subject, f"no {names[0]} in {folder}", "WHENCE_DATA must name the folder that contains it", f"{ORIGINS['squad']}{otherwise}"
    )  # fmt: skip


def split_sentences(text: str) -> list[str]:
    """
    >>> split_sentences('It rained. "Why?" Bo slept.')
    ['It rained.', '"Why?"', 'Bo slept.']
    """
    edges = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    return [piece for a, b in pairwise(edges) if (piece := text[a:b].strip())] or [text]


def shuffle_sentences(question: Question) -> Question:
    """The same question with the sentences of its context in another order, which the id alone decides.

    Answers stay whole: a sentence end inside an answer does not count.

    >>> one = Question("7", "", "It rained. Ada left at 5 p. m. today. Bo slept.", "When?", (("5 p. m.", 23),))
    >>> one = shuffle_sentences(one)
    >>> one.context, one.context[one.answers[0][1] :][:7]
    ('Bo slept. Ada left at 5 p. m. today. It rained.', '5 p. m.')
    """
    spans = [(start, start + len(text)) for text, start in question.answers]
    cuts = [match.span() for match in _SENTENCE_END.finditer(question.context)]
    cuts = [(a, b) for a, b in cuts if not any(start < b and a < end for start, end in spans)]
    edges = [0, *(end for _, end in cuts), len(question.context)]
    sentences = [(a, b) for a, b in pairwise(edges) if question.context[a:b].strip()]
    order = random.Random(f"sentences/{question.id}/{question.question}").sample(sentences, len(sentences))
    shifts, texts, length = {}, [], 0
    for start, end in order:
        text = question.context[start:end].rstrip()
        shifts[start] = length - start
        texts.append(text)
        length += len(text) + 1
    answers = []
    for text, start in question.answers:
        own = next(a for a, b in sentences if a <= start < b)
        answers.append((text, start + shifts[own]))
    return replace(question, context=" ".join(texts), answers=tuple(answers))


def split_questions(name: str, questions: Sequence[Question], seed: int) -> tuple[dict[str, list[Question]], str]:
    """A tenth of the questions for test, a tenth for validation, by whole articles, or by contexts if there are few articles."""
    articles = len({one.title for one in questions}) >= MIN_ARTICLES
    keys = [one.title if articles else one.context for one in questions]
    if len(set(keys)) < 3:
        got = f"{name} with questions about {len(set(keys))} context{'s' if len(set(keys)) > 1 else ''}"
        raise usage_error("--data", got, "each part has contexts of its own", "add contexts, or name a folder of parts")
    parts = stratified_split(keys, [0] * len(keys), seed)
    read: dict[str, list[Question]] = {"train": [], "test": [], "validation": []}
    for one, part in zip(questions, parts, strict=True):
        read[part].append(one)
    what = "articles" if articles else "contexts"
    return read, f"80 % training, 10 % validation, 10 % test of {name} by seed {seed}; {what} stay whole"


def hash_questions(parts: Mapping[str, Sequence[Question]]) -> str:
    """A short hash of all questions, contexts and answers."""
    return content_hash(
        text
        for part, own in parts.items()
        for one in own
        for text in (part, one.context, one.question, *(f"{answer}@{start}" for answer, start in one.answers))
    )
