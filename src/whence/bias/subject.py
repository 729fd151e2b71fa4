"""The model under the probe: a causal language model with its tokenizer, and a tiny random one for trying things out."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from whence.bias.tasks.prompts import Span
from whence.errors import missing_extra, refusal

QUICK = "quick"
CPU_TOKENS = 4096


@dataclass(frozen=True)
class Subject:
    """A loaded model, ready to be asked; ``about`` says what was loaded, for the record."""

    name: str
    model: Any
    tokenizer: Any
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def layers(self) -> int:
        return int(self.model.config.num_hidden_layers)

    @property
    def heads(self) -> int:
        return int(self.model.config.num_attention_heads)

    @property
    def longest(self) -> int | None:
        """The positions the model has, where it says so."""
        return getattr(self.model.config, "max_position_embeddings", None)

    @cached_property
    def unexplained(self) -> str | None:
        """Why attention cannot be looked at; nothing where it can."""
        from whence import hf

        return hf.capture_unavailable(self.model)

    @property
    def takes_branches(self) -> bool:
        """Whether several answers can share one forward: that needs explicit positions, and no window in any layer.

        Attention that whence has taken over reads masks that it made itself, and no others. A family that does not go
        through transformers' attention interface may read a mask in its own way, or not at all.
        """
        config = self.model.config.get_text_config()
        if getattr(self.model.config, "_attn_implementation", None) == "whence" or self.unexplained:
            return False
        kinds = getattr(config, "layer_types", None)
        windowed = (
            any(kind != "full_attention" for kind in kinds) if kinds else bool(getattr(config, "sliding_window", 0))
        )
        return not windowed and "position_ids" in inspect.signature(self.model.forward).parameters

    @property
    def padding(self) -> int:
        """The token that fills up rows; which one does not matter, since it is never seen."""
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
        return next((int(token) for token in known if token is not None), 0)

    @cached_property
    def ends_line(self) -> Tensor:
        """Which tokens hold a line break: ``[tokens]`` bool, on the model's device."""
        texts = self.tokenizer.batch_decode([[token] for token in range(len(self.tokenizer))])
        head = self.model.get_output_embeddings()
        size = int(getattr(head, "out_features", 0)) or head.weight.shape[0]  # a quantised weight has another shape
        found = ["\n" in text for text in texts] + [False] * max(0, size - len(texts))
        return torch.tensor(found, device=self.device)

    def tokens(self, text: str) -> list[int]:
        return list(self.tokenizer(text)["input_ids"])

    def all_tokens(self, texts: Sequence[str], special: bool = True) -> list[list[int]]:
        """The same for several texts, which fast tokenizers read side by side."""
        return [list(row) for row in self.tokenizer(list(texts), add_special_tokens=special)["input_ids"]]

    def batches(self, lengths: Sequence[int]) -> list[range]:
        """Neighbours to be run together, by number: as many as fit when the shorter are filled up to the longest."""
        most, found, first, longest = self.tokens_at_once, [], 0, 0
        for number, length in enumerate(lengths):
            longest = max(longest, length)
            if number > first and longest * (number + 1 - first) > most:
                found.append(range(first, number))
                first, longest = number, length
        return [*found, range(first, len(lengths))] if lengths else []

    @property
    def tokens_at_once(self) -> int:
        """Few on a CPU, which more do not make faster; on a GPU what an eighth of its free memory holds.

        A token has its keys and values in every layer, and a few vectors as wide as the model or its widest layer; masks,
        scores of the vocabulary and copies take the rest.
        """
        if self.device.type != "cuda":
            return CPU_TOKENS
        config = self.model.config
        width = int(config.hidden_size)
        cached = 2 * self.layers * width * getattr(config, "num_key_value_heads", self.heads) // self.heads
        numbers = cached + 8 * width + 4 * getattr(config, "intermediate_size", 4 * width)
        return max(CPU_TOKENS, torch.cuda.mem_get_info(self.device)[0] // (8 * numbers * self.model.dtype.itemsize))

    def token_spans(self, text: str, spans: Sequence[Span]) -> list[Span]:
        """The tokens that spans of characters lie in: from the first that reaches into one to the last."""
        offsets = self.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
        return [token_span(offsets, start, end) for start, end in spans]

    def require_room(self, asked: str, tokens: int) -> None:
        if self.longest is not None and tokens > self.longest:
            raise refusal(
                asked,
                f"{tokens} tokens",
                f"{self.name} has {self.longest} positions",
                "take fewer or shorter slots",
            )


def token_span(offsets: Sequence[Span], start: int, end: int) -> Span:
    """The first token that ends after ``start``, and one past the last that begins before ``end``.

    >>> token_span([(0, 0), (0, 3), (3, 5), (5, 9)], 3, 6)
    (2, 4)
    """
    inside = [index for index, (first, last) in enumerate(offsets) if last > start and first < end and last > first]
    if not inside:
        raise refusal("token_span", f"characters {start} to {end}", "some token lies in them", "check the text")
    return inside[0], inside[-1] + 1


def load(name: str, device: str = "cpu", dtype: str = "float32") -> Subject:
    """A model by its name, its path, or ``quick`` for the tiny random one."""
    if name == QUICK:
        return quick_subject()
    from whence import hf

    model, tokenizer = hf.load(name, device=device, dtype=getattr(torch, dtype))
    count = sum(p.numel() for p in model.parameters())
    about = {
        "type": model.config.model_type,
        "parameters": count,
        "layers": model.config.num_hidden_layers,
        "dtype": dtype,
    }
    return Subject(name, model, tokenizer, about)


def quick_subject(seed: int = 0, layers: int = 3, width: int = 32, heads: int = 4) -> Subject:
    """A llama of a few thousand random weights over bytes: it knows nothing, and shows in seconds that all parts run."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise missing_extra("whence probe", "hf", "transformers") from error
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=max(1, heads // 2), max_position_embeddings=8192,
        initializer_range=0.2, bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).eval()
    about = {
        "type": "llama",
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": layers,
        "dtype": "float32",
        "random": seed,
    }
    return Subject(QUICK, model, tokenizer, about)


def byte_tokenizer() -> Any:
    """One token a byte, and an end: needs no file and no training."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<end>")


def batch_of(subject: Subject, rows: Sequence[Sequence[int]], *, left: bool) -> tuple[Tensor, Tensor]:
    """Rows of several lengths as one tensor, padded on one side, with the mask of what is real."""
    longest = max(map(len, rows))
    tokens = torch.full((len(rows), longest), subject.padding, dtype=torch.long)
    real = torch.zeros_like(tokens)
    for index, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(0, len(row))
        tokens[index, place] = torch.tensor(row)
        real[index, place] = 1
    return tokens.to(subject.device), real.to(subject.device)
