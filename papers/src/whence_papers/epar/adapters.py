"""What an input says about how it wants to be attended to: task-aware, content-aware, and their fusion.

Each adapter reads the input x and answers with score terms that act on KEYS:

    score_ij = trust_i * q_i.k_j  +  share_i * slope_i * (p_j - p_i) / context  +  (1 - share_i) * strength * importance_j

``slope`` comes from the task: a row's weights over task types, each of which wants near keys (slope above 0), far keys
(below 0) or neither. ``trust`` comes from them too: a type that leans takes trust from queries and keys, one that does not
leans on them in full. ``importance`` comes from each key's own content. ``share`` fuses task and content. Every term is a
product of a number of the row and a number of the key, so all of it fits into a few more columns of q and k, and
``attend`` runs it unchanged on any backend. Being part of the score, the terms are multiplied by EPAR's factor like the
rest of it.

Without the trust a type that leans nowhere would do nothing: half near and half far cancel to the same slope, and training
then never gives it a weight. With it, three weights give two numbers that no other three weights give.

``PerRow`` is the form of the EPAR framework's code: task and content weigh the logits of a whole row. A row's logits times
one number is a temperature; it can sharpen or flatten the row, and never changes which key comes first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.position.parameter import Quantity

#: task types by name, with the direction in which each pulls: 1 toward near keys, -1 toward far ones
TASK_TYPES: dict[str, float] = {"near": 1.0, "anywhere": 0.0, "far": -1.0}
#: content types by name, with the importance of each
CONTENT_TYPES: dict[str, float] = {"filler": 0.0, "plain": 0.5, "important": 1.0}
#: what a type that leans with all its weight leaves of the score of queries and keys. Where it leaves half, some models
#: make that score twice as large and need no type for it; where it leaves nothing, a little of "anywhere" is enough
TRUST_LEFT = 0.2


@dataclass(frozen=True)
class Reading:
    """What an adapter found in an input of B sequences of T tokens, and what it does to the scores."""

    rows: Tensor | None = None  # [B, T, R], of the queries
    keys: Tensor | None = None  # [B, T, R], of the keys; the sum over R of their products joins the score
    row_scale: Tensor | None = None  # [B, T], above 0: multiplies the scores of a row's query, not the terms above
    task_weights: Tensor | None = None  # [B, T, task types], each row sums to 1
    slope: Tensor | None = None  # [B, T], above 0 where near keys are wanted
    content_types: Tensor | None = None  # [B, T, content types], each token's sum to 1
    importance: Tensor | None = None  # [B, T], from 0 to 1
    task_share: Tensor | None = None  # [B, T], from 0 (all content) to 1 (all task)


class Adapter(nn.Module, ABC):
    """Reads x ``[B, T, W]``, the mean of what each row has seen ``[B, T, W]`` and positions ``[T]``."""

    embed_dim: int

    @abstractmethod
    def forward(self, x: Tensor, seen: Tensor, places: Tensor) -> Reading: ...


class TaskAware(Adapter):
    """Infers the task from what a row has seen and leans toward near keys, toward far keys, or on content.

    Args:
        embed_dim: width of the input.
        context: the length that distances are measured in.
        types: task types with the direction of each, from -1 to 1.
        strength: where the one learnable scale of all slopes starts.
    """

    directions: Tensor

    def __init__(
        self, embed_dim: int, context: int, *, types: Mapping[str, float] = TASK_TYPES, strength: float = 4.0
    ) -> None:
        super().__init__()
        if context < 1 or not types:
            raise usage_error(
                "TaskAware(context, types)", f"{context} and {len(types)} types", "there is one at least", "give one"
            )
        if not all(-1 <= direction <= 1 for direction in types.values()):
            rule = "a type leans from -1, all far, to 1, all near"  # beyond that its trust in content would be below 0
            raise usage_error("TaskAware(types)", repr(dict(types)), rule, "give such types, and a larger strength")
        self.embed_dim, self.context, self.types = embed_dim, context, tuple(types)
        self.weigh = nn.Linear(embed_dim, len(types))
        self.strength = Quantity("strength", strength, heads=None, learnable=True)
        self.register_buffer("directions", torch.tensor(list(types.values())))

    def forward(self, x: Tensor, seen: Tensor, places: Tensor) -> Reading:
        weights = self.weigh(seen).softmax(-1)
        slope = self.strength() * (weights @ self.directions)
        at = (places.to(x.dtype) / self.context).expand(x.shape[:2])
        rows = torch.stack([slope, -slope * at], -1)
        keys = torch.stack([at, torch.ones_like(at)], -1)
        trust = 1 - (1 - TRUST_LEFT) * (weights @ self.directions.abs())
        return Reading(rows, keys, row_scale=trust, task_weights=weights, slope=slope)


class ContentAware(Adapter):
    """Sorts each token into content types and favours keys of the important ones."""

    levels: Tensor

    def __init__(self, embed_dim: int, *, types: Mapping[str, float] = CONTENT_TYPES, strength: float = 4.0) -> None:
        super().__init__()
        if not types or not all(0 <= level <= 1 for level in types.values()):
            raise usage_error(
                "ContentAware(types)", repr(dict(types)), "types have an importance from 0 to 1", "give such types"
            )
        self.embed_dim, self.types = embed_dim, tuple(types)
        self.sort = nn.Linear(embed_dim, len(types))
        self.strength = Quantity("strength", strength, heads=None, learnable=True)
        self.register_buffer("levels", torch.tensor(list(types.values())))

    def forward(self, x: Tensor, seen: Tensor, places: Tensor) -> Reading:
        types = self.sort(x).softmax(-1)
        importance = types @ self.levels
        keys = (self.strength() * importance)[..., None]
        return Reading(torch.ones_like(keys), keys, content_types=types, importance=importance)


class Fused(Adapter):
    """Task and content together, each row in the proportion that it has learned."""

    def __init__(self, task: TaskAware, content: ContentAware) -> None:
        super().__init__()
        if task.embed_dim != content.embed_dim:
            raise usage_error(
                "Fused(task, content)",
                f"widths {task.embed_dim} and {content.embed_dim}",
                "both read the same input",
                "build them with one width",
            )
        self.embed_dim, self.task, self.content = task.embed_dim, task, content
        self.share = nn.Linear(self.embed_dim, 1)

    def forward(self, x: Tensor, seen: Tensor, places: Tensor) -> Reading:
        by_task, by_content = self.task(x, seen, places), self.content(x, seen, places)
        share = self.share(seen).sigmoid()  # [B, T, 1]
        rows = torch.cat([share * by_task.rows, (1 - share) * by_content.rows], -1)
        return Reading(
            rows,
            torch.cat([by_task.keys, by_content.keys], -1),
            row_scale=1 - share[..., 0] * (1 - by_task.row_scale),  # all content: trust is whole
            task_weights=by_task.task_weights,
            slope=by_task.slope,
            content_types=by_content.content_types,
            importance=by_content.importance,
            task_share=share[..., 0],
        )


class PerRow(Adapter):
    """The form of the source's code, to compare with: a row's logits times ``1 - f + f (t + c) / 2``.

    t is a weight of the task and c the importance of the row's own token, both between 0 and 1, and f fuses them.
    """

    def __init__(self, embed_dim: int, *, types: Mapping[str, float] = TASK_TYPES) -> None:
        super().__init__()
        self.embed_dim, self.types = embed_dim, tuple(types)
        self.weigh = nn.Linear(embed_dim, len(types))
        self.level = nn.Parameter(torch.zeros(len(types)))  # of each task type, before the sigmoid
        self.rate = nn.Linear(embed_dim, 1)
        self.share = nn.Linear(embed_dim, 1)

    def forward(self, x: Tensor, seen: Tensor, places: Tensor) -> Reading:
        weights = self.weigh(seen).softmax(-1)
        importance, share = self.rate(x).sigmoid()[..., 0], self.share(seen).sigmoid()[..., 0]
        scale = 1 - share + share * (weights @ self.level.sigmoid() + importance) / 2
        return Reading(row_scale=scale, task_weights=weights, importance=importance, task_share=share)
