"""The shapes over distance that formulas are made of: about twenty, each with zero to two parameters.

A shape has no amplitude and no offset; ``whence.discover.fitting`` adds them. Each shape has a search grid for its
parameters and its torch expression, for the mechanism that ``format_mechanism`` writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
GRID = 24
TAU = 2 * np.pi
STEEPEST = 3.0  # largest exponent of a power
SMALLEST = 1e-4  # replaces distance 0 in a power, whose derivative is infinite there


@dataclass(frozen=True)
class Shape:
    """A function of distance without amplitude.

    ``columns`` receives distances and parameters that broadcast, and returns one or two arrays of their shape; with two,
    each has an amplitude of its own. ``code`` has the same as torch expressions of ``d``. ``exact`` shapes are step
    functions of their parameters: the grid has every case, and the parameters are not learnable.
    """

    name: str
    text: str
    code: tuple[str, ...]
    columns: Callable[..., tuple[Array, ...]]
    parameters: tuple[str, ...] = ()
    grid: Callable[[Array], tuple[Array, ...]] = lambda d: ()
    exact: bool = False
    decays: bool = False  # 1 at distance 0 and 0 far away: a factor of this shape needs no floor
    lowest: tuple[
        float, ...
    ] = ()  # of the parameters, so that no shape is high between two distances alone; usually a share of the grid


def _lengths(d: Array) -> Array:
    return np.geomspace(0.5, 4 * d[-1], GRID)


def _periods(d: Array) -> Array:
    return np.geomspace(3, 2 * d[-1], 2 * GRID)


def _centres(d: Array) -> Array:
    return d[1:]


def _edges(d: Array) -> Array:
    return (d[1:] + d[:-1]) / 2


def _near(d: Array) -> Array:
    """The distances whose neighbours are knots, too: a spike elsewhere could have any width."""
    return np.array([x for x in d if x + 1 in d])


SHAPES: tuple[Shape, ...] = (
    Shape("linear", "d", ("d",), lambda d: (d,)),
    Shape("quadratic", "d^2", ("d**2",), lambda d: (d**2,)),
    Shape("logarithm", "log(1 + d)", ("torch.log1p(d)",), lambda d: (np.log1p(d),)),
    Shape("inverse distance", "1/(1 + d)", ("1 / (1 + d)",), lambda d: (1 / (1 + d),), decays=True),
    Shape("power", "d^{p}", ("d.clamp(min=1e-4) ** {p} * (d > 0)",), lambda d, p: (np.maximum(d, SMALLEST) ** p * (d > 0),),
          ("p",), lambda d: (np.linspace(0.125, STEEPEST, GRID),)),
    Shape("scaled logarithm", "log(1 + d/{s})", ("torch.log1p(d / {s})",), lambda d, s: (np.log1p(d / s),),
          ("s",), lambda d: (_lengths(d),)),
    Shape("exponential", "exp(-d/{s})", ("torch.exp(-d / {s})",), lambda d, s: (np.exp(-d / s),),
          ("s",), lambda d: (_lengths(d),), decays=True),
    Shape("Gaussian", "exp(-(d/{s})^2)", ("torch.exp(-((d / {s}) ** 2))",), lambda d, s: (np.exp(-((d / s) ** 2)),),
          ("s",), lambda d: (_lengths(d),), decays=True),
    Shape("Cauchy", "1/(1 + (d/{s})^2)", ("1 / (1 + (d / {s}) ** 2)",), lambda d, s: (1 / (1 + (d / s) ** 2),),
          ("s",), lambda d: (_lengths(d),), decays=True),
    Shape("hyperbola", "1/(1 + d/{s})", ("1 / (1 + d / {s})",), lambda d, s: (1 / (1 + d / s),),
          ("s",), lambda d: (_lengths(d),), decays=True),
    Shape("power law", "(1 + d)^-{p}", ("(1 + d) ** -{p}",), lambda d, p: ((1 + d) ** -p,),
          ("p",), lambda d: (np.geomspace(0.1, 6, GRID),), decays=True),
    Shape("stretched exponential", "exp(-(d/{s})^{p})", ("torch.exp(-((d.clamp(min=1e-4) / {s}) ** {p}) * (d > 0))",),
          lambda d, s, p: (np.exp(-((np.maximum(d, SMALLEST) / s) ** p) * (d > 0)),),
          ("s", "p"), lambda d: (_lengths(d), np.linspace(0.25, 3, 12)), decays=True),
    Shape("oscillation", "cos(2 pi d/{period} + phase)",
          (f"torch.cos({TAU:.6f} * d / {{period}})", f"torch.sin({TAU:.6f} * d / {{period}})"),
          lambda d, period: (np.cos(TAU * d / period), np.sin(TAU * d / period)), ("period",), lambda d: (_periods(d),)),
    Shape("damped oscillation", "exp(-d/{s}) cos(2 pi d/{period})", (f"torch.exp(-d / {{s}}) * torch.cos({TAU:.6f} * d / {{period}})",),
          lambda d, s, period: (np.exp(-d / s) * np.cos(TAU * d / period),), ("s", "period"), lambda d: (_lengths(d)[::2], _periods(d)), decays=True),
    Shape("bump", "exp(-((d - {centre})/{width})^2)", ("torch.exp(-(((d - {centre}) / {width}) ** 2))",),
          lambda d, centre, width: (np.exp(-(((d - centre) / width) ** 2)),), ("centre", "width"), lambda d: (_centres(d), np.geomspace(3, 4 * d[-1], 12))),
    Shape("bump in log distance", "exp(-(log((1 + d)/(1 + {centre}))/{width})^2)",
          ("torch.exp(-((torch.log((1 + d) / (1 + {centre})) / {width}) ** 2))",),
          lambda d, centre, width: (np.exp(-((np.log((1 + d) / (1 + centre)) / width) ** 2)),),
          ("centre", "width"), lambda d: (_centres(d), np.geomspace(0.2, 4, 12)), lowest=(1.0, 0.2)),
    Shape("window", "[d < {edge}]", ("(d < {edge}).to(d.dtype)",), lambda d, edge: ((d < edge).astype(float),),
          ("edge",), lambda d: (_edges(d),), exact=True, decays=True),
    Shape("soft window", "1/(1 + exp((d - {edge})/{s}))", ("torch.sigmoid(({edge} - d) / {s})",),
          lambda d, edge, s: (0.5 * (1 + np.tanh((edge - d) / (2 * s))),), ("edge", "s"), lambda d: (_centres(d), _lengths(d)[::2])),
    Shape("one distance", "[d = {centre}]", ("((d - {centre}).abs() < 0.5).to(d.dtype)",),
          lambda d, centre: ((np.abs(d - centre) < 0.5).astype(float),), ("centre",), lambda d: (_near(d),), exact=True),
    Shape("steps", "floor(log2(1 + d/{s}))", ("torch.floor(torch.log2(1 + d / {s}))",), lambda d, s: (np.floor(np.log2(1 + d / s)),),
          ("s",), lambda d: (np.arange(1.0, 17.0),), exact=True),
    Shape("ramp to a plateau", "min(d, {edge})", ("torch.minimum(d, {edge})",), lambda d, edge: (np.minimum(d, edge),),
          ("edge",), lambda d: (_centres(d)[:-1],)),
    Shape("plateau, then linear", "max(d - {edge}, 0)", ("torch.relu(d - {edge})",), lambda d, edge: (np.maximum(d - edge, 0),),
          ("edge",), lambda d: (_centres(d)[:-1],)),
)  # fmt: skip
