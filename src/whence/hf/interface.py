"""The attention function that transformers calls once a model is switched over: ``attend``, with the layer's Position.

Everything about one layer lies on its attention module: its Position as the submodule ``whence``, and whoever watches it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence import shapes
from whence.attention.attend import attend
from whence.errors import WhenceError, usage_error
from whence.hf.adapters import unwrapped
from whence.hf.devices import bring_into_memory
from whence.hf.masks import Sight, sight_mask, sight_of
from whence.hf.model_parts import joined
from whence.hf.packages import needed
from whence.position.base import Position
from whence.position.no_position import NoPosition

KEY = "whence"  # in transformers' registries, and the name of a layer's Position on its attention module
WATCHERS = "_whence_watchers"
NOTHING = NoPosition()  # of a layer without a Position
JOINED = "_whence_joined"  # a layer's Position together with what the model itself does to its scores


@dataclass(frozen=True)
class Attending:
    """One layer's attention in one forward: what watchers look at. Keys hold the cache's too, rotation is done."""

    module: nn.Module
    q: Tensor  # [B, H, T, D]
    k: Tensor  # [B, G, S, D]
    v: Tensor  # [B, G, S, E]
    own: Position  # the layer's
    position: Position  # the same, with what the model itself does to scores
    sight: Sight
    ids: Tensor | None
    scale: float | None

    def weights(self, rows: Tensor, keys: int | None = None) -> Tensor:
        """The weights ``[B, H, n, keys]`` of some queries, by number: ``[n]``, or ``[B, n]`` for each sequence its own.

        ``keys`` leaves out those after so many, which must be ones that no query here sees.
        """
        keys = self.k.shape[2] if keys is None else keys
        if rows.ndim == 1:
            q = self.q[:, :, rows]
        else:
            q = self.q.gather(2, rows[:, None, :, None].expand(-1, self.q.shape[1], -1, self.q.shape[3]))
        # weights do not depend on the values, so one column of them is enough, unless a part adds to the output
        v = self.v if "value_bias" in self.position.effects else self.v[..., :1]
        told = self.sight.of_rows(self.own, self.ids, rows, keys)
        told |= {"position": self.position, "scale": self.scale}
        return attend(q, self.k[:, :, :keys], v[:, :, :keys], return_weights=True, **told)[1]


Watcher = Callable[[Attending], None]


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cache: object | None = None,
    position_ids: Tensor | None = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function of transformers' interface. A window comes with the mask, which knows it too."""
    if position_bias is not None:
        raise usage_error(
            f"an attached {type(module).__name__}",
            f"position_bias of shape {list(position_bias.shape)}",
            "this family adds a bias of its own for every query and key, and attend forms no dense bias",
            "use a family whose positions are rotary, learned or absent, such as llama, gpt2 or smollm3",
        )
    if cache is not None:
        raise usage_error(
            f"an attached {type(module).__name__}",
            "a paged cache",
            "attend reads keys and values that lie in one tensor",
            "generate with a dynamic or a static cache",
        )
    own = unwrapped(getattr(module, KEY, None))
    own = NOTHING if own is None else own
    if not shapes.tracing():
        bring_into_memory(own, query.device)
    position = _joined(module, own, softcap, s_aux)
    dtype = torch.promote_types(query.dtype, value.dtype)  # autocast narrows values and not what rotation made
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    sight = sight_of(attention_mask, query.shape[2], key.shape[2])
    told = sight.arguments(own, position_ids)
    told |= {"position": position, "scale": scaling, "dropout": dropout}
    weights = None
    if output_attentions:
        out, weights = attend(query, key, value, return_weights=True, **told)
    else:
        out = attend(query, key, value, **told)
    for watch in module.__dict__.get(WATCHERS, ()):
        with torch.no_grad():
            watch(Attending(module, query, key, value, own, position, sight, position_ids, scaling))
    return out.transpose(1, 2).contiguous(), weights


