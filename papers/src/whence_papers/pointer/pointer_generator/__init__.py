"""The pointer-generator with coverage: a summariser that can say words it has no name for, by copying them."""

from whence_papers.pointer.pointer_generator.model import PointerGenerator, Told
from whence_papers.pointer.pointer_generator.search import Hypothesis, beam_search, greedy_search
from whence_papers.pointer.pointer_generator.spec import PointerGeneratorSpec
from whence_papers.pointer.pointer_generator.texts import Sources, Targets, Vocabulary

__all__ = [
    "Hypothesis", "PointerGenerator", "PointerGeneratorSpec", "Sources", "Targets", "Told", "Vocabulary", "beam_search",
    "greedy_search",
]  # fmt: skip
