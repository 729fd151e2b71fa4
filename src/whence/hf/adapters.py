"""PEFT models: the transformers model inside one, and positions that are trained and saved with its active adapter.

PEFT keeps whole modules in an adapter under the name ``modules_to_save``: it wraps them, gives every adapter a copy, and
writes the copies with the adapter. Positions go the same way. peft itself is imported only when the model is one of its own.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

from whence.position.base import Position

KEPT = "modules_to_save"


def base_of(model: Any) -> Any:
    """The transformers model inside a PEFT model; any other model is its own."""
    peft = sys.modules.get("peft")  # whoever has a PEFT model has imported it
    return model.get_base_model() if peft is not None and isinstance(model, peft.PeftModel) else model


def unwrapped(held: Any) -> Position | None:
    """The Position that acts: the one given, or the active adapter's copy where PEFT has wrapped it."""
    if held is None or isinstance(held, Position):
        return held
    copies, original = getattr(held, KEPT, None), getattr(held, "original_module", None)
    if not isinstance(copies, nn.ModuleDict) or not isinstance(original, Position):
        return None
    active = [] if held.disable_adapters else held.active_adapters
    found = copies[active[0]] if active and active[0] in copies else original
    return found if isinstance(found, Position) else None


def keep_in_adapter(model: Any, modules: list[nn.Module], name: str) -> Callable[[], None]:
    """Make positions on attention modules part of a PEFT model's active adapter; what is returned undoes it in its config."""
    adapter = model.active_adapter
    config = model.peft_config[adapter]
    wrapper = sys.modules["peft"].utils.ModulesToSaveWrapper
    for module in modules:
        wrapped = wrapper(getattr(module, name), adapter)
        wrapped.set_adapter(adapter, inference_mode=config.inference_mode)
        setattr(module, name, wrapped)
    before = getattr(config, KEPT, None)
    if hasattr(config, KEPT):
        setattr(config, KEPT, [*(one for one in before or () if one != name), name])

    def undo() -> None:
        if hasattr(config, KEPT):
            setattr(config, KEPT, before)

    return undo


def warn_of_loss(model: Any, name: str) -> None:
    """Before a model's state is taken: say so where its adapter would be saved without its positions."""
    if not getattr(model, "peft_config", None):
        return
    adapted = any(hasattr(part, "base_layer") for part in model.modules())
    bare = any(isinstance(getattr(module, name, None), Position) for module in model.modules())
    if adapted and bare:
        warnings.warn(
            f'PEFT saves an adapter without the positions of this model; pass modules_to_save=["{name}"] to the adapter\'s '
            "config, attach to the PEFT model, or call whence.hf.save_positions as well",
            stacklevel=3,
        )
