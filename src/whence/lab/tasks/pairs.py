"""``PairsTask``: pairs of texts, such as sentences and their translations, for a decoder or an encoder-decoder.

A decoder reads the source, a separator and the target in one sequence. In an encoder-decoder the encoder reads the source, and
the decoder the separator and the target. Both predict the target and its end, and only these are scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import require_package
from whence.lab.arms import Arm
from whence.lab.data.splits import describe_lengths
from whence.lab.data.tokenizers import PAD, ReservedTokenizer, build_tokenizer, token_unit
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
from whence.lab.tasks.baselines import BigramModel, text_baselines, token_baselines
from whence.lab.tasks.file_rows import unknown_share
from whence.lab.tasks.summary_scores import ROUGE, rouge_signature, score_summaries
from whence.lab.tasks.translation_scores import score_translations
from whence.models import Decoder, EncoderDecoder, ModelSpec, build_encoder_decoder
from whence.position.expression import ModelDims

SEPARATOR, END = "<sep>", "<end>"
SEPARATOR_TOKEN, END_TOKEN = 1, 2  # after padding
ARCHITECTURES = ("decoder", "encoder-decoder")
CROSS_POSITIONS = ("none", "same")
#: translations in a record, for reading
EXAMPLES = 5
MAX_SOURCE = 600  # characters of a source in a record


@dataclass(frozen=True)
class Pairs:
    """The inputs and targets of a part, padded to one length, and its texts."""

    tokens: Tensor  # [N, T] int32, padding is 0; what the decoder reads
    targets: Tensor  # [N, T] int64, IGNORE_INDEX outside the target text
    sources: Tensor  # [N, S] int32, padding is 0; what an encoder reads, or a prompt without its separator
    texts: tuple[tuple[str, str], ...]  # source and target

    def select(self, rows: Tensor) -> Pairs:
        texts = tuple(self.texts[row] for row in rows.tolist())
        return Pairs(self.tokens[rows], self.targets[rows], self.sources[rows], texts)


class PairsTask(Task):
    """Pairs of texts. Subclasses read them.

    Args:
        pairs: source and target texts by part; one part is ``train``.
        tokens: ``words``, ``bytes``, ``characters`` or the path of a ``tokenizer.json``.
        context: tokens of an input: of source, separator and target for a decoder, of each side for an encoder-decoder.
        words: largest vocabulary of words or characters.
        architecture: ``decoder`` or ``encoder-decoder``.
        cross_position: position in cross-attention: ``none``, or the ``same`` as in self-attention.
        translations: number of pairs of each split whose sources are translated and scored with BLEU and chrF.
        num_beams: beams of generated texts; 1 is greedy search.
        settings: what else the record names about the data.
        summaries: number of pairs of each split whose sources are summarized and scored with ROUGE.
        target_context: tokens of a target; 0 for those of the context.
    """

    kind = "seq2seq"
    metric = "perplexity"
    pad = 0

    def __init__(
        self,
        pairs: Mapping[str, Sequence[tuple[str, str]]],
        tokens: str,
        context: int,
        words: int,
        architecture: str,
        cross_position: str,
        translations: int,
        num_beams: int,
        settings: Mapping[str, Any],
        summaries: int = 0,
        target_context: int = 0,
    ) -> None:
        self.architecture, self.cross_position = architecture, cross_position
        self.translations, self.num_beams, self.summaries = translations, num_beams, summaries
        self.target_context = target_context or context
        inner = build_tokenizer(tokens, (text for pair in pairs["train"] for text in pair), words)
        self.tokenizer = ReservedTokenizer(inner, [PAD, SEPARATOR, END])
        self.vocab_size, self.context = self.tokenizer.size, context
        encoded = {
            part: [tuple(self.tokenizer.encode(text).tolist() for text in pair) for pair in own]
            for part, own in pairs.items()
        }
        arrange = arrange_sequences if architecture == "decoder" else arrange_sides
        self.parts = {
            part: Pairs(*arrange(own, context, target_context), tuple(pairs[part])) for part, own in encoded.items()
        }
        self.validation = "validation" if "validation" in self.parts else None
        chosen = {
            "architecture": architecture, "cross_position": cross_position, "translations": translations,
            "num_beams": num_beams, "summaries": summaries, "target_context": target_context,
        }  # fmt: skip
        usual = {
            "architecture": "decoder", "cross_position": "none", "translations": 0, "num_beams": 1, "summaries": 0,
            "target_context": 0,
        }  # fmt: skip
        # the usual values are left out, so that older records stay valid
        own_settings = {name: value for name, value in chosen.items() if value != usual[name]}
        self.settings = {"task": self.name, "context": context} | dict(settings) | own_settings
        unknown = {part: [text for pair in own for text in pair] for part, own in encoded.items()}
        self._facts: dict[str, Any] = {
            "lengths": self._describe_lengths([pair for own in encoded.values() for pair in own], token_unit(tokens)),
            "unknown": unknown_share(inner, unknown, 1 + 3),  # after the reserved tokens
            "tokens": f"{token_unit(tokens)}; a vocabulary of {self.vocab_size:,}",
        }

    def _describe_lengths(self, pairs: Sequence[tuple[list[int], ...]], unit: str) -> dict[str, Any]:
        if self.architecture == "decoder":
            totals = [len(source) + len(target) + 1 for source, target in pairs]
            return describe_lengths(totals, self.context, f"{unit} of source, separator and target")
        longer = [max(len(source), len(target) + 1) for source, target in pairs]
        return describe_lengths(longer, self.context, f"{unit} of the longer side")

    @property
    def prediction_metrics(self) -> tuple[str, ...]:
        return (*(("bleu", "chrf") if self.translations else ()), *(ROUGE if self.summaries else ()))

    def build_model(self, settings: Mapping[str, Any], arm: Arm, seed: int) -> nn.Module:
        if self.architecture == "decoder":
            return super().build_model(settings, arm, seed)
        require_known_fields("Study(model=...)", settings, ModelSpec)
        defaults: dict[str, Any] = {"vocab_size": self.vocab_size, "kind": "encoder-decoder"}
        spec = ModelSpec(**(defaults | dict(settings)))
        causal = ModelDims(spec.heads, spec.effective_head_dim, spec.embed_dim, self.context)
        both_ways = replace(causal, causal=False)
        return build_encoder_decoder(
            spec,
            lambda layer: arm.build(replace(causal, layer=layer)),
            encoder_position=lambda layer: arm.build(replace(both_ways, layer=layer)),
            cross_position=None
            if self.cross_position == "none"
            else lambda layer: arm.build(replace(both_ways, layer=layer)),
            seed=seed,
        )

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        if self.architecture == "decoder":
            return super().logits(model, batch)
        source = batch.extras["source"]
        return model(source, batch.tokens, source != self.pad)

    def hold_out_validation(self) -> None:
        """A tenth of the training pairs, drawn at random, becomes the validation split."""
        train = self.parts["train"]
        count = len(train.tokens)
        require_at_least(self.name, "training pairs", count, 2)
        order = torch.randperm(count, generator=named_generator(self.name, "validation"))
        held_out, rest = order[: max(1, count // 10)], order[max(1, count // 10) :]
        self.parts = self.parts | {"train": train.select(rest), "validation": train.select(held_out)}
        self.validation = "validation"

    def splits(self) -> dict[str, int]:
        return {part: self.context for part in self.parts if part != "train"}

    def train_batch(self, size: int, generator: torch.Generator) -> Batch:
        train = self.parts["train"]
        return self._batch(train, torch.randint(len(train.tokens), (size,), generator=generator))

    def epoch(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        train = self.parts["train"]
        for rows in torch.randperm(len(train.tokens), generator=generator).split(size):
            yield self._batch(train, rows)

    def evaluation(self, split: str) -> list[Batch]:
        rows, pairs = evaluation_batch_size(self.split_length(split)), self.parts[split]
        return [self._batch(pairs, chosen) for chosen in torch.arange(len(pairs.tokens)).split(rows)]

    def _batch(self, pairs: Pairs, rows: Tensor) -> Batch:
        # a causal model never looks at padding behind a sequence, so the columns that all rows pad are left out
        tokens, targets = _trim(pairs.tokens[rows]), pairs.targets[rows]
        extras = {} if self.architecture == "decoder" else {"source": _trim(pairs.sources[rows])}
        return Batch(tokens, targets[:, : tokens.shape[1]], extras=extras)

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return self.tokenizer.decode(to_ints(tokens))

    def translate(self, model: nn.Module, sources: Tensor) -> list[str]:
        """The translations of source tokens ``[N, S]`` as texts. Padding is 0, on the right."""
        model = getattr(model, "module", model)  # of a distributed model
        device, texts = next(model.parameters()).device, []
        for chunk in sources.split(evaluation_batch_size(self.context)):
            texts += [self.tokenizer.decode_text(row) for row in self._generate(model, _trim(chunk).to(device))]
        return texts

    def _generate(self, model: nn.Module, source: Tensor) -> list[list[int]]:
        """The generated tokens of each row, without the end."""
        assert isinstance(model, Decoder | EncoderDecoder)
        search: Any = model.generate if self.num_beams == 1 else model.beam_search
        options: dict[str, Any] = {"eos_token_id": END_TOKEN}
        options |= {"temperature": 0} if self.num_beams == 1 else {"num_beams": self.num_beams}
        if isinstance(model, EncoderDecoder):
            options |= {"bos_token_id": SEPARATOR_TOKEN, "source_mask": source != self.pad}
            generated = search(source, self.target_context, **options)
        else:
            prompt = _align_right(torch.cat([source, source.new_zeros(len(source), 1)], 1), SEPARATOR_TOKEN)
            generated = search(prompt, self.target_context, key_mask=prompt != self.pad, **options)[
                :, prompt.shape[1] :
            ]
        rows = [row.tolist() for row in generated]
        return [row[: row.index(END_TOKEN)] if END_TOKEN in row else row for row in rows]

    def score_predictions(self, model: nn.Module, split: str) -> dict[str, float]:
        """BLEU and chrF or ROUGE of the texts for the first pairs of a split, against the target texts as they are in the data."""
        pairs, count = self.parts[split], max(self.translations, self.summaries)
        texts = self.translate(model, pairs.sources[:count]) if count else []
        return self._score_texts(texts, [target for _, target in pairs.texts[:count]])

    def _score_texts(self, texts: list[str], references: list[str]) -> dict[str, float]:
        scores: dict[str, float] = {}
        if self.translations:
            scores |= score_translations(texts[: self.translations], references[: self.translations]).values
        if self.summaries:
            scores |= score_summaries(texts[: self.summaries], references[: self.summaries])
        return scores

    def notes(self, model: nn.Module) -> dict[str, Any]:
        """A few translations or summaries, and the signatures by which their scores name their settings."""
        if not self.prediction_metrics:
            return {}
        pairs = self.parts[next(iter(self.splits()))]
        texts = pairs.texts[:EXAMPLES]
        translated = self.translate(model, pairs.sources[:EXAMPLES])
        examples = [
            {"source": source[:MAX_SOURCE], "reference": target, "translation": own}
            for (source, target), own in zip(texts, translated, strict=True)
        ]
        signatures: dict[str, str] = {}
        if self.translations:
            signatures |= score_translations(translated, [target for _, target in texts]).signatures
        if self.summaries:
            signatures |= {"rougeL": rouge_signature()}
        return {"translations": examples, "signatures": signatures}

    @staticmethod
    def panels(runs: Mapping[str, list[dict[str, Any]]], baselines: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The first translations or summaries of each arm's first run, if the records have any."""
        notes = {arm: own[0]["notes"]["translations"] for arm, own in runs.items() if own and own[0].get("notes")}
        rows = []
        for number in range(max(map(len, notes.values()), default=0)):
            pair = next(iter(notes.values()))[number]
            rows += [["source", pair["source"]], ["reference", pair["reference"]]]
            rows += [[arm, own[number]["translation"]] for arm, own in notes.items()]
        if not rows:
            return []
        summarized = any(
            "rougeL" in own[0]["notes"]["signatures"] for own in runs.values() if own and own[0].get("notes")
        )
        title, done = ("Summaries", "summarized") if summarized else ("Translations", "translated")
        note = f"The first pairs of the deciding split, {done} by the first seed of each arm."
        table = {"kind": "table", "title": title, "head": ["", "text"], "rows": rows, "note": note}
        return [table | {"text": True, "group": "source"}]

    def baselines(self) -> dict[str, Any]:
        """Models of the target alone: an arm that does not beat the bigram model does not use the source. Where texts are
        generated, also answers without a model."""
        train = self.parts["train"]
        scored = train.targets != IGNORE_INDEX
        stream, starts = [], []
        for row, own in zip(train.targets, scored, strict=True):
            stream.append(torch.cat([torch.tensor([SEPARATOR_TOKEN]), row[own]]))
            starts.append(torch.cat([torch.tensor([True]), torch.zeros(int(own.sum()), dtype=torch.bool)]))
        model = BigramModel(torch.cat(stream), self.vocab_size, torch.cat(starts))
        found = token_baselines(model, {split: self.evaluation(split) for split in self.splits()}, "target token")
        if not self.prediction_metrics:
            return found
        count = max(self.translations, self.summaries)
        tests = {split: self.parts[split].texts[:count] for split in self.splits()}
        return found | text_baselines(train.texts, tests, self._score_texts, shorten=bool(self.summaries))

    def describe_data(self) -> dict[str, Any]:
        return self._facts


