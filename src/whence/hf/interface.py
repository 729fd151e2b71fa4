"""The attention function that transformers calls for an attached or captured model: ``attend`` with the layer's Position.

Everything about one layer is stored on its attention module: its Position as the submodule ``whence``, and its observers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from whence import torch_modes
from whence.attention import Attention
from whence.attention.arguments import Arguments
from whence.attention.attend import Options, attend, compute
from whence.errors import WhenceError, require_package, usage_error
from whence.hf.clocks import INPUT, STEPS
from whence.hf.default_positions import counts_tokens
from whence.hf.edits import EditedCall
from whence.hf.integrations import active_position, load_from_meta
from whence.hf.mask_structure import MaskStructure
from whence.hf.masks import MaskInfo, build_mask, read_mask_info
from whence.hf.model_terms import COMBINED, combined_position
from whence.position.base import Position
from whence.position.evaluate import evaluate_clock
from whence.position.no_position import NoPosition

KEY = "whence"  # in transformers' registries, and the name of a layer's Position on its attention module
OBSERVERS = "_whence_observers"
EDITOR = "_whence_editor"  # of a layer whose attention is edited; see ``intervene``
NO_POSITION = NoPosition()  # of a layer without a Position


@dataclass(frozen=True)
class AttentionCall:
    """One layer's attention in one forward pass, as observers see it.

    Keys include those of the cache. Queries and keys are already rotated by the model, and not by ``layer_position``.
    """

    module: nn.Module
    q: Tensor  # [B, H, T, D]
    k: Tensor  # [B, G, S, D]
    v: Tensor  # [B, G, S, E]
    layer_position: Position  # the attached one
    position: Position  # the attached one with the model's softcap and sinks
    mask_info: MaskInfo
    position_ids: Tensor | None
    scale: float | None
    edited: EditedCall | None = None  # of a layer whose attention is edited
    clock: Tensor | None = None  # [B, H, S], the steps of a position with a clock
    position_bias: Tensor | None = None  # [B or 1, H or 1, T or 1, S], added to the scores by the model itself
    q_input: Tensor | None = None  # [B, T, embed_dim], of a position that reads the layer input

    def weights(self, rows: Tensor, keys: int | None = None) -> Tensor:
        """The attention weights ``[B, H, n, keys]`` of the queries ``rows``, ``[n]`` or ``[B, n]``.

        Args:
            rows: indices of queries, the same for all sequences or separate for each.
            keys: return the first ``keys`` keys only; no query in ``rows`` may see a later one.
        """
        keys = self.k.shape[2] if keys is None else keys
        if self.edited is not None:
            return self.edited.weights_of(rows)[..., :keys]
        if rows.ndim == 1:
            q = self.q[:, :, rows]
        else:
            q = self.q.gather(2, rows[:, None, :, None].expand(-1, self.q.shape[1], -1, self.q.shape[3]))
        # weights do not depend on the values, so one column of them is enough, unless a part adds to the output
        v = self.v if "value_bias" in self.position.effects else self.v[..., :1]
        arguments = self.mask_info.row_arguments(self.layer_position, self.position_ids, rows, keys)
        arguments |= {"position": self.position, "scale": self.scale}
        if self.clock is not None:
            arguments["clock"] = self.clock[..., :keys]
        if self.q_input is not None:
            arguments["q_input"] = _select_rows(self.q_input, rows)
        if self.position_bias is not None:
            arguments["attn_mask"] = _select_bias_rows(self.position_bias[..., :keys], rows)
        return attend(q, self.k[:, :, :keys], v[:, :, :keys], return_weights=True, **arguments)[1]


def _select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Tokens ``[B, T, E]`` at the queries ``rows``, the same for all sequences (``[n]``) or not (``[B, n]``)."""
    return x[:, rows] if rows.ndim == 1 else x.gather(1, rows[..., None].expand(-1, -1, x.shape[2]))


def _select_bias_rows(bias: Tensor, rows: Tensor) -> Tensor:
    """A bias ``[B or 1, H or 1, T or 1, S]`` at the queries ``rows``, the same for all sequences (``[n]``) or not (``[B, n]``)."""
    if bias.shape[2] == 1:
        return bias
    if rows.ndim == 1:
        return bias[:, :, rows]
    index = rows[:, None, :, None].expand(-1, bias.shape[1], -1, bias.shape[3])
    return bias.expand(rows.shape[0], -1, -1, -1).gather(2, index)


