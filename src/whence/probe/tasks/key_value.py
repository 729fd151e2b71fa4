"""Key-value retrieval (Liu et al. 2023, arXiv 2307.03172): random UUIDs in a JSON object, the value of one key asked for.

The wording of the prompt is the published one, because figures of others were taken with it. The value of every other
key in the object is a rival, so a wrong choice says which slot was read instead.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

from whence.errors import usage_error
from whence.lab.data.folder import data_file
from whence.probe.tasks.prompts import Item, Task, require_items
from whence.probe.tasks.published_files import read_rows

FILE = "lost_in_the_middle/kv-retrieval-75_keys.jsonl.gz"


def generated(items: int, pairs: int = 10, seed: int = 0) -> Task:
    """Items with so many random pairs each; the seed decides them all."""
    require_items("key_value.generated", max(items, 0), items)
    if pairs < 2:
        raise usage_error("key_value.generated", f"{pairs} pairs", "the gold has rivals", "take at least 2")
    draw = random.Random(seed)
    made = []
    for _ in range(items):
        drawn = [(_uuid(draw), _uuid(draw)) for _ in range(pairs)]
        made.append(_item(drawn, drawn[0][0]))
    source = "generated keys and values in the published layout (Liu et al. 2023); not the published data"
    return _task(f"{pairs} keys", made, {"pairs": pairs, "items": items, "seed": seed}, source)


def published(items: int) -> Task:
    """The first items of the published file of 75 keys, from the data folder; another file of that name is not called so."""
    path = data_file("key_value.published", "lost_in_the_middle", FILE, "take generated pairs")
    rows, genuine = read_rows(path, "key-value-75")
    require_items("key_value.published", len(rows), items)
    made = [_item([(k, v) for k, v in row["ordered_kv_records"]], row["key"]) for row in rows[:items]]
    keys = 1 + len(made[0].others)
    if genuine:
        source = f"published data (Liu et al. 2023): {path.name}, the first {items} of {len(rows)} items"
        return _task(f"{keys} keys, published", made, {"file": FILE, "items": items}, source)
    source = f"{path.name} from the data folder; its content is not that of the published file"
    return _task(f"{keys} keys, from a file", made, {"file": FILE, "items": items}, source)


def _item(pairs: list[tuple[str, str]], key: str) -> Item:
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


def _task(name: str, items: list[Item], settings: dict[str, Any], source: str) -> Task:
    return Task(
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
