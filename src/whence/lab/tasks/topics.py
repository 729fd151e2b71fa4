"""Language modelling on the help topics of Python, which are there without a download."""

from __future__ import annotations

import platform

from whence.lab.data import python_texts
from whence.lab.data.folder import content_hash
from whence.lab.data.units import WORDS_AND_MARKS, Bytes, Units, Words
from whence.lab.tasks.base import at_least, one_of
from whence.lab.tasks.windows import LanguageModelling


class Topics(LanguageModelling):
    """Bytes by default: nothing is fitted to the text, nothing is unknown, and a small model has enough of them.

    With ``units="words"`` the vocabulary is the ``words`` most frequent of the training part; perplexity then counts
    every other word as one and the same, and does not compare with another size.
    """

    name = "topics"

    def __init__(self, context: int = 64, blocks: int = 128, units: str = "bytes", words: int = 2048) -> None:
        one_of(self.name, "units", units, ("bytes", "words"))
        at_least(self.name, "words", words, 3)
        parts = python_texts.topics(f'load("{self.name}")')
        train, test = "\n\n".join(parts.train.values()), "\n\n".join(parts.test.values())
        chosen: Units = Bytes() if units == "bytes" else Words.counted(WORDS_AND_MARKS.findall(train), words)
        settings = {
            "units": units,
            "words": words if units == "words" else None,
            "python": platform.python_version(),
            "data_hash": content_hash([train, test]),
        }
        super().__init__(chosen.encode(train), chosen.encode(test), chosen, context, blocks, settings)
