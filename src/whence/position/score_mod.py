"""``from_score_mod``: a FlexAttention ``score_mod`` as a Position."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from whence import hook_outputs, shapes
from whence.errors import usage_error
from whence.position.base import Position
from whence.position.head_slice import require_range
from whence.position.hook_types import Rows
from whence.validation import format_value, require_parameters

#: (score, batch, head, query position, key position) -> the new score
ScoreModFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def from_score_mod(fn: ScoreModFunction, *, heads: int | None = None) -> Position:
    """A FlexAttention ``score_mod`` as a Position, to run on ``reference``, ``blockwise`` and ``flex`` and to check.

    ``fn(score, b, h, q_idx, kv_idx)`` returns the new score, or -inf to hide the key. FlexAttention calls it on scalars;
    here the arguments are tensors that broadcast to ``[B, H, T, S]``, so write it in torch operations. ``q_idx`` and
    ``kv_idx`` are positions: indices as in FlexAttention without padding, segments, cache and explicit positions, and
    counting on from the cache with one. An ``nn.Module`` keeps its parameters.

    In a sum, the function acts on ``scale * q.k``, before score_scale and bias.

    >>> import torch
    >>> from whence.attention import attend
    >>> relative = from_score_mod(lambda score, b, h, q_idx, kv_idx: score - 0.5 * (q_idx - kv_idx).abs())
    >>> q = torch.zeros(1, 1, 3, 2)
    >>> attend(q, q, q, position=relative, return_weights=True)[1][0, 0, 2]
    tensor([0.1863, 0.3072, 0.5065])

    Args:
        fn: the function.
        heads: the number of query heads, where the function reads one number per head.
    """
    return ScoreMod(fn, heads=heads)


class ScoreMod(Position):
    """The result of ``from_score_mod``. Shift invariance is not assumed, since the function may use any position."""

    relative = False

    def __init__(self, fn: ScoreModFunction, *, heads: int | None = None) -> None:
        super().__init__(heads=heads)
        if not callable(fn) or isinstance(fn, type):
            raise usage_error(
                "from_score_mod(fn)",
                format_value(fn),
                "fn is a function of (score, b, h, q_idx, kv_idx)",
                "pass a function or an nn.Module instance",
            )
        names = ("score", "b", "h", "q_idx", "kv_idx")
        require_parameters("from_score_mod(fn)", fn, names, f"write def fn({', '.join(names)})")
        self.fn = fn

    @property
    def trainable(self) -> bool:
        """Whether a parameter, or a tensor that the function captures, requires a gradient."""
        cells = getattr(self.fn, "__closure__", None) or ()
        captured = [cell.cell_contents for cell in cells if _is_filled(cell)]
        return super().trainable or any(isinstance(x, Tensor) and x.requires_grad for x in captured)

    def select_heads(self, start: int, end: int) -> Position:
        require_range("from_score_mod(fn)", self.heads, start, end)
        return ScoreMod(_LaterHeads(self.fn, start), heads=end - start)

    def content_bias(self, rows: Rows) -> Tensor:
        scores = rows.scores
        batch, heads = (torch.arange(n, device=scores.device) for n in scores.shape[:2])
        answer = hook_outputs.call_on_tensors(
            "from_score_mod(fn)",
            self.fn,
            scores,
            batch[:, None, None, None],
            heads[None, :, None, None],
            rows.q_positions[:, None, :, None],
            rows.k_positions[:, None, None, :],
        )
        fits = isinstance(answer, Tensor) and answer.ndim <= 4
        fits = fits and all(n in (1, m) for n, m in zip(answer.shape[::-1], scores.shape[::-1], strict=False))
        if not fits:
            raise usage_error(
                "from_score_mod(fn)",
                f"a result of {shapes.describe_tensor(answer)}",
                f"fn returns a tensor that broadcasts to the scores, here {list(scores.shape)}",
                "compute the result from score in torch operations",
            )
        # attend adds a content bias to the scores
        return (answer.to(scores.dtype) - scores).expand_as(scores)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "fn", getattr(self.fn, "__name__", type(self.fn).__name__)
        yield from super().repr_items()


class _LaterHeads(torch.nn.Module):
    """A function that counts heads from another one on. As a module, it keeps the parameters of the function."""

    def __init__(self, fn: ScoreModFunction, start: int) -> None:
        super().__init__()
        self.fn, self.start = fn, start

    def forward(self, score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return self.fn(score, b, h + self.start, q_idx, kv_idx)


def _is_filled(cell: object) -> bool:
    try:
        cell.cell_contents  # type: ignore[attr-defined]  # noqa: B018
    except ValueError:  # a name that is assigned later
        return False
    return True
