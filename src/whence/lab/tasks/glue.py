"""GLUE from files: one or two texts, classified or scored for similarity, with each task's own metric.

An encoder reads ``first <sep> second``. Similarity (STS-B) is classified in steps of 0.2, as T5 does it; the predicted
similarity is the expectation over the classes, scored with Pearson's and Spearman's correlation.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import require_package
from whence.lab.data import glue
from whence.lab.data.corpora import content_hash
from whence.lab.data.generated_texts import generate_paraphrases
from whence.lab.data.glue import HIGHEST, STEP, SUBSETS, GlueItem
from whence.lab.data.splits import describe_duplicates, normalize_text
from whence.lab.data.tokenizers import PAD, ReservedTokenizer, build_tokenizer, token_unit
from whence.lab.tasks.base import require_at_least, require_choice
from whence.lab.tasks.baselines import CONSTANT, RULE, baseline
from whence.lab.tasks.classification import Classification, Items
from whence.lab.tasks.file_rows import require_same_data

SEPARATOR = "<sep>"
SEPARATOR_TOKEN = 1  # after padding
CORRELATIONS = ("pearson", "spearman")


class TextPairs(Classification):
    """One or two texts with a class or a similarity. Subclasses read them."""

    def __init__(
        self,
        parts: Mapping[str, Sequence[GlueItem]],
        class_names: Sequence[str],
        metric: str,
        tokens: str,
        context: int,
        words: int,
        mask_padding: str,
        settings: Mapping[str, Any],
    ) -> None:
        self.class_names = tuple(class_names) or tuple(f"{STEP * k:.1f}" for k in range(round(HIGHEST / STEP) + 1))
        self.measures_similarity = not class_names
        inner = build_tokenizer(tokens, (text for item in parts["train"] for text in item.texts), words)
        tokenizer = ReservedTokenizer(inner, [PAD, SEPARATOR])
        self.similarities = {part: torch.tensor([item.label for item in own]) for part, own in parts.items()}
        items = {}
        for part, own in parts.items():
            rows = [join_texts([tokenizer.encode(text).tolist() for text in item.texts], context) for item in own]
            labels = [round(item.label / STEP) if self.measures_similarity else int(item.label) for item in own]
            items[part] = Items.from_texts(rows, labels, context)
        tests = {part: own for part, own in items.items() if part != "train"}
        hashed = [text for own in parts.values() for item in own for text in (*item.texts, str(item.label))]
        own_settings = {
            "tokens": token_unit(tokens), "words": words, "mask_padding": mask_padding, "data_hash": content_hash(hashed),
        }  # fmt: skip
        super().__init__(
            items["train"], tests, tokenizer, len(self.class_names), mask_padding, {**settings, **own_settings}
        )
        self.metric = metric
        keys = [normalize_text(" | ".join(item.texts)) for own in parts.values() for item in own]
        self._duplicates = describe_duplicates(keys, None, [part for part, own in parts.items() for _ in own])

    @property
    def prediction_metrics(self) -> tuple[str, ...]:
        return CORRELATIONS if self.measures_similarity else ()

    def hold_out_validation(self) -> None:
        super().hold_out_validation()
        # the similarities of its rows are those of their classes
        self.similarities["validation"] = self.tests["validation"].labels * STEP

    @torch.no_grad()
    def predict_similarity(self, model: nn.Module, split: str) -> Tensor:
        """The expected similarity of each item of a split."""
        device, values = next(model.parameters()).device, torch.arange(len(self.class_names)) * STEP
        found = []
        for batch in self.evaluation(split):
            logits = self.logits(model, batch.map(lambda tensor: tensor.to(device))).float().cpu()
            found.append(logits.softmax(-1) @ values)
        return torch.cat(found)

    def score_predictions(self, model: nn.Module, split: str) -> dict[str, float]:
        """Pearson's and Spearman's correlation of predicted and given similarities, for a task that has these."""
        if not self.measures_similarity:
            return {}
        return correlate(self.predict_similarity(model, split), self.similarities[split])

    def baselines(self) -> dict[str, Any]:
        found = super().baselines()
        if not self.measures_similarity:
            return found
        overlap = {
            split: correlate(
                torch.tensor([_share_words(row.tolist()) for row in items.tokens]), self.similarities[split]
            )
            for split, items in self.tests.items()
        }
        constant = {split: dict.fromkeys(CORRELATIONS, 0.0) for split in self.tests}
        return {
            "the same for all": baseline(CONSTANT, constant, "The same similarity for every pair."),
            "shared words": baseline(RULE, overlap, "The share of the words of a pair that both texts have."),
        }

    def describe_data(self) -> dict[str, Any]:
        return super().describe_data() | {"duplicates": self._duplicates}


def correlate(predicted: Tensor, given: Tensor) -> dict[str, float]:
    """Pearson's and Spearman's correlation by scipy; 0 where one side is constant.

    >>> correlate(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0.0, 1.0, 2.0]))["spearman"]
    1.0
    >>> correlate(torch.ones(3), torch.arange(3.0))
    {'pearson': 0.0, 'spearman': 0.0}
    """
    sides = (predicted.double().numpy(), given.double().numpy())
    if min(side.std() for side in sides) == 0:
        return dict.fromkeys(CORRELATIONS, 0.0)
    stats = require_package("scipy.stats", "STS-B", "lab")  # a second to load, which other tasks need not wait for
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)  # nearly constant predictions
        found = {"pearson": stats.pearsonr(*sides).statistic, "spearman": stats.spearmanr(*sides).statistic}
    return {name: float(value) if value == value else 0.0 for name, value in found.items()}


def join_texts(texts: Sequence[list[int]], context: int) -> list[int]:
    """One or two texts as one row, with a separator between them; the longer one is cut.

    >>> join_texts([[5, 6, 7, 8], [9]], 5), join_texts([[5, 6]], 5)
    ([5, 6, 7, 1, 9], [5, 6])
    """
    if len(texts) == 1:
        return texts[0][:context]
    first, second = texts
    half = (context - 1) // 2
    kept = max(half, context - 1 - len(second))
    first = first[:kept]
    return [*first, SEPARATOR_TOKEN, *second[: context - 1 - len(first)]]


def _share_words(row: list[int]) -> float:
    cut = row.index(SEPARATOR_TOKEN)
    first, second = set(row[:cut]), {token for token in row[cut + 1 :] if token}
    return len(first & second) / max(1, len(first | second))


def check_pairs_settings(name: str, context: int, words: int) -> None:
    require_at_least(name, "context", context, 4)
    require_at_least(name, "words", words, 5)


class Paraphrases(TextPairs):
    """Generated pairs of sentences that mean the same or not; see ``generate_paraphrases``. They need no files.

    Args:
        pairs: number of training pairs.
        test_pairs: number of test pairs.
        context: tokens of an input.
        seed: seed of the pairs.
    """

    name = "paraphrases"

    def __init__(self, pairs: int = 2000, test_pairs: int = 200, context: int = 12, seed: int = 0) -> None:
        check_pairs_settings(self.name, context, 5)
        require_at_least(self.name, "pairs", pairs, 10)
        require_at_least(self.name, "test_pairs", test_pairs, 10)
        parts = {
            part: [GlueItem((one.first, one.second), one.label) for one in generate_paraphrases(count, own)]
            for part, count, own in (("train", pairs, seed), ("test", test_pairs, seed + 1))
        }
        super().__init__(parts, ("other", "same"), "accuracy", "words", context, 1000, "keys", {"seed": seed})


class Glue(TextPairs):
    """A task of GLUE from files; `whence compare --task glue --subset rte --data FOLDER` reads other ones.

    Args:
        subset: ``sst2``, ``cola``, ``mrpc``, ``qqp``, ``stsb``, ``mnli``, ``qnli``, ``rte`` or ``wnli``.
        path: a folder with train and dev in GLUE's format; empty for that of the task in the folder of WHENCE_DATA.
        tokens: ``words``, ``bytes``, ``characters`` or the path of a ``tokenizer.json``.
        context: tokens of an input: of both texts and a separator.
        words: largest vocabulary of words or characters.
        mask_padding: "keys" masks padding, "none" treats it as a token.
        items: number of training items; 0 for all.
        test_items: number of items of each other part; 0 for all.
        sha256: the hash that the data must have, if it is not empty.
    """

    name = "glue"

    def __init__(
        self,
        subset: str = "sst2",
        path: str = "",
        tokens: str = "words",
        context: int = 64,
        words: int = 10_000,
        mask_padding: str = "keys",
        items: int = 0,
        test_items: int = 0,
        sha256: str = "",
    ) -> None:
        require_choice(self.name, "subset", subset, tuple(SUBSETS))
        check_pairs_settings(self.name, context, words)
        require_at_least(self.name, "items", items, 0)
        require_at_least(self.name, "test_items", test_items, 0)
        subject = f"task {self.name!r}"
        if path:
            require_same_data(path, tokens, sha256)
        files = glue.find_glue_files(subject, subset, path)
        parts = {
            part: glue.read_glue(subject, subset, file)[: (items if part == "train" else test_items) or None]
            for part, file in files.items()
        }
        own = SUBSETS[subset]
        settings = {"subset": subset, "file": Path(path).name}
        super().__init__(parts, own.labels, own.metrics[0], tokens, context, words, mask_padding, settings)
