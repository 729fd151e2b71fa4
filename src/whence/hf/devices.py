"""Where a module computes. Weights that accelerate has offloaded are on ``meta`` until their module runs."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from whence.errors import usage_error
from whence.hf.packages import needed

HOOK = "_hf_hook"  # accelerate's, on every module whose weights it moves


def execution_device(asked: str, module: nn.Module) -> torch.device:
    """The device a module computes on: where its weights are, or where accelerate brings them."""
    for part in module.modules():
        device = _of_hook(getattr(part, HOOK, None))
        if device is not None:
            return device
    tensors = [*module.parameters(), *module.buffers()]
    real = [tensor.device for tensor in tensors if not tensor.is_meta]
    if real or not tensors:
        return real[0] if real else torch.device("cpu")
    raise usage_error(
        asked,
        f"a {type(module).__name__} on the device meta",
        "a model has weights before it runs",
        "load them with from_pretrained, or give the model to accelerate's dispatch_model",
    )


def bring_into_memory(position: nn.Module, device: torch.device) -> None:
    """Take a Position out of accelerate's care, where offloading a whole model has put its weights on ``meta``.

    accelerate brings weights when a module's forward runs. A Position has other hooks than that, and few weights.
    """
    if any(tensor.is_meta for tensor in itertools.chain(position.parameters(), position.buffers())):
        needed("accelerate.hooks", "an offloaded model").remove_hook_from_module(position, recurse=True)
        position.to(device)


def _of_hook(hook: Any) -> torch.device | None:
    for part in getattr(hook, "hooks", (hook,)):  # several in a row are one SequentialHook
        device = getattr(part, "execution_device", None)
        if device is not None and not isinstance(device, dict):
            return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return None
