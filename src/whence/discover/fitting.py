"""Formulas of one or two shapes, and their weighted least squares fit to the curves of some heads.

A formula is ``offset + amplitude * shape``, ``offset + amplitude * shape * shape`` or ``offset + amplitude * shape +
amplitude * shape``. Heads that are fitted together share the parameters of the shapes; offset and amplitudes are each
head's own. A bias always has an offset, which softmax cannot see. A scale has one (its floor) or none.

Offset and amplitudes are linear, so for given shape parameters they are solved exactly. The parameters are searched on
a grid first, and then refined by ``scipy.optimize.least_squares`` in their logarithms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from whence.discover.curves import Curves
from whence.discover.shapes import SHAPES, Array, Shape

RIDGE = 1e-11  # of columns with norm 1; keeps equal columns solvable
LARGEST_PAIR = 2  # parameters of both shapes of a pair together
REFINED = 2  # grid points from which the refinement starts
NO_EFFECT = "no effect"
#: shapes of pairs: others are too alike them
PAIRED = (
    "linear", "logarithm", "inverse distance", "power", "exponential", "Gaussian", "oscillation", "bump", "window",
    "one distance", "plateau, then linear",
)  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """A formula without numbers: no shape, one, the sum of two, or the product of two."""

    shapes: tuple[Shape, ...] = ()
    product: bool = False
    offset: bool = True

    @property
    def name(self) -> str:
        if not self.shapes:
            return NO_EFFECT
        joined = (" times " if self.product else " plus ").join(shape.name for shape in self.shapes)
        return joined

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the shapes' parameters; those of the second shape of a pair end in 2."""
        second = [f"{name}2" for shape in self.shapes[1:] for name in shape.parameters]
        return (*(self.shapes[0].parameters if self.shapes else ()), *second)

    @property
    def terms(self) -> int:
        """The number of amplitudes."""
        if self.product:
            return math.prod(len(shape.code) for shape in self.shapes)
        return sum(len(shape.code) for shape in self.shapes)

    def columns(self, d: Array, parameters: Sequence[Array]) -> list[Array]:
        """The terms at distances ``[n]``, without the offset: arrays ``[..., n]`` for parameters ``[..., 1]``."""
        parts, used = [], 0
        for shape in self.shapes:
            own = parameters[used : used + len(shape.parameters)]
            used += len(shape.parameters)
            parts.append(shape.columns(d, *own))
        if self.product:
            return [first * second for first, second in itertools.product(*parts)]
        return [column for part in parts for column in part]

    def grid(self, d: Array) -> Array:
        """All combinations of the parameters' grids, ``[combinations, parameters]``."""
        axes = [axis for shape in self.shapes for axis in shape.grid(d)]
        points = list(itertools.product(*axes))  # one, without parameters
        return np.array(points, float).reshape(len(points), len(axes))

    def lowest(self, d: Array) -> Array:
        """The smallest parameters that the refinement may choose."""
        usual = [(shape, [axis.min() / math.e for axis in shape.grid(d)]) for shape in self.shapes]
        return np.array([value for shape, values in usual for value in shape.lowest or values], float)

    @property
    def free(self) -> Array:
        """Which parameters the refinement may change."""
        return np.array([not shape.exact for shape in self.shapes for _ in shape.parameters], bool)


def list_candidates(hook: str) -> list[Candidate]:
    """All formulas for a hook, the shortest first.

    >>> [len([c for c in list_candidates("bias") if len(c.shapes) == n]) for n in (0, 1, 2)]
    [1, 22, 79]
    """
    offsets = {shape.name: (True, False) if hook == "scale" and shape.decays else (True,) for shape in SHAPES}
    found = [Candidate()]
    found += [Candidate((shape,), offset=offset) for shape in SHAPES for offset in offsets[shape.name]]
    return [*found, *_list_pairs()]


def _list_pairs() -> Iterator[Candidate]:
    paired = [shape for shape in SHAPES if shape.name in PAIRED]
    for first, second in itertools.combinations(paired, 2):
        if len(first.parameters) + len(second.parameters) > LARGEST_PAIR:
            continue
        yield Candidate((first, second))
        if not first.exact and not second.exact:
            yield Candidate((first, second), product=True)


