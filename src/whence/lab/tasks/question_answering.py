"""Extractive question answering: the answer is a span of the context, or none (Rajpurkar et al. 2018, arXiv 1806.03822).

An encoder reads ``<cls> question <sep> context`` and gives every token two logits, of the start and of the end of the answer.
For an unanswerable question both are at ``<cls>``. The predicted answer is the span with the largest sum of both logits, or the
empty text if ``<cls>`` has a larger one. Exact match and F1 compare its characters with the accepted answers.

The split ``shuffled`` has the questions of ``test`` with the sentences of each context in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.lab.answer_scores import normalize_answer, score_answer
from whence.lab.arms import Arm
from whence.lab.data import squad
from whence.lab.data.splits import describe_lengths
from whence.lab.data.squad import Question, shuffle_sentences
from whence.lab.data.tokenizers import (
    PAD,
    ReservedTokenizer,
    Tokenizer,
    build_tokenizer,
    locate_tokens,
    token_unit,
)
from whence.lab.tasks.base import (
    IGNORE_INDEX,
    Batch,
    Task,
    evaluation_batch_size,
    named_generator,
    require_at_least,
    require_choice,
    require_known_fields,
    to_ints,
)
from whence.lab.tasks.baselines import CEILING, CONSTANT, RULE, baseline
from whence.lab.tasks.file_rows import unknown_share
from whence.models import ModelSpec, build
from whence.position.expression import ModelDims

CLS, SEPARATOR = "<cls>", "<sep>"
CLS_TOKEN, SEPARATOR_TOKEN = 1, 2  # after padding
ORDERS = ("original", "shuffled")
MAX_QUESTION = 64  # tokens
#: answers in a record, for reading
EXAMPLES = 5
METRICS = ("token_f1", "exact_match")


@dataclass(frozen=True)
class EncodedQuestions:
    """The questions of a part as rows of one length."""

    tokens: Tensor  # [N, T] int32, padding is 0
    targets: Tensor  # [N, 2] int64, start and end; IGNORE_INDEX if the answer is beyond the last token
    first: Tensor  # [N] int64, the first token of the context
    questions: tuple[Question, ...]
    spans: tuple[tuple[tuple[int, int], ...], ...]  # characters of each token of the context

    def select(self, rows: Tensor) -> EncodedQuestions:
        chosen = rows.tolist()
        return EncodedQuestions(
            self.tokens[rows], self.targets[rows], self.first[rows], tuple(self.questions[row] for row in chosen),
            tuple(self.spans[row] for row in chosen),
        )  # fmt: skip


class QuestionAnswering(Task):
    """Questions about passages. Subclasses read them.

    Args:
        questions: the questions by part; one part is ``train`` and one ``test``.
        order: ``shuffled`` also shuffles the sentences of the training contexts.
        tokens: ``words``, ``bytes``, ``characters`` or the path of a ``tokenizer.json``.
        context: tokens of an input: of ``<cls>``, the question, ``<sep>`` and the context, which is cut.
        words: largest vocabulary of words or characters.
        max_answer: largest number of tokens of a predicted answer.
        settings: what else the record names about the data.
    """

    kind = "answer"
    metric = "token_f1"
    prediction_metrics = METRICS
    pad = 0

    def __init__(
        self,
        questions: Mapping[str, Sequence[Question]],
        order: str,
        tokens: str,
        context: int,
        words: int,
        max_answer: int,
        settings: Mapping[str, Any],
    ) -> None:
        self.context, self.max_answer = context, max_answer
        read = {part: list(own) for part, own in questions.items()}
        read["shuffled"] = [shuffle_sentences(one) for one in read["test"]]
        if order == "shuffled":
            read["train"] = [shuffle_sentences(one) for one in read["train"]]
        texts = (text for one in read["train"] for text in (one.question, one.context))
        inner = build_tokenizer(tokens, texts, words)
        self.tokenizer = ReservedTokenizer(inner, [PAD, CLS, SEPARATOR])
        self.vocab_size = self.tokenizer.size
        #: whether an answer may be empty; without unanswerable training questions it never is
        self.may_abstain = any(not one.answers for one in read["train"])
        parts = {part: encode_questions(own, self.tokenizer, context) for part, own in read.items()}
        train = parts["train"]
        known = (train.targets[:, 0] != IGNORE_INDEX).nonzero()[:, 0]
        lost = {"train": len(train.targets) - len(known)}  # questions whose answer the context cuts
        self.parts = parts | {"train": train.select(known)}
        for part, own in self.parts.items():
            usable = int((own.targets[:, 0] != IGNORE_INDEX).sum())
            lost.setdefault(part, len(own.targets) - usable)
            if not usable:
                got = f"context={context}, which cuts the answers of all {len(own.targets)} questions of {part}"
                raise usage_error(f"task {self.name!r}", got, "some answers must be within it", "increase context")
        self.validation = "validation" if "validation" in self.parts else None
        self.settings = {"task": self.name, "context": context} | dict(settings) | {
            "order": order, "max_answer": max_answer, "tokens": token_unit(tokens), "words": words,
        }  # fmt: skip
        self._facts = self._describe(read, lost, inner, token_unit(tokens))

    def _describe(
        self, read: Mapping[str, Sequence[Question]], lost: Mapping[str, int], inner: Tokenizer, unit: str
    ) -> dict[str, Any]:
        lengths = [len(locate_tokens(inner, one.context)) + 2 for one in read["train"]]
        shares = ", ".join(
            f"{100 * sum(not one.answers for one in own) / len(own):.0f} % of {part}" for part, own in read.items()
        )
        notes = [f"Questions without an answer: {shares}."]
        if any(lost.values()):
            cut = ", ".join(f"{count} of {part}" for part, count in lost.items() if count)
            notes.append(f"Questions whose answer the context cuts: {cut}. In training they are left out.")
        encoded = {
            part: [[token for token in row.tolist() if token] for row in own.tokens] for part, own in self.parts.items()
        }
        return {
            "items": {part: len(own) for part, own in read.items()},
            "lengths": describe_lengths(lengths, self.context, f"{unit} of context"),
            "unknown": unknown_share(inner, encoded, 1 + 3),  # after the reserved tokens
            "tokens": f"{unit}; a vocabulary of {self.vocab_size:,}",
            "notes": notes,
        }

    def build_model(self, settings: Mapping[str, Any], arm: Arm, seed: int) -> nn.Module:
        require_known_fields("Study(model=...)", settings, ModelSpec)
        defaults: dict[str, Any] = {"kind": "encoder", "vocab_size": self.vocab_size, "num_classes": 2}
        spec = ModelSpec(**(defaults | dict(settings)))
        dims = ModelDims(spec.heads, spec.effective_head_dim, spec.embed_dim, self.context, causal=False)
        return build(spec, lambda layer: arm.build(replace(dims, layer=layer)), seed=seed)

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits of the start and of the end over the tokens, ``[B, 2, T]``; tokens that cannot be an answer have the least."""
        each = model(batch.tokens, key_mask=batch.key_mask, pool=False).transpose(1, 2)
        return each.masked_fill(~batch.extras["allowed"][:, None], torch.finfo(each.dtype).min)

    def hold_out_validation(self) -> None:
        """A tenth of the training contexts, drawn at random, becomes the validation split."""
        train = self.parts["train"]
        contexts = list(dict.fromkeys(one.context for one in train.questions))
        require_at_least(self.name, "training contexts", len(contexts), 2)
        order = torch.randperm(len(contexts), generator=named_generator(self.name, "validation")).tolist()
        chosen = {contexts[number] for number in order[: max(1, len(contexts) // 10)]}
        held_out = torch.tensor([one.context in chosen for one in train.questions])
        rows = torch.arange(len(held_out))
        self.parts = self.parts | {"train": train.select(rows[~held_out]), "validation": train.select(rows[held_out])}
        self.validation = "validation"

    def splits(self) -> dict[str, int]:
        order = ("test", "shuffled", "validation")
        return {part: self.context for part in order if part in self.parts}

    def train_batch(self, size: int, generator: torch.Generator) -> Batch:
        train = self.parts["train"]
        return self._batch(train, torch.randint(len(train.tokens), (size,), generator=generator))

    def epoch(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        train = self.parts["train"]
        for rows in torch.randperm(len(train.tokens), generator=generator).split(size):
            yield self._batch(train, rows)

    def evaluation(self, split: str) -> list[Batch]:
        size, own = evaluation_batch_size(self.split_length(split)), self.parts[split]
        return [self._batch(own, rows) for rows in torch.arange(len(own.tokens)).split(size)]

    def _batch(self, own: EncodedQuestions, rows: Tensor) -> Batch:
        tokens = own.tokens[rows].long()
        real = tokens != 0
        allowed = real & (torch.arange(tokens.shape[1]) >= own.first[rows][:, None])
        allowed[:, 0] = self.may_abstain
        return Batch(tokens, own.targets[rows], real, {"allowed": allowed})

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return self.tokenizer.decode(to_ints(tokens))

    @torch.no_grad()
    def answer(self, model: nn.Module, split: str) -> list[str]:
        """The predicted answer to each question of a split; the empty text for none."""
        device, own = next(model.parameters()).device, self.parts[split]
        answers: list[str] = []
        for batch in self.evaluation(split):
            logits = self.logits(model, batch.map(lambda tensor: tensor.to(device))).float()
            for start, end in best_spans(logits, self.max_answer).tolist():
                row = len(answers)
                answers.append(_read_span(own, row, start, end))
        return answers

    def score_predictions(self, model: nn.Module, split: str) -> dict[str, float]:
        """Exact match and F1 of the predicted answers, the mean over all questions of a split."""
        return score_answers(self.answer(model, split), self.parts[split].questions)

    def notes(self, model: nn.Module) -> dict[str, Any]:
        """A few answers, and the scores of answerable and unanswerable questions."""
        questions, answers = self.parts["test"].questions, self.answer(model, "test")
        pairs = list(zip(answers, questions, strict=True))
        groups = {
            "answerable": [pair for pair in pairs if pair[1].answers],
            "unanswerable": [pair for pair in pairs if not pair[1].answers],
        }
        return {
            "answers": [
                {"question": one.question, "references": one.references, "answer": answer}
                for answer, one in pairs[:EXAMPLES]
            ],
            "scores": {
                name: score_answers([answer for answer, _ in own], [one for _, one in own])
                for name, own in groups.items()
                if own
            },
        }

    @staticmethod
    def panels(runs: Mapping[str, list[dict[str, Any]]], baselines: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Scores by kind of question, and the first answers of each arm's first run."""
        notes = {arm: own[0]["notes"] for arm, own in runs.items() if own and own[0].get("notes")}
        if not notes:
            return []
        kinds = [
            kind for kind in ("answerable", "unanswerable") if all(kind in one["scores"] for one in notes.values())
        ]
        head = ["", *(f"{kind}, {name} (%)" for kind in kinds for name in ("token F1", "exact match"))]
        rows = [
            [arm, *(f"{100 * one['scores'][kind][metric]:.1f}" for kind in kinds for metric in METRICS)]
            for arm, one in notes.items()
        ]
        note = "The first seed of each arm on test."
        scores = {
            "kind": "table",
            "title": "Answerable and unanswerable questions",
            "head": head,
            "rows": rows,
            "note": note,
        }
        texts = []
        for number, item in enumerate(next(iter(notes.values()))["answers"]):
            texts += [["question", item["question"]], ["reference", " | ".join(item["references"]) or "(no answer)"]]
            texts += [[arm, one["answers"][number]["answer"] or "(no answer)"] for arm, one in notes.items()]
        answers = {"kind": "table", "title": "Answers", "head": ["", "text"], "rows": texts, "note": note}
        return [scores, answers]

    def baselines(self) -> dict[str, Any]:
        """No answer at all, the sentence with most words of the question, and the best span within the context."""
        silent, sentence, best = {}, {}, {}
        for split in self.splits():
            own = self.parts[split]
            silent[split] = score_answers([""] * len(own.questions), own.questions)
            sentence[split] = score_answers([_similar_sentence(one) for one in own.questions], own.questions)
            gold = [
                "" if start == IGNORE_INDEX else _read_span(own, row, start, end)
                for row, (start, end) in enumerate(own.targets.tolist())
            ]
            best[split] = score_answers(gold, own.questions)
        return {
            "no answer": baseline(CONSTANT, silent, "The empty answer to every question."),
            "similar sentence": baseline(
                RULE, sentence, "The sentence of the context that shares most words with the question."
            ),
            "best possible": baseline(
                CEILING, best, "The first accepted answer in tokens; it is lost where the context is cut."
            ),
        }

    def describe_data(self) -> dict[str, Any]:
        return self._facts


def encode_questions(questions: Sequence[Question], tokenizer: ReservedTokenizer, context: int) -> EncodedQuestions:
    """Rows of ``<cls> question <sep> context``, with the tokens of the first accepted answer as targets."""
    tokens = torch.zeros(len(questions), context, dtype=torch.int32)
    targets = torch.zeros(len(questions), 2, dtype=torch.int64)
    first = torch.empty(len(questions), dtype=torch.int64)
    known: dict[str, tuple[Tensor, list[tuple[int, int]]]] = {}  # several questions share a context
    spans = []
    for row, one in enumerate(questions):
        if one.context not in known:
            known[one.context] = tokenizer.encode(one.context), locate_tokens(tokenizer, one.context)
        text, places = known[one.context]
        asked = tokenizer.encode(one.question)[: min(MAX_QUESTION, context // 2)]
        begin = len(asked) + 2
        kept = text[: context - begin]
        tokens[row, 0], tokens[row, begin - 1] = CLS_TOKEN, SEPARATOR_TOKEN
        tokens[row, 1 : begin - 1] = asked
        tokens[row, begin : begin + len(kept)] = kept
        first[row] = begin
        spans.append(tuple(places[: len(kept)]))
        if one.answers:
            answer, start = one.answers[0]
            inside = [n for n, (a, b) in enumerate(places) if a < start + len(answer) and b > start]
            lost = not inside or inside[-1] >= len(kept)
            targets[row] = IGNORE_INDEX if lost else torch.tensor([begin + inside[0], begin + inside[-1]])
    return EncodedQuestions(tokens, targets, first, tuple(questions), tuple(spans))


def best_spans(logits: Tensor, max_answer: int) -> Tensor:
    """The start and end with the largest sum of logits ``[B, 2, T]``: at most ``max_answer`` tokens, or token 0 alone; ``[B, 2]``.

    >>> best_spans(torch.tensor([[[0.0, 3.0, 0.0, 9.0], [0.0, 0.0, 2.0, 1.0]]]), 2).tolist()
    [[3, 3]]
    >>> best_spans(torch.tensor([[[5.0, 0.0, 0.0], [5.0, 0.0, 9.0]]]), 2).tolist()
    [[0, 0]]
    """
    length = logits.shape[-1]
    sums = logits[:, 0, :, None] + logits[:, 1, None, :]
    possible = torch.ones(length, length, dtype=torch.bool, device=logits.device).triu().tril(max_answer - 1)
    possible[0, 1:] = False  # <cls> is no word of an answer
    best = sums.masked_fill(~possible, -torch.inf).flatten(1).argmax(1)
    return torch.stack([best // length, best % length], 1)


def score_answers(answers: Sequence[str], questions: Sequence[Question]) -> dict[str, float]:
    """The means of exact match and F1 over questions."""
    scores = [score_answer(answer, one.references) for answer, one in zip(answers, questions, strict=True)]
    return {metric: sum(score[metric] for score in scores) / len(scores) for metric in METRICS}


def _read_span(own: EncodedQuestions, row: int, start: int, end: int) -> str:
    """The characters of the context from one token to another; empty for ``<cls>``."""
    first = int(own.first[row])
    if start < first:
        return ""
    places = own.spans[row]
    return own.questions[row].context[places[start - first][0] : places[end - first][1]]


def _similar_sentence(question: Question) -> str:
    words = set(normalize_answer(question.question).split())
    sentences = squad.split_sentences(question.context)
    return max(sentences, key=lambda one: len(words & set(normalize_answer(one).split())))


def check_question_settings(name: str, order: str, context: int, words: int, max_answer: int) -> None:
    """Raise for wrong settings before any data are read."""
    require_choice(name, "order", order, ORDERS)
    require_at_least(name, "context", context, 8)
    require_at_least(name, "words", words, 6)
    require_at_least(name, "max_answer", max_answer, 1)
