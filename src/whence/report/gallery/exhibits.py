"""What the gallery shows: each entry of the catalogue, and the constructor arguments that have a slider.

An exhibit with sliders has an expression with a field per slider, such as ``Alibi(scale={scale})``. It is both the code
on the page and, parsed, the mechanism that is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from whence import position as p
from whence.errors import usage_error
from whence.position.alibi import slopes
from whence.position.base import Position
from whence.position.catalogue import Entry
from whence.position.expression import ModelDims, build_position

HEADS, HEAD_DIM, LENGTH = 4, 16, 48
INTERVALS = 60  # between the ends of a slider


@dataclass(frozen=True)
class Slider:
    """A constructor argument and the values that its slider stops at.

    Args:
        name: the field of the expression.
        stops: the values, ascending.
        default: the value in the catalogue, one of the stops.
        per_head: values per head that the slider multiplies; empty if the slider sets the argument itself.
        discrete: whether the page may show exported stops only, because values between them do not exist.
    """

    name: str
    stops: tuple[float, ...]
    default: float
    per_head: tuple[float, ...] = ()
    discrete: bool = False

    def __post_init__(self) -> None:
        if self.default not in self.stops or any(low >= high for low, high in pairwise(self.stops)):
            got = f"the stops {self.stops}"
            rule = f"stops are ascending and one of them is the default, {self.default}"
            raise usage_error(f"the slider of {self.name}", got, rule, "correct the stops or the default")

    @property
    def start(self) -> int:
        """The stop of the default."""
        return self.stops.index(self.default)

    def write_stop(self, stop: int) -> str:
        """The value at a stop."""
        return format_number(self.stops[stop])

    def write_argument(self, stop: int) -> str:
        """The value at a stop as the argument of a constructor."""
        if not self.per_head:
            return self.write_stop(stop)
        return "[" + ", ".join(format_number(self.stops[stop] * one) for one in self.per_head) + "]"


@dataclass(frozen=True)
class Exhibit:
    """One mechanism of the gallery. Without sliders, ``expression`` is empty and the entry itself builds it."""

    entry: Entry
    expression: str = ""
    sliders: tuple[Slider, ...] = ()

    @property
    def start(self) -> tuple[int, ...]:
        """The stops of the defaults."""
        return tuple(slider.start for slider in self.sliders)

    def write_code(self, stops: Sequence[int]) -> str:
        """The expression with the values at these stops of the sliders."""
        arguments = {slider.name: slider.write_argument(stop) for slider, stop in zip(self.sliders, stops, strict=True)}
        return self.expression.format(**arguments)

    def build(self, stops: Sequence[int]) -> Position:
        """The mechanism at these stops of the sliders. Random tables are drawn with the same seed each time."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # torch.manual_seed takes ten times as long
            if not self.sliders:
                return self.entry.make(HEADS, HEAD_DIM)
            return build_position(self.write_code(stops), ModelDims(HEADS, HEAD_DIM, HEADS * HEAD_DIM, LENGTH))


def format_number(value: float) -> str:
    """A number with at most six significant digits, and as a float literal or a whole number.

    >>> format_number(10000.0), format_number(0.25), format_number(1 / 3)
    ('10000', '0.25', '0.333333')
    """
    text = f"{value:.6g}"
    return str(int(value)) if "e+" in text else text


def even(name: str, low: float, high: float, default: float, per_head: Sequence[float] = ()) -> Slider:
    """A slider with evenly spaced stops."""
    stops = (round(low + (high - low) * n / INTERVALS, 6) for n in range(INTERVALS + 1))
    return Slider(name, _insert(default, stops), default, tuple(per_head))


def logarithmic(name: str, low: float, high: float, default: float, per_head: Sequence[float] = ()) -> Slider:
    """A slider whose stops grow by a constant factor, to three significant digits."""
    stops = (float(f"{low * (high / low) ** (n / INTERVALS):.3g}") for n in range(INTERVALS + 1))
    return Slider(name, _insert(default, stops), default, tuple(per_head))


