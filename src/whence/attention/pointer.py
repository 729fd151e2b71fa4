"""Scaled dot-product pointer attention over a history of items, and a gate between copying and generating.

    log a = log softmax over j of  (W_q x_last . W_k x_j) / sqrt(embed_dim), changed by any Position
    log P(w) = log( p_gen P_vocabulary(w) + (1 - p_gen) sum of a_j over the j with w_j = w )

The query is the last real item, the keys are all real items, and position is any Position of one head (``Recency`` in the
source). All results are log-probabilities: unlikely items keep their gradient, and impossible ones are -inf with gradient
0::

    pointer = PointerAttention(64, position=Recency(151))      # any Position for one head
    log_weights = pointer(encoded, key_mask=key_mask)            # encoded [B, S, 64] -> [B, S]
    copied = scatter_to_vocabulary(log_weights, items, size)         # items [B, S] -> log-probabilities [B, size]
    gate = Gate(64)                                            # or Gate(512, 256, 128): over several parts
    log_p = mix(scores, copied, gate(last_item(encoded, key_mask=key_mask)))     # scores [B, vocabulary] -> [B, size]

``size`` may exceed the vocabulary: words beyond it are those of an extended vocabulary, and can only be copied.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence import shapes, torch_modes
from whence.attention.arguments import Arguments
from whence.attention.call import prepare
from whence.attention.layout import resolve_key_mask
from whence.attention.reference import compute_logits
from whence.attention.token_positions import count_tokens
from whence.errors import usage_error
from whence.position.base import Position
from whence.position.evaluate import evaluate_clock
from whence.position.no_position import NoPosition
from whence.validation import require_dim, require_flag, require_integer, require_table


class PointerAttention(nn.Module):
    """Pointer attention: log-weights over the items of a history.

    Args:
        embed_dim: dimension of an item.
        position: how position acts on the scores of one head; ``None`` for nothing. A sink is refused, because the weights
            of a pointer sum to 1 over the history.
        bias: whether the two projections have a bias.

    >>> from whence.position import Recency
    >>> pointer = PointerAttention(8, Recency(16))
    >>> pointer(torch.ones(1, 4, 8), lengths=torch.tensor([3])).exp().detach()
    tensor([[0.3333, 0.3333, 0.3333, 0.0000]])
    """

    def __init__(self, embed_dim: int, position: Position | None = None, *, bias: bool = True) -> None:
        super().__init__()
        require_table("PointerAttention", require_dim("PointerAttention", "embed_dim", embed_dim), embed_dim)
        require_flag("PointerAttention", "bias", bias)
        position = NoPosition() if position is None else position
        if not isinstance(position, Position) or position.effects & {"sink", "embed"}:
            effects = "" if not isinstance(position, Position) else " with " + "/".join(sorted(position.effects))
            raise usage_error(
                "PointerAttention(position=...)",
                type(position).__name__ + effects,
                "a pointer's position acts on the scores of one query, and all its weight lies on the history",
                "give a Position without sink and embed; embeddings belong to the model around the pointer",
            )
        if position.heads not in (None, 1):
            raise usage_error(
                "PointerAttention(position=...)",
                f"{type(position).__name__} for {position.heads} heads",
                "a pointer has one head",
                "build it with heads=1",
            )
        self.queries = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.keys = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.position = position

    def forward(
        self,
        encoded: Tensor,
        *,
        lengths: Tensor | None = None,
        key_mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Log-weights ``[B, S]`` over items ``[B, S, embed_dim]``, -inf on padding; in at least float32.

        ``lengths`` or ``key_mask`` (True where real, on any side) mark the real items. ``positions``, ``[S]`` or
        ``[B, S]``, count from the first real item by default. The query has the position of the last real item and
        attends to no item at a later position.
        """
        shapes.require_sequences("PointerAttention", "encoded", encoded, self.queries)
        batch, length, device = encoded.shape[0], encoded.shape[1], encoded.device
        real = resolve_key_mask(lengths, key_mask, batch, length, device)
        shapes.require_real_tokens("PointerAttention", real)
        if positions is None:
            places = count_tokens(real, None, length, device).clamp(min=0)  # left padding, which is hidden anyway
        else:
            places = shapes.validate_positions("positions", positions, batch, length, device)
        at = _last_real_index(real, batch, length, device)
        last = _select_items(encoded, at)
        q = self.queries(last)[:, None, None]
        k = self.keys(encoded)[:, None]
        places = places.expand(batch, -1)
        with torch_modes.without_autocast(encoded):
            # the query is the last item: causal=True also allows mechanisms that are defined for past keys only
            arguments = Arguments(
                q, k, k, position=self.position, clock=evaluate_clock(self.position, encoded, 1), causal=True, q_positions=places.gather(1, at[:, None]),
                k_positions=places, key_mask=real, q_input=last[:, None] if self.position.reads_input else None,
            )  # fmt: skip
            return torch.log_softmax(compute_logits(prepare(arguments)).logits[:, 0, 0], -1)


