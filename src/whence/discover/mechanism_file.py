"""Write the formulas of kinds of heads as a Position: a Python file of about ten lines.

Each kind has one row of shapes over distance, and ``kinds`` says which row each head of a layer has. The amplitudes are those
of the heads. With several layers the class has the argument ``layer``, which the lab fills in; deeper models repeat the layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from whence import records
from whence.discover.fitting import Fit
from whence.discover.kinds import Kind
from whence.errors import usage_error

HEAD = '''"""{title}

{formulas}
"""

import torch

from whence import Position


class {name}(Position):
    """{about}"""

    def __init__(self{layer}):
        super().__init__({heads}){parameters}
'''
HOOK = """
    def {hook}(self, distance, length):
        d = distance.abs()
        return ({value}).to(distance.dtype)
"""
HOOKS = {"bias": "bias", "scale": "score_scale"}


def format_mechanism(kinds: Sequence[Kind], name: str = "Discovered", layers: int = 1) -> str:
    """The text of a file with a Position that has the formulas of some kinds as initial values.

    Amplitudes and smooth parameters are learnable. A constant that softmax cannot see is left out: the bias of each head
    has no offset, and a scale is 1 at distance 0 if it can be.

    Args:
        kinds: the kinds of all heads; those of a bias and of a scale may be joined.
        name: of the class.
        layers: the heads of the kinds are numbered through all layers, those of the first layer first.
    """
    if not kinds or not name.isidentifier():
        got = "no kind" if not kinds else f"name={name!r}"
        raise usage_error(
            "format_mechanism", got, "it needs the result of discover and a class name", "pass both of them"
        )
    by_hook = {hook: [kind for kind in kinds if kind.naming.fit.hook == hook] for hook in HOOKS}
    hooks = {hook: own for hook, own in by_hook.items() if own}
    counts = {sum(len(kind.heads) for kind in own) for own in hooks.values()}
    if len(counts) > 1 or counts.pop() % layers:
        raise usage_error(
            "format_mechanism(layers=...)",
            f"{layers} for {sum(len(kind.heads) for kind in kinds)} heads",
            "every layer has the same number of heads, for a bias and for a scale",
            "pass the number of layers of the model",
        )
    heads = sum(len(kind.heads) for kind in next(iter(hooks.values()))) // layers
    assignments, methods = [], ""
    for hook, own in hooks.items():
        lines, value = _format_hook(own, f"{hook}_" if len(hooks) > 1 else "", layers, heads)
        assignments += lines
        methods += HOOK.format(hook=HOOKS[hook], value=value)
    indent = "\n        "
    head = HEAD.format(
        title=f"A {' and a '.join(hooks)} over distance, named by whence discover.",
        formulas="\n".join(kind.describe(heads if layers > 1 else None) for kind in kinds),
        name=name,
        about="; ".join(dict.fromkeys(kind.name for kind in kinds)).capitalize() + ".",
        layer=", layer=0" if layers > 1 else "",
        heads="" if heads == 1 else f"heads={heads}",  # one curve serves any number of heads
        parameters="".join(indent + line for line in assignments),
    )
    return head + methods


def _format_hook(kinds: Sequence[Kind], prefix: str, layers: int, heads: int) -> tuple[list[str], str]:
    """The assignments of a hook's parameters, and the expression of its values."""
    lines: list[str] = []
    rows: list[list[str]] = []  # the terms of each kind
    total = layers * heads
    which, numbers = np.zeros(total, int), np.zeros((total, 1 + max(kind.naming.fit.candidate.terms for kind in kinds)))
    is_bias = kinds[0].naming.fit.hook == "bias"
    if numbers.shape[1] == 1:  # no effect anywhere
        return [], _format_constant(is_bias, heads)
    for number, kind in enumerate(kinds):
        own, terms = _format_terms(kind.naming.fit, f"{prefix}k{number}_" if len(kinds) > 1 else prefix)
        lines += own
        rows.append(terms)
        which[list(kind.heads)] = number
        numbers[list(kind.heads), : 1 + len(terms)] = _normalized(kind.naming.fit)
    numbers[:, 0] = 0 if is_bias else numbers[:, 0]
    if len(kinds) > 1:
        by_layer = which.reshape(layers, heads).tolist()
        own_kinds = [row[0] for row in by_layer] if heads == 1 else by_layer
        lines.append(f"self.{prefix}kinds = {_select_layer(own_kinds, layers)}")
    summands = []
    if not is_bias and any(kind.naming.fit.candidate.offset for kind in kinds):
        lines.append(f"self.{prefix}floor = {_format_numbers(numbers[:, 0], layers, heads)}")
        summands.append(f"self.{prefix}floor")
    for term in range(numbers.shape[1] - 1):
        label = f"{prefix}amplitude{term + 1 if term else ''}"
        lines.append(f"self.{label} = {_format_numbers(numbers[:, term + 1], layers, heads)}")
        parts = [row[term] if term < len(row) else "torch.zeros_like(d)" for row in rows]
        value = parts[0] if len(parts) == 1 else f"torch.stack([{', '.join(parts)}])[self.{prefix}kinds]"
        summands.append(f"self.{label} * ({value})" if len(parts) == 1 else f"self.{label} * {value}")
    return lines, " + ".join(summands)