def check_pair_settings(
    name: str,
    context: int,
    architecture: str,
    cross_position: str,
    translations: int,
    num_beams: int,
    summaries: int = 0,
) -> None:
    """Raise for settings of a task on pairs before any data are read."""
    require_at_least(name, "context", context, 4)
    require_choice(name, "architecture", architecture, ARCHITECTURES)
    require_choice(name, "cross_position", cross_position, CROSS_POSITIONS)
    require_at_least(name, "translations", translations, 0)
    require_at_least(name, "num_beams", num_beams, 1)
    require_at_least(name, "summaries", summaries, 0)
    if architecture == "decoder":
        require_choice(name, "cross_position", cross_position, ("none",))  # it has no cross-attention
    if translations:
        require_package("sacrebleu", "BLEU and chrF", "translation")
    if summaries:
        require_package("rouge_score", "ROUGE", "summarization")


def arrange_sequences(
    pairs: Sequence[tuple[list[int], ...]], context: int, target_context: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs and targets of a decoder that reads both sides, and the sources. A target keeps at least half of the context.

    With ``target_context`` a target has at most so many tokens.

    >>> tokens, targets, sources = arrange_sequences([([7, 8], [9])], 6)
    >>> tokens.tolist(), targets.tolist(), sources.tolist()
    ([[7, 8, 1, 9, 0, 0]], [[-100, -100, 9, 2, -100, -100]], [[7, 8, 0, 0, 0]])
    >>> arrange_sequences([([7] * 9, [9] * 9)], 6)[0].tolist()
    [[7, 7, 1, 9, 9, 9]]
    """
    tokens, targets, sources = [], [], []
    for source, target in pairs:
        kept_target = target[: context - 1 - min(len(source), (context - 1) // 2)][: target_context or None]
        kept_source = source[: context - 1 - len(kept_target)]
        tokens.append([*kept_source, SEPARATOR_TOKEN, *kept_target])
        end = END_TOKEN if len(kept_target) == len(target) else IGNORE_INDEX  # a cut target does not end here
        targets.append([IGNORE_INDEX] * len(kept_source) + [*kept_target, end])
        sources.append(source[: context - 1])  # a translation must not know how long the target is
    return _stack(tokens, context, 0), _stack(targets, context, IGNORE_INDEX).long(), _stack(sources, context - 1, 0)


def arrange_sides(
    pairs: Sequence[tuple[list[int], ...]], context: int, target_context: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs and targets of the decoder, and inputs of the encoder; each has at most ``context`` tokens.

    With ``target_context`` those of the decoder have at most so many.

    >>> tokens, targets, sources = arrange_sides([([7, 8], [9])], 4)
    >>> tokens.tolist(), targets.tolist(), sources.tolist()
    ([[1, 9, 0, 0]], [[9, 2, -100, -100]], [[7, 8, 0, 0]])
    >>> arrange_sides([([7] * 9, [9] * 9)], 4)[1].tolist()
    [[9, 9, 9, 9]]
    """
    limit = target_context or context
    tokens = [[SEPARATOR_TOKEN, *target][:limit] for _, target in pairs]
    targets = [[*target, END_TOKEN][:limit] for _, target in pairs]
    sources = [source[:context] for source, _ in pairs]
    return _stack(tokens, limit, 0), _stack(targets, limit, IGNORE_INDEX).long(), _stack(sources, context, 0)


def _stack(rows: Sequence[list[int]], length: int, fill: int) -> Tensor:
    """Rows of up to ``length`` numbers, filled up to it; ``[N, length]`` int32."""
    return torch.tensor([row + [fill] * (length - len(row)) for row in rows], dtype=torch.int32)


def _trim(tokens: Tensor) -> Tensor:
    """Right-padded tokens without the columns that all rows pad."""
    return tokens[:, : max(1, int((tokens != 0).sum(1).max()))].long()


def _align_right(tokens: Tensor, last: int) -> Tensor:
    """Right-padded tokens, with another token behind each row, padded on the left instead.

    >>> _align_right(torch.tensor([[7, 8, 0], [7, 0, 0]]), 1).tolist()
    [[7, 8, 1], [0, 7, 1]]
    """
    lengths = (tokens != 0).sum(1, keepdim=True)
    with_last = tokens.scatter(1, lengths, last)
    width = tokens.shape[1]
    index = torch.arange(width, device=tokens.device) - (width - 1 - lengths)
    return with_last.gather(1, index.clamp(min=0)).masked_fill(index < 0, 0)