@dataclass(frozen=True)
class Fit:
    """A formula with its numbers: ``parameters`` of the shapes, and offset and amplitudes by head."""

    candidate: Candidate
    hook: str
    parameters: tuple[float, ...]
    coefficients: Array  # [heads, offset + terms]; an absent offset is 0
    chi_square: float
    count: int  # visible numbers of the formula

    @property
    def name(self) -> str:
        floor = self.hook == "scale" and self.candidate.offset and self.candidate.shapes
        return self.candidate.name + (" with floor" if floor else "")

    def evaluate(self, distances: Array) -> Array:
        """The values ``[heads, n]``."""
        d = np.asarray(distances, float)
        columns = self.candidate.columns(d, [np.array(p) for p in self.parameters])
        return self.coefficients @ np.stack([np.ones_like(d), *columns])

    @property
    def values(self) -> dict[str, float]:
        """``head_values`` of the first head."""
        return self.head_values(0)

    def head_values(self, head: int) -> dict[str, float]:
        """Shape parameters by name, and what softmax sees of the offset and the amplitudes of one of the heads.

        ``amplitude`` of a bias. Of a scale with a floor, ``strength``: the amplitude in units of the offset.
        """
        named = dict(zip(self.candidate.parameters, self.parameters, strict=True))
        offset, *amplitudes = self.coefficients[head]
        if self.hook == "scale":
            amplitudes = [a / offset for a in amplitudes] if self.candidate.offset else []
        label = "amplitude" if self.hook == "bias" else "strength"
        return {label + (str(n + 1) if n else ""): float(a) for n, a in enumerate(amplitudes)} | named

    def describe(self, head: int = 0) -> str:
        """The formula in one line, for one of its heads. A scale is 1 at distance 0 if it can be."""
        shapes, row = self.candidate.shapes, self.coefficients[head]
        if not shapes:
            return NO_EFFECT
        if self.hook == "scale":
            start = float(self.evaluate(np.zeros(1))[head, 0])
            row = row / (start if abs(start) > 1e-6 * np.abs(row).max() else 1.0)
        texts, used = [], 0
        for shape in shapes:
            own = dict(zip(shape.parameters, self.parameters[used:], strict=False))
            used += len(shape.parameters)
            texts.append(shape.text.format(**{name: f"{value:.3g}" for name, value in own.items()}))
        texts = [" * ".join(texts)] if self.candidate.product else texts
        sizes, used = [], 1
        for width in [self.candidate.terms] if self.candidate.product else [len(shape.code) for shape in shapes]:
            own_row = row[used : used + width]
            sizes.append(float(own_row[0] if width == 1 else np.hypot(*own_row)))
            used += width
        terms = [f"{size:.3g} * {text}" for size, text in zip(sizes, texts, strict=True)]
        floor = [f"{row[0]:.3g}"] if self.hook == "scale" and self.candidate.offset else []
        return f"{self.hook} = {' + '.join(floor + terms)}".replace("+ -", "- ")


