"""Custom tasks: a JSONL file of items, which is validated completely first, or a ``ProbeTask`` from a module or a file.

    {"question": "Who built it?", "gold": "Ada built it.", "others": ["Ben saw it.", "Cy sold it."], "answers": ["Ada"]}

``gold`` is the text that answers the question, ``others`` are the other texts, and ``answers`` the accepted answers; the
likelihood is that of the first. ``rivals`` are wrong answers, the same number in each line. If a file has none, the first
answers of other lines are rivals.

``my_module:MyTask`` or ``./file.py:MyTask(words=3)`` names a class or function that is called with the number of items and
returns a ``ProbeTask``. Arguments in the text are literals; they are parsed and never evaluated. Code runs only when a
module or a file is named.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from whence.errors import WhenceError, usage_error
from whence.lab.answer_scores import normalize_answer
from whence.plugins import (
    PROBE_TASKS,
    is_reference,
    load_reference,
    load_registered,
    parse_arguments,
    parse_reference,
)
from whence.probe.tasks.task import Item, ProbeTask, neither_is_prefix, require_items, require_wrong_rivals

FIELDS = ("question", "gold", "others", "answers", "rivals", "id")
NUM_DRAWN_RIVALS = 9  # if the file has none


def load_items(items: int | None, file: str, slots: int | None = None) -> ProbeTask:
    """The task of the first items of a file, all by default.

    Args:
        slots: texts in each prompt, including the gold; by default all texts of the file. The first others are used.
    """
    path = Path(file)
    numbered_items = _read(path)
    require_items(f"--items {path.name}", len(numbered_items), len(numbered_items) if items is None else items)
    numbered_items = _with_rivals(path, numbered_items)[:items]
    if slots is not None:
        most = 1 + len(numbered_items[0][1].others)
        if not 2 <= slots <= most:
            raise usage_error(f"--items {path.name}", f"{slots} slots", f"its lines have {most}", f"take 2 to {most}")
        numbered_items = [(line, _truncate_item(item, slots - 1)) for line, item in numbered_items]
    loaded = tuple(item for _, item in numbered_items)
    return ProbeTask(
        name=f"{path.stem}, {1 + len(loaded[0].others)} texts",
        about=f"Questions from {path.name}, each with several texts, one of which answers it.{describe_suspect_items(loaded)}",
        head="Answer the question from these texts. Only one of them holds the answer.\n\n",
        joint="\n",
        tail="\n\nQuestion: {question}\nAnswer:",
        lead=" ",
        label="Text [{number}]: ",
        metric="subspan",
        paired=all(is_paired(item) for item in loaded),
        items=loaded,
        settings={"file": path.name, "items": len(loaded)},
        source=f"own items from {path.name}",
    )


def describe_suspect_items(items: tuple[Item, ...]) -> str:
    """A warning about golds without an answer and other texts with one, as sentences; empty if there are none.

    Both are accepted, because an answer may be worded differently from the text.

    >>> describe_suspect_items((Item("Who?", "Ben did.", ("Ada saw it.",), ("Ada",), ()),))
    ' In 1 of 1 items the gold contains none of the answers. In 1 of 1 items another text contains one.'
    """
    without = sum(not _contains_answer(item.gold, item) for item in items)
    beside = sum(any(_contains_answer(other, item) for other in item.others) for item in items)
    warning = f" In {without} of {len(items)} items the gold contains none of the answers." if without else ""
    return warning + (f" In {beside} of {len(items)} items another text contains one." if beside else "")


def _contains_answer(text: str, item: Item) -> bool:
    words = f" {normalize_answer(text)} "
    return any(f" {normalize_answer(answer)} " in words for answer in item.answers)


def is_paired(item: Item) -> bool:
    """Whether others[i] contains rivals[i], for every i."""
    return len(item.rivals) == len(item.others) > 0 and all(
        normalize_answer(rival) in normalize_answer(other)
        for rival, other in zip(item.rivals, item.others, strict=True)
    )


def _truncate_item(item: Item, others: int) -> Item:
    rivals = item.rivals[:others] if is_paired(item) else item.rivals
    return replace(item, others=item.others[:others], rivals=rivals)


def _read(path: Path) -> list[tuple[int, Item]]:
    """The items with their line numbers; empty lines are skipped."""
    subject = f"--items {path.name}"
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines would split inside texts
    except OSError as error:
        raise usage_error(
            subject, f"{error.strerror or error}", "it is a file of lines of JSON", "check the path"
        ) from None
    except UnicodeDecodeError as error:
        raise usage_error(
            subject, f"byte {error.start} that is not UTF-8", "it is a text in UTF-8", "convert it"
        ) from None
    numbered_items = [(number, _item(path, number, line)) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered_items:
        raise usage_error(subject, "no lines", "it has one item per line", "add some")
    first, first_item = numbered_items[0]
    for number, item in numbered_items:
        for name, values, first_values in (
            ("others", item.others, first_item.others),
            ("rivals", item.rivals, first_item.rivals),
        ):
            if len(values) != len(first_values):
                raise _line_error(
                    path,
                    number,
                    f"{len(values)} {name}",
                    f"line {first} has {len(first_values)}, and each line has as many",
                    "make them equal",
                )
    return numbered_items


def _item(path: Path, number: int, line: str) -> Item:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise _line_error(path, number, f"broken JSON at column {error.colno}", "a line is a JSON object") from None
    if not isinstance(row, dict):
        raise _line_error(path, number, f"a {type(row).__name__}", "a line is a JSON object")
    unknown = [name for name in row if name not in FIELDS]
    if unknown:
        raise _line_error(
            path, number, f"a field {unknown[0]!r}", f"the fields are {', '.join(FIELDS)}", "rename or drop it"
        )
    texts = {name: _text(path, number, name, row.get(name)) for name in ("question", "gold")}
    lists = {name: _texts(path, number, name, row.get(name), least=1) for name in ("others", "answers")}
    rivals = _texts(path, number, "rivals", row.get("rivals", []), least=0)
    require_wrong_rivals(_line_subject(path, number), lists["answers"], rivals)
    return Item(**texts, **lists, rivals=rivals)  # type: ignore[arg-type]


def _with_rivals(path: Path, numbered_items: list[tuple[int, Item]]) -> list[tuple[int, Item]]:
    """The items with rivals. Without rivals in the file, first answers of other lines are drawn: at most nine, equally many each."""
    if numbered_items[0][1].rivals:
        return numbered_items
    answers = list(dict.fromkeys(item.answers[0] for _, item in numbered_items))
    draw = random.Random(0)
    rivals_by_item = []
    for _, item in numbered_items:
        rivals: list[str] = []
        for other in draw.sample(answers, len(answers)):
            present = (*item.answers, *rivals)
            if len(rivals) < NUM_DRAWN_RIVALS and all(neither_is_prefix(other, one) for one in present):
                rivals.append(other)
        rivals_by_item.append(rivals)
    count = min(map(len, rivals_by_item))
    return [
        (number, replace(item, rivals=tuple(rivals[:count])))
        for (number, item), rivals in zip(numbered_items, rivals_by_item, strict=True)
    ]


def _text(path: Path, number: int, name: str, value: Any) -> str:
    if not _is_text(value):
        got = f"no {name}" if value is None else f"{name} {json.dumps(value)[:40]}"
        raise _line_error(path, number, got, f"{name} is a text that is not empty", "add it")
    return value


def _texts(path: Path, number: int, name: str, value: Any, least: int) -> tuple[str, ...]:
    texts = isinstance(value, list) and all(_is_text(one) for one in value)
    if not texts or len(value) < least:
        got = f"no {name}" if value is None else f"{name} {json.dumps(value)[:40]}"
        rule = f"{name} is a list of texts" + (", at least one" if least else "")
        raise _line_error(path, number, got, rule, "correct it")
    return tuple(value)


def _is_text(value: object) -> bool:
    """Whether it can be part of a prompt. JSON can contain lone surrogates, which no tokenizer accepts."""
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= sign <= "\udfff" for sign in value)


def _line_error(path: Path, number: int, got: str, rule: str, remedy: str = "correct that line") -> WhenceError:
    return usage_error(_line_subject(path, number), got, rule, remedy)


def _line_subject(path: Path, number: int) -> str:
    return f"--items {path.name}, line {number},"


METRICS = ("value", "subspan")


def load_task(text: str, items: int, **settings: Any) -> ProbeTask:
    """The task that a text names: ``my_module:MyTask``, ``./file.py:MyTask(words=3)`` or the name of an entry point.

    What is named is a ``ProbeTask``, or a class or function that is called with the number of items and returns one.
    Arguments in the text are literals; they are parsed and never evaluated.
    """
    subject = f"--task {text}"
    if is_reference(text):
        reference = parse_reference(text, "--task")
        name, arguments = reference.name, reference.arguments
        factory = load_reference(reference, subject)
    else:
        name, _, rest = text.partition("(")
        arguments = parse_arguments(f"({rest}" if rest else None, subject)
        factory = load_registered(PROBE_TASKS, name.strip(), subject)
    if isinstance(factory, ProbeTask):
        task: object = factory
    elif callable(factory):
        try:
            task = factory(items, **{**arguments, **settings})
        except WhenceError:
            raise
        except Exception as error:
            raise usage_error(
                subject,
                f"{type(error).__name__}: {error}",
                f"{name}(items) must return a task without an error",
                "correct it",
            ) from error
    else:
        raise usage_error(
            subject,
            f"a {type(factory).__name__}",
            f"{name} must be a class, a function or a ProbeTask",
            "check the name",
        )
    return replace(require_valid_task(subject, task, items), source=f"own task {text}")


def require_valid_task(subject: str, task: object, items: int) -> ProbeTask:
    """Return the task if its items have equal shapes and answers and its prompt contains the question."""
    if not isinstance(task, ProbeTask):
        raise usage_error(subject, type(task).__name__, "it must return a whence.probe.ProbeTask", "return one")
    require_items(subject, len(task.items), items)
    task = task.first(items)
    slots, rivals = len(task.items[0].others), len(task.items[0].rivals)
    for number, item in enumerate(task.items):
        wrong = None
        if len(item.others) != slots or not slots:
            wrong = f"{len(item.others)} others", f"each item has as many as the first, which has {slots}, at least one"
        elif len(item.rivals) != rivals or (task.paired and rivals != slots):
            wrong = f"{len(item.rivals)} rivals", "each item has as many, and in a paired task one for each other text"
        elif not item.answers:
            wrong = "no answers", "each item has at least one"
        if wrong:
            raise usage_error(f"{subject}, item {number},", *wrong, "correct the item")
        require_wrong_rivals(f"{subject}, item {number},", item.answers, item.rivals)
    if task.metric not in METRICS:
        raise usage_error(
            subject, f"the metric {task.metric!r}", f"it is one of {', '.join(METRICS)}", "choose one of them"
        )
    if "{question}" not in task.tail:
        raise usage_error(subject, f"the tail {task.tail!r}", "the tail must contain {question}", "add it")
    try:
        task.prompt(task.items[0], 0)
    except (KeyError, IndexError, ValueError) as error:
        raise usage_error(
            subject,
            f"the tail {task.tail!r} and the label {task.label!r} ({type(error).__name__}: {error})",
            "the tail may contain {question} and the label {number}; other braces must be doubled",
            "correct them",
        ) from None
    return task