def _joined(module: nn.Module, own: Position, softcap: float | None, sinks: Tensor | None) -> Position:
    """A layer's Position with the model's softcap and sinks, built once: a compiler cannot trace building a module."""
    if softcap is None and sinks is None:
        return own
    built = module.__dict__.get(JOINED)
    if built is not None and built[0] is own and built[1] == softcap and built[2] is sinks:
        return built[3]
    position = joined(own, softcap, sinks)
    if not shapes.tracing():
        module.__dict__[JOINED] = (own, softcap, sinks, position)
    return position


def require_decoder(asked: str, model: Any) -> None:
    """Refuse what is known not to be a decoder before anything is switched; masks tell of the rest."""
    kind = f"{type(model).__name__} ({model.config.model_type})"
    if getattr(model.config, "is_encoder_decoder", False):
        raise not_a_decoder(asked, f"{kind}, an encoder-decoder")
    try:
        embeddings = model.get_input_embeddings()
    except (NotImplementedError, AttributeError):  # of models that take images or sound
        embeddings = None
    if not isinstance(getattr(embeddings, "weight", None), Tensor) or embeddings.weight.ndim != 2:
        raise not_a_decoder(asked, f"{kind}, which takes no tokens")


def not_a_decoder(asked: str, got: str) -> WhenceError:
    return usage_error(
        asked,
        got,
        "decoder-only language models are supported; encoders and encoder-decoders are not",
        "use a causal language model, such as llama, qwen3 or gpt2",
    )


class Switch:
    """A model's attention handed over to ``attend``, until it is handed back."""

    def __init__(self, asked: str, model: nn.Module) -> None:
        transformers = needed("transformers", asked)
        name = type(model).__name__
        if not isinstance(model, transformers.PreTrainedModel):
            raise usage_error(asked, name, "the model is one of transformers", "load it with whence.hf.load")
        require_decoder(asked, model)
        transformers.AttentionInterface.register(KEY, attention)
        transformers.AttentionMaskInterface.register(KEY, sight_mask)
        parts = [part for part in model.modules() if isinstance(part, transformers.PreTrainedModel)]
        self.model = model
        self.before = [(part.config, part.config._attn_implementation_internal) for part in parts]
        beside = _beside_text(model, parts)
        if all(part._can_set_attn_implementation() for part in parts if part not in beside):
            model.set_attn_implementation(KEY)
        for part, (config, implementation) in zip(parts, self.before, strict=True):
            if part in beside:
                config._attn_implementation_internal = implementation
        if any(part.config._attn_implementation_internal != KEY for part in parts if part not in beside):
            self.back()
            raise usage_error(
                asked,
                f"{name} ({model.config.model_type}), which computes its attention itself",
                "a model is attached to and captured through transformers' attention interface",
                "use a model of another family, such as llama, qwen3 or gpt2",
            )

    def back(self) -> None:
        for config, implementation in self.before:
            config._attn_implementation_internal = implementation
        for module in self.model.modules():
            module.__dict__.pop(JOINED, None)


def _beside_text(model: Any, parts: list[Any]) -> list[Any]:
    """The parts of a multimodal model beside its language model, such as an image encoder: they attend as they did."""
    text = model.get_decoder()
    if not any(text is part for part in parts):  # of a masked language model it is the head
        return []
    inside = set(map(id, text.modules()))
    return [part for part in parts if id(part) not in inside and not any(one is text for one in part.modules())]


def watch(modules: dict[int, nn.Module] | list[nn.Module], watcher: Watcher) -> Callable[[], None]:
    """Let a watcher see the attention of some modules; what comes back ends it."""
    watched = list(modules.values()) if isinstance(modules, dict) else modules
    for module in watched:
        module.__dict__.setdefault(WATCHERS, []).append(watcher)

    def end() -> None:
        for module in watched:
            module.__dict__[WATCHERS].remove(watcher)
            if not module.__dict__[WATCHERS]:
                del module.__dict__[WATCHERS]

    return end