class Problem:
    """Whitened least squares on some knots: the curves of some heads, with their weights.

    A knot's residual is divided by its standard error. With the correlation r of neighbours, what the knot before it
    predicts is subtracted: residual i minus r^g times residual i - 1, over sqrt(1 - r^2g), where g counts the steps
    between them.
    """

    def __init__(
        self, curves: Curves, heads: Sequence[int], knots: Array | None = None, mean: Array | None = None
    ) -> None:
        self.knots = np.arange(len(curves.distances)) if knots is None else knots
        self.distances = curves.distances[self.knots]
        self.range = curves.distances  # of the grids: the same for every part of the knots
        self.hook, self.seeds, self.heads = curves.hook, curves.seeds, tuple(heads)
        self.error = curves.standard_error[list(heads)][:, self.knots]
        gaps = np.diff(self.knots)
        self.carry = (
            np.concatenate([[0.0], curves.correlation**gaps]) if curves.correlation else np.zeros(len(self.knots))
        )
        self.target = self.whiten((curves.mean if mean is None else mean)[list(heads)][:, self.knots])

    def whiten(self, values: Array) -> Array:
        """Values ``[..., heads, knots]``, which broadcast, as independent deviations of variance 1."""
        scaled = values / self.error
        before = np.concatenate([np.zeros_like(scaled[..., :1]), scaled[..., :-1]], -1)
        return (scaled - self.carry * before) / np.sqrt(1 - self.carry**2)

    def design(self, candidate: Candidate, parameters: Array) -> Array:
        """Whitened columns ``[..., heads, columns, knots]`` for parameters ``[..., number]``."""
        own = [parameters[..., n, None] for n in range(parameters.shape[-1])]
        shape = (*parameters.shape[:-1], len(self.distances))
        columns = [np.broadcast_to(column, shape) for column in candidate.columns(self.distances, own)]
        if candidate.offset:
            columns.insert(0, np.ones(shape))
        stacked = np.stack(columns, -2)[..., None, :, :]  # [..., 1, columns, knots]
        return np.moveaxis(self.whiten(np.moveaxis(np.repeat(stacked, len(self.error), -3), -2, 0)), 0, -2)

    def solve(self, design: Array) -> tuple[Array, Array]:
        """The coefficients ``[..., heads, columns]``, and the residual sum of squares of each head, ``[..., heads]``."""
        norm = np.sqrt((design**2).sum(-1)) + 1e-300
        unit = design / norm[..., None]
        gram = unit @ np.swapaxes(unit, -1, -2) + RIDGE * np.eye(design.shape[-2])
        right = (unit @ self.target[..., None])[..., 0]
        found = np.linalg.solve(gram, right[..., None])[..., 0]
        residual = self.target - (found[..., None] * unit).sum(-2)
        return found / norm, (residual**2).sum(-1)

    def residual_sums(self, candidate: Candidate, parameters: Sequence[float]) -> Array:
        """The residual sum of squares of each head, with given shape parameters and the best amplitudes."""
        return self.solve(self.design(candidate, np.array(parameters, float)))[1]

    def slopes(self, curve: Array, values: Array) -> Array:
        """The weighted least squares slope of values ``[n, heads, knots]`` on a curve ``[heads, knots]``, for each of the n.

        Offsets of heads are invisible: what a constant explains is removed from the curve.
        """
        ones, direction = self.whiten(np.ones_like(curve)), self.whiten(curve)
        level = (ones * direction).sum(-1, keepdims=True) / (ones**2).sum(-1, keepdims=True)
        direction = direction - level * ones
        return (self.whiten(values) * direction).sum((-1, -2)) / (direction**2).sum()

    def count(self, candidate: Candidate) -> int:
        """The visible numbers of a formula: one of offset and amplitude of each head is invisible."""
        return len(candidate.parameters) + len(self.error) * (candidate.offset + candidate.terms - 1)

    def finish(self, candidate: Candidate, parameters: Array) -> Fit:
        coefficients, chi = self.solve(self.design(candidate, parameters))
        if not candidate.offset:
            coefficients = np.concatenate([np.zeros((len(coefficients), 1)), coefficients], 1)
        count, values = self.count(candidate), tuple(parameters.tolist())
        return Fit(candidate, self.hook, values, coefficients, float(chi.sum()), count)

    def search(self, candidate: Candidate) -> tuple[Array, Array]:
        """The best few grid points of a formula, and the residual sums of squares of each, ``[points, heads]``."""
        grid = candidate.grid(self.range)
        if len(grid) == 1:
            return grid, self.solve(self.design(candidate, grid))[1]
        chi = np.concatenate(
            [self.solve(self.design(candidate, part))[1] for part in np.array_split(grid, 1 + len(grid) // 400)]
        )
        best = np.argsort(chi.sum(-1))[:REFINED]
        return grid[best], chi[best]

    def refine(self, candidate: Candidate, start: Array) -> Fit:
        """The best formula near given shape parameters."""
        free = candidate.free
        if not free.any():
            return self.finish(candidate, start)
        grid = candidate.grid(self.range)[:, free]
        low, high = np.log(candidate.lowest(self.range)[free]), np.log(grid.max(0)) + 1.0

        def insert(logs: Array) -> Array:
            parameters = start.copy()
            parameters[free] = np.exp(np.clip(logs, low, high))
            return parameters

        def residuals(logs: Array) -> Array:
            design = self.design(candidate, insert(logs))
            coefficients, _ = self.solve(design)
            return (self.target - (coefficients[..., None] * design).sum(-2)).ravel()

        found = least_squares(residuals, np.log(start[free]), method="lm", ftol=1e-8, xtol=1e-6, max_nfev=100)
        return self.finish(candidate, insert(found.x))

    def fit(self, candidate: Candidate) -> Fit:
        """The least squares fit of a formula."""
        starts, _ = self.search(candidate)
        return min((self.refine(candidate, start) for start in starts), key=lambda fit: fit.chi_square)
