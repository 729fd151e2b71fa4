"""``whence discover --model``: name the distance profile of every head of a pretrained model."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence import records
from whence.errors import usage_error

RECORD, PAGE = "profiles.json", "report.html"


@dataclass(frozen=True)
class Texts:
    """Texts of the same number of tokens."""

    count: int = 5
    tokens: int = 512


QUICK = Texts(3, 128)


def discover_model(name: str, data: str | None, texts: Texts, out: Path, results: dict[str, Any]) -> None:
    """Measure the profiles, name them, and write the record and the page. A record of the same model and texts is read."""
    from whence import probe
    from whence.discover.attention_profiles import measure_profiles, name_profiles
    from whence.probe.identity import identify
    from whence.report.discovery.profile_page import page, profile_lines

    records.require_output_folder("--out", out)
    text, source = read_text(data)
    lm = probe.load(name)
    rows = cut_tokens(lm.tokenizer, text, texts, source)
    plan = {
        "model": name, "source": source, "texts": texts.count, "tokens": texts.tokens, "identity": identify(lm),
        "inputs": hashlib.sha256(json.dumps([row.tolist() for row in rows]).encode()).hexdigest(),
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:12]
    folder = out / f"profiles-{Path(name).name}-{digest}"
    path = folder / RECORD
    if not records.exists(path):
        curves = measure_profiles(lm.model, rows, lambda done: _report(f"text {done} of {texts.count}"))
        heads = int(lm.model.config.get_text_config().num_attention_heads)
        began = time.monotonic()

        def on_head(done: int, total: int) -> None:
            if done % heads == 0:
                left = (time.monotonic() - began) / done * (total - done)
                _report(f"named {done} of {total} heads" + (f"; about {left:.0f} s left" if left else ""))

        named = name_profiles(curves, heads, on_head=on_head)
        record = {
            "hash": digest, "plan": plan, "num_heads": heads, **named, "command": records.rerun_command(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "environment": records.describe_environment(("torch", "transformers", "numpy", "scipy")),
        }  # fmt: skip
        records.write(path, json.loads(json.dumps(record)))
    stored = records.read(path)
    records.write_text(folder / PAGE, page(stored))
    print("\n".join(profile_lines(stored)))
    print(f"report: {folder / PAGE}")
    listed = [{key: one[key] for key in ("layer", "head", "name", "formula", "explained")} for one in stored["heads"]]
    results.update(folder=folder, record=path, report=folder / PAGE, families=stored["families"], heads=listed)


def read_text(data: str | None) -> tuple[str, str]:
    """The text to measure on, and its name: --data, or the held-out help topics of Python."""
    from whence.lab.data import python_texts, text_files

    if data is None:
        return "\n\n".join(python_texts.topics("whence discover").test.values()), "Python's help topics, held-out part"
    corpus = text_files.read_corpus(Path(data), 0)
    return "\n".join(corpus.parts.values()), Path(data).name


def cut_tokens(tokenizer: Any, text: str, texts: Texts, source: str) -> list[Any]:
    """Rows of tokens from the beginning of a text, without overlap."""
    import torch

    ids = tokenizer(text[: 40 * texts.count * texts.tokens], add_special_tokens=False)["input_ids"]
    if len(ids) < texts.count * texts.tokens:
        raise usage_error(
            "whence discover --model",
            f"{len(ids)} tokens of {source}",
            f"{texts.count} texts of {texts.tokens} tokens are measured",
            "pass a longer text with --data, or lower --seeds or --context",
        )
    return [torch.tensor(ids[n * texts.tokens : (n + 1) * texts.tokens]) for n in range(texts.count)]


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
