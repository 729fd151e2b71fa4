"""Language modelling on WikiText-2 and WikiText-103, in the words they were published in."""

from __future__ import annotations

import re

from whence.lab.data import corpora
from whence.lab.data.folder import content_hash
from whence.lab.data.units import Words
from whence.lab.tasks.base import at_least, one_of
from whence.lab.tasks.windows import LanguageModelling

#: the text is already in words; the end of a line counts as one, as it does in published perplexities
LINES_IN_WORDS = re.compile(r"\n|[^\s]+")


class WikiText(LanguageModelling):
    """The vocabulary is counted on the part that is trained on, and cut at ``words``.

    ``train_part="valid"`` trains on the small validation part, for folders without the training part. It is never taken
    silently: its numbers are not those of the full set.
    """

    size: int

    def __init__(
        self, context: int = 64, blocks: int = 512, train_part: str = "train", words: int | None = None
    ) -> None:
        one_of(self.name, "train_part", train_part, ("train", "valid"))
        at_least(self.name, "words", 3 if words is None else words, 3)
        asked = f'load("{self.name}")'
        train, test = (corpora.wikitext(asked, self.size, part) for part in (train_part, "test"))
        split = LINES_IN_WORDS.findall(train)
        units = Words.counted(split, words, LINES_IN_WORDS)
        settings = {"train_part": train_part, "words": words, "data_hash": content_hash([train, test])}
        super().__init__(units.encode_words(split), units.encode(test), units, context, blocks, settings)


class WikiText2(WikiText):
    """Two million words."""

    name, size = "wikitext2", 2


class WikiText103(WikiText):
    """A hundred million words; a limit on ``words`` keeps the output layer small."""

    name, size = "wikitext103", 103
