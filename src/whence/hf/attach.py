"""``attach``: any Position inside a pretrained model, in training and in generation; taken out again, nothing is left."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from whence.errors import usage_error
from whence.hf import adapters
from whence.hf.causality_check import attending_layers, prove
from whence.hf.devices import execution_device
from whence.hf.interface import KEY, WATCHERS, Switch
from whence.hf.layers import chosen_layers
from whence.hf.position_state import mark, unmark, warn_before_saving
from whence.hf.rotation import Rotations, Unturned
from whence.position.base import Position

Given = Position | Callable[[int], Position]


class Attachment:
    """What ``attach`` gives back: the positions by layer, and the way out."""

    def __init__(self, asked: str, model: Any) -> None:
        self.model = model
        self._positions: dict[int, Position] = {}
        self.rotary_layers: list[int] = []  # the chosen layers that the model itself rotates; NoPE layers are not
        self._modules: dict[int, nn.Module] = {}
        self._hooks: list[RemovableHandle] = []
        self._leave_adapter: Callable[[], None] | None = None
        self._switch: Switch | None = Switch(asked, adapters.base_of(model))

    @property
    def positions(self) -> dict[int, Position]:
        """By layer; of a PEFT model those of its active adapter. After ``detach`` those that were attached."""
        if self._switch is None:
            return self._positions
        held = {layer: adapters.unwrapped(getattr(module, KEY, None)) for layer, module in self._modules.items()}
        return {layer: position for layer, position in held.items() if position is not None}

    def put(self, modules: dict[int, nn.Module], given: Given, keep_rotary: bool) -> None:
        """A position of its own on every chosen module, beside the weights it acts with."""
        for layer, module in modules.items():
            position = copy.deepcopy(given) if isinstance(given, Position) else given(layer)
            _require_fit(position)
            self._hooks += mark(position, layer, keep_rotary)
            setattr(module, KEY, position.to(execution_device("attach(...)", module)))
            self._modules[layer] = module
        base = adapters.base_of(self.model)
        self._hooks.append(warn_before_saving(base))
        if base is not self.model:
            self._leave_adapter = adapters.keep_in_adapter(self.model, list(modules.values()), KEY)

    def unturn(self) -> None:
        """From here on the model's own rotation turns nothing in the chosen layers that have one."""
        modules = [self._modules[layer] for layer in self.rotary_layers]
        self._hooks += [m.register_forward_pre_hook(Unturned(), with_kwargs=True) for m in modules]

    def detach(self) -> None:
        """Leave the model as it was before; a second call does nothing."""
        if self._switch is None:
            return
        self._positions = self.positions
        for hook in self._hooks:
            hook.remove()
        for position in self._positions.values():
            unmark(position)
        for module in self._modules.values():
            delattr(module, KEY)
        if self._leave_adapter is not None:
            self._leave_adapter()
        self._switch.back()
        self._switch = None


def attach(model: Any, position: Given, *, layers: Sequence[int] | None = None, keep_rotary: bool = True) -> Attachment:
    """Put a Position into a causal language model of transformers, and show that it works there.

    Args:
        model: a causal language model whose family calls its attention through transformers' attention interface. The
            positions of a PEFT model become part of its active adapter: trained, saved and loaded with it.
        position: a Position, of which every layer gets a copy with parameters of its own, or a function that makes one
            for a layer's number. They become part of the attention modules, under the name ``whence``: they train, move
            and are saved with the model.
        layers: which layers; all by default. The others attend as before.
        keep_rotary: whether the model's own rotation of queries and keys stays in the chosen layers. With ``False`` it
            turns nothing there, and a ``Rotary`` of whence may take its place. Layers that do not rotate (the NoPE layers
            of llama4, smollm3, cohere2 or exaone4) have none to take away; ``attachment.rotary_layers`` lists those that
            do, and ``layers=...`` keeps a ``Rotary`` out of the others.

    Everything else of the model stays: grouped queries, windows, sinks, capped scores, its caches and masks. Distances
    are counted in tokens of the cache, so a cached forward is the whole one. A family that does not go through the
    interface is refused, as is one in which a future token is seen; so are encoders and encoder-decoders. Of a model that
    mixes attention with other layers (state-space layers, say) ``attention_layers(model)`` gives the ``layers`` to pass.

    ``torch.compile(model, fullgraph=True)`` traces an attached model as one graph, in training and in steps with a static
    cache. No number is read while it traces, so masks are recognised by what the model's config says of them, and
    ``position_ids`` that do not count the tokens raise a RuntimeError when the compiled model runs.

    Example::

        attachment = attach(model, PowerPrior(heads=9, alpha=0.01))
        ...
        attachment.detach()
    """
    asked = "attach(...)"
    _require_given(asked, model, position)
    attachment = Attachment(asked, model)
    model = adapters.base_of(model)
    try:
        modules = chosen_layers(asked, model, attending_layers(asked, model), layers)
        attachment.put(modules, position, keep_rotary)
        _find_rotation(asked, model, modules, attachment, keep_rotary)
        if not keep_rotary:
            attachment.unturn()
        prove(asked, model, modules)
    except BaseException:
        attachment.detach()
        raise
    return attachment


