"""The list of all built-in mechanisms. A new one is added here, in its own file and in its test.

Everything in ``__all__`` becomes a name of ``whence.position``, and every mechanism a name of ``whence`` as well. The
common checks, the gallery and the tables of the documentation iterate over ``CATALOGUE``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from whence.position.alibi import Alibi
from whence.position.axial_rotary import AxialRotary
from whence.position.base import Position
from whence.position.cope import Cope
from whence.position.dape import Dape
from whence.position.dual_chunk_rotary import DualChunkRotary
from whence.position.epar import Epar
from whence.position.fire import Fire
from whence.position.fope import Fope
from whence.position.forget_gate import DataDependentAlibi, ForgetGate
from whence.position.free_table import FreeTable
from whence.position.grape import GrapeA
from whence.position.kerple import Kerple
from whence.position.learned import Learned
from whence.position.learned_rotary import LearnedRotary
from whence.position.log_temperature import LogTemperature
from whence.position.no_position import NoPosition
from whence.position.pope import Pope
from whence.position.power_prior import PowerPrior
from whence.position.query_table import QueryTable
from whence.position.recency import Recency
from whence.position.rotary import Rotary
from whence.position.rotary_scaling import DynamicNtk, Linear, Llama3, LongRope, Proportional, Yarn
from whence.position.sandwich import Sandwich
from whence.position.scalable_softmax import ScalableSoftmax
from whence.position.self_extend_rotary import SelfExtendRotary
from whence.position.shaw import Shaw
from whence.position.sink import Sink
from whence.position.sinusoidal import Sinusoidal
from whence.position.stable_mask import StableMask
from whence.position.string_rotary import StringRotary
from whence.position.swin import SwinBias
from whence.position.t5 import T5Bias
from whence.position.transformer_xl import TransformerXL
from whence.position.xpos import XPos

#: mechanisms: the names that ``whence`` exports, and that ``position/expression.py`` understands
__all__ = [
    "Alibi",
    "AxialRotary",
    "Cope",
    "Dape",
    "DataDependentAlibi",
    "DualChunkRotary",
    "Epar",
    "Fire",
    "ForgetGate",
    "Fope",
    "FreeTable",
    "GrapeA",
    "Kerple",
    "Learned",
    "LearnedRotary",
    "LogTemperature",
    "NoPosition",
    "Pope",
    "PowerPrior",
    "QueryTable",
    "Recency",
    "Rotary",
    "Sandwich",
    "ScalableSoftmax",
    "SelfExtendRotary",
    "Shaw",
    "Sink",
    "Sinusoidal",
    "StableMask",
    "StringRotary",
    "SwinBias",
    "T5Bias",
    "TransformerXL",
    "XPos",
]

#: classes that may be the value of a mechanism's argument, as in ``Rotary(scaling=Yarn(factor=4))``
ARGUMENT_CLASSES: tuple[type, ...] = (DynamicNtk, Linear, Llama3, LongRope, Proportional, Yarn)

#: short names for the command line; records contain the full expression
SHORT_NAMES = {
    "none": "NoPosition()",
    "sinusoidal": "Sinusoidal()",
    "learned": "Learned()",
    "rotary": "Rotary()",
    "learned-rotary": "LearnedRotary()",
    "xpos": "XPos()",
    "pope": "Pope()",
    "fope": "Fope()",
    "axial": "AxialRotary(grid=(14, 14))",
    "self-extend": "SelfExtendRotary(group=4, window=16)",
    "dual-chunk": "DualChunkRotary(chunk=48, window=8)",
    "string": "StringRotary(shift=21, window=8)",
    "shaw": "Shaw()",
    "xl": "TransformerXL()",
    "t5": "T5Bias()",
    "alibi": "Alibi()",
    "kerple": "Kerple()",
    "fire": "Fire()",
    "table": "FreeTable()",
    "cope": "Cope()",
    "dape": "Dape()",
    "grape": "GrapeA()",
    "query-table": "QueryTable()",
    "swin": "SwinBias(grid=(7, 7))",
    "sandwich": "Sandwich()",
    "epar": "Epar(learnable=True)",
    "power": "PowerPrior(alpha=0.1)",
    "recency": "Recency()",
    "stablemask": "StableMask()",
    "sink": "Sink()",
    "logn": "LogTemperature()",
    "ssmax": "ScalableSoftmax()",
    "forget": "ForgetGate()",
    "data-alibi": "DataDependentAlibi()",
}


@dataclass(frozen=True)
class Entry:
    """A mechanism with typical arguments, for any number of heads and head dimension."""

    name: str
    make: Callable[[int, int], Position]  # heads, head_dim
    idea: str
    source: str


CATALOGUE: tuple[Entry, ...] = (
    Entry("NoPosition", lambda h, d: NoPosition(), "no position; a decoder learns order from the causal mask alone", "arXiv 2203.16634"),
    Entry("Sinusoidal", lambda h, d: Sinusoidal(h * d), "sines and cosines added to the input", "arXiv 1706.03762"),
    Entry("Learned", lambda h, d: Learned(h * d, 512, std=0.3), "a learned vector per position added to the input", "arXiv 1705.03122"),
    Entry("Rotary", lambda h, d: Rotary(), "queries and keys rotated by their position", "arXiv 2104.09864"),
    Entry("Rotary, YaRN", lambda h, d: Rotary(scaling=Yarn(factor=4.0, original=64)), "rotary with low frequencies interpolated, for longer contexts", "arXiv 2309.00071"),
    Entry("Rotary, proportional", lambda h, d: Rotary(scaling=Proportional(max(0.25, 2 / d))), "rotary on the highest frequencies of a head; the other columns do not rotate", "Gemma 4 in transformers"),
    Entry("LearnedRotary", lambda h, d: LearnedRotary(d), "rotary with learned frequencies", "arXiv 2512.07805"),
    Entry("XPos", lambda h, d: XPos(center=2048.0), "rotary with a decay of each pair of columns over distance", "arXiv 2212.10554"),
    Entry("Fope", lambda h, d: Fope(d, context=64, learnable=True), "rotary with a mixture of frequencies in every plane", "arXiv 2412.17739"),
    Entry("AxialRotary", lambda h, d: AxialRotary((6, 8)), "rotary on a grid: a part of each head by row, another by column", "Gemma 4 in transformers"),
    Entry("SelfExtendRotary", lambda h, d: SelfExtendRotary(group=2, window=4), "rotary with distances beyond a window floored to groups", "arXiv 2401.01325"),
    Entry("DualChunkRotary", lambda h, d: DualChunkRotary(chunk=6, window=2), "rotary inside chunks, so that no distance exceeds the chunk", "arXiv 2402.17463"),
    Entry("StringRotary", lambda h, d: StringRotary(shift=5, window=2), "rotary with far distances shifted into the trained range", "arXiv 2410.18745"),
    Entry("Pope", lambda h, d: Pope(d, phase="uniform"), "softplus magnitudes, with a cosine of distance in every column", "arXiv 2509.10534"),
    Entry("Shaw", lambda h, d: Shaw(d, clip=16, std=0.3), "a learned vector per distance, added to keys and values", "arXiv 1803.02155"),
    Entry("TransformerXL", lambda h, d: TransformerXL(h, d), "scores against a projected sinusoid of the distance, plus two learned query vectors", "arXiv 1901.02860"),
    Entry("T5Bias", lambda h, d: T5Bias(h, std=1.0), "a learned bias for each bucket of distances", "arXiv 1910.10683"),
    Entry("Alibi", lambda h, d: Alibi(h), "a fixed penalty linear in distance", "arXiv 2108.12409"),
    Entry("Kerple, log", lambda h, d: Kerple(h, form="log"), "a learned logarithmic penalty", "arXiv 2205.09921"),
    Entry("Kerple, power", lambda h, d: Kerple(h, form="power"), "a learned power-law penalty", "arXiv 2205.09921"),
    Entry("Fire", lambda h, d: Fire(h), "a small network of the distance divided by the query's position", "arXiv 2310.04418"),
    Entry("FreeTable", lambda h, d: FreeTable(h, acts_on="bias and scale", exact=4, max_distance=512), "a learned value per knot of distance, without a formula", "no paper; whence.discover"),
    Entry("Cope", lambda h, d: Cope(d), "positions counted by gates that depend on the content", "arXiv 2405.18719"),
    Entry("Dape", lambda h, d: Dape(h), "a bias changed by a small network over the scores of all heads", "arXiv 2405.14722"),
    Entry("GrapeA", lambda h, d: GrapeA(h, d), "a penalty linear in distance, with a slope set by query and key", "arXiv 2512.07805"),
    Entry("QueryTable", lambda h, d: QueryTable(h, d, rank=4, extent=64, std=0.3), "learned profiles over distance, mixed by the query", "Inkling in transformers"),
    Entry("SwinBias", lambda h, d: SwinBias(h, (6, 8), std=1.0), "a learned bias per difference of rows and columns on a grid", "arXiv 2103.14030"),
    Entry("Sandwich", lambda h, d: Sandwich(h), "the inner product of two sinusoidal embeddings as a bias", "arXiv 2212.10356"),
    Entry("Epar, basic", lambda h, d: Epar(h, form="basic", context=64, learnable=True), "the score multiplied by an exponential decay", "EPAR framework"),
    Entry("Epar", lambda h, d: Epar(h, context=64, learnable=True), "the score multiplied by a decay with a floor", "EPAR framework"),
    Entry("Epar, query length", lambda h, d: Epar(h, learnable=True, length="query"), "the same, with the number of tokens so far as the length", "EPAR framework"),
    Entry("PowerPrior", lambda h, d: PowerPrior(h, alpha=0.1, beta=0.8), "a learned power law of the distance", "a proposal without published code"),
    Entry("Recency", lambda h, d: Recency(256), "a learned bias per position, counted back from the query", "pointer-generator models"),
    Entry("StableMask", lambda h, d: StableMask(h, context=512), "early queries assign part of their probability to no key", "arXiv 2402.04779"),
    Entry("Sink", lambda h, d: Sink(h), "a learned extra logit without a value vector", "arXiv 2309.17453"),
    Entry("LogTemperature", lambda h, d: LogTemperature(original=4), "queries multiplied by a logarithm of their position, stepwise", "Llama 4 in transformers"),
    Entry("ScalableSoftmax", lambda h, d: ScalableSoftmax(h, intercept=True), "queries multiplied by a learned multiple of the logarithm of their position", "arXiv 2501.19399"),
    Entry("ForgetGate", lambda h, d: ForgetGate(h * d, h), "a learned gate per token; a key fades with every gate after it", "arXiv 2503.02130"),
    Entry("DataDependentAlibi", lambda h, d: DataDependentAlibi(h * d, h), "the gates of ForgetGate, near 1 at the start", "x-transformers"),
)  # fmt: skip


def describe_learning(position: Position) -> str:
    """How the argument ``learnable`` of a mechanism's class changes whether it learns; empty without that argument.

    >>> describe_learning(Alibi(4)), describe_learning(Kerple(4)), describe_learning(Rotary())
    ('learns with `learnable=True`', 'fixed with `learnable=False`', '')
    """
    argument = inspect.signature(type(position)).parameters.get("learnable")
    if argument is None:
        return ""
    return "fixed with `learnable=False`" if argument.default else "learns with `learnable=True`"
