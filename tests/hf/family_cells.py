"""How each cell of the table of families is measured, by running the family's tiny model; and the record and the page.

``python tests/hf/family_cells.py`` measures every cell with the installed transformers and writes
benchmarks/records/families.json and docs/families.md. With ``--only NAME`` it prints one row.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import platform
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from families import COLUMNS, FAMILIES, REASONS, Family
from tiny_models import left_padded, tokens

import whence
from whence import hf
from whence.probe import likelihood
from whence.probe.probed_model import ProbedModel

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks" / "records" / "families.json"
PAGE = ROOT / "docs" / "families.md"
#: in units of the largest logit; what two orders of float32 sums differ by in two layers
ROUNDING = 64 * torch.finfo(torch.float32).eps
WINDOW = 6


def close(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return float((got - wanted).abs().max()) <= ROUNDING * float(wanted.abs().max())


def verdict(good: bool) -> str:
    return "yes" if good else "wrong"


def cell(measure: Callable[[], str]) -> str:
    """The result of a measurement; an error of whence by its short reason."""
    try:
        return measure()
    except whence.WhenceError as error:
        return shorten(f"refused: {error}")
    except Exception as error:  # of whatever kind, it is the cell's content and not the end of the other rows
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def shorten(text: str) -> str:
    """An error by its short reason; any other text unchanged."""
    for reason, words in REASONS.items():
        if text.startswith("refused: ") and words in text:
            return f"refused ({reason})"
    return text


class Row:
    """The cells of one family. A position that acts is attached wherever a cell asks for one."""

    def __init__(self, family: Family) -> None:
        self.family, self.model, self.ids = family, family.build(), tokens(length=10)
        self.layers: list[int] | None = None  # those that attend, where these are not all

    def cells(self, compiled: bool = False) -> dict[str, str]:
        result = {"attach": cell(self.attach)}
        works = not result["attach"].startswith("refused")
        result["rotation"] = cell(self.rotation) if works else "n/a"
        result["capture"] = cell(self.capture)
        result["probe"] = (
            "n/a" if "encoder" in result["attach"] or "tokens" in result["attach"] else cell(lambda: self.probe(works))
        )
        rest = {"save": self.save, "dynamic cache": self.dynamic, "static cache": self.static}
        result |= {name: cell(measure) if works else "n/a" for name, measure in rest.items()}
        result["sliding cache"] = result["dynamic cache"] if works and self.windowed else "n/a"
        if compiled:
            result["compile"] = cell(self.compile) if works else "n/a"
        return result

    def attached(self, position: Any = None) -> Any:
        given = whence.PowerPrior(self.heads, alpha=0.4) if position is None else position
        return hf.attach(self.model, given, layers=self.layers)

    @property
    def heads(self) -> int:
        return int(self.model.config.get_text_config().num_attention_heads)

    @torch.no_grad()
    def attach(self) -> str:
        """Nothing attached changes nothing, padded or not; a position changes something; detached, nothing is left."""
        every = hf.attention_layers(self.model)
        if len(every) < int(self.model.config.get_text_config().num_hidden_layers):
            try:
                hf.attach(self.model, whence.NoPosition())
            except whence.WhenceError as error:
                if f"pass layers={every}" not in str(error):
                    return f"the error does not name the layers {every}: {error}"
            self.layers = every
        padded = left_padded(self.ids, (5, 0))
        real = padded["attention_mask"].bool()
        whole, batch = self.model(self.ids, use_cache=False).logits, self.model(**padded, use_cache=False).logits
        with self.attached(whence.NoPosition()):
            same = close(self.model(self.ids, use_cache=False).logits, whole)
            same = same and close(self.model(**padded, use_cache=False).logits[real], batch[real])
        with self.attached():
            acts = not close(self.model(self.ids, use_cache=False).logits, whole)
        left = torch.equal(self.model(self.ids, use_cache=False).logits, whole)
        if not (same and acts and left):
            return f"wrong (same {same}, acts {acts}, detached {left})"
        return "yes" if self.layers is None else f"layers={self.layers}"

    def rotation(self) -> str:
        """Which layers the model rotates; a second rotation is refused in these and in no other."""
        with self.attached(whence.NoPosition()) as attachment:
            rotated = attachment.rotary_layers
        try:
            with self.attached(whence.Rotary(rotary_dim=4)):
                refused = False
        except whence.WhenceError:
            refused = True
        if not rotated:
            return "inside the attention module" if refused else "none"
        if not refused:
            return "wrong (rotates twice)"
        every = len(rotated) == int(self.model.config.get_text_config().num_hidden_layers)
        return "all layers" if every else f"layers {rotated}"

    @torch.no_grad()
    def capture(self) -> str:
        """The last row's weights sum to one, less what a sink takes."""
        reason = hf.capture_unavailable(self.model, self.layers)
        last = hf.LastRow()
        with hf.capture(self.model, last, layers=self.layers):
            self.model(self.ids, use_cache=False)
        total = last.stack().sum(-1)
        sinks = any("sinks" in name for name, _ in self.model.named_parameters())
        good = bool((total < 1).all()) if sinks else torch.allclose(total, torch.ones_like(total))
        if reason is not None or not good:
            return "wrong"
        return "yes" if self.layers is None else f"layers={self.layers}"

    @torch.no_grad()
    def probe(self, explained: bool) -> str:
        """Answers that are scored together score as each does alone, without a cache."""
        lm = ProbedModel(self.family.name, self.model, SimpleNamespace(pad_token_id=0, eos_token_id=0))
        text = tuple(self.ids[0, :9].tolist())
        branches = [
            likelihood.Branches(text, ((5, 6, 7), (8, 9, 10))),
            likelihood.Branches(text[:7], ((11, 12), (13, 3))),
        ]
        if lm.supports_branching:
            scores = likelihood.CachedPrompts(lm, branches).scores()
        else:
            scores = [likelihood.score_separately(lm, one) for one in branches]
        for one, got in zip(branches, scores, strict=True):
            for end, score in zip(one.ends, got, strict=True):
                ids = torch.tensor([[*one.shared, *end]])
                known = self.model(ids, use_cache=False).logits.float().log_softmax(-1)[0]
                rows = range(len(one.shared) - 1, ids.shape[1] - 1)
                alone = sum(float(known[row, token]) for row, token in zip(rows, end, strict=True))
                if abs(alone - score) > 1e-3:
                    return f"wrong ({score:.3f} together, {alone:.3f} alone)"
        return "yes" if explained else "curve only"

    @torch.no_grad()
    def save(self) -> str:
        """What ``save_pretrained`` writes is read back into a new model with the same kind of position."""
        with tempfile.TemporaryDirectory() as folder:
            with self.attached(whence.PowerPrior(self.heads, alpha=0.7)):
                wanted = self.model(self.ids, use_cache=False).logits
                self.model.save_pretrained(folder)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                again = (
                    type(self.model)
                    .from_pretrained(folder, attn_implementation=self.model.config._attn_implementation)
                    .eval()
                )
            with hf.attach(again, whence.PowerPrior(self.heads, alpha=0.7), layers=self.layers):
                hf.read_positions(again, folder)
                return verdict(close(again(self.ids, use_cache=False).logits, wanted))

    def dynamic(self) -> str:
        return self.steps(lambda: None)

    def static(self) -> str:
        return self.steps(lambda: transformers.StaticCache(config=self.model.config, max_cache_len=16))

    @property
    def windowed(self) -> bool:
        """Whether the steps of the caches go beyond a window or a chunk."""
        config = self.model.config.get_text_config()
        return WINDOW in [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]

    @torch.no_grad()
    def steps(self, empty: Callable[[], Any]) -> str:
        """Token by token from a cache, the logits are those of the whole text; n/a where the model alone cannot do it."""
        try:
            able = close(self.stepwise(empty()), self.model(self.ids, use_cache=False).logits)
        except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError):
            able = False
        if not able:
            return "n/a"
        with self.attached():
            return verdict(close(self.stepwise(empty()), self.model(self.ids, use_cache=False).logits))

    def stepwise(self, cache: Any) -> torch.Tensor:
        parts = []
        takes_ids = "position_ids" in inspect.signature(self.model.forward).parameters
        for begin, end in [(0, 5), *((n, n + 1) for n in range(5, self.ids.shape[1]))]:
            ids = {"position_ids": torch.arange(begin, end)[None]} if takes_ids else {}
            out = self.model(self.ids[:, begin:end], past_key_values=cache, use_cache=True, **ids)
            cache = out.past_key_values
            parts.append(out.logits)
        return torch.cat(parts, 1)

    @torch.no_grad()
    def compile(self) -> str:
        """One graph, and what it computes in eager mode."""
        named = {"use_cache": False} if "use_cache" in inspect.signature(self.model.forward).parameters else {}
        with self.attached():
            wanted = self.model(self.ids, **named).logits
            try:
                return verdict(close(self._one_graph()(self.ids, **named).logits, wanted))
            except torch._dynamo.exc.TorchDynamoException as error:
                why = str(error).splitlines()[0]
        try:
            self._one_graph()(self.ids, **named)
        except torch._dynamo.exc.TorchDynamoException:
            return "n/a (the model itself does not trace)"
        return f"no ({why})"

    def _one_graph(self) -> Any:
        torch._dynamo.reset()
        return torch.compile(self.model, fullgraph=True, backend="eager", dynamic=False)


