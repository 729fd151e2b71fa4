"""The two tasks of Liu et al. 2023 (arXiv 2307.03172): key-value retrieval, and questions about several documents.

Key-value retrieval: random UUIDs in a JSON object; the answer is the value of one key. The prompt is worded as published,
so that results are comparable. The value of every other key is a rival, so a wrong choice identifies the slot that was
read instead.

Documents: one of several documents contains the answer. The published oracle file has one passage for each question. The
distractors here are passages of other questions, which are easier to tell apart than the retrieved ones of the paper. In
return, each of them answers another question, so its answer is a rival, and a wrong choice identifies the document that
was read instead. The layout of a prompt is the published one; the instruction is reworded.

The published files are recognized by their content, not by their names.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import uuid
from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.lab.answer_scores import normalize_answer
from whence.lab.data.corpora import ORIGINS, data_file
from whence.probe.tasks.task import Item, ProbeTask, require_items

KEY_VALUE_FILE = "lost_in_the_middle/kv-retrieval-75_keys.jsonl.gz"


def generate_key_values(items: int, pairs: int = 10, seed: int = 0) -> ProbeTask:
    """Items with ``pairs`` random key-value pairs each, determined by the seed."""
    require_items("the task key-value", max(items, 0), items)
    if pairs < 2:
        raise usage_error("the task key-value", f"pairs={pairs}", "the gold needs rivals", "pass at least 2")
    draw = random.Random(seed)
    task_items = []
    for _ in range(items):
        key_values = [(_uuid(draw), _uuid(draw)) for _ in range(pairs)]
        task_items.append(_key_value_item(key_values, key_values[0][0]))
    source = "generated keys and values in the published layout (Liu et al. 2023); not the published data"
    return _key_value_task(f"{pairs} keys", task_items, {"pairs": pairs, "items": items, "seed": seed}, source)


def load_published_key_values(items: int) -> ProbeTask:
    """The first items of the published file of 75 keys, from the data folder. A file with other content is not named published."""
    path = data_file("the task key-value-75", ORIGINS["lost_in_the_middle"], KEY_VALUE_FILE, "use the task key-value")
    rows, genuine = read_rows(path, "key-value-75")
    require_items("the task key-value-75", len(rows), items)
    task_items = [_key_value_item([(k, v) for k, v in row["ordered_kv_records"]], row["key"]) for row in rows[:items]]
    keys = 1 + len(task_items[0].others)
    if genuine:
        source = f"published data (Liu et al. 2023): {path.name}, the first {items} of {len(rows)} items"
        return _key_value_task(f"{keys} keys, published", task_items, {"file": KEY_VALUE_FILE, "items": items}, source)
    source = f"{path.name} from the data folder; its content is not that of the published file"
    return _key_value_task(f"{keys} keys, from a file", task_items, {"file": KEY_VALUE_FILE, "items": items}, source)


def _key_value_item(pairs: list[tuple[str, str]], key: str) -> Item:
    gold = next(value for name, value in pairs if name == key)
    others = [(name, value) for name, value in pairs if name != key]
    return Item(
        question=key,
        gold=_record(key, gold),
        others=tuple(_record(name, value) for name, value in others),
        answers=(gold,),
        rivals=tuple(value for _, value in others),
    )


def _record(key: str, value: str) -> str:
    return f'"{key}": "{value}"'


def _uuid(draw: random.Random) -> str:
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


def _key_value_task(name: str, items: list[Item], settings: dict[str, Any], source: str) -> ProbeTask:
    return ProbeTask(
        name=f"key-value, {name}",
        about="Random identifiers in a JSON object; the value of one key is asked for.",
        head="Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{",
        joint=",\n ",
        tail='}}\n\nKey: "{question}"\nCorresponding value:',
        lead=' "',
        label="",
        metric="value",
        paired=True,
        items=tuple(items),
        settings=settings,
        source=source,
    )


DOCUMENTS_FILE = "lost_in_the_middle/nq-open-oracle.jsonl.gz"


def build_documents(items: int, count: int = 10, seed: int = 0, words: int = 100) -> ProbeTask:
    """Questions with ``count`` documents each, each cut after ``words`` words (the published ones have 100)."""
    path = data_file(
        "documents", ORIGINS["lost_in_the_middle"], DOCUMENTS_FILE, "probe with key-value pairs or a needle"
    )
    rows, genuine = read_rows(path, "documents")
    origin = (
        f"the published {path.name} (Liu et al. 2023)" if genuine else f"{path.name}, which is not the published file"
    )
    return documents_from_rows(rows, items, count, seed, words, {"file": DOCUMENTS_FILE}, origin)


def documents_from_rows(
    rows: list[dict[str, Any]],
    items: int,
    count: int,
    seed: int,
    words: int,
    settings: dict[str, Any],
    origin: str = "rows that were handed over",
) -> ProbeTask:
    """The task from rows in the published format: ``question``, ``answers``, and ``ctxs`` with a title and a text."""
    if count < 2:
        raise usage_error("documents", f"count={count}", "the gold needs rivals", "pass at least 2")
    usable = [row for row in rows if _answer_in(_passage(row, words), row["answers"])]
    require_items("documents", len(usable), items)
    draw = random.Random(seed)
    order = draw.sample(usable, len(usable))
    task_items = []
    for row in order[:items]:
        others: list[dict[str, Any]] = []
        for other in draw.sample(order, len(order)):
            if len(others) == count - 1:
                break
            if _fits_beside(row, other, others, words):
                others.append(other)
        if len(others) < count - 1:
            raise usage_error(
                "documents",
                f"{count} documents",
                "no document may contain the answer of another",
                "pass a smaller count",
            )
        task_items.append(
            Item(
                question=row["question"],
                gold=_passage(row, words),
                others=tuple(_passage(other, words) for other in others),
                answers=(_answer_in(_passage(row, words), row["answers"]), *row["answers"]),
                rivals=tuple(_answer_in(_passage(other, words), other["answers"]) for other in others),
            )
        )
    return ProbeTask(
        name=f"questions, {count} documents",
        about="A question and several passages of an encyclopedia, one of which answers it.",
        head="Answer the question from these documents. Only one of them holds the answer.\n\n",
        joint="\n",
        tail="\n\nQuestion: {question}\nAnswer:",
        lead=" ",
        label="Document [{number}]",
        metric="subspan",
        paired=True,
        items=tuple(task_items),
        settings={**settings, "documents": count, "items": items, "seed": seed, "words": words},
        source=(
            f"questions and gold passages of {origin}; built distractors: passages of other questions, not the published "
            "retrieved ones"
        ),
    )


def _passage(row: dict[str, Any], words: int) -> str:
    gold = row["ctxs"][0]
    return f"(Title: {gold['title']}) {' '.join(gold['text'].split()[:words])}"


def _answer_in(passage: str, answers: list[str]) -> str:
    """The first accepted answer that occurs in the cut passage; empty if none does."""
    return next((answer for answer in answers if normalize_answer(answer) and answer.lower() in passage.lower()), "")


def _fits_beside(row: dict[str, Any], other: dict[str, Any], others: list[dict[str, Any]], words: int) -> bool:
    """Whether the passage of another question can be a distractor: neither passage answers the other question."""
    present = [row, *others]
    text, gold = normalize_answer(_passage(other, words)), normalize_answer(_passage(row, words))
    answer = normalize_answer(_answer_in(_passage(other, words), other["answers"]))
    return (
        bool(answer)
        and answer not in gold
        and not any(accepted in text for accepted in map(normalize_answer, row["answers"]) if accepted)
        and all(other["ctxs"][0]["title"] != one["ctxs"][0]["title"] for one in present)
        and not any(
            answer.startswith(other_answer)
            or other_answer.startswith(answer)  # the shorter of two would always be more likely
            for other_answer in (normalize_answer(_answer_in(_passage(one, words), one["answers"])) for one in present)
        )
    )


#: SHA-256 of the uncompressed published files
CONTENT = {
    "key-value-75": "a0b62bcf5c33d41acd002250633c41f4890071bd05716849513b14a69473cd60",
    "documents": "315fb590f71f7556c49152e72c3479d070c5b6a83f37025fe9b1f631d3ebbdcf",
}


def read_rows(path: Path, name: str) -> tuple[list[dict[str, Any]], bool]:
    """The rows of a file, and whether it is the published one."""
    try:
        raw = gzip.decompress(path.read_bytes())
        rows = [json.loads(line) for line in raw.split(b"\n") if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise usage_error(
            f"the task {name}", f"{path.name}: {error}", "it is lines of JSON, compressed with gzip", "restore the file"
        ) from None
    return rows, hashlib.sha256(raw).hexdigest() == CONTENT[name]