class Gate(nn.Module):
    """The logit of generating instead of copying: ``p_gen = sigmoid(gate(...))``.

    Args:
        dims: of the parts it looks at; each has weights of its own.
        hidden_dim: units of a layer in between, with GELU; ``None`` for none.

    >>> Gate(6, 4, 3)(torch.ones(2, 6), torch.ones(2, 4), torch.ones(2, 3)).shape
    torch.Size([2])
    """

    def __init__(self, *dims: int, hidden_dim: int | None = None) -> None:
        super().__init__()
        for dim in dims:
            require_dim("Gate", "dims", dim)
        if not dims:
            raise usage_error(
                "Gate()", "no dims", "a gate needs at least one input", "pass the dimension of each input"
            )
        total = sum(dims)
        if hidden_dim is not None:
            require_table("Gate", total, require_dim("Gate", "hidden_dim", hidden_dim))
        self.dims = dims
        self.layers = (
            nn.Sequential(nn.Linear(total, 1))
            if hidden_dim is None
            else nn.Sequential(nn.Linear(total, hidden_dim), nn.GELU(), nn.Linear(hidden_dim, 1))
        )

    def forward(self, *parts: Tensor) -> Tensor:
        """Logits ``[...]`` from tensors ``[..., dim]``, one for each of ``dims``."""
        fit = len(parts) == len(self.dims) and all(
            shapes.is_numeric(x) and x.ndim and x.shape[-1] == n and x.shape[:-1] == parts[0].shape[:-1]
            for x, n in zip(parts, self.dims, strict=False)
        )
        if not fit:
            raise usage_error(
                "Gate(...)",
                ", ".join(shapes.describe_tensor(x) for x in parts) or "nothing",
                f"it takes {shapes.format_count(len(self.dims), 'tensor')} [..., dim] with dims {list(self.dims)}",
                "pass one tensor for each of dims",
            )
        for x in parts:
            shapes.require_like("Gate(...)", "each part", x, self.layers[0])
        return self.layers(torch.cat(parts, -1))[..., 0]


def scatter_to_vocabulary(log_weights: Tensor, items: Tensor, size: int) -> Tensor:
    """Log-probabilities ``[B, size]`` of copying each word, from log-weights ``[B, S]`` and the word at each position.

    The weights of a word that occurs several times are summed; a word that does not occur has -inf and no gradient.

    >>> scatter_to_vocabulary(torch.tensor([[0.25, 0.25, 0.5]]).log(), torch.tensor([[2, 0, 2]]), 4).exp()
    tensor([[0.2500, 0.0000, 0.7500, 0.0000]])
    """
    require_integer("scatter_to_vocabulary", "size", size)
    both = shapes.is_integer(items) and shapes.is_floating(log_weights) and items.device == log_weights.device
    if not both or items.shape != log_weights.shape or log_weights.ndim != 2:
        raise usage_error(
            "scatter_to_vocabulary(log_weights, items)",
            f"{shapes.describe_tensor(log_weights)} and {shapes.describe_tensor(items)}",
            "each weight has one word: two tensors [batch, length], the second of whole numbers",
            "pass the word at each position that is attended to",
        )
    words = items.long()
    if not torch_modes.is_tracing() and bool(((words < 0) | (words >= size)).any()):
        raise usage_error(
            "scatter_to_vocabulary(items)",
            f"words from {int(words.min())} to {int(words.max())}",
            f"a word lies between 0 and {size - 1}",
            "give a larger size, for an extended vocabulary",
        )
    # subtract the largest log-weight of each word first, so that small sums do not underflow
    top = log_weights.new_full((len(words), size), -torch.inf)
    top = top.scatter_reduce(1, words, log_weights.detach(), "amax")
    top = top.masked_fill(torch.isneginf(top), 0.0)
    total = torch.zeros_like(top).scatter_add(1, words, (log_weights - top.gather(1, words)).exp())
    nowhere = total == 0
    return (total.masked_fill(nowhere, 1.0).log() + top).masked_fill(nowhere, -torch.inf)


