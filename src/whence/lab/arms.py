"""An arm of a study: a name, a position mechanism as text, and what differs in its model and its training budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from whence.plugins import split_file
from whence.position.base import Position
from whence.position.expression import ModelDims, build_position, parse_position, split_outside


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


def shorten_names(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """The arms without the paths of Python files in their names. Arms that would have the same name get a part of the path.

    >>> texts = ["alibi", "/mine/bell.py:Bell(width=3) + rotary; lr=1e-3", "/mine/bell.py", "/a/same.py:Same", "/b/same.py:Same"]
    >>> [arm.name for arm in shorten_names([Arm(text, text) for text in texts])]
    ['alibi', 'Bell(width=3) + rotary; lr=1e-3', 'bell', 'Same (a)', 'Same (b)']
    """
    parts = [0] * len(arms)  # the part of each path, counted from its end, that stands in the name
    while True:
        names = [_shorten_paths(arm.name, part) for arm, part in zip(arms, parts, strict=True)]
        uses = Counter(names)
        longer = [
            number
            for number, arm in enumerate(arms)
            if uses[names[number]] > 1 and parts[number] <= arm.name.count("/") + 1
        ]
        if not longer:
            return tuple(replace(arm, name=name) for arm, name in zip(arms, names, strict=True))
        for number in longer:
            parts[number] += 1


def _shorten_paths(name: str, part: int) -> str:
    first, *settings = split_outside(name, ";")
    pieces = split_outside(first)
    if not any(map(split_file, pieces)):
        return name
    return "; ".join([" + ".join(_shorten_path(piece.strip(), part) for piece in pieces), *map(str.strip, settings)])


def _shorten_path(piece: str, part: int) -> str:
    """A term of an expression as its class, or as the name of a file without a class, and with a part of its path unless that is 0."""
    file = split_file(piece)
    if file is None:
        return piece
    path, rest = Path(file[0]), file[1]
    short = rest[1:].strip() if rest.startswith(":") else f"{path.stem}{rest}"
    if part == 0:
        return short
    return f"{short} ({path.parts[-part]})" if part <= len(path.parts) else piece
