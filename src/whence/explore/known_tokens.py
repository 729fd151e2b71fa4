"""Keys and values of tokens that a model has read: a text that begins alike is read from where it differs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence.hf.interface import AttentionCall

#: rotary embeddings that turn keys by the length of the text, so that keys of a shorter text are others
LENGTH_DEPENDENT = ("dynamic", "longrope")


@dataclass(frozen=True)
class KnownTokens:
    """Tokens with their keys and values in every layer of an unchanged model, ``[1, G, T, D]``."""

    ids: tuple[int, ...]
    layers: tuple[tuple[Tensor, Tensor], ...]

    def count_common(self, ids: Sequence[int]) -> int:
        """The number of tokens that need not be read again. The last is always read: its logits are needed.

        >>> KnownTokens((1, 2, 3), ()).count_common([1, 2, 4, 5]), KnownTokens((1, 2, 3), ()).count_common([1, 2, 3])
        (2, 2)
        """
        pairs = zip(self.ids, ids[:-1], strict=False)
        return next(
            (count for count, (known, new) in enumerate(pairs) if known != new), min(len(self.ids), len(ids) - 1)
        )

    def build_cache(self, count: int) -> Any:
        """A cache of transformers with the first ``count`` tokens."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for number, (keys, values) in enumerate(self.layers):
            cache.update(keys[:, :, :count], values[:, :, :count], number)
        return cache


def keep_calls(model: Any, ids: Sequence[int], calls: Mapping[int, AttentionCall | Tensor]) -> KnownTokens | None:
    """The tokens of a captured pass; None if a model cannot be read from its keys and values alone."""
    plain = [call for _, call in sorted(calls.items()) if isinstance(call, AttentionCall) and _is_plain(call)]
    if len(plain) < int(model.config.get_text_config().num_hidden_layers) or not _keeps_keys(model):
        return None
    return KnownTokens(tuple(ids), tuple((call.k, call.v) for call in plain))


def keep_cache(model: Any, ids: Sequence[int], cache: Any) -> KnownTokens | None:
    """The tokens in a cache of transformers; None if it does not hold every key, as with a sliding window."""
    from transformers.cache_utils import DynamicLayer

    layers = list(getattr(cache, "layers", ()))
    if not layers or not _keeps_keys(model) or any(type(layer) is not DynamicLayer for layer in layers):
        return None
    return KnownTokens(tuple(ids), tuple((layer.keys, layer.values) for layer in layers))


def join_calls(before: AttentionCall, call: AttentionCall, count: int) -> AttentionCall:
    """The call of a whole text, of its first ``count`` queries in one pass and the others in a later one."""
    info = replace(call.mask_info, q_slots=call.mask_info.k_slots, is_full=True)
    return replace(call, q=torch.cat([before.q[:, :, :count], call.q], 2), mask_info=info, position_ids=None)


def _is_plain(call: AttentionCall) -> bool:
    """Whether attention depends on queries, keys and causality alone."""
    others = (call.edited, call.clock, call.q_input, call.position_bias, call.mask_info.key_mask)
    return call.mask_info.structure.is_plain and all(one is None for one in others)


def _keeps_keys(model: Any) -> bool:
    """Whether a model takes a cache and the keys in it do not depend on later tokens."""
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    takes_cache = "past_key_values" in inspect.signature(model.forward).parameters
    return takes_cache and not any(
        f"'{kind}'" in str(rope) for kind in LENGTH_DEPENDENT
    )  # some have one for each kind of layer
