"""Write the formulas of kinds of heads as a Position: a Python file of about ten lines."""

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

    def __init__(self):
        super().__init__({heads}){parameters}

    def {hook}(self, distance, length):
        d = distance.abs()
{values}
'''


def format_mechanism(kinds: Sequence[Kind], name: str = "Discovered") -> str:
    """The text of a file with a Position that has the formulas of some kinds as initial values.

    Amplitudes and smooth parameters are learnable. A constant that softmax cannot see is left out: the bias of each head
    has no offset, and a scale is 1 at distance 0 if it can be.
    """
    if not kinds or not name.isidentifier():
        got = "no kind" if not kinds else f"name={name!r}"
        raise usage_error(
            "format_mechanism", got, "it needs the result of discover and a class name", "pass both of them"
        )
    hook = kinds[0].naming.fit.hook
    heads = sum(len(kind.heads) for kind in kinds)
    shared = heads == 1  # a table of all heads: one curve for any number of them
    parameters, values, names = [], [], []
    for number, kind in enumerate(kinds):
        prefix = f"k{number}_" if len(kinds) > 1 else ""
        own, expression = _format_kind(kind, prefix, shared)
        parameters += own
        names.append(f"k{number}" if len(kinds) > 1 else "out")
        values.append(f"{names[-1]} = {expression}")
    order = np.argsort([head for kind in kinds for head in kind.heads], kind="stable").tolist()
    joined = names[0] if len(names) == 1 else f"torch.cat([{', '.join(names)}])"
    joined = joined if order == sorted(order) else f"{joined}[{order}]"
    values.append(f"return {joined}.to(distance.dtype)")
    indent = "\n        "
    return HEAD.format(
        title=f"A {hook} over distance, named by whence discover.",
        formulas="\n".join(kind.describe() for kind in kinds),
        name=name,
        about="; ".join(dict.fromkeys(kind.name for kind in kinds)).capitalize() + ".",
        heads="" if shared else f"heads={heads}",
        parameters="".join(indent + line for line in parameters),
        hook="bias" if hook == "bias" else "score_scale",
        values="        " + indent.join(values),
    )


def _format_kind(kind: Kind, prefix: str, shared: bool) -> tuple[list[str], str]:
    """The assignments of a kind's parameters, and the expression ``[heads, n]`` of its values."""
    fit = kind.naming.fit
    if not fit.candidate.shapes:
        like = "torch.zeros_like(d)" if fit.hook == "bias" else "torch.ones_like(d)"
        return [], like if shared else f"{like}.expand({len(kind.heads)}, -1)"
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
        terms = [f"({first}) * ({second})" for first, second in itertools.product(*texts)]
    else:
        terms = [text for part in texts for text in part]
    rows = _normalized(fit)
    summands = []
    if fit.hook == "scale" and fit.candidate.offset:
        lines.append(f"self.{prefix}floor = {_format_numbers(rows[:, 0], shared)}")
        summands.append(f"self.{prefix}floor")
    for number, term in enumerate(terms):
        label = f"{prefix}amplitude{number + 1 if number else ''}"
        lines.append(f"self.{label} = {_format_numbers(rows[:, number + 1], shared)}")
        summands.append(f"self.{label} * ({term})")
    return lines, " + ".join(summands)


def _normalized(fit: Fit) -> np.ndarray:
    if fit.hook == "bias":
        return fit.coefficients
    start = fit.evaluate(np.zeros(1))
    usable = np.abs(start) > 1e-6 * np.abs(fit.coefficients).max(1, keepdims=True)
    return fit.coefficients / np.where(usable, start, 1.0)


def _format_numbers(numbers: np.ndarray, shared: bool) -> str:
    texts = [_format_number(number) for number in numbers]
    column = texts[0] if shared else f"[{', '.join(f'[{text}]' for text in texts)}]"
    return f"torch.nn.Parameter(torch.tensor({column}))"


def _format_number(number: float) -> str:
    return repr(float(f"{number:.6g}"))  # with a decimal point: a tensor of integers has no gradient


def write_mechanism(kinds: Sequence[Kind], path: Path | str, name: str = "Discovered") -> Path:
    """Write ``format_mechanism`` to a file and return its path. An existing file is not replaced."""
    path = Path(path)
    if path.exists():
        raise usage_error("write_mechanism(path)", str(path), "the file exists", "choose another path")
    records.write_text(path, format_mechanism(kinds, name))
    return path
