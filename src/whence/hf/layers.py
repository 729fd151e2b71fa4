"""Find the attention modules of a model by layer, select among them, and verify that they are active and causal.

Each needs one or two forward passes over a few tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import WhenceError, usage_error
from whence.hf.integrations import execution_device, independent_rounding
from whence.hf.interface import AttentionCall, not_a_decoder_error, observe
from whence.hf.requests import Request, set_request
from whence.torch_modes import eval_mode
from whence.validation import format_value

TOKENS = 6
TINY_REQUEST = Request(documents=(((1, 3), (3, 4)),), prompt_ends=(5,))  # for interventions on these tokens


def find_attention_layers(subject: str, model: Any) -> dict[int, nn.Module]:
    """The attention modules that call ``attend``, by layer, observed in a forward pass of a switched model."""
    modules: dict[int, nn.Module] = {}
    shared: list[nn.Module] = []

    def add(call: AttentionCall) -> None:
        layer = getattr(call.module, "layer_idx", len(modules))  # without an index, layers count in the order they run
        if isinstance(layer, int) and layer >= 0 and modules.get(layer, call.module) is call.module:
            modules[layer] = call.module
        else:
            shared.append(call.module)

    remove = observe(list(model.modules()), add)
    try:
        run_tiny_forward(model, tiny_input(subject, model))
    finally:
        remove()
    name = f"{type(model).__name__} ({model.config.model_type})"
    if shared:
        raise usage_error(
            subject,
            f"{name}, whose {type(shared[0]).__name__} serves several layers",
            "every layer must have its own attention module with a layer_idx",
            "use a model of another family, such as llama, qwen3 or gpt2",
        )
    if not modules:
        raise usage_error(
            subject,
            f"{name}, no layer of which calls the attention interface",
            "attach and capture work through transformers' attention interface",
            "use a model of another family, such as llama, qwen3 or gpt2",
        )
    return dict(sorted(modules.items()))


def select_layers(
    subject: str, model: Any, attention_modules: dict[int, nn.Module], layers: Sequence[int] | None
) -> dict[int, nn.Module]:
    """The attention modules of the selected layers. By default every layer is selected and must have attention."""
    total = int(model.config.get_text_config().num_hidden_layers)
    argument = subject.replace("...", "layers=...")
    if layers is not None and (isinstance(layers, str) or not isinstance(layers, Iterable)):
        remedy = f"pass layers=[{layers}]" if isinstance(layers, int) else "pass a list of indices"
        raise usage_error(argument, format_value(layers), "layers is a list of layer indices", remedy)
    selected = list(range(total)) if layers is None else list(layers)
    if not selected:
        raise usage_error(argument, "no layers", "at least one layer must be selected", "omit layers to select all")
    if any(isinstance(n, bool) or not isinstance(n, int) or not -total <= n < total for n in selected):
        raise usage_error(
            argument, str(selected), f"the model has the layers 0 to {total - 1}", "pass indices in that range"
        )
    indices = sorted({n % total for n in selected})
    missing = [n for n in indices if n not in attention_modules]
    if missing:
        raise usage_error(
            subject,
            f"{type(model).__name__} ({model.config.model_type}), whose layers {missing} have no attention, or do not "
            "call it through transformers' attention interface",
            "every selected layer must do so",
            f"pass layers={sorted(attention_modules)}",
        )
    return {n: attention_modules[n] for n in indices}


def parent_layer(model: nn.Module, attention: nn.Module) -> nn.Module:
    """The decoder layer that contains an attention module."""
    names = {id(module): name for name, module in model.named_modules()}
    return model.get_submodule(names[id(attention)].rpartition(".")[0])


def tiny_input(subject: str, model: Any) -> Tensor:
    """A few tokens ``[1, n]`` that every vocabulary has."""
    size = int(model.get_input_embeddings().weight.shape[0])
    device = execution_device(subject, model.get_input_embeddings())
    return (torch.arange(TOKENS, device=device) % min(3, size - 1) + 1)[None]


def run_tiny_forward(model: Any, tokens: Tensor) -> Tensor:
    """Logits ``[1, tokens, n]``, or the base model's states if the head returns one result per sequence."""
    with torch.no_grad(), eval_mode(model), set_request(model, TINY_REQUEST):
        out = _call(model, tokens)
        logits = out[0] if getattr(out, "logits", None) is None else out.logits
        if logits.ndim == 3 and logits.shape[1] == tokens.shape[1]:
            return logits
        return _call(model.base_model, tokens)[0]


def _call(model: Any, tokens: Tensor) -> Any:
    parameters = inspect.signature(model.forward).parameters
    options = {"use_cache": False} if "use_cache" in parameters else {}
    return model(input_ids=tokens, **options)


def verify_attachment(subject: str, model: Any, modules: dict[int, nn.Module]) -> None:
    """Raise if a selected layer does not call ``attend``, or if a future token changes an earlier logit."""
    active: set[int] = set()
    remove = observe(modules, lambda call: active.add(id(call.module)))
    try:
        causal = is_causal(subject, model)
    finally:
        remove()
    idle = [layer for layer, module in modules.items() if id(module) not in active]
    if idle:
        raise usage_error(
            subject,
            f"{type(model).__name__} ({model.config.model_type}), in which layers {idle} do not attend",
            "every selected layer must run",
            f"omit {idle} from layers",
        )
    if not causal:
        raise not_causal_error(subject, model)


def is_causal(subject: str, model: Any) -> bool:
    """Whether the logits before the last token stay the same when that token changes."""
    tokens = tiny_input(subject, model)
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 3 + 1
    with independent_rounding(model):
        before, after = run_tiny_forward(model, tokens), run_tiny_forward(model, changed)
    # the rows before the changed token are computed by the same operations from the same numbers
    tolerance = 8 * torch.finfo(before.dtype).eps * float(before.abs().max())
    return float((before - after)[:, :-1].abs().max()) <= tolerance


def not_causal_error(subject: str, model: Any) -> WhenceError:
    return not_a_decoder_error(
        subject, f"{type(model).__name__} ({model.config.model_type}), in which a future token changes an earlier logit"
    )
