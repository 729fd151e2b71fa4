"""``Decoder``: a causal transformer that predicts the next token, whole texts at once or token by token from caches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whence.models.assign_positions import Placed
from whence.models.body import Body
from whence.models.caches import Caches
from whence.models.eval_mode import still
from whence.models.sampling import choose, require_choice
from whence.models.spec import ModelSpec


class Output(nn.Module):
    """A score for each token of the vocabulary. A tied one has no weights of its own, only a bias."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        start = nn.Linear(spec.embed_dim, spec.vocab_size, bias=spec.biases)  # for the start that torch gives it
        self.weight = None if spec.tied else nn.Parameter(start.weight)
        self.bias = nn.Parameter(start.bias) if spec.biases else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return F.linear(x, embedding if self.weight is None else self.weight, self.bias)


class Decoder(nn.Module):
    """Embedding, layers that look back, a final norm where the spec has one, an output. Made by ``build``."""

    def __init__(self, spec: ModelSpec, placed: Placed, backend: str = "auto") -> None:
        super().__init__()
        self.spec = spec
        self.body = Body(spec, placed, backend)
        self.output = Output(spec)

    def forward(
        self,
        tokens: Tensor,
        key_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cache: Caches | None = None,
    ) -> Tensor:
        """Tokens ``[B, T]`` give scores ``[B, T, vocabulary]`` of the token after each.

        Args:
            tokens: with a cache, the new tokens only.
            key_mask: ``[B, T]``, True where a token is real; on any side.
            segment_ids: ``[T]`` or ``[B, T]`` document numbers of packed texts.
            cache: what ``caches()`` made; the new tokens join it.
        """
        x = self.body(tokens, key_mask=key_mask, segment_ids=segment_ids, cache=cache)
        return self.output(x, self.body.embedding.weight)

    def caches(self, *, capacity: int | None = None) -> Caches:
        """Empty caches for all layers: growing ones, or of a fixed capacity."""
        return Caches(self.spec.layers, capacity=capacity)

    def generate(
        self,
        prompt: Tensor,
        steps: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
        stop: int | None = None,
    ) -> Tensor:
        """The prompt ``[B, T]`` with up to ``steps`` tokens after it, without dropout and without gradients.

        Args:
            temperature: divides the scores; 0 takes the best token each time.
            top_k: draw among that many best tokens only.
            generator: where the draws come from; torch's own by default.
            stop: a token that ends a row. Rows that have ended are filled with it, and when all have, it is done.
        """
        require_choice(steps, temperature, top_k, stop, self.spec.vocab_size)
        self.body.require_tokens(prompt)
        text = new = prompt.long()
        ended = None
        caches = self.caches(capacity=prompt.shape[1] + steps)
        with torch.no_grad(), still(self):
            for _ in range(steps):
                chosen = choose(self(new, cache=caches)[:, -1], temperature, top_k, generator)
                if stop is not None:
                    chosen = chosen if ended is None else chosen.masked_fill(ended, stop)
                    ended = chosen == stop
                new = chosen[:, None]
                text = torch.cat([text, new], 1)
                if ended is not None and bool(ended.all()):
                    break
        return text
