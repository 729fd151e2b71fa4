"""Sentiment of film reviews: positive or negative, with padding that is marked."""

from __future__ import annotations

from whence.lab.data import corpora
from whence.lab.data.folder import content_hash, data_folder
from whence.lab.data.units import Words
from whence.lab.tasks.base import at_least
from whence.lab.tasks.labelled import Classification, Items

#: the published test part has no labels; where a labelled copy is in the folder, it is scored too
FILES = {"dev": "dev.tsv", "test": "test-labeled.tsv"}


class Sst2(Classification):
    """The text is published in words apart by spaces; the vocabulary is the ``words`` most frequent of training."""

    name = "sst2"

    def __init__(self, context: int = 64, words: int = 10_000, mask_padding: str = "keys") -> None:
        at_least(self.name, "context", context, 1)
        at_least(self.name, "words", words, 3)
        asked = f'load("{self.name}")'
        texts, labels = corpora.sentiment(asked, "train_full.tsv")
        train = [text.split() for text in texts]
        units = Words.counted((word for text in train for word in text), words)
        tests, read = {}, list(texts)
        for split, name in FILES.items():
            if split == "test" and not (data_folder(asked) / "glue/SST-2" / name).exists():
                continue
            test_texts, test_labels = corpora.sentiment(asked, name)
            tests[split] = Items.padded([units.look_up(t.split()) for t in test_texts], test_labels, context)
            read += test_texts
        settings = {"words": words, "mask_padding": mask_padding, "data_hash": content_hash(read)}
        items = Items.padded([units.look_up(text) for text in train], labels, context)
        super().__init__(items, tests, units, 2, mask_padding, settings)
