"""What other packages do to a transformers model: PEFT adapters, accelerate's offloading, bitsandbytes' 8-bit layers.

None of them is imported unless the model uses it.

PEFT stores whole modules in an adapter under the name ``modules_to_save``: it wraps them, gives every adapter a copy, and
writes the copies with the adapter. Attached positions are stored the same way.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from whence.errors import require_package, usage_error
from whence.position.base import Position

MODULES_TO_SAVE = "modules_to_save"
ACCELERATE_HOOK = "_hf_hook"  # on every module whose weights accelerate moves


def unwrap_peft(model: Any) -> Any:
    """The transformers model inside a PEFT model; any other model is returned unchanged."""
    peft = sys.modules.get("peft")  # a PEFT model exists only after peft was imported
    return model.get_base_model() if peft is not None and isinstance(model, peft.PeftModel) else model


def active_position(module: Any) -> Position | None:
    """The Position in use: the module itself, or the active adapter's copy where PEFT has wrapped it."""
    if module is None or isinstance(module, Position):
        return module
    copies, original = getattr(module, MODULES_TO_SAVE, None), getattr(module, "original_module", None)
    if not isinstance(copies, nn.ModuleDict) or not isinstance(original, Position):
        return None
    active = [] if module.disable_adapters else module.active_adapters
    position = copies[active[0]] if active and active[0] in copies else original
    return position if isinstance(position, Position) else None


def add_to_adapter(model: Any, modules: list[nn.Module], name: str) -> Callable[[], None]:
    """Make the positions on attention modules part of a PEFT model's active adapter. The result restores its config."""
    adapter = model.active_adapter
    config = model.peft_config[adapter]
    wrapper_class = sys.modules["peft"].utils.ModulesToSaveWrapper
    for module in modules:
        wrapper = wrapper_class(getattr(module, name), adapter)
        wrapper.set_adapter(adapter, inference_mode=config.inference_mode)
        setattr(module, name, wrapper)
    before = getattr(config, MODULES_TO_SAVE, None)
    if hasattr(config, MODULES_TO_SAVE):
        setattr(config, MODULES_TO_SAVE, [*(other for other in before or () if other != name), name])

    def restore() -> None:
        if hasattr(config, MODULES_TO_SAVE):
            setattr(config, MODULES_TO_SAVE, before)

    return restore


def warn_if_adapter_omits_positions(model: Any, name: str) -> None:
    """Warn when a model's state is read whose adapter would be saved without its positions."""
    if not getattr(model, "peft_config", None):
        return
    has_adapter = any(hasattr(module, "base_layer") for module in model.modules())
    unwrapped = any(isinstance(getattr(module, name, None), Position) for module in model.modules())
    if has_adapter and unwrapped:
        warnings.warn(
            f'PEFT saves an adapter without the positions of this model; pass modules_to_save=["{name}"] to the adapter\'s '
            "config, attach to the PEFT model, or call whence.hf.save_positions as well",
            stacklevel=3,
        )


def execution_device(subject: str, module: nn.Module) -> torch.device:
    """The device a module computes on: where its weights are, or where accelerate moves them before it runs."""
    for part in module.modules():
        device = _hook_device(getattr(part, ACCELERATE_HOOK, None))
        if device is not None:
            return device
    tensors = [*module.parameters(), *module.buffers()]
    devices = [tensor.device for tensor in tensors if not tensor.is_meta]
    if devices or not tensors:
        return devices[0] if devices else torch.device("cpu")
    raise usage_error(
        subject,
        f"a {type(module).__name__} on the device meta",
        "the model must have weights before it runs",
        "load them with from_pretrained, or pass the model to accelerate's dispatch_model",
    )


def load_from_meta(position: nn.Module, device: torch.device) -> None:
    """Undo accelerate's offloading of a Position, whose weights are on ``meta`` when the whole model is offloaded.

    accelerate loads weights when a module's ``forward`` runs. A Position has other hooks and few weights, so its weights
    stay in memory.
    """
    if _has_meta_tensor(position):
        hooks = require_package("accelerate.hooks", "an offloaded model", "hf")
        hooks.remove_hook_from_module(position, recurse=True)
        position.to(device)


def _has_meta_tensor(module: nn.Module) -> bool:
    """Whether a parameter or buffer is on ``meta``. It is asked at every call, and torch's iterators would cost as much as a launch."""
    state = module.__dict__
    for tensors in (state["_parameters"], state["_buffers"]):
        for tensor in tensors.values():
            if tensor is not None and tensor.is_meta:
                return True
    for child in state["_modules"].values():  # noqa: SIM110 -- a generator would take longer
        if child is not None and _has_meta_tensor(child):
            return True
    return False


@contextmanager
def independent_rounding(model: nn.Module) -> Iterator[None]:
    """Inside, no row of a batch influences how another row is rounded.

    The 8-bit layers of bitsandbytes compute a column in half precision when the entry of any token in it exceeds a
    threshold. A later token then changes the rounding of earlier ones, which the causality check must not count.
    """
    states: list[Any] = [getattr(module, "state", None) for module in model.modules()]
    before = [(state, state.threshold) for state in states if isinstance(getattr(state, "threshold", None), float)]
    try:
        for state, _ in before:
            state.threshold = 0.0
        yield
    finally:
        for state, threshold in before:
            state.threshold = threshold


def _hook_device(hook: Any) -> torch.device | None:
    for part in getattr(hook, "hooks", (hook,)):  # accelerate joins several hooks in a SequentialHook
        device = getattr(part, "execution_device", None)
        if device is not None and not isinstance(device, dict):
            return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return None
