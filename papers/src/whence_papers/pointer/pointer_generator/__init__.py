"""The pointer-generator with coverage: a summarizer that can copy out-of-vocabulary words from its source."""

from whence_papers.pointer.pointer_generator.model import PointerGenerator, PointerGeneratorSpec, TeacherForcedOutput
from whence_papers.pointer.pointer_generator.search import Hypothesis, beam_search, greedy_search
from whence_papers.pointer.pointer_generator.vocabulary import SourceBatch, TargetBatch, Vocabulary

__all__ = [
    "Hypothesis", "PointerGenerator", "PointerGeneratorSpec", "SourceBatch", "TargetBatch", "TeacherForcedOutput", "Vocabulary", "beam_search",
    "greedy_search",
]  # fmt: skip