def choices(name: str, values: Sequence[float], default: float) -> Slider:
    """A slider that stops at these numbers only."""
    return Slider(name, tuple(map(float, values)), float(default), discrete=True)


def _insert(default: float, stops: Iterable[float]) -> tuple[float, ...]:
    """The stops, with the one nearest to the default replaced by it."""
    values = sorted(set(stops))
    values[min(range(len(values)), key=lambda n: abs(values[n] - default))] = default
    return tuple(values)


#: expression and sliders of entries of the catalogue; an entry that is missing here is shown without sliders
SLIDERS: dict[str, tuple[str, tuple[Slider, ...]]] = {
    "Sinusoidal": ("Sinusoidal(base={base}, scale={scale})", (choices("base", (100, 1000, 10000, 100000), 10000), even("scale", 0, 2, 1.0))),
    "Learned": ("Learned(max_length=512, std={std})", (even("std", 0, 0.6, 0.3),)),
    "Rotary": ("Rotary(base={base})", (logarithmic("base", 100, 1e6, 10000.0),)),
    "Rotary, YaRN": ("Rotary(scaling=Yarn(factor={factor}, original=64))", (logarithmic("factor", 1, 16, 4.0),)),
    "Rotary, proportional": (
        "Rotary(scaling=Proportional(partial_rotary_factor={share}))", (choices("share", (0, 0.25, 0.5, 0.75, 1), 0.25),),
    ),
    "LearnedRotary": ("LearnedRotary(base={base})", (logarithmic("base", 100, 1e6, 10000.0),)),
    "XPos": (
        "XPos(gamma={gamma}, scale_base={scale_base}, center=2048)",
        (logarithmic("gamma", 0.1, 4, 0.4), logarithmic("scale_base", 32, 2048, 512.0)),
    ),
    "Fope": ("Fope(context={context}, learnable=True)", (choices("context", (8, 16, 32, 64, 128, 512), 64),)),
    "SelfExtendRotary": ("SelfExtendRotary(group={group}, window={window})", (choices("group", (1, 2, 4), 2), choices("window", (4, 8, 16, 32), 4))),
    "DualChunkRotary": ("DualChunkRotary(chunk={chunk}, window={window})", (choices("chunk", (6, 12, 24, 48), 6), choices("window", (1, 2, 4), 2))),
    "StringRotary": ("StringRotary(shift={shift}, window={window})", (choices("shift", (5, 8, 16, 32), 5), choices("window", (1, 2, 4, 5), 2))),
    "AxialRotary": ("AxialRotary(grid=(6, 8), base={base})", (choices("base", (10, 100, 1000, 10000), 100),)),
    "Pope": ("Pope(base={base}, phase='uniform')", (choices("base", (100, 1000, 10000, 100000), 10000),)),
    "Shaw": ("Shaw(clip={clip}, std={std})", (choices("clip", (1, 2, 4, 8, 16, 32, 64), 16), even("std", 0, 0.6, 0.3))),
    "TransformerXL": ("TransformerXL(std={std})", (even("std", 0, 0.3, 0.02),)),
    "T5Bias": (
        "T5Bias(buckets={buckets}, max_distance={max_distance}, std={std})",
        (choices("buckets", (8, 16, 32), 32), choices("max_distance", (64, 128), 128), even("std", 0, 2, 1.0)),
    ),
    "Alibi": ("Alibi(scale={scale})", (even("scale", 0, 4, 1.0),)),
    "Kerple, log": (
        "Kerple(form='log', r1={r1}, r2={r2})",
        (logarithmic("r1", 0.25, 4, 1.0, (0.25, 0.75, 1.25, 1.75)), logarithmic("r2", 0.25, 4, 1.0, (0.875, 0.625, 0.375, 0.125))),
    ),
    "Kerple, power": (
        "Kerple(form='power', r1={r1}, r2={r2})",
        (logarithmic("r1", 0.25, 4, 1.0, (0.125, 0.375, 0.625, 0.875)), even("r2", 0.3, 1.1, 1.0, (1.75, 1.25, 0.75, 0.25))),
    ),
    "Fire": ("Fire(c={c}, threshold={threshold})", (logarithmic("c", 0.01, 10, 0.1), logarithmic("threshold", 8, 2048, 512.0))),
    "Cope": ("Cope(positions={positions})", (choices("positions", (4, 8, 16, 32, 64), 64),)),
    "QueryTable": ("QueryTable(rank=4, extent={extent}, std=0.3)", (choices("extent", (4, 8, 16, 32, 64), 64),)),
    "SwinBias": ("SwinBias(grid=(6, 8), std={std})", (even("std", 0, 2, 1.0),)),
    "Sandwich": ("Sandwich(dim={dim}, base={base})", (choices("dim", (32, 128), 128), logarithmic("base", 100, 1e6, 10000.0))),
    "Epar, basic": (
        "Epar(form='basic', alpha={alpha}, beta={beta}, context=64, learnable=True)",
        (even("alpha", 0.2, 2, 1.0), logarithmic("beta", 0.1, 10, 1.0)),
    ),
    "Epar": (
        "Epar(alpha={alpha}, beta={beta}, gamma={gamma}, context=64, learnable=True)",
        (choices("alpha", (0.5, 1, 2), 1), logarithmic("beta", 0.1, 10, 1.0), logarithmic("gamma", 0.1, 5, 0.5)),
    ),
    "Epar, query length": (
        "Epar(beta={beta}, gamma={gamma}, learnable=True, length='query')",
        (logarithmic("beta", 0.1, 10, 1.0), logarithmic("gamma", 0.1, 5, 0.5)),
    ),
    "PowerPrior": ("PowerPrior(alpha={alpha}, beta={beta})", (logarithmic("alpha", 0.02, 0.5, 0.1), even("beta", 0.3, 1.3, 0.8))),
    "StableMask": (
        "StableMask(context={context}, gamma={gamma})",
        (choices("context", (64, 128, 256, 512, 1024), 512), logarithmic("gamma", 0.05, 20, 1.0, slopes(HEADS))),
    ),
    "Sink": ("Sink(value={value})", (even("value", -3, 6, 0.0),)),
    "LogTemperature": (
        "LogTemperature(original={original}, scale={scale})",
        (choices("original", (2, 4, 8, 16, 32), 4), even("scale", 0, 1, 0.1)),
    ),
    "ScalableSoftmax": ("ScalableSoftmax(s={s}, intercept=True)", (even("s", 0, 1.2, 0.168),)),
    "DataDependentAlibi": ("DataDependentAlibi(b={b})", (even("b", 0, 8, 5.0),)),
}  # fmt: skip