def measured(only: str | None = None, compiled: bool = True) -> dict[str, dict[str, str]]:
    """The rows of all families that the installed transformers has."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    result = {}
    for family in FAMILIES:
        if family.available and only in (None, family.name):
            try:
                row = Row(family)
            except Exception as error:  # an older version may take other settings, and refuses in its own way
                result[family.name] = {"attach": f"not built ({str(error).splitlines()[0]})"}
            else:
                result[family.name] = row.cells(compiled)
            print(family.name, {name: text for name, text in result[family.name].items() if text != "yes"}, flush=True)
    return result


def newest(record: dict[str, Any]) -> dict[str, Any]:
    """The run with the newest transformers, whose rows are the table."""
    return max(record["runs"], key=lambda run: tuple(int(part) for part in run["transformers"].split(".")))


def differences(run: dict[str, Any], table: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The cells of a run that are not the table's, by family; what it did not measure is left out."""
    result = {}
    for name, cells in run["families"].items():
        others = {column: text for column, text in cells.items() if text != table["families"].get(name, {}).get(column)}
        if others:
            result[name] = others
    return result


def about(run: dict[str, Any], table: dict[str, Any]) -> list[str]:
    """A run in words."""
    other = differences(run, table)
    measured = "every column" if any("compile" in cells for cells in run["families"].values()) else "all but compile"
    line = (
        f"- transformers {run['transformers']} with torch {run['torch']}: {len(run['families'])} families, {measured}"
    )
    if run is table:
        return [f"{line}; the table below."]
    lines = [f"{line}; {len(run['families']) - len(other)} of them as in the table."]
    return lines + [
        f"  - {name}: " + ", ".join(f"{column} {shorten(text)}" for column, text in cells.items())
        for name, cells in other.items()
    ]


