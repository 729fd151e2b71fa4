"""Language modelling on public-domain books, split by book: text whose context is really long."""

from __future__ import annotations

from whence.lab.data import corpora
from whence.lab.data.folder import content_hash
from whence.lab.data.units import Bytes
from whence.lab.tasks.base import at_least
from whence.lab.tasks.windows import LanguageModelling


class Books(LanguageModelling):
    """Bytes. ``characters`` is how much of the training part is read, from its beginning; None takes all of it."""

    name = "books"

    def __init__(self, context: int = 256, blocks: int = 128, characters: int | None = 10_000_000) -> None:
        at_least(self.name, "characters", context + 1 if characters is None else characters, context + 1)
        asked = f'load("{self.name}")'
        train, test = corpora.books(asked, "train", characters), corpora.books(asked, "test")
        settings = {"characters": characters, "data_hash": content_hash([train, test])}
        units = Bytes()
        super().__init__(units.encode(train), units.encode(test), units, context, blocks, settings)
