"""An arm of a study: a name, a position mechanism as text, and what differs in its model and its training budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from whence.position.base import Position
from whence.position.expression import ModelDims, build_position, parse_position


@dataclass(frozen=True)
class Arm:
    """A name for tables, a position expression, and the settings of model and budget that differ from the study's.

    The position is text (see ``whence.position.expression``), so that a spec can be hashed, stored and typed in a shell.
    """

    name: str
    position: str
    model: Mapping[str, Any] = field(default_factory=dict)
    budget: Mapping[str, Any] = field(default_factory=dict)

    def build(self, dims: ModelDims) -> Position:
        """A new instance of this arm's mechanism for a model.

        >>> Arm("both", "Rotary() + Alibi(scale=1.1)").build(ModelDims(2, 16, 32, 64))
        Rotary(base=10000, layout='half') + Alibi(heads=2, form='causal', scale=1.1, slope=[0.0625, 0.00390625])
        """
        return build_position(self.position, dims)


def parse_arm(text: str) -> Arm:
    """An arm named by its own expression. The expression is checked here.

    >>> parse_arm("alibi"), parse_arm("Alibi(scale=2.0)").name
    (Arm(name='alibi', position='Alibi()', model={}, budget={}), 'Alibi(scale=2.0)')
    """
    return Arm(text.strip(), parse_position(text).text)
