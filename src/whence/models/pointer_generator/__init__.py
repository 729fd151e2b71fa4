"""The pointer-generator with coverage: a summariser that can say words it has no name for, by copying them."""

from whence.models.pointer_generator.model import PointerGenerator, Told
from whence.models.pointer_generator.search import Hypothesis, beam_search, greedy_search
from whence.models.pointer_generator.spec import PointerGeneratorSpec
from whence.models.pointer_generator.texts import Sources, Targets, Vocabulary

__all__ = [
    "Hypothesis", "PointerGenerator", "PointerGeneratorSpec", "Sources", "Targets", "Told", "Vocabulary", "beam_search",
    "greedy_search",
]  # fmt: skip
