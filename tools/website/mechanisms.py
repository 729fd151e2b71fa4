"""Pages of the site about mechanisms: a gallery, and a page for each class with formula, picture, cost and when to use it.

A scaling of rotary frequencies in the catalogue has a page of its own.

Everything comes from the catalogue, the docstrings and the mechanisms themselves.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch

from api_tables import ACTS, markdown
from website.curves import draw_curves
from website.docstrings import to_markdown
from whence.attention import without_embedding
from whence.attention.arguments import Arguments
from whence.attention.backends import BACKENDS
from whence.attention.call import Request, prepare
from whence.attention.call import describe as describe_call
from whence.attention.fused import backend as fused
from whence.position.base import Position
from whence.position.catalogue import CATALOGUE, SHORT_NAMES, Entry
from whence.position.evaluate import evaluate_clock
from whence.position.rotary_scaling import Scaling

HEADS, HEAD_DIM = 8, 64  # of the counted parameters
PICTURE_HEADS, PICTURE_HEAD_DIM = 4, 16
USE = "Use it "
#: how often a hook is evaluated in one call of attention
EVALUATED = {
    "embed": "once for each token of the model's input",
    "rotate": "for each query and key vector",
    "score_scale": "for each distance",
    "bias": "for each distance",
    "content_bias": "for each pair of query and key",
    "value_bias": "for each query and distance",
    "sink": "for each query position",
    "clock": "once for each token of the layer's input",
}


@dataclass(frozen=True)
class Mechanism:
    """A class of the catalogue with its entries."""

    kind: type[Position] | type[Scaling]
    entries: tuple[Entry, ...]

    @property
    def name(self) -> str:
        return self.kind.__name__

    @property
    def page(self) -> str:
        return f"mechanisms/{self.name}.md"

    @property
    def text(self) -> str:
        """The formula with its source: the docstring of its module, or that of a scaling without its arguments."""
        if issubclass(self.kind, Scaling):
            return (inspect.getdoc(self.kind) or "").partition("\nArgs:")[0]
        return inspect.getdoc(sys.modules[self.kind.__module__]) or ""

    @property
    def use(self) -> str:
        """The paragraph that says when to use it; empty without one."""
        paragraphs = re.split(r"\n\s*\n", self.text)
        return " ".join(next((one for one in paragraphs if one.startswith(USE)), "").split())


def list_mechanisms(catalogue: Iterable[Entry] = CATALOGUE) -> list[Mechanism]:
    """The classes of the catalogue, in its order."""
    found: dict[type[Position] | type[Scaling], list[Entry]] = {}
    for entry in catalogue:
        position = entry.make(PICTURE_HEADS, PICTURE_HEAD_DIM)
        found.setdefault(type(getattr(position, "scaling", None) or position), []).append(entry)
    return [Mechanism(kind, tuple(entries)) for kind, entries in found.items()]


def mechanism_pages(documented: dict[str, str]) -> dict[str, str]:
    """The gallery and the page of each mechanism, by their paths. ``documented`` gains the classes that they document."""
    mechanisms = list_mechanisms()
    for mechanism in mechanisms:
        documented[f"{mechanism.kind.__module__}.{mechanism.name}"] = mechanism.page
    pages = {mechanism.page: describe(mechanism) for mechanism in mechanisms}
    return {"mechanisms/index.md": gallery(mechanisms), **pages}


def gallery(mechanisms: list[Mechanism]) -> str:
    """Cards of all mechanisms."""
    lines = [
        "# Gallery of mechanisms", "",
        "Each picture shows the effect of position on a score of 1 over the distance between query and key, with a line for each "
        f"of {PICTURE_HEADS} heads. Learnable mechanisms are shown as initialized. "
        "The [table](../mechanisms.md) has all of them side by side, and [your first mechanism](../tutorials/first-mechanism.md) adds yours.",
        "", '<div class="grid cards" markdown>', "",
    ]  # fmt: skip
    for one in mechanisms:
        entry = one.entries[0]
        lines += [
            f"-   **[{one.name}]({one.name}.md)**", "", f"    {draw(entry)}", "",
            f"    {_capitalize(entry.idea)}.", "",
        ]  # fmt: skip
    return "\n".join([*lines, "</div>", ""])


def describe(mechanism: Mechanism) -> str:
    """The page of one mechanism."""
    parts = [part for part in re.split(r"\n\s*\n", mechanism.text) if not part.strip().startswith(USE)]
    title, _, body = to_markdown("\n\n".join(parts)).partition("\n")
    lines = [f"# {mechanism.name}", "", title, ""]
    for entry in mechanism.entries:
        lines += [f"**{_capitalize(entry.idea)}** ({entry.source})", "", draw(entry), ""]
        lines += ["```python", f"whence.{entry.make(HEADS, HEAD_DIM)!r}", "```", ""]
    lines += ["## Formula", "", body.strip("\n"), ""]  # a formula is indented: code
    if mechanism.use:
        lines += ["## When to use it", "", mechanism.use, ""]
    rows = [[entry.name, *describe_cost(entry.make(HEADS, HEAD_DIM))] for entry in mechanism.entries]
    head = ["", "acts on", "evaluated", "learnable parameters", "backends", "cached decoding"]
    names = [f"`{name}`" for name, text in SHORT_NAMES.items() if text.partition("(")[0] == mechanism.name]
    lines += [
        "## Cost", "", markdown(head, rows), "",
        f"Parameters of one layer with {HEADS} heads of dimension {HEAD_DIM}. A function of distance is evaluated at the distances "
        "that occur, not for each pair of query and key, and it trains through a table of these values. "
        "[GPU performance](../gpu-performance.md) has measured times.", "",
    ]  # fmt: skip
    if names:
        lines += [f"On the command line: {', '.join(names)}.", ""]
    return "\n".join([*lines, f"::: {mechanism.kind.__module__}.{mechanism.name}", ""])


def describe_cost(position: Position) -> list[str]:
    """What a mechanism acts on, how often it is evaluated, its parameters, its backends, and whether it decodes with a cache."""
    hooks = [hook for hook in ACTS if hook in position.effects or (hook == "embed" and position.at_input())]
    acts = "; ".join(ACTS[hook] for hook in hooks) or "nothing"
    evaluated = list(dict.fromkeys(EVALUATED[hook] for hook in hooks))
    if position.length == "query":
        evaluated = [text.replace("each distance", "each query and distance") for text in evaluated]
    parameters = sum(one.numel() for one in position.parameters() if one.requires_grad)
    cache = "refused" if position.length == "sequence" else "exact"
    return [acts, "; ".join(evaluated) or "never", f"{parameters:,}", list_backends(position), cache]


def list_backends(position: Position) -> str:
    """The backends that run a causal call with the mechanism, on a device that they support."""
    learning = _describe_call(position)
    with torch.no_grad():
        frozen = _describe_call(position)
    names = []
    with patch.object(fused, "why_unavailable", return_value=None):  # there may be no GPU here
        for name, backend in BACKENDS.items():
            if backend.supports(learning) is None:
                names.append(f"`{name}`")
            elif backend.supports(frozen) is None:
                names.append(f"`{name}` if frozen")
    return ", ".join(names)


def _describe_call(position: Position) -> Request:
    q, x = torch.zeros(1, HEADS, 4, HEAD_DIM), torch.zeros(1, 4, HEADS * HEAD_DIM)
    inside = without_embedding(position)
    clock, q_input = evaluate_clock(inside, x, HEADS), x if inside.reads_input else None
    call = prepare(Arguments(q, q, q, position=inside, clock=clock, q_input=q_input, causal=True))
    return replace(describe_call(call), input_gradient=False)  # FlexAttention computes it on a GPU alone


def draw(entry: Entry) -> str:
    """The picture of an entry, as SVG in one line."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same picture every time
        position = entry.make(PICTURE_HEADS, PICTURE_HEAD_DIM)
    return draw_curves(position, entry.name)


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
