"""Few kinds of heads, each with its formula.

Heads whose own formula is ``no effect`` are one kind. The others start as kinds of their own, and the two kinds whose
description grows least when they share a formula are merged, again and again. Of all these partitions into at most ``max_kinds`` the one
with the shortest description is chosen: a kind shares the parameters of its shapes, and each head has an amplitude of its own, of either
sign. So heads that differ only in strength are cheaper together, and a sum of two shapes that contains the formulas of two kinds is not:
each of its heads pays for two amplitudes. The limit may force heads of different formulas together. Accurate curves of many heads
would otherwise get almost a formula each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whence.discover.curves import Curves
from whence.discover.fitting import NO_EFFECT, Problem, list_candidates
from whence.discover.naming import EVIDENCE, Naming, count_formulas, head_bits, name_formula, shared_bits

MAX_KINDS = 6


@dataclass(frozen=True)
class Kind:
    """Heads of one formula. Each has amplitudes of its own; texts show those of ``strongest``."""

    heads: tuple[int, ...]
    naming: Naming
    strongest: int | None = None  # the head whose curve has the largest range; None for the first

    @property
    def shown_head(self) -> int:
        """The head whose amplitudes ``describe``, the generated file and the report show."""
        return self.heads[0] if self.strongest is None else self.strongest

    @property
    def shown_row(self) -> int:
        """The row of ``shown_head`` in the coefficients of the fit."""
        return self.heads.index(self.shown_head)

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
        """The heads and the formula of the strongest of them, the one with the largest range; each head has its own amplitude."""
        text = f"{self.label_heads(heads)}: {self.name}; {self.naming.fit.describe(self.shown_row)}"
        if len(self.heads) == 1 or self.name == NO_EFFECT:
            return text
        return f"{text} in {replace(self, heads=(self.shown_head,)).label_heads(heads)}"


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
    if without:
        groups[without] = alone[without[0]] if len(without) == 1 else _name_null(curves, without)
    ranges = np.ptp(curves.mean, axis=1)
    kinds = [Kind(group, naming, max(group, key=lambda head: ranges[head])) for group, naming in groups.items()]
    return sorted(kinds, key=lambda kind: (-len(kind.heads), kind.heads))


def _name_null(curves: Curves, heads: tuple[int, ...]) -> Naming:
    """The formula ``no effect`` for several heads, first whatever else fits them together."""
    together = name_formula(curves, heads, pairs=False)
    ranking = sorted(together.ranking, key=lambda one: one.fit.name != NO_EFFECT)
    return Naming(heads, tuple(ranking))


def _choose_groups(
    curves: Curves, heads: list[int], alone: dict[int, Naming], pairs: bool, max_kinds: int
) -> dict[tuple[int, ...], Naming]:
    """The partition of heads with the shortest description among those that merging gives."""
    namings: dict[tuple[int, ...], Naming] = {(head,): alone[head] for head in heads}
    if len(heads) < 2:
        return namings
    partitions = [groups for groups in _merge_heads(curves, heads, alone, pairs) if len(groups) <= max_kinds]
    for group in {group for groups in partitions for group in groups}:
        if group not in namings:
            namings[group] = name_formula(curves, group, pairs=pairs)
    best = min(partitions, key=lambda groups: _total_bits(groups, namings))
    return {group: namings[group] for group in best}


def _merge_heads(
    curves: Curves, heads: list[int], alone: dict[int, Naming], pairs: bool
) -> Iterator[list[tuple[int, ...]]]:
    """Partitions of heads: each head alone first, then with two groups merged in each step, to one group of all.

    A group's description is that by the best of all formulas that were found for single heads, with their parameters. The two
    groups whose description grows least when they share a formula are merged.
    """
    problem = Problem(curves, heads)
    counts = count_formulas([c for c in list_candidates(curves.hook) if pairs or len(c.shapes) < 2])
    fits = [one.fit for head in heads for one in alone[head].ranking]
    formulas = list(dict.fromkeys((fit.candidate, fit.parameters) for fit in fits if fit.candidate.shapes))
    sums = [head_bits(problem, candidate, problem.residual_sums(candidate, own)) for candidate, own in formulas]
    by_head = np.stack(sums, 1)  # [heads, formulas]
    # bits of a group beside those of its heads, by its number of heads
    knots = len(curves.distances)
    shared = [
        [shared_bits(candidate, n * knots, counts) for candidate, _ in formulas] for n in range(1, len(heads) + 1)
    ]
    shared_rows = np.array(shared)

    def bits(members: tuple[int, ...]) -> float:
        return float((by_head[list(members)].sum(0) + shared_rows[len(members) - 1]).min()) - EVIDENCE

    groups: list[tuple[int, ...]] = [(number,) for number in range(len(heads))]
    own = {group: bits(group) for group in groups}
    growth = {pair: bits(sum(pair, ())) - own[pair[0]] - own[pair[1]] for pair in itertools.combinations(groups, 2)}
    yield [tuple(heads[member] for member in group) for group in groups]
    while growth:
        first, second = min(growth, key=lambda pair: (growth[pair], pair))
        merged = tuple(sorted(first + second))
        own[merged] = bits(merged)
        groups = [group for group in groups if group not in (first, second)]
        growth = {pair: value for pair, value in growth.items() if not {first, second} & set(pair)}
        growth |= {(group, merged): bits(group + merged) - own[group] - own[merged] for group in groups}
        groups.append(merged)
        yield [tuple(heads[member] for member in group) for group in groups]


def _total_bits(groups: list[tuple[int, ...]], namings: dict[tuple[int, ...], Naming]) -> float:
    """The description length of a partition of heads with an effect.

    ``EVIDENCE`` speaks against any effect. Each of these heads has met it alone, so it must not count by kinds: it would favor few.
    """
    ranked = [namings[group].ranking[0] for group in groups]
    return sum(one.bits - (EVIDENCE if one.fit.candidate.shapes else 0.0) for one in ranked)
