"""``Decoder``: a causal transformer that predicts the next token, for whole sequences or token by token with caches."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whence.errors import usage_error
from whence.models.assign_positions import AssignedPositions
from whence.models.body import Body
from whence.models.caches import Caches
from whence.models.spec import ModelSpec
from whence.torch_modes import eval_mode


class Output(nn.Module):
    """A logit for each token of the vocabulary. With tied embeddings it has no weight of its own, only a bias."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        linear = nn.Linear(spec.embed_dim, spec.vocab_size, bias=spec.bias)  # for torch's initial values
        self.weight = None if spec.tie_embeddings else nn.Parameter(linear.weight)
        self.bias = nn.Parameter(linear.bias) if spec.bias else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return F.linear(x, embedding if self.weight is None else self.weight, self.bias)


class Decoder(nn.Module):
    """Embedding, causal layers, a final norm if the spec has one, an output layer. Use ``build`` to construct one."""

    def __init__(self, spec: ModelSpec, positions: AssignedPositions, backend: str = "auto") -> None:
        super().__init__()
        self.spec = spec
        self.body = Body(spec, positions, backend)
        self.output = Output(spec)

    def forward(
        self,
        tokens: Tensor,
        key_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cache: Caches | None = None,
    ) -> Tensor:
        """Next-token logits ``[B, T, vocab_size]`` for tokens ``[B, T]``.

        Args:
            tokens: with a cache, only the new tokens.
            key_mask: ``[B, T]``, True for real tokens; padding may be on either side.
            segment_ids: ``[T]`` or ``[B, T]`` segment ids of packed sequences.
            cache: the result of ``caches()``; the new tokens are appended to it.
        """
        x = self.body(tokens, key_mask=key_mask, segment_ids=segment_ids, cache=cache)
        return self.output(x, self.body.embedding.weight)

    def caches(self, *, capacity: int | None = None) -> Caches:
        """Empty caches for all layers: growing, or preallocated for ``capacity`` tokens."""
        return Caches(self.spec.layers, capacity=capacity)

    def generate(
        self,
        prompt: Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
        eos_token_id: int | None = None,
    ) -> Tensor:
        """The prompt ``[B, T]`` followed by up to ``max_new_tokens`` tokens, without dropout and gradients.

        Args:
            prompt: tokens to continue.
            max_new_tokens: maximum number of tokens after the prompt.
            temperature: divides the logits; 0 takes the most likely token.
            top_k: sample among the ``top_k`` most likely tokens only.
            generator: for sampling; torch's global one by default.
            eos_token_id: a token that ends a sequence. Finished sequences are filled with it; generation stops when all
                are finished.
        """
        check_sampling(max_new_tokens, temperature, top_k, eos_token_id, self.spec.vocab_size)
        self.body.check_tokens(prompt)
        tokens = new = prompt.long()
        finished = None
        caches = self.caches(capacity=prompt.shape[1] + max_new_tokens)
        with torch.no_grad(), eval_mode(self):
            for _ in range(max_new_tokens):
                sampled = sample_token(self(new, cache=caches)[:, -1], temperature, top_k, generator)
                if eos_token_id is not None:
                    sampled = sampled if finished is None else sampled.masked_fill(finished, eos_token_id)
                    finished = sampled == eos_token_id
                new = sampled[:, None]
                tokens = torch.cat([tokens, new], 1)
                if finished is not None and bool(finished.all()):
                    break
        return tokens


def sample_token(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """One token ``[B]`` from logits ``[B, V]``: the most likely at temperature 0, otherwise sampled.

    >>> sample_token(torch.tensor([[0.0, 2.0, 1.0]]), 0.0, None, None)
    tensor([1])
    """
    if temperature == 0:
        return logits.argmax(-1)
    # in float64 and after subtracting the maximum, no temperature is too low
    best = logits.double().topk(logits.shape[-1] if top_k is None else top_k, dim=-1)
    probabilities = ((best.values - best.values[:, :1]) / temperature).softmax(-1)
    drawn = torch.multinomial(probabilities, 1, generator=generator)
    return best.indices.gather(1, drawn)[:, 0]


def check_sampling(
    max_new_tokens: int, temperature: float, top_k: int | None, eos_token_id: int | None, vocab_size: int
) -> None:
    """Raise for invalid arguments of ``generate``."""
    if not _is_integer(max_new_tokens, 0):
        raise usage_error(
            "generate(max_new_tokens=...)",
            repr(max_new_tokens),
            "max_new_tokens must be an integer of at least 0",
            "pass a number of tokens",
        )
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not is_number or not (math.isfinite(temperature) and temperature >= 0):
        raise usage_error(
            "generate(temperature=...)",
            repr(temperature),
            "temperature must be a finite number of at least 0",
            "pass temperature=0 for the most likely token",
        )
    if top_k is not None and not _is_integer(top_k, 1, vocab_size):
        raise usage_error(
            "generate(top_k=...)",
            repr(top_k),
            f"top_k must be an integer from 1 to the vocabulary's {vocab_size}",
            "omit top_k to sample from all tokens",
        )
    if eos_token_id is not None and not _is_integer(eos_token_id, 0, vocab_size - 1):
        raise usage_error(
            "generate(eos_token_id=...)",
            repr(eos_token_id),
            f"eos_token_id must be a token, 0 to {vocab_size - 1}",
            "omit eos_token_id to generate max_new_tokens",
        )


def _is_integer(value: object, low: int, high: int | None = None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return low <= value and (high is None or value <= high)