def mix(scores: Tensor, copied: Tensor, gate: Tensor) -> Tensor:
    """Log-probabilities ``[B, size]`` of generating or copying each word.

    Args:
        scores: ``[B, vocabulary]``, before the softmax, or log-probabilities, which a softmax leaves as they are.
        copied: ``[B, size]`` log-probabilities, of at least as many words as the vocabulary has.
        gate: ``[B]``, the logit of generating.
    """
    real = all(shapes.is_floating(x) for x in (scores, copied, gate)) and scores.device == copied.device == gate.device
    fits = real and scores.ndim == copied.ndim == 2
    fits = fits and len(scores) == len(copied) and scores.shape[1] <= copied.shape[1]
    if not fits or gate.shape != scores.shape[:1]:
        raise usage_error(
            "mix(scores, copied, gate)",
            ", ".join(shapes.describe_tensor(x) for x in (scores, copied, gate)),
            "these are [batch, vocabulary], [batch, at least the vocabulary] and [batch]",
            "take copied from scatter_to_vocabulary with a size of at least the vocabulary",
        )
    dtype = torch.promote_types(torch.promote_types(scores.dtype, copied.dtype), torch.float32)
    scores, copied, gate = scores.to(dtype), copied.to(dtype), gate.to(dtype)[:, None]
    beyond = copied.shape[1] - scores.shape[1]
    generated = F.pad(F.log_softmax(scores, -1), (0, beyond), value=-torch.inf)
    return log_add(F.logsigmoid(gate) + generated, F.logsigmoid(-gate) + copied)


def log_add(a: Tensor, b: Tensor) -> Tensor:
    """``log(exp(a) + exp(b))``; where both are -inf so is the result, and the gradient is 0 instead of NaN.

    >>> a = torch.tensor([0.0, -torch.inf], requires_grad=True)
    >>> log_add(a, a - 1).exp().sum().backward()
    >>> a.grad
    tensor([1.3679, 0.0000])
    """
    never = torch.isneginf(a) & torch.isneginf(b)
    return torch.logaddexp(a, b.masked_fill(never, 0.0)).masked_fill(never, -torch.inf)


def last_item(encoded: Tensor, *, lengths: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
    """The last real item ``[B, embed_dim]`` of each sequence ``[B, S, embed_dim]``: the query of the pointer.

    >>> last_item(torch.arange(6.0).reshape(2, 3, 1), lengths=torch.tensor([2, 3])).tolist()
    [[1.0], [5.0]]
    """
    if not shapes.is_numeric(encoded) or encoded.ndim != 3 or 0 in encoded.shape:
        rule = "encoded must be a tensor [batch, length, embed_dim] with at least one item"
        raise usage_error("last_item(encoded)", shapes.describe_tensor(encoded), rule, "give it these axes")
    batch, length, device = encoded.shape[0], encoded.shape[1], encoded.device
    real = resolve_key_mask(lengths, key_mask, batch, length, device)
    shapes.require_real_tokens("last_item", real)
    return _select_items(encoded, _last_real_index(real, batch, length, device))


def count_pointer_parameters(embed_dim: int, positions: int, *, bias: bool = True) -> int:
    """The number of parameters of a ``PointerAttention`` with ``Recency(positions)``.

    >>> count_pointer_parameters(64, 150, bias=False), count_pointer_parameters(64, 150)
    (8342, 8470)
    """
    return 2 * embed_dim * embed_dim + (2 * embed_dim if bias else 0) + positions


def _last_real_index(real: Tensor | None, batch: int, length: int, device: torch.device) -> Tensor:
    """The index of the last real item, ``[B]``."""
    if real is None:
        return torch.full((batch,), length - 1, device=device)
    return length - 1 - real.flip(1).long().argmax(1)


def _select_items(encoded: Tensor, at: Tensor) -> Tensor:
    return encoded[torch.arange(len(at), device=at.device), at]
