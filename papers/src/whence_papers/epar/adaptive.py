"""``AdaptiveAttention``: attention whose scores an adapter adapts to task and content; and a small model around it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from whence.attention import attend, without_embedding
from whence.errors import usage_error
from whence.position.base import Position
from whence.position.no_position import NoPosition
from whence_papers.epar.adapters import Adapter, Reading


class AdaptiveAttention(nn.Module):
    """Multi-head attention with any Position, and an adapter that says where an input wants to be looked at.

    What the adapter adds to the scores becomes columns of q and k, so this is a plain call of ``attend``. Rows are read
    causally where attention is causal: the task is inferred from the mean of what a row has seen.

    Args:
        embed_dim: width of the input and output.
        heads: query heads, a divisor of ``embed_dim``.
        position: what position does to the scores; not a part that acts on embeddings.
        adapter: ``TaskAware``, ``ContentAware``, ``Fused`` or ``PerRow``; ``None`` for none.
        causal, temperature: as in ``attend``.

    >>> from whence_papers.epar.adapters import TaskAware
    >>> layer = AdaptiveAttention(16, 2, adapter=TaskAware(16, context=8))
    >>> layer(torch.ones(3, 8, 16)).shape
    torch.Size([3, 8, 16])
    """

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        position: Position | None = None,
        adapter: Adapter | None = None,
        *,
        causal: bool = True,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        if heads < 1 or embed_dim % heads != 0:
            raise usage_error(
                "AdaptiveAttention(width, heads)", f"{embed_dim} and {heads}", "heads divides width", "choose a divisor"
            )
        if adapter is not None and adapter.embed_dim != embed_dim:
            raise usage_error(
                "AdaptiveAttention(adapter=...)",
                f"an adapter for width {adapter.embed_dim} with {embed_dim}",
                "an adapter reads the layer's input",
                f"build it with width={embed_dim}",
            )
        if position is not None and position.at_input():
            raise usage_error(
                "AdaptiveAttention(position=...)",
                "a part that acts on embeddings",
                "embeddings are made outside of this layer",
                "use without_embedding(position) here and embed the input before",
            )
        self.heads, self.head_dim = heads, embed_dim // heads
        self.position = NoPosition() if position is None else without_embedding(position)
        self.adapter = adapter
        self.causal, self.temperature = causal, temperature
        self.queries, self.keys, self.values, self.out = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """x ``[B, T, width]`` gives an output like it."""
        q, k, v, scale, _ = self._prepared(x)
        mixed = attend(
            q, k, v, position=self.position, causal=self.causal, scale=scale, temperature=self.temperature
        )  # fmt: skip
        return self.out(mixed.transpose(1, 2).flatten(2))

    def look(self, x: Tensor) -> tuple[Tensor, Reading]:
        """The attention weights ``[B, H, T, T]`` and what the adapter read."""
        q, k, v, scale, reading = self._prepared(x)
        _, weights = attend(
            q, k, v, position=self.position, causal=self.causal, scale=scale, temperature=self.temperature,
            return_weights=True,
        )  # fmt: skip
        return weights, reading

    def _prepared(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, float, Reading]:
        q, k, v = (
            projection(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for projection in (self.queries, self.keys, self.values)
        )
        scale = self.head_dim**-0.5
        if self.adapter is None:
            return q, k, v, scale, Reading()
        reading = self.adapter(x, seen_by(x, self.causal), torch.arange(x.shape[1], device=x.device))
        if reading.row_scale is not None:
            q = q * reading.row_scale[:, None, :, None]
        if reading.rows is not None and reading.keys is not None:
            q = torch.cat([q, self._columns(reading.rows / scale)], -1)
            k = torch.cat([k, self._columns(reading.keys)], -1)
            v = v.to(q.dtype)  # under autocast the columns are wider than the projections, and places need the digits
        return q, k, v, scale, reading

    def _columns(self, terms: Tensor) -> Tensor:
        """``[B, T, R]`` for every head."""
        return terms[:, None].expand(-1, self.heads, -1, -1)


def seen_by(x: Tensor, causal: bool) -> Tensor:
    """The mean of the tokens that each row sees, ``[B, T, W]``: those up to it, or all.

    >>> seen_by(torch.tensor([[[1.0], [3.0]]]), causal=True).flatten().tolist()
    [1.0, 2.0]
    """
    if not causal:
        return x.mean(1, keepdim=True).expand_as(x)
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None]


class AdaptiveModel(nn.Module):
    """Tokens, one layer of adaptive attention, scores of the next token: the least in which adapting can be learned.

    Args:
        vocabulary: number of tokens.
        width, heads, position, causal, temperature: as in ``AdaptiveAttention``.
        adapter: a function from the width to an adapter, or ``None``.
        seed: of the weights it starts from; torch's own randomness is left as it was.
    """

    def __init__(
        self,
        vocabulary: int,
        adapter: Callable[[int], Adapter] | None = None,
        *,
        embed_dim: int = 32,
        heads: int = 2,
        position: Position | None = None,
        causal: bool = True,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(vocabulary, embed_dim)
            made = None if adapter is None else adapter(embed_dim)
            self.attention = AdaptiveAttention(embed_dim, heads, position, made, causal=causal, temperature=temperature)
            self.output = nn.Linear(embed_dim, vocabulary)

    def forward(self, tokens: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Tokens ``[B, T]`` give scores ``[B, T, vocabulary]`` of the token after each."""
        if key_mask is not None:
            raise usage_error(
                "AdaptiveModel(padding=...)",
                "a mask",
                "this small model reads whole sequences",
                "cut them to one length",
            )
        x = self.embedding(tokens)
        return self.output(x + self.attention(x))

    def look(self, tokens: Tensor) -> tuple[Tensor, Reading]:
        """The attention weights ``[B, H, T, T]`` and what the adapter read, without gradients."""
        with torch.no_grad():
            return self.attention.look(self.embedding(tokens))