Observer = Callable[[AttentionCall], None]


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
    """The attention function registered with transformers. ``sliding_window`` is ignored: the mask contains it.

    ``position_bias`` ``[B or 1, H or 1, T or 1, S]`` is what a family adds to the scores itself, in addition to the Position.
    """
    if cache is not None:
        raise usage_error(
            f"an attached {type(module).__name__}",
            "a paged cache",
            "attend reads keys and values from one contiguous tensor",
            "generate with a dynamic or a static cache",
        )
    editor = module.__dict__.get(EDITOR)
    if editor is not None and position_bias is not None:
        raise usage_error(
            f"an edited {type(module).__name__}",
            f"position_bias of shape {list(position_bias.shape)}",
            "an intervention computes scores from queries and keys, and this family adds a bias of its own",
            "use a family without position_bias, such as llama, gpt2 or smollm3",
        )
    if editor is not None and (discarded := editor.capture(query, key, value)) is not None:
        return discarded, None
    layer_position = active_position(getattr(module, KEY, None))
    layer_position = NO_POSITION if layer_position is None else layer_position
    is_tracing = torch_modes.is_tracing()
    if not is_tracing:
        load_from_meta(layer_position, query.device)
    position = combined_position(module, layer_position, softcap, s_aux)
    if not (query.dtype == key.dtype == value.dtype):  # autocast narrows values but not rotated queries and keys
        dtype = torch.promote_types(query.dtype, value.dtype)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    info = read_mask_info(attention_mask, query.shape[2], key.shape[2])
    if is_tracing and counts_tokens(module):
        info, position_ids = info.as_one_sequence(), None
    arguments = info.attend_arguments(layer_position, position_ids)
    # a module's own lookup of an attribute that it does not have would cost as much as a launch
    clock, q_input = module.__dict__.get(STEPS), module.__dict__.get(INPUT)
    arguments |= {
        "position": position,
        "clock": clock,
        "q_input": q_input,
        "scale": scaling,
        "dropout": dropout,
        "attn_mask": position_bias,
    }
    weights = edited = None
    if editor is not None:
        edited = editor.call(query, key, value, info, scaling, softcap, s_aux)
        out, weights = _edited_attention(edited, arguments, bool(output_attentions))
    elif output_attentions:
        out, weights = attend(query, key, value, return_weights=True, **arguments)
    else:
        keywords: dict[str, Any] = arguments  # type: ignore[assignment]
        out, _ = compute(Arguments(query, key, value, **keywords))  # ``attend``, whose keywords are known here
    for observer in module.__dict__.get(OBSERVERS, ()):
        with torch.no_grad():
            q, k = (query, key) if edited is None else edited.rotated()
            call = AttentionCall(
                module, q, k, value, layer_position, position, info, position_ids, scaling, edited, clock, position_bias, q_input
            )  # fmt: skip
            observer(call)
    return out.transpose(1, 2).contiguous(), weights


def _edited_attention(call: EditedCall, arguments: Options, output_attentions: bool) -> tuple[Tensor, Tensor | None]:
    """The attention of an edited layer: the rows that an edit affects are computed by it, the others as usual."""
    if arguments["dropout"]:
        raise usage_error(
            "an edited model",
            f"dropout {arguments['dropout']} of the attention weights",
            "an intervention changes a trained model",
            "call model.eval(), or set attention_dropout=0",
        )
    rows, every = call.affected(), torch.arange(call.q.shape[2], device=call.q.device)
    weights = call.weights(every) if output_attentions else None
    if rows is None or len(rows) == len(every):
        return call.output(every), weights
    q, k = call.rotated()
    out = attend(q, k, call.v, **arguments)
    return (out.index_copy(2, rows, call.output(rows).to(out.dtype)) if len(rows) else out), weights


def require_decoder(subject: str, model: Any) -> None:
    """Raise for a model that is known not to be a decoder, before its attention is replaced. Masks show the rest."""
    kind = f"{type(model).__name__} ({model.config.model_type})"
    if getattr(model.config, "is_encoder_decoder", False):
        raise not_a_decoder_error(subject, f"{kind}, an encoder-decoder")
    try:
        embeddings = model.get_input_embeddings()
    except (NotImplementedError, AttributeError):  # models of images or sound
        embeddings = None
    if not isinstance(getattr(embeddings, "weight", None), Tensor) or embeddings.weight.ndim != 2:
        raise not_a_decoder_error(subject, f"{kind}, which takes no tokens")


def not_a_decoder_error(subject: str, got: str) -> WhenceError:
    return usage_error(
        subject,
        got,
        "decoder-only language models are supported; encoders and encoder-decoders are not",
        "use a causal language model, such as llama, qwen3 or gpt2",
    )


