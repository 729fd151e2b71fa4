"""Translation from parallel text: Multi30k (Elliott et al. 2016, arXiv 1605.00459) and WMT'14 English-German."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from whence.lab.data import corpora
from whence.lab.data.corpora import content_hash
from whence.lab.data.splits import describe_duplicates, normalize_text
from whence.lab.tasks.base import require_at_least, require_choice
from whence.lab.tasks.pairs import PairsTask, check_pair_settings

LANGUAGES = ("en", "de")


class ParallelText(PairsTask):
    """Sentence pairs of two files with one sentence on each line. Subclasses name the data set.

    Args:
        source: language of the source, ``en`` or ``de``; the target is the other one.
        tokens: ``words``, ``bytes``, ``characters`` or the path of a ``tokenizer.json``.
        context: tokens of an input: of each side, or of both and a separator for a decoder.
        words: largest vocabulary of words or characters, shared by both languages.
        architecture: ``encoder-decoder`` or ``decoder``.
        cross_position: position in cross-attention: ``none``, or the ``same`` as in self-attention.
        translations: number of pairs of each split that are translated for BLEU and chrF; 0 for none.
        num_beams: beams of the translations; 1 is greedy search.
        pairs: number of training pairs; 0 for all.
        test_pairs: number of pairs of each other split; 0 for all.
    """

    stems: ClassVar[Mapping[str, str]]  # the names of the files by part

    def __init__(
        self,
        source: str = "en",
        tokens: str = "words",
        context: int = 64,
        words: int = 10_000,
        architecture: str = "encoder-decoder",
        cross_position: str = "none",
        translations: int = 0,
        num_beams: int = 1,
        pairs: int = 0,
        test_pairs: int = 0,
    ) -> None:
        require_choice(self.name, "source", source, LANGUAGES)
        require_at_least(self.name, "words", words, 3)
        require_at_least(self.name, "pairs", pairs, 0)
        require_at_least(self.name, "test_pairs", test_pairs, 0)
        check_pair_settings(self.name, context, architecture, cross_position, translations, num_beams)
        target = next(language for language in LANGUAGES if language != source)
        subject = f"task {self.name!r}"
        read = {
            part: corpora.parallel_text(
                subject, self.name, stem, (source, target), pairs if part == "train" else test_pairs
            )
            for part, stem in self.stems.items()
        }
        hashed = [text for own in read.values() for pair in own for text in pair]
        settings = {"source": source, "tokens": tokens, "words": words, "data_hash": content_hash(hashed)}
        super().__init__(read, tokens, context, words, architecture, cross_position, translations, num_beams, settings)
        keys = [normalize_text(pair[0]) for own in read.values() for pair in own]
        parts = [part for part, own in read.items() for _ in own]
        self._facts |= {
            "items": {part: len(own) for part, own in read.items()},
            "split": "the parts as published",
            "duplicates": describe_duplicates(keys, None, parts),
        }


class Multi30k(ParallelText):
    """29,000 descriptions of images in English, translated into German."""

    name = "multi30k"
    stems = {"train": "train", "test": "test_2016_flickr", "validation": "val"}


class Wmt14(ParallelText):
    """4.5 million sentence pairs of the news translation task of 2014; the test part is newstest2014."""

    name = "wmt14"
    stems = {"train": "train", "test": "test", "validation": "val"}
