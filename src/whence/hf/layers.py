"""Which layers are meant, and the block around an attention module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from whence.errors import usage_error


def chosen_layers(
    asked: str, model: Any, attending: dict[int, nn.Module], layers: Sequence[int] | None
) -> dict[int, nn.Module]:
    """The chosen ones of the modules that attend; by default every layer, and then none may be missing."""
    total = int(model.config.get_text_config().num_hidden_layers)
    wanted = list(range(total)) if layers is None else list(layers)
    of_layers = asked.replace("...", "layers=...")
    if not wanted:
        raise usage_error(of_layers, "none", "at least one layer is chosen", "leave it out for all")
    if any(isinstance(n, bool) or not isinstance(n, int) or not -total <= n < total for n in wanted):
        raise usage_error(of_layers, str(wanted), f"the model has the layers 0 to {total - 1}", "choose among them")
    numbers = sorted({n % total for n in wanted})
    missing = [n for n in numbers if n not in attending]
    if missing:
        raise usage_error(
            asked,
            f"{type(model).__name__} ({model.config.model_type}), whose layers {missing} have no attention, or do not "
            "call it through transformers' attention interface",
            "a chosen layer does",
            f"pass layers={sorted(attending)}",
        )
    return {n: attending[n] for n in numbers}


def block_of(model: nn.Module, attention: nn.Module) -> nn.Module:
    """The layer that an attention module is part of."""
    names = {id(module): name for name, module in model.named_modules()}
    return model.get_submodule(names[id(attention)].rpartition(".")[0])