def _format_constant(is_bias: bool, heads: int) -> str:
    like = "torch.zeros_like(d)" if is_bias else "torch.ones_like(d)"
    return like if heads == 1 else f"{like}.expand({heads}, -1)"


def _format_terms(fit: Fit, prefix: str) -> tuple[list[str], list[str]]:
    """The assignments of the shapes' parameters, and the terms as expressions of ``d``."""
    lines, texts, used = [], [], 0
    for shape in fit.candidate.shapes:
        labels = fit.candidate.parameters[used : used + len(shape.parameters)]
        own = dict(zip(shape.parameters, zip(labels, fit.parameters[used:], strict=False), strict=True))
        used += len(shape.parameters)
        replaced = {}
        for parameter, (label, value) in own.items():
            if shape.exact:
                replaced[parameter] = f"{value:.6g}"
            else:
                lines.append(f"self.{prefix}{label} = torch.nn.Parameter(torch.tensor({_format_number(value)}))")
                replaced[parameter] = f"self.{prefix}{label}"
        texts.append([code.format(**replaced) for code in shape.code])
    if fit.candidate.product:
        return lines, [f"({first}) * ({second})" for first, second in itertools.product(*texts)]
    return lines, [text for part in texts for text in part]


def _normalized(fit: Fit) -> np.ndarray:
    """Offset and amplitudes by head; a scale is 1 at distance 0 if it can be."""
    if fit.hook == "bias":
        return fit.coefficients
    start = fit.evaluate(np.zeros(1))
    usable = np.abs(start) > 1e-6 * np.abs(fit.coefficients).max(1, keepdims=True)
    return fit.coefficients / np.where(usable, start, 1.0)


def _format_numbers(numbers: np.ndarray, layers: int, heads: int) -> str:
    """A learnable column with a number for each head of a layer."""
    texts = [_format_number(number) for number in numbers]
    parts = [texts[layer * heads : (layer + 1) * heads] for layer in range(layers)]
    rows = [own[0] if heads == 1 else f"[{', '.join(f'[{text}]' for text in own)}]" for own in parts]
    column = rows[0] if layers == 1 else f"[{', '.join(rows)}][layer % {layers}]"
    return f"torch.nn.Parameter(torch.tensor({column}))"


def _select_layer(values: list[int] | list[list[int]], layers: int) -> str:
    return str(values[0]) if layers == 1 else f"{values}[layer % {layers}]"


def _format_number(number: float) -> str:
    return repr(float(f"{number:.6g}"))  # with a decimal point: a tensor of integers has no gradient


def write_mechanism(kinds: Sequence[Kind], path: Path | str, name: str = "Discovered", layers: int = 1) -> Path:
    """Write ``format_mechanism`` to a file and return its path. A file with another text is not replaced."""
    path, text = Path(path), format_mechanism(kinds, name, layers)
    if path.exists() and path.read_text("utf-8") != text:
        raise usage_error(
            "write_mechanism(path)", str(path), "the file exists and has another text", "choose another path"
        )
    records.write_text(path, text)
    return path
