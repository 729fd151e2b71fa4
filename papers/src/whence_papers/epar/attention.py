"""The EPAR framework's attention: position-aware attention, and attention that adapts to task and content.

``position_aware_attention`` is ``whence.Attention`` with an ``Epar`` and the source's choices: one head, bidirectional, and L the
length of the sequence (``length="sequence"``, which cannot be combined with a cache).

``AdaptiveAttention`` adds an adapter. Each adapter reads the input x and returns score terms that act on KEYS:

    score_ij = trust_i * q_i.k_j  +  share_i * slope_i * (p_j - p_i) / context  +  (1 - share_i) * strength * importance_j

``slope`` comes from the task: the weights of a row over task types, each of which prefers near keys (positive slope), far
keys (negative slope) or neither. ``trust`` comes from the same weights: a directional type reduces the weight of queries and
keys, a neutral type keeps it in full. ``importance`` comes from each key's own content. ``share`` fuses task and content.
Every term is a product of a row factor and a key factor, so all of them fit into a few more columns of q and k, and
``attend`` runs them unchanged on any backend. The terms are part of the score, so EPAR's factor multiplies them too.

Without ``trust`` a neutral type would have no effect: half near and half far cancel to the same slope, and training would
never give it a weight. With it, the three weights determine two independent numbers.

``PerRow`` is the form of the source's code: task and content scale the logits of a whole row. That is a temperature. It can
sharpen or flatten the row, but never changes which key has the largest weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from whence.attention import Attention, attend, without_embedding
from whence.errors import usage_error
from whence.position.base import Position
from whence.position.epar import Epar
from whence.position.no_position import NoPosition
from whence.position.parameter import BoundedParameter


def position_aware_attention(
    embed_dim: int,
    heads: int = 1,
    *,
    form: str = "enhanced",
    alpha: float = 1.0,
    beta: float = 1.0,
    gamma: float = 0.5,
    temperature: float = 1.0,
    learnable: bool = False,
    causal: bool = False,
    length: str = "sequence",
    context: int | None = None,
    bias: bool = True,
) -> Attention:
    """Attention with the basic or the enhanced position effect. ``learnable`` trains alpha, beta and gamma for each head.

    >>> import torch
    >>> position_aware_attention(8, form="basic")(torch.ones(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """
    effect = Epar(
        heads, form=form, alpha=alpha, beta=beta, gamma=gamma, learnable=learnable, length=length, context=context
    )  # fmt: skip
    return Attention(embed_dim, heads, effect, causal=causal, temperature=temperature, bias=bias)


#: task type -> direction: 1 prefers near keys, -1 prefers far keys
TASK_TYPES: dict[str, float] = {"near": 1.0, "anywhere": 0.0, "far": -1.0}
#: content type -> importance
CONTENT_TYPES: dict[str, float] = {"filler": 0.0, "plain": 0.5, "important": 1.0}
#: the factor on q.k when a directional type has all the weight. At 0.5 some models double the score and never use the neutral
#: type; at 0 a small weight of the neutral type is enough
MIN_TRUST = 0.2


@dataclass(frozen=True)
class AdapterOutput:
    """The score terms of an adapter for B sequences of T tokens, and the quantities they are computed from."""

    rows: Tensor | None = None  # [B, T, R], extra columns of the queries
    keys: Tensor | None = None  # [B, T, R], extra columns of the keys; the dot product over R is added to the score
    row_scale: Tensor | None = None  # [B, T], positive: multiplies q.k, not the terms above
    task_weights: Tensor | None = None  # [B, T, task types], each row sums to 1
    slope: Tensor | None = None  # [B, T], positive where near keys are preferred
    content_types: Tensor | None = None  # [B, T, content types], each token's sum to 1
    importance: Tensor | None = None  # [B, T], from 0 to 1
    task_share: Tensor | None = None  # [B, T], from 0 (all content) to 1 (all task)


class Adapter(nn.Module, ABC):
    """Maps x ``[B, T, D]``, the mean of the tokens visible to each row ``[B, T, D]`` and positions ``[T]`` to score terms."""

    embed_dim: int

    @abstractmethod
    def forward(self, x: Tensor, visible_mean: Tensor, positions: Tensor) -> AdapterOutput: ...


class TaskAware(Adapter):
    """Infers the task from the visible tokens and prefers near keys, far keys, or neither.

    Args:
        embed_dim: dimension of the input.
        context: the length by which distances are divided.
        types: task type -> direction, from -1 to 1.
        strength: initial value of the learnable scale of all slopes.
    """

    directions: Tensor

    def __init__(
        self, embed_dim: int, context: int, *, types: Mapping[str, float] = TASK_TYPES, strength: float = 4.0
    ) -> None:
        super().__init__()
        if context < 1 or not types:
            raise usage_error(
                "TaskAware(context, types)",
                f"{context} and {len(types)} types",
                "context >= 1 and there is at least one task type",
                "increase context or add a type",
            )
        if not all(-1 <= direction <= 1 for direction in types.values()):
            rule = "directions range from -1 (far) to 1 (near)"  # beyond, trust would be negative
            raise usage_error("TaskAware(types)", repr(dict(types)), rule, "rescale them and increase strength")
        self.embed_dim, self.context, self.types = embed_dim, context, tuple(types)
        self.task_logits = nn.Linear(embed_dim, len(types))
        self.strength = BoundedParameter("TaskAware.strength", strength, heads=None, learnable=True)
        self.register_buffer("directions", torch.tensor(list(types.values())))

    def forward(self, x: Tensor, visible_mean: Tensor, positions: Tensor) -> AdapterOutput:
        weights = self.task_logits(visible_mean).softmax(-1)
        slope = self.strength() * (weights @ self.directions)
        at = (positions.to(x.dtype) / self.context).expand(x.shape[:2])
        rows = torch.stack([slope, -slope * at], -1)
        keys = torch.stack([at, torch.ones_like(at)], -1)
        trust = 1 - (1 - MIN_TRUST) * (weights @ self.directions.abs())
        return AdapterOutput(rows, keys, row_scale=trust, task_weights=weights, slope=slope)


class ContentAware(Adapter):
    """Classifies each token into content types and prefers keys of important types."""

    levels: Tensor

    def __init__(self, embed_dim: int, *, types: Mapping[str, float] = CONTENT_TYPES, strength: float = 4.0) -> None:
        super().__init__()
        if not types or not all(0 <= level <= 1 for level in types.values()):
            raise usage_error(
                "ContentAware(types)", repr(dict(types)), "each type needs an importance from 0 to 1", "rescale them"
            )
        self.embed_dim, self.types = embed_dim, tuple(types)
        self.type_logits = nn.Linear(embed_dim, len(types))
        self.strength = BoundedParameter("ContentAware.strength", strength, heads=None, learnable=True)
        self.register_buffer("levels", torch.tensor(list(types.values())))

    def forward(self, x: Tensor, visible_mean: Tensor, positions: Tensor) -> AdapterOutput:
        types = self.type_logits(x).softmax(-1)
        importance = types @ self.levels
        keys = (self.strength() * importance)[..., None]
        return AdapterOutput(torch.ones_like(keys), keys, content_types=types, importance=importance)


class FusedAdapter(Adapter):
    """Task and content together, in a learned proportion for each row."""

    def __init__(self, task: TaskAware, content: ContentAware) -> None:
        super().__init__()
        if task.embed_dim != content.embed_dim:
            raise usage_error(
                "FusedAdapter(task, content)",
                f"adapters with embed_dim {task.embed_dim} and {content.embed_dim}",
                "both read the same input",
                "use the same embed_dim",
            )
        self.embed_dim, self.task, self.content = task.embed_dim, task, content
        self.share_logit = nn.Linear(self.embed_dim, 1)

    def forward(self, x: Tensor, visible_mean: Tensor, positions: Tensor) -> AdapterOutput:
        by_task, by_content = self.task(x, visible_mean, positions), self.content(x, visible_mean, positions)
        share = self.share_logit(visible_mean).sigmoid()  # [B, T, 1]
        rows = torch.cat([share * by_task.rows, (1 - share) * by_content.rows], -1)
        return AdapterOutput(
            rows,
            torch.cat([by_task.keys, by_content.keys], -1),
            row_scale=1 - share[..., 0] * (1 - by_task.row_scale),  # with content alone, trust is 1
            task_weights=by_task.task_weights,
            slope=by_task.slope,
            content_types=by_content.content_types,
            importance=by_content.importance,
            task_share=share[..., 0],
        )


class PerRow(Adapter):
    """The form of the source's code, for comparison: the logits of a row times ``1 - f + f (t + c) / 2``.

    t is the weight of the task and c the importance of the row's own token, both between 0 and 1; f fuses them.
    """

    def __init__(self, embed_dim: int, *, types: Mapping[str, float] = TASK_TYPES) -> None:
        super().__init__()
        self.embed_dim, self.types = embed_dim, tuple(types)
        self.task_logits = nn.Linear(embed_dim, len(types))
        self.level_logits = nn.Parameter(torch.zeros(len(types)))  # of each task type, before the sigmoid
        self.importance_logit = nn.Linear(embed_dim, 1)
        self.share_logit = nn.Linear(embed_dim, 1)

    def forward(self, x: Tensor, visible_mean: Tensor, positions: Tensor) -> AdapterOutput:
        weights = self.task_logits(visible_mean).softmax(-1)
        importance, share = self.importance_logit(x).sigmoid()[..., 0], self.share_logit(visible_mean).sigmoid()[..., 0]
        scale = 1 - share + share * (weights @ self.level_logits.sigmoid() + importance) / 2
        return AdapterOutput(row_scale=scale, task_weights=weights, importance=importance, task_share=share)


class AdaptiveAttention(nn.Module):
    """Multi-head attention with any Position, and an adapter that adds score terms for task and content.

    The adapter's terms become columns of q and k, so this is one call of ``attend``. With causal attention the adapter is
    causal too: it infers the task from the mean of the tokens up to the row.

    Args:
        embed_dim: dimension of the input and output.
        heads: number of heads, a divisor of ``embed_dim``.
        position: a Position without input embedding.
        adapter: ``TaskAware``, ``ContentAware``, ``FusedAdapter`` or ``PerRow``; ``None`` for no adapter.
        causal, temperature: as in ``attend``.

    >>> from whence_papers.epar.attention import TaskAware
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
                "AdaptiveAttention(embed_dim, heads)",
                f"{embed_dim} and {heads}",
                "heads must divide embed_dim",
                "change either",
            )
        if adapter is not None and adapter.embed_dim != embed_dim:
            raise usage_error(
                "AdaptiveAttention(adapter=...)",
                f"an adapter with embed_dim {adapter.embed_dim} in a layer with {embed_dim}",
                "an adapter reads the layer's input",
                f"build it with embed_dim={embed_dim}",
            )
        if position is not None and position.at_input():
            raise usage_error(
                "AdaptiveAttention(position=...)",
                repr(position),
                "this layer does not embed its input",
                "pass without_embedding(position) and apply position.embed before the layer",
            )
        self.heads, self.head_dim = heads, embed_dim // heads
        self.position = NoPosition() if position is None else without_embedding(position)
        self.adapter = adapter
        self.causal, self.temperature = causal, temperature
        self.queries, self.keys, self.values, self.out = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Map x ``[B, T, embed_dim]`` to an output of the same shape."""
        q, k, v, scale, _ = self._prepare(x)
        mixed = attend(
            q, k, v, position=self.position, causal=self.causal, scale=scale, temperature=self.temperature
        )  # fmt: skip
        return self.out(mixed.transpose(1, 2).flatten(2))

    def inspect_attention(self, x: Tensor) -> tuple[Tensor, AdapterOutput]:
        """The attention weights ``[B, H, T, T]`` and the adapter's output."""
        q, k, v, scale, output = self._prepare(x)
        _, weights = attend(
            q, k, v, position=self.position, causal=self.causal, scale=scale, temperature=self.temperature,
            return_weights=True,
        )  # fmt: skip
        return weights, output

    def _prepare(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, float, AdapterOutput]:
        q, k, v = (
            projection(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for projection in (self.queries, self.keys, self.values)
        )
        scale = self.head_dim**-0.5
        if self.adapter is None:
            return q, k, v, scale, AdapterOutput()
        output = self.adapter(x, prefix_mean(x, self.causal), torch.arange(x.shape[1], device=x.device))
        if output.row_scale is not None:
            q = q * output.row_scale[:, None, :, None]
        if output.rows is not None and output.keys is not None:
            q = torch.cat([q, self._columns(output.rows / scale)], -1)
            k = torch.cat([k, self._columns(output.keys)], -1)
            v = v.to(
                q.dtype
            )  # under autocast the extra columns have a higher precision than the projections, and positions need it
        return q, k, v, scale, output

    def _columns(self, terms: Tensor) -> Tensor:
        """Expand ``[B, T, R]`` to every head."""
        return terms[:, None].expand(-1, self.heads, -1, -1)


def prefix_mean(x: Tensor, causal: bool) -> Tensor:
    """The mean of the tokens visible to each row, ``[B, T, D]``: those up to it if causal, else all.

    >>> prefix_mean(torch.tensor([[[1.0], [3.0]]]), causal=True).flatten().tolist()
    [1.0, 2.0]
    """
    if not causal:
        return x.mean(1, keepdim=True).expand_as(x)
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None]


class AdaptiveModel(nn.Module):
    """Embedding, one layer of adaptive attention and output logits: the smallest model that can learn to adapt.

    Args:
        vocab_size: number of tokens.
        adapter: a function from ``embed_dim`` to an adapter, or ``None``.
        embed_dim, heads, position, causal, temperature: as in ``AdaptiveAttention``.
        seed: seed of the initial weights; torch's global generator is not changed.
    """

    def __init__(
        self,
        vocab_size: int,
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
            self.embedding = nn.Embedding(vocab_size, embed_dim)
            built = None if adapter is None else adapter(embed_dim)
            self.attention = AdaptiveAttention(
                embed_dim, heads, position, built, causal=causal, temperature=temperature
            )
            self.output = nn.Linear(embed_dim, vocab_size)

    def forward(self, tokens: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Map tokens ``[B, T]`` to logits ``[B, T, vocab_size]`` of the next token."""
        if key_mask is not None:
            raise usage_error(
                "AdaptiveModel(key_mask=...)",
                "a mask",
                "this small model does not support padding",
                "use sequences of one length",
            )
        x = self.embedding(tokens)
        return self.output(x + self.attention(x))

    def inspect_attention(self, tokens: Tensor) -> tuple[Tensor, AdapterOutput]:
        """The attention weights ``[B, H, T, T]`` and the adapter's output, without gradients."""
        with torch.no_grad():
            return self.attention.inspect_attention(self.embedding(tokens))
