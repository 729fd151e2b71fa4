"""``whence discover --model``: name the distance profile of every head of a pretrained model."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence import records
from whence.errors import usage_error


@dataclass(frozen=True)
class Texts:
    """Texts of the same number of tokens."""

    count: int = 5
    tokens: int = 512


QUICK = Texts(3, 128)


class Parts:
    """The finished parts of a measurement: each text and each layer is one record, until all are one.

    Args:
        folder: of the records.
        deadline: of ``time.monotonic``; the first part that ends after it raises ``OutOfTime``.
    """

    def __init__(self, folder: Path, deadline: float) -> None:
        self.folder, self.deadline = folder, deadline

    def keep(self, name: str, compute: Callable[[], Any]) -> Any:
        """The stored part of this name; otherwise it is computed and stored."""
        from whence.cli.progress import OutOfTime

        path = self.folder / f"{name}.json"
        if not path.exists():
            records.write(path, {"part": compute()})
            if time.monotonic() > self.deadline:
                raise OutOfTime
        return records.read(path)["part"]

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def discover_model(
    name: str, data: str | None, texts: Texts, out: Path, deadline: float, results: dict[str, Any]
) -> None:
    """Measure the profiles, name them, and write the record and the page. A record of the same model and texts is read.

    After ``deadline`` the work stops with the next text or layer; the same command resumes it.
    """
    from whence import probe
    from whence.cli.discover_report import summarize_profiles, write_profile_report
    from whence.cli.progress import OutOfTime
    from whence.discover.attention_profiles import measure_profiles, name_profiles
    from whence.probe.identity import identify
    from whence.report.record_page import PROFILES

    records.require_output_folder("--out", out)
    text, source = read_text(data)
    lm = probe.load(name, command="whence discover --model")
    rows = cut_tokens(lm.tokenizer, text, texts, source)
    plan = {
        "model": name, "source": source, "texts": texts.count, "tokens": texts.tokens, "identity": identify(lm),
        "inputs": hashlib.sha256(json.dumps([row.tolist() for row in rows]).encode()).hexdigest(),
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:12]
    folder = out / f"profiles-{Path(name).name}-{digest}"
    path = folder / PROFILES
    if not records.exists(path):
        parts = Parts(folder / "parts", deadline)
        heads = int(lm.model.config.get_text_config().num_attention_heads)
        began = time.monotonic()

        def on_head(done: int, total: int) -> None:
            if done % heads == 0:
                left = (time.monotonic() - began) / done * (total - done)
                _report(f"named {done} of {total} heads" + (f"; about {left:.0f} s left" if left else ""))

        try:
            curves = measure_profiles(
                lm.model, rows, lambda done: _report(f"text {done} of {texts.count}"), keep=parts.keep
            )
            began = time.monotonic()
            named = name_profiles(curves, heads, on_head=on_head, keep=parts.keep)
        except OutOfTime:
            _report("the time limit was reached; run the command again to resume")
            return
        record = {
            "hash": digest, "plan": plan, "num_heads": heads, **named, "command": records.rerun_command(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "environment": records.describe_environment(("torch", "transformers", "numpy", "scipy")),
        }  # fmt: skip
        records.write(path, json.loads(json.dumps(record)))
        parts.remove()
    stored, report = write_profile_report(folder)
    results.update(folder=folder, record=path, report=report, **summarize_profiles(stored))


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