def page(record: dict[str, Any]) -> str:
    """The table as Markdown, from the record alone."""
    table = newest(record)
    lines = [
        "# Families of transformers",
        "",
        "Each cell is the result of a test on a tiny random model of the family (`tests/hf/family_cells.py`). "
        "Run `python tests/hf/family_cells.py` to measure again and write this page.",
        "",
        *(line for run in record["runs"] for line in about(run, table)),
        "",
        "**attach**: `NoPosition` changes no logits, with and without padding; another position changes them; detaching "
        "restores the model. `layers=[...]` is the argument for a model that mixes attention with other layers "
        "(`hf.attention_layers(model)`). **rotation**: the layers whose queries and keys the model rotates, without NoPE "
        "layers. **capture**: the last row of attention weights. **probe**: answers scored in one batch get the same scores "
        "as each alone; *curve only* means that explanations, which need capture, are unavailable. **save**: positions "
        "written by `save_pretrained` are read back. **dynamic, static and sliding cache**: decoding token by token gives the "
        "logits of a full forward pass; sliding is measured beyond a window or a chunk; n/a if the model alone does not "
        "give the same logits with that cache either. **compile**: `torch.compile(fullgraph=True)` traces one graph that "
        "agrees with eager mode.",
        "",
        "| family | " + " | ".join(COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for name, cells in table["families"].items():
        lines.append(f"| {name} | " + " | ".join(cells[column] for column in COLUMNS) + " |")
    return "\n".join(lines) + "\n"


def commit() -> str:
    """The commit that was measured, marked when tracked files differ from it; or the one that the caller names."""
    if handed := os.environ.get("WHENCE_COMMIT"):
        return handed
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the table of families.")
    parser.add_argument("--only", help="Print the row of one family; write nothing.")
    parser.add_argument(
        "--without-compile", action="store_true", help="Leave the compile column out, for older versions."
    )
    parser.add_argument("--page", action="store_true", help="Write the page from the record; measure nothing.")
    given = parser.parse_args()
    record: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {"runs": []}
    if not given.page:
        run = {
            "transformers": transformers.__version__,
            "torch": torch.__version__.split("+")[0],
            "python": platform.python_version(),
            "commit": commit(),
            "families": measured(given.only, not given.without_compile),
        }
        if given.only:
            return
        runs = [kept for kept in record["runs"] if kept["transformers"] != run["transformers"]]
        record["runs"] = sorted([*runs, run], key=lambda one: one["transformers"])
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(page(record))


if __name__ == "__main__":
    main()
