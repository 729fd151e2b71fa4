"""A tiny forward that shows what cannot be read off a model: which modules attend, and that no token sees the future."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import WhenceError, usage_error
from whence.hf.devices import execution_device
from whence.hf.interface import Attending, not_a_decoder, watch
from whence.hf.quantised import rows_apart

TOKENS = 6


def attending_layers(asked: str, model: Any) -> dict[int, nn.Module]:
    """The attention modules that reach ``attend``, by layer, seen in a tiny forward of a switched model."""
    seen: dict[int, nn.Module] = {}

    unnumbered: list[nn.Module] = []

    def note(attending: Attending) -> None:
        layer = getattr(attending.module, "layer_idx", len(seen))  # without a number, layers count as they run
        if isinstance(layer, int) and layer >= 0 and seen.get(layer, attending.module) is attending.module:
            seen[layer] = attending.module
        else:
            unnumbered.append(attending.module)

    end = watch(list(model.modules()), note)
    try:
        _logits(model, _tokens(asked, model))
    finally:
        end()
    if unnumbered:
        raise usage_error(
            asked,
            f"{type(model).__name__} ({model.config.model_type}), whose {type(unnumbered[0]).__name__} serves several layers",
            "every layer has an attention module of its own, with a layer_idx",
            "use a model of another family, such as llama, qwen3 or gpt2",
        )
    if not seen:
        raise usage_error(
            asked,
            f"{type(model).__name__} ({model.config.model_type}), no layer of which calls the attention interface",
            "a model is attached to and captured through transformers' attention interface",
            "use a model of another family, such as llama, qwen3 or gpt2",
        )
    return dict(sorted(seen.items()))


def prove(asked: str, model: Any, modules: dict[int, nn.Module]) -> None:
    """Refuse a model in which a chosen layer does not attend, or in which a future token changes an earlier logit."""
    ran: set[int] = set()
    end = watch(modules, lambda attending: ran.add(id(attending.module)))
    try:
        causal = is_causal(asked, model)
    finally:
        end()
    idle = [layer for layer, module in modules.items() if id(module) not in ran]
    if idle:
        raise usage_error(
            asked,
            f"{type(model).__name__} ({model.config.model_type}), in which layers {idle} do not attend",
            "every chosen layer runs",
            "leave these layers out",
        )
    if not causal:
        raise not_causal(asked, model)


def is_causal(asked: str, model: Any) -> bool:
    """Whether the logits before the last token stay the same when that token changes."""
    tokens = _tokens(asked, model)
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 3 + 1
    with rows_apart(model):
        before, after = _logits(model, tokens), _logits(model, changed)
    # what stands before the changed token is computed by the same operations from the same numbers
    allowed = 8 * torch.finfo(before.dtype).eps * float(before.abs().max())
    return float((before - after)[:, :-1].abs().max()) <= allowed


def not_causal(asked: str, model: Any) -> WhenceError:
    return not_a_decoder(
        asked, f"{type(model).__name__} ({model.config.model_type}), in which a future token changes an earlier logit"
    )


def _tokens(asked: str, model: Any) -> Tensor:
    size = int(model.get_input_embeddings().weight.shape[0])
    device = execution_device(asked, model.get_input_embeddings())
    return (torch.arange(TOKENS, device=device) % min(3, size - 1) + 1)[None]


def _logits(model: Any, tokens: Tensor) -> Tensor:
    """The logits ``[1, tokens, n]``; the base model's states where a head gives one answer for the whole text."""
    with torch.no_grad(), _still(model):
        out = _run(model, tokens)
        logits = out[0] if getattr(out, "logits", None) is None else out.logits
        if logits.ndim == 3 and logits.shape[1] == tokens.shape[1]:
            return logits
        return _run(model.base_model, tokens)[0]


def _run(model: Any, tokens: Tensor) -> Any:
    takes = inspect.signature(model.forward).parameters
    named = {"use_cache": False} if "use_cache" in takes else {}
    return model(input_ids=tokens, **named)


@contextmanager
def _still(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and back to what each module was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