COMPOSITIONS: tuple[Exhibit, ...] = (
    Exhibit(
        Entry(
            "Rotary + Epar",
            lambda h, d: p.Rotary() + p.Epar(h, beta=[0.5, 1.0, 2.0, 4.0] if h == 4 else 1.0, form="basic", context=64),
            "rotary rotates queries and keys, then the factor multiplies their score and damps the oscillation at large distances",
            "two mechanisms in one expression: Rotary() + Epar(...)",
        ),
        "Rotary(base={base}) + Epar(form='basic', beta={beta}, context=64)",
        (choices("base", (100, 1000, 10000, 100000), 10000), logarithmic("beta", 0.1, 10, 1.0, (0.5, 1.0, 2.0, 4.0))),
    ),
    Exhibit(
        Entry(
            "Alibi + Sink",
            lambda h, d: p.Alibi(h) + p.Sink(h, value=[2.0, 1.0, 0.0, -1.0] if h == 4 else 0.0, learnable=False),
            "a penalty on distance, and one extra logit per row that receives attention and has no value",
            "a bias and an extra logit use different hooks, so they compose",
        ),
        "Alibi(scale={scale}) + Sink(value={value}, learnable=False)",
        (even("scale", 0, 4, 1.0), even("value", 0, 3, 1.0, (2.0, 1.0, 0.0, -1.0))),
    ),
)


def make_exhibit(entry: Entry) -> Exhibit:
    """An entry with its sliders."""
    expression, sliders = SLIDERS.get(entry.name, ("", ()))
    return Exhibit(entry, expression, sliders)
