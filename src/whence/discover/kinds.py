"""Few kinds of heads, each with its formula.

Heads whose own formula is ``no effect`` are one kind. The others are clustered by the correlation of their curves
(average linkage). Of all cuts of the tree into at most ``max_kinds`` the one with the shortest description is chosen: a
kind shares the parameters of its shapes, and each head has an amplitude of its own, so heads that differ only in strength
are cheaper together. Accurate curves of many heads would otherwise get almost a formula each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from whence.discover.curves import Curves
from whence.discover.fitting import NO_EFFECT
from whence.discover.naming import Naming, name_formula

MAX_KINDS = 6


@dataclass(frozen=True)
class Kind:
    """Heads of one formula."""

    heads: tuple[int, ...]
    naming: Naming

    @property
    def name(self) -> str:
        return self.naming.name

    def label_heads(self, heads: int | None = None) -> str:
        """The heads in words. ``heads`` is the number in a layer, if they are numbered through several layers."""
        if heads is None:
            return f"head{'s' if len(self.heads) > 1 else ''} {', '.join(map(str, self.heads))}"
        layers = sorted({head // heads for head in self.heads})
        own = {layer: [str(head % heads) for head in self.heads if head // heads == layer] for layer in layers}
        return "; ".join(f"layer {layer}, head{'s' if len(o) > 1 else ''} {', '.join(o)}" for layer, o in own.items())

    def describe(self, heads: int | None = None) -> str:
        """The heads and the formula of the first of them."""
        return f"{self.label_heads(heads)}: {self.name}; {self.naming.fit.describe()}"


def discover(curves: Curves, *, pairs: bool = True, max_kinds: int = MAX_KINDS) -> list[Kind]:
    """The kinds of heads in learned curves, each with its formula; the largest kind first.

    Args:
        curves: learned values over distance.
        pairs: also try sums and products of two shapes.
        max_kinds: the largest number of kinds, beside heads without an effect.
    """
    alone = {head: name_formula(curves, [head], pairs=pairs) for head in range(curves.heads)}
    without = tuple(head for head, naming in alone.items() if naming.name == NO_EFFECT)
    active = [head for head in alone if head not in without]
    groups = _choose_groups(curves, active, alone, pairs, max_kinds)
    kinds = [Kind(group, naming) for group, naming in groups.items()]
    if without:
        kinds.append(Kind(without, alone[without[0]] if len(without) == 1 else _name_null(curves, without)))
    return sorted(kinds, key=lambda kind: (-len(kind.heads), kind.heads))


def _name_null(curves: Curves, heads: tuple[int, ...]) -> Naming:
    """The formula ``no effect`` for several heads, first whatever else fits them together."""
    together = name_formula(curves, heads, pairs=False)
    ranking = sorted(together.ranking, key=lambda one: one.fit.name != NO_EFFECT)
    return Naming(heads, tuple(ranking))


def _choose_groups(
    curves: Curves, heads: list[int], alone: dict[int, Naming], pairs: bool, max_kinds: int
) -> dict[tuple[int, ...], Naming]:
    namings: dict[tuple[int, ...], Naming] = {(head,): alone[head] for head in heads}
    if len(heads) < 2:
        return namings
    shapes = curves.mean[heads] - curves.mean[heads].mean(1, keepdims=True)
    tree = linkage(shapes / np.linalg.norm(shapes, axis=1, keepdims=True), "average")
    cuts = []
    for kinds in range(min(max_kinds, len(heads)), 0, -1):
        labels = fcluster(tree, kinds, "maxclust")
        groups = [
            tuple(h for h, own in zip(heads, labels, strict=True) if own == label) for label in sorted(set(labels))
        ]
        for group in groups:
            if group not in namings:
                namings[group] = name_formula(curves, group, pairs=pairs)
        cuts.append(groups)
    best = min(cuts, key=lambda groups: _total_bits(groups, namings))
    return {group: namings[group] for group in best}


def _total_bits(groups: list[tuple[int, ...]], namings: dict[tuple[int, ...], Naming]) -> float:
    return sum(namings[group].ranking[0].bits for group in groups)
