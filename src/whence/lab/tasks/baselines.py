"""Predictors that are not trained networks: constant answers, simple rules and best possible scores.

They are the floor and the ceiling of a task. A network that does not beat a constant answer has learned nothing, and one
that does not beat a bag of words or a bigram model does not use more of the input than these do.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.lab.tasks.base import IGNORE_INDEX, Batch, count_confusion
from whence.lab.tasks.metrics import classification_scores

CONSTANT, RULE, CEILING = "constant", "rule", "ceiling"
#: training tokens of a bigram model; more change its perplexity little and take long
MAX_BIGRAM_TOKENS = 5_000_000


def baseline(kind: str, splits: Mapping[str, Mapping[str, float]], about: str) -> dict[str, Any]:
    """One entry of ``Task.baselines``."""
    plain = {split: {metric: float(value) for metric, value in row.items()} for split, row in splits.items()}
    return {"kind": kind, "splits": plain, "about": about}


# classification


def classification_baselines(
    train_tokens: Tensor,
    train_labels: Tensor,
    tests: Mapping[str, tuple[Tensor, Tensor]],
    classes: int,
    vocab_size: int,
) -> dict[str, Any]:
    """Majority class, naive Bayes on a bag of words, and the best score that contradictory labels allow.

    Args:
        train_tokens: ``[N, T]``, where 0 is padding.
        train_labels: ``[N]``.
        tests: tokens and labels of each split.
    """
    counts = train_labels.bincount(minlength=classes)
    majority, prior = int(counts.argmax()), (counts.double() + 1) / (counts.sum() + classes)
    weights = _naive_bayes(train_tokens, train_labels, classes, vocab_size)
    constant, bag, best = {}, {}, {}
    for split, (tokens, labels) in tests.items():
        if not len(labels):
            continue
        entropy = float(-prior.log()[labels].mean())
        constant[split] = _scores(labels, torch.full_like(labels, majority), classes) | {
            "perplexity": math.exp(entropy)
        }
        chosen = torch.cat([(weights[part].sum(1) + prior.log()).argmax(-1) for part in tokens.long().split(256)])
        bag[split] = _scores(labels, chosen, classes)
        best[split] = _scores(labels, _best_answers(tokens, labels), classes)
    return {
        "majority class": baseline(CONSTANT, constant, "The most frequent class of the training part, for every input."),
        "bag of words": baseline(RULE, bag, "Multinomial naive Bayes on the counts of the tokens, which ignores their order."),
        "best possible": baseline(
            CEILING, best, "The most frequent label of each different input; inputs with two labels keep it below 100 %."
        ),
    }  # fmt: skip


def _scores(labels: Tensor, predicted: Tensor, classes: int) -> dict[str, float]:
    return classification_scores(count_confusion(labels, predicted, classes).tolist())


def _naive_bayes(tokens: Tensor, labels: Tensor, classes: int, vocab_size: int) -> Tensor:
    """Log-probability of each token for each class with add-one smoothing, ``[vocab_size, classes]``; 0 for padding."""
    codes = (tokens.long() * classes + labels[:, None])[tokens != 0]
    counts = codes.bincount(minlength=vocab_size * classes).reshape(vocab_size, classes).double() + 1
    weights = (counts / counts.sum(0)).log()
    weights[0] = 0
    return weights


def _best_answers(tokens: Tensor, labels: Tensor) -> Tensor:
    """The most frequent label among equal inputs."""
    _, group = tokens.unique(dim=0, return_inverse=True)
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for number, label in zip(group.tolist(), labels.tolist(), strict=True):
        counts[number][label] += 1
    best = {number: own.most_common(1)[0][0] for number, own in counts.items()}
    return torch.tensor([best[number] for number in group.tolist()])


# language modelling


class BigramModel:
    """Counts of tokens and of pairs of tokens, with Witten-Bell smoothing of pairs by single tokens.

    >>> model = BigramModel(torch.tensor([0, 1, 0, 1, 0, 1]), 3)
    >>> [round(float(p), 3) for p in model.unigram]
    [0.444, 0.444, 0.111]
    >>> model.most_likely(torch.tensor([0, 1, 2])).tolist()
    [1, 0, 0]
    """

    def __init__(self, stream: Tensor, vocab_size: int, starts: Tensor | None = None) -> None:
        """``starts`` marks tokens whose predecessor belongs to another text, or is not scored; ``[N]`` bool."""
        self.vocab_size = vocab_size
        stream = stream[:MAX_BIGRAM_TOKENS].long()
        starts = None if starts is None else starts[:MAX_BIGRAM_TOKENS]
        counts = (
            stream.bincount(minlength=vocab_size) if starts is None else stream[~starts].bincount(minlength=vocab_size)
        )
        self.unigram = (counts.double() + 1) / (counts.sum() + vocab_size)
        pairs = stream[:-1] * vocab_size + stream[1:]
        if starts is not None:
            pairs = pairs[~starts[1:]]
        self.pairs, self.pair_counts = pairs.unique(return_counts=True)
        contexts = self.pairs // vocab_size
        self.context_counts = torch.zeros(vocab_size, dtype=torch.float64)
        self.context_counts.index_add_(0, contexts, self.pair_counts.double())
        self.context_types = contexts.bincount(minlength=vocab_size).double()
        order = self.pair_counts.argsort(stable=True)  # the last assignment wins, so the most frequent pair does
        self.successor = torch.full((vocab_size,), int(self.unigram.argmax()))
        for context, token in zip(contexts[order].tolist(), (self.pairs % vocab_size)[order].tolist(), strict=True):
            self.successor[context] = token

    def most_likely(self, contexts: Tensor) -> Tensor:
        """The most frequent successor of each token, or the most frequent token if it never occurred."""
        return self.successor[contexts]

    def probability(self, contexts: Tensor, targets: Tensor) -> Tensor:
        """p(target | context) in float64."""
        codes = contexts * self.vocab_size + targets
        at = torch.searchsorted(self.pairs, codes).clamp(max=max(len(self.pairs) - 1, 0))
        seen = self.pair_counts[at].double() * (self.pairs[at] == codes) if len(self.pairs) else torch.zeros(len(codes))
        types, total = self.context_types[contexts], self.context_counts[contexts]
        unigram = self.unigram[targets]
        return torch.where(total > 0, (seen + types * unigram) / (total + types).clamp(min=1), unigram)


def token_baselines(
    model: BigramModel, evaluations: Mapping[str, Iterable[Batch]], what: str = "token"
) -> dict[str, Any]:
    """Uniform, unigram and bigram model on the scored tokens of each split."""
    uniform, unigram, bigram = {}, {}, {}
    top = int(model.unigram.argmax())
    for split, batches in evaluations.items():
        contexts, targets = _scored_pairs(batches)
        uniform[split] = {"accuracy": 1 / model.vocab_size, "perplexity": float(model.vocab_size)}
        unigram[split] = {
            "accuracy": float((targets == top).double().mean()),
            "perplexity": math.exp(float(-model.unigram[targets].log().mean())),
        }
        bigram[split] = {
            "accuracy": float((model.most_likely(contexts) == targets).double().mean()),
            "perplexity": math.exp(float(-model.probability(contexts, targets).log().mean())),
        }
    return {
        "uniform": baseline(CONSTANT, uniform, f"Every {what} with the same probability."),
        "unigram": baseline(
            CONSTANT, unigram, f"The frequencies of each {what} in the training part, whatever the context."
        ),
        "bigram": baseline(RULE, bigram, f"The frequencies after the preceding {what}, with Witten-Bell smoothing."),
    }


def _scored_pairs(batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    contexts, targets = [], []
    for batch in batches:
        scored = batch.targets != IGNORE_INDEX
        contexts.append(batch.tokens[scored])
        targets.append(batch.targets[scored])
    return torch.cat(contexts), torch.cat(targets)


# generated texts


def text_baselines(
    train: Sequence[tuple[str, str]],
    tests: Mapping[str, Sequence[tuple[str, str]]],
    score: Callable[[list[str], list[str]], Mapping[str, float]],
    shorten: bool,
) -> dict[str, Any]:
    """Answers to sources without a model: the most frequent target, and the source itself or its opening.

    Args:
        train: source and target of each training pair.
        tests: the scored pairs of each split.
        score: the metrics of texts against references.
        shorten: whether a target is a shortened source: the rule then answers with as many of the source's first words as
            training targets have on average.
    """
    constant = Counter(target for _, target in train).most_common(1)[0][0]
    words = round(sum(len(target.split()) for _, target in train) / len(train)) if shorten else None
    same, copied = {}, {}
    for split, pairs in tests.items():
        references = [target for _, target in pairs]
        same[split] = score([constant] * len(pairs), references)
        copied[split] = score([" ".join(source.split()[:words]) for source, _ in pairs], references)
    rule = ("opening of the source", f"The first {words} words of the source: the mean length of a training target.")
    name, about = rule if shorten else ("copy of the source", "The source itself.")
    about_constant = "The most frequent target of the training part, for every source; the first one if several are."
    return {
        "most frequent target": baseline(CONSTANT, same, about_constant),
        name: baseline(RULE, copied, about),
    }


# generated tasks


def answer_baselines(
    answers: int, splits: Iterable[str], rules: Mapping[str, tuple[Mapping[str, Tensor], str]]
) -> dict[str, Any]:
    """Chance among equally likely answers, rules by the probability they give to each correct answer, and 100 %.

    Args:
        answers: the number of possible answers.
        rules: for each rule the probabilities of the correct answers by split, and a sentence about it.
    """
    splits = list(splits)
    found = {
        "chance": baseline(
            CONSTANT,
            {split: {"accuracy": 1 / answers, "perplexity": float(answers)} for split in splits},
            f"One of {answers} equally likely answers.",
        )
    }
    for name, (probabilities, about) in rules.items():
        # a rule that draws an answer is right with the probability that it gives to the correct one
        values = {split: {"accuracy": float(p.double().mean())} for split, p in probabilities.items()}
        found[name] = baseline(RULE, values, about)
    best = {split: {"accuracy": 1.0, "perplexity": 1.0} for split in splits}
    return found | {"best possible": baseline(CEILING, best, "The input determines the answer.")}
