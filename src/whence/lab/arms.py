"""An arm of a study: a position mechanism written as text, so that a spec can be hashed, stored and typed in a shell.

    Rotary()                              a mechanism by its name, with settings
    Rotary() + Epar(learnable=True)           several together
    alibi                                 a short name for a common one

What a mechanism needs to know of the model (heads, head_dim, width, context) is filled in where it is not given.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import whence.position as mechanisms
from whence.errors import usage_error
from whence.position.base import Position

#: short names for the shell; the text stands in the record
SHORT = {
    "none": "NoPosition()",
    "sinusoidal": "Sinusoidal()",
    "learned": "Learned()",
    "rotary": "Rotary()",
    "shaw": "Shaw()",
    "xl": "TransformerXL()",
    "t5": "T5Bias()",
    "alibi": "Alibi()",
    "kerple": "Kerple()",
    "fire": "Fire()",
    "cope": "Cope()",
    "sandwich": "Sandwich()",
    "epar": "Epar(learnable=True)",
    "power": "PowerPrior(alpha=0.1)",
    "recency": "Recency()",
    "stablemask": "StableMask()",
    "sink": "Sink()",
}
PER_HEAD = ("Epar", "PowerPrior")  # they may share their numbers among heads, but a model gets one set a head
BOTH_SIDES = {"Alibi": "symmetric", "T5Bias": "bidirectional"}  # their forms where later keys are seen too
LONGEST = 8  # how many times the trained length a table of positions must reach, for tests of extrapolation


@dataclass(frozen=True)
class Fit:
    """What of a model a mechanism may have to fit."""

    heads: int
    head_dim: int
    embed_dim: int
    context: int
    causal: bool


@dataclass(frozen=True)
class Arm:
    """A name for tables, the mechanism's text, and what of the model is other than in the study's other arms."""

    name: str
    position: str
    model: Mapping[str, Any] = field(default_factory=dict)

    def build(self, fit: Fit) -> Position:
        """A new mechanism of this arm for a model.

        >>> Arm("both", "Rotary() + Alibi(scale=1.1)").build(Fit(4, 16, 64, 32, True))
        Rotary(base=10000, layout='half') + Alibi(heads=4, form='causal', scale=1.1, slope=[0.25, 0.0625, 0.015625, 0.00390625])
        """
        return _sum(_parsed(self.position), self.position, fit)


def arm(text: str) -> Arm:
    """An arm from what a user typed: a short name, or an expression.

    >>> arm("alibi"), arm("Alibi(scale=2.0)").name
    (Arm(name='alibi', position='Alibi()', model={}), 'Alibi(scale=2.0)')
    """
    text = text.strip()
    found = Arm(text, SHORT.get(text, text))
    _check(_parsed(found.position), found.position)
    return found


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        raise _unreadable(text) from None


def _unreadable(text: str) -> Exception:
    return usage_error(
        f"position {text!r}",
        "no expression of mechanisms",
        "a position is a short name, or mechanisms with settings joined by +, like Rotary() + Epar(learnable=True)",
        f"use one of {', '.join(SHORT)}, or the name of a class in whence.position",
    )


def _check(node: ast.expr, text: str) -> None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        _check(node.left, text)
        _check(node.right, text)
    else:
        _call(node, text)


def _sum(node: ast.expr, text: str, fit: Fit) -> Position:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _sum(node.left, text, fit) + _sum(node.right, text, fit)
    kind, settings = _call(node, text)
    wanted = inspect.signature(kind).parameters
    known = {
        "heads": fit.heads, "head_dim": fit.head_dim, "embed_dim": fit.embed_dim, "context": fit.context,
        "max_length": LONGEST * fit.context + 1,
    }  # fmt: skip
    for name, value in known.items():
        if name not in wanted or name in settings:
            continue
        default = wanted[name].default
        required = default is inspect.Parameter.empty
        if required or (name == "heads" and kind.__name__ in PER_HEAD) or (name == "context" and default is not None):
            settings[name] = value
    if "form" in wanted and "form" not in settings and not fit.causal and kind.__name__ in BOTH_SIDES:
        settings["form"] = BOTH_SIDES[kind.__name__]
    return kind(**settings)


def _call(node: ast.expr, text: str) -> tuple[type[Position], dict[str, Any]]:
    """The class and the literal settings of one call; nothing is evaluated."""
    if isinstance(node, ast.Name):
        node = ast.Call(func=node, args=[], keywords=[])
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args):
        raise _unreadable(text)
    kind = getattr(mechanisms, node.func.id, None)
    if not (inspect.isclass(kind) and issubclass(kind, Position)):
        raise usage_error(
            f"position {text!r}",
            f"no mechanism {node.func.id}",
            "a mechanism is a class of whence.position",
            f"use one of {', '.join(sorted(SHORT))}",
        )
    settings: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg not in inspect.signature(kind).parameters:
            raise usage_error(
                f"position {text!r}",
                f"a setting {keyword.arg!r}",
                f"{node.func.id} has {', '.join(inspect.signature(kind).parameters)}",
                "leave it out or correct it",
            )
        try:
            settings[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            raise usage_error(
                f"position {text!r}",
                f"{keyword.arg}={ast.unparse(keyword.value)}",
                "a setting is a number, a word in quotes, True, False, None or a list of them",
                "write the value itself",
            ) from None
    return kind, settings