class AttentionSwitch:
    """Make a model compute its attention with ``attend``, until ``restore`` is called.

    A decoder of whence.models computes it with ``attend`` already. With ``observe_only`` its layers call their observers.
    """

    def __init__(self, subject: str, model: nn.Module, *, observe_only: bool = False) -> None:
        transformers = require_package("transformers", subject, "hf")
        name = type(model).__name__
        if not isinstance(model, transformers.PreTrainedModel):
            raise usage_error(
                subject, name, "the model must be a transformers PreTrainedModel", "load it with whence.hf.load"
            )
        require_decoder(subject, model)
        self.model, self.before = model, []
        self.hooks: list[RemovableHandle] = []
        own = [module for module in model.modules() if isinstance(module, Attention)]
        if own and not observe_only:
            raise usage_error(
                subject,
                f"{name}, whose layers have a Position of their own",
                "attach and intervene change pretrained models of other families",
                "build the model with another position",
            )
        if own:
            self.hooks = [module.register_forward_hook(_call_observers, with_kwargs=True) for module in own]
            return
        transformers.AttentionInterface.register(KEY, attention)
        transformers.AttentionMaskInterface.register(KEY, build_mask)
        parts = [part for part in model.modules() if isinstance(part, transformers.PreTrainedModel)]
        self.before = [(part.config, part.config._attn_implementation_internal) for part in parts]
        outside_text = _parts_outside_text(model, parts)
        if all(part._can_set_attn_implementation() for part in parts if part not in outside_text):
            model.set_attn_implementation(KEY)
        for part, (config, implementation) in zip(parts, self.before, strict=True):
            if part in outside_text:
                config._attn_implementation_internal = implementation
        if any(part.config._attn_implementation_internal != KEY for part in parts if part not in outside_text):
            self.restore()
            raise usage_error(
                subject,
                f"{name} ({model.config.model_type}), which computes its attention itself",
                "attach and capture work through transformers' attention interface",
                "use a model of another family, such as llama, qwen3 or gpt2",
            )
        self.hooks = [
            part.register_forward_pre_hook(_require_implementation) for part in parts if part not in outside_text
        ]

    def restore(self) -> None:
        for config, implementation in self.before:
            config._attn_implementation_internal = implementation
        for hook in self.hooks:
            hook.remove()
        for module in self.model.modules():
            module.__dict__.pop(COMBINED, None)


def _require_implementation(model: Any, args: tuple[Any, ...]) -> None:
    """A forward pre-hook of an attached model: another implementation of attention would leave the positions out."""
    implementation = model.config._attn_implementation_internal
    if implementation != KEY:
        raise usage_error(
            f"{type(model).__name__}.forward",
            f"the attention implementation {implementation!r}, set after attach, intervene or capture",
            "a position acts only in the attention of whence",
            f"call model.set_attn_implementation({KEY!r}), or detach() first",
        )


def _call_observers(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """A forward hook of a layer of whence.models: describe its call to the observers."""
    observers = module.__dict__.get(OBSERVERS, ())
    if not observers:
        return
    assert isinstance(module, Attention)
    with torch.no_grad():
        call = _describe_own_call(module, args[0], kwargs)
        for observer in observers:
            observer(call)


def _describe_own_call(module: Attention, x: Tensor, kwargs: dict[str, Any]) -> AttentionCall:
    q, k, v = module.project(x)
    clock = evaluate_clock(module.position, x, module.heads)
    key_mask, segment_ids, cache = kwargs.get("key_mask"), kwargs.get("segment_ids"), kwargs.get("cache")
    positions = kwargs.get("positions")
    entries = None if cache is None else cache.entries()  # with the tokens of this call
    if entries is not None:
        k, v, key_mask = entries.k.transpose(1, 2), entries.v.transpose(1, 2), entries.real
        clock = None if entries.clock is None else entries.clock.transpose(1, 2)
        if bool(entries.segment_ids.any()):
            raise usage_error(
                "capture(...)",
                "packed segments in a cache",
                "a captured forward pass has its segments in one call",
                "call the model on all tokens at once, without a cache",
            )
        counts = (entries.real.cumsum(-1) - 1 == entries.positions) | ~entries.real
        if not bool(counts.all()):
            raise usage_error(
                "capture(...)",
                "position_ids with gaps in a cache",
                "a captured forward pass has all its tokens in one call",
                "call the model on all tokens at once, without a cache",
            )
        positions = None
    if key_mask is not None and bool(key_mask.all()):
        key_mask = None
    slots = torch.arange(k.shape[2], device=q.device)
    if segment_ids is not None:
        segment_ids = segment_ids.expand(x.shape[0], -1)
    info = MaskInfo(
        q_slots=slots[k.shape[2] - q.shape[2] :],
        k_slots=slots,
        structure=MaskStructure(segment_ids=segment_ids),
        key_mask=key_mask,
        first_slot=None if key_mask is None else key_mask.long().argmax(-1, keepdim=True),
        is_full=cache is None,
    )
    dtype = torch.promote_types(q.dtype, v.dtype)
    position = module.position
    return AttentionCall(
        module, q.to(dtype), k.to(dtype), v.to(dtype), position, position, info, positions, module.scale, clock=clock,
        q_input=x if position.reads_input else None,
    )  # fmt: skip


def _parts_outside_text(model: Any, parts: list[Any]) -> list[Any]:
    """The parts of a multimodal model outside its language model, such as an image encoder. They stay unchanged."""
    text = model.get_decoder()
    if not any(text is part for part in parts):  # for a masked language model it is the head
        return []
    inside = set(map(id, text.modules()))
    return [part for part in parts if id(part) not in inside and not any(other is text for other in part.modules())]


def observe(modules: dict[int, nn.Module] | list[nn.Module], observer: Observer) -> Callable[[], None]:
    """Call ``observer`` with every attention call of the modules. The result removes it."""
    observed = list(modules.values()) if isinstance(modules, dict) else modules
    for module in observed:
        module.__dict__.setdefault(OBSERVERS, []).append(observer)

    def remove() -> None:
        for module in observed:
            module.__dict__[OBSERVERS].remove(observer)
            if not module.__dict__[OBSERVERS]:
                del module.__dict__[OBSERVERS]

    return remove