@contextmanager
def attached(
    model: Any, position: Given, *, layers: Sequence[int] | None = None, keep_rotary: bool = True
) -> Iterator[Attachment]:
    """``attach`` for the length of a ``with`` block; afterwards the model is what it was, to the bit."""
    attachment = attach(model, position, layers=layers, keep_rotary=keep_rotary)
    try:
        yield attachment
    finally:
        attachment.detach()


def _require_given(asked: str, model: Any, position: object) -> None:
    if isinstance(position, Position):
        _require_fit(position)
    elif not callable(position):
        raise usage_error(
            asked,
            f"position={type(position).__name__}",
            "position is a whence.Position, or a function that makes one for a layer's number",
            "subclass whence.Position",
        )
    if not isinstance(model, nn.Module):
        raise usage_error(asked, f"model={type(model).__name__}", "the model is one of transformers", "load it first")
    held = [name for name, module in model.named_modules() if adapters.unwrapped(module._modules.get(KEY))]
    if held:
        raise usage_error(
            asked, f"a model that has a position at {held[0]}", "a model holds one at a time", "detach that first"
        )
    if getattr(getattr(model, "config", None), "_attn_implementation", None) == KEY:
        if not any(WATCHERS in module.__dict__ for module in model.modules()):
            raise usage_error(
                asked,
                "a model that shares its config object with another model, to which a position is attached",
                "the config says how its models attend, so detaching one would change the other",
                "build the second model from copy.deepcopy(config)",
            )
        raise usage_error(
            asked,
            "a model that is being captured",
            "its end would take the position out of use",
            "attach before capture",
        )


def _require_fit(position: object) -> None:
    """Refuse what cannot act inside a layer, or not with a cache."""
    asked = "attach(position=...)"
    if not isinstance(position, Position):
        raise usage_error(
            asked, type(position).__name__, "the function gives a whence.Position", "subclass whence.Position"
        )
    for part in position.parts:
        name = type(part).__name__
        if "embed" in part.effects:
            raise usage_error(
                asked, name, "a position inside a model's layers acts on queries and keys", "use one that does"
            )
        if part.length == "sequence":
            raise usage_error(
                asked,
                f"{name} with length='sequence'",
                "a model generates with a cache, and each new token would change every earlier weight",
                "use length='context', or length='query' where there is one",
            )


def _find_rotation(
    asked: str, model: Any, modules: dict[int, nn.Module], attachment: Attachment, keep_rotary: bool
) -> None:
    """Note the layers that the model itself rotates; refuse what would rotate twice, or take away what cannot be taken."""
    note = Rotations()
    hooks = [module.register_forward_hook(note, with_kwargs=True) for module in modules.values()]
    try:
        attending_layers(asked, model)
    finally:
        for hook in hooks:
            hook.remove()
    inside = [layer for layer, module in modules.items() if id(module) in note.inside]
    attachment.rotary_layers = [layer for layer, module in modules.items() if id(module) in note.turning]
    name = f"{type(model).__name__} ({model.config.model_type})"
    if not keep_rotary and inside:
        raise usage_error(
            "attach(keep_rotary=False)",
            f"{name}, whose layers {inside} compute their rotation inside the attention module",
            "only a rotation that is handed to the attention module can be taken away",
            "leave keep_rotary out",
        )
    if not keep_rotary and not attachment.rotary_layers:
        raise usage_error(
            "attach(keep_rotary=False)",
            f"{name}, whose layers {sorted(modules)} do not rotate queries and keys",
            "there is a rotation to take away",
            "leave keep_rotary out",
        )
    rotated = [] if not keep_rotary else sorted({*attachment.rotary_layers, *inside})
    both = [layer for layer in rotated if "rotate" in attachment.positions[layer].effects]
    if both:
        raise usage_error(
            asked,
            f"a position that rotates in layers {both}, on top of the model's own rotation",
            "queries and keys turn once",
            "use a position that does not rotate" if set(both) & set(inside) else "pass keep_rotary=False",
        )
