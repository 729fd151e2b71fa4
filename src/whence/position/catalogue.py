"""The explicit list of all mechanisms: what tests run over, the gallery draws and the README's table shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whence import position as p
from whence.position.base import Position


@dataclass(frozen=True)
class Entry:
    """A mechanism as it is usually built, for any number of heads and head width."""

    name: str
    make: Callable[[int, int], Position]  # heads, head width
    idea: str
    source: str


CATALOGUE: tuple[Entry, ...] = (
    Entry("NoPosition", lambda h, d: p.NoPosition(), "nothing; order only through the mask", "arXiv 2203.16634"),
    Entry("Sinusoidal", lambda h, d: p.Sinusoidal(h * d), "sines and cosines added to the input", "arXiv 1706.03762"),
    Entry("Learned", lambda h, d: p.Learned(h * d, 512, std=0.3), "a learned vector a position added to the input", "arXiv 1705.03122"),
    Entry("Rotary", lambda h, d: p.Rotary(), "queries and keys turned by their position", "arXiv 2104.09864"),
    Entry("Rotary, YaRN", lambda h, d: p.Rotary(scaling=p.Yarn(factor=4.0, original=64)), "rotary stretched by frequency", "arXiv 2309.00071"),
    Entry("Shaw", lambda h, d: p.Shaw(d, clip=16, std=0.3), "learned vectors a distance, for keys and values", "arXiv 1803.02155"),
    Entry("TransformerXL", lambda h, d: p.TransformerXL(h, d), "projected sinusoids of the distance, and two global vectors", "arXiv 1901.02860"),
    Entry("T5Bias", lambda h, d: p.T5Bias(h, std=1.0), "a learned bias for each bucket of distances", "arXiv 1910.10683"),
    Entry("Alibi", lambda h, d: p.Alibi(h), "a fixed penalty linear in distance", "arXiv 2108.12409"),
    Entry("Kerple, log", lambda h, d: p.Kerple(h, form="log"), "a learned logarithmic penalty", "arXiv 2205.09921"),
    Entry("Kerple, power", lambda h, d: p.Kerple(h, form="power"), "a learned power-law penalty", "arXiv 2205.09921"),
    Entry("Fire", lambda h, d: p.Fire(h), "a small network of the distance over the query's position", "arXiv 2310.04418"),
    Entry("Cope", lambda h, d: p.Cope(d), "positions counted by the content itself", "arXiv 2405.18719"),
    Entry("Sandwich", lambda h, d: p.Sandwich(h), "the inner product of two sinusoidal embeddings as a bias", "arXiv 2212.10356"),
    Entry("Epar, basic", lambda h, d: p.Epar(h, form="basic", context=64, learnable=True), "the score times an exponential decay", "EPAR framework"),
    Entry("Epar", lambda h, d: p.Epar(h, context=64, learnable=True), "the score times a decay with a floor", "EPAR framework"),
    Entry("Epar, query length", lambda h, d: p.Epar(h, learnable=True, length="query"), "the same, with L the tokens so far", "EPAR framework"),
    Entry("PowerPrior", lambda h, d: p.PowerPrior(h, alpha=0.1, beta=0.8), "a learned power law of the distance", "unbuilt by its authors"),
    Entry("Recency", lambda h, d: p.Recency(256), "a learned bias by position from the end", "pointer attention"),
    Entry("StableMask", lambda h, d: p.StableMask(h, context=512), "a share of each early row goes to no one", "arXiv 2402.04779"),
    Entry("Sink", lambda h, d: p.Sink(h), "a learned logit that takes attention and gives nothing", "arXiv 2309.17453"),
)  # fmt: skip
