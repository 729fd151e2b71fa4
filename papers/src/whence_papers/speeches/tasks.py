"""Presidential speeches: classification of the speaker, and language modelling, as in the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from whence.lab.tasks.base import Batch, require_at_least
from whence.lab.tasks.classification import Classification, Items
from whence.lab.tasks.language_modelling import LanguageModelling, windows
from whence_papers.speeches import data as data
from whence_papers.speeches.panels import training_panels

#: batch size of the source, which scores at most 200 batches
STUDY_BATCH = 16

#: line numbers, from 1, of the sentences whose attention the source draws
EXAMPLE_LINES_CLASSIFY = (12, 6, 93)  # of train_CLS.tsv
EXAMPLE_LINES_LM = (57, 2)  # of train_LM.txt


class SpeechesClassify(Classification):
    """Classify sentences of three presidents, truncated and padded to 32 tokens. The source does not mask padding.

    Most test sentences of the source also occur in its training file with the same label. The split "test" is the one
    the source reports; "unseen" holds only the sentences that do not occur in training.

    With ``training_scores=True`` every evaluation also has the training accuracy in both ways in which it can be meant: the
    split "train" is all training sentences in evaluation mode, and ``training`` in the record is the running mean over the
    batches since the last evaluation, with dropout. The source does not say which one it prints.
    """

    name = "speeches_classify"

    def __init__(self, mask_padding: str = "none", context: int = data.LONGEST, training_scores: bool = False) -> None:
        require_at_least(self.name, "context", context, 1)
        subject = f"task {self.name!r}"
        nltk = data.load_tokenizer(subject)
        units = data.build_vocabulary(subject, nltk.split)
        texts, labels = data.read_labelled(subject, "train_CLS.tsv")
        test_texts, test_labels = data.read_labelled(subject, "test_CLS.tsv")
        train = Items.from_texts([units.look_up(nltk.split(text)) for text in texts], labels, context)
        test = Items.from_texts([units.look_up(nltk.split(text)) for text in test_texts], test_labels, context)
        in_training = set(texts)
        unseen = torch.tensor(
            [row for row, text in enumerate(test_texts) if text not in in_training], dtype=torch.int64
        )
        tests = {"test": test, "unseen": Items(test.tokens[unseen], test.labels[unseen])}
        settings = {
            "mask_padding": mask_padding,
            "nltk": nltk.version,
            "vocabulary": units.size,
            "unseen": len(unseen),
            "data_hash": data.speeches_hash(subject, ("test_CLS.tsv",)),
        }
        if training_scores:
            tests["train"], settings["training_scores"], self.tracks_training = train, True, True
        super().__init__(train, tests, units, 3, mask_padding, settings)

    @staticmethod
    def panels(runs: Mapping[str, list[dict[str, Any]]], baselines: Mapping[str, Any]) -> list[dict[str, Any]]:
        return training_panels(runs, "accuracy")

    def examples(self, count: int) -> list[Batch]:
        """The sentences whose attention the source draws."""
        return [self._batch(self.train, torch.tensor([line - 1])) for line in EXAMPLE_LINES_CLASSIFY[:count]]


class SpeechesLm(LanguageModelling):
    """Blocks of 32 tokens, and one test file for each president.

    The source's blocks begin at every token, so they overlap. With ``stride=context`` they do not, and every token of a
    test file is scored once. The source scores at most the first 200 batches of 16 blocks of a file;
    ``evaluation_batches=None`` scores all. There is no evaluation at longer lengths: the splits are the three files.
    ``train_batch`` draws blocks at any token, independent of the stride.

    With ``training_scores=True`` every evaluation also has the training perplexity in both ways: the split "train" is as many
    blocks of the training text as a test file has, evenly spaced, in evaluation mode; ``training`` in the record is the running
    mean over the batches since the last evaluation, with dropout.
    """

    name = "speeches_lm"
    unit = "word"

    def __init__(
        self,
        context: int = data.LONGEST,
        stride: int = 1,
        evaluation_batches: int | None = 200,
        training_scores: bool = False,
    ) -> None:
        require_at_least(self.name, "stride", stride, 1)
        require_at_least(self.name, "evaluation_batches", 1 if evaluation_batches is None else evaluation_batches, 1)
        subject = f"task {self.name!r}"
        nltk = data.load_tokenizer(subject)
        units = data.build_vocabulary(subject, nltk.split)
        names = {president: f"test_LM_{president}.txt" for president in data.PRESIDENTS}
        self.files = {
            president: units.encode_words(nltk.split(data.read_speech_file(subject, name)))
            for president, name in names.items()
        }
        self.stride, self.evaluation_batches = stride, evaluation_batches
        text = data.read_speech_file(subject, "train_LM.txt")
        train = units.encode_words(nltk.split(text))
        lines = text.splitlines()
        self.example_tokens = [
            units.encode_words(nltk.split(lines[line - 1])).long()[:context] for line in EXAMPLE_LINES_LM
        ]
        settings: dict[str, Any] = {
            "stride": stride,
            "evaluation_batches": evaluation_batches,
            "nltk": nltk.version,
            "vocabulary": units.size,
            "data_hash": data.speeches_hash(subject, tuple(names.values())),
        }
        shortest = min(self.files.values(), key=len)
        super().__init__(train, shortest, units, context, 1, settings)
        del self.settings["blocks"]  # stride and evaluation_batches describe it
        if training_scores:
            self.settings["training_scores"] = self.tracks_training = True

    def splits(self) -> dict[str, int]:
        return dict.fromkeys((*data.PRESIDENTS, *(["train"] if self.tracks_training else [])), self.context)

    @staticmethod
    def panels(runs: Mapping[str, list[dict[str, Any]]], baselines: Mapping[str, Any]) -> list[dict[str, Any]]:
        return training_panels(runs, "perplexity")

    def describe_data(self) -> dict[str, Any]:
        sizes = {"train": len(self.train), **{president: len(stream) for president, stream in self.files.items()}}
        return super().describe_data() | {"items": sizes}

    def examples(self, count: int) -> list[Batch]:
        """The sentences whose attention the source draws, without padding."""
        return [Batch(tokens[None], tokens[None]) for tokens in self.example_tokens[:count]]

    def epoch(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        starts = torch.arange(0, len(self.train) - self.context, self.stride)
        for batch_starts in starts[torch.randperm(len(starts), generator=generator)].split(size):
            yield windows(self.train, batch_starts, self.context)

    def evaluation(self, split: str) -> list[Batch]:
        self.split_length(split)
        stream, stride = (self.train, self.stride) if split == "train" else (self.files[split], self.stride)
        if split == "train" and self.evaluation_batches is not None:
            stride = max(stride, (len(stream) - self.context) // (self.evaluation_batches * STUDY_BATCH))
        batches = torch.arange(0, len(stream) - self.context, stride).split(STUDY_BATCH)
        return [windows(stream, starts, self.context) for starts in batches[: self.evaluation_batches]]
