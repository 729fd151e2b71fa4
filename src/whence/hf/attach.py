"""``attach``: use any Position inside a pretrained model, for training and generation, and restore the model afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from whence.errors import usage_error
from whence.hf.clocks import pass_input
from whence.hf.default_positions import forget_calls, watch_calls
from whence.hf.integrations import active_position, add_to_adapter, execution_device, unwrap_peft
from whence.hf.interface import KEY, OBSERVERS, AttentionSwitch
from whence.hf.layers import find_attention_layers, select_layers, verify_attachment
from whence.hf.rotation import RemoveRotation, RotationFinder
from whence.hf.settings import track_settings, untrack_settings, warn_before_saving
from whence.position.base import Position, require_initialized, require_position
from whence.position.expression import ModelDims, build_position
from whence.position.regions import RegionRotary
from whence.validation import format_value

PositionLike = Position | str | Callable[[int], Position]
DEFAULT_CONTEXT = 2048  # of a config that does not state a context length


class Attachment:
    """The result of ``attach``: the positions by layer, and ``detach``, which the end of a ``with`` block calls.

    Attributes:
        model: the model, as it was passed to ``attach``.
        rotary_layers: the selected layers that the model itself rotates; NoPE layers are not among them.
    """

    def __init__(self, subject: str, model: Any) -> None:
        self.model = model
        self.rotary_layers: list[int] = []
        self._positions: dict[int, Position] = {}
        self._modules: dict[int, nn.Module] = {}
        self._hooks: list[RemovableHandle] = []
        self._restore_adapter: Callable[[], None] | None = None
        self._switch: AttentionSwitch | None = AttentionSwitch(subject, unwrap_peft(model))

    @property
    def positions(self) -> dict[int, Position]:
        """The positions by layer; for a PEFT model those of its active adapter. They remain available after ``detach``."""
        if self._switch is None:
            return self._positions
        active = {layer: active_position(getattr(module, KEY, None)) for layer, module in self._modules.items()}
        return {layer: position for layer, position in active.items() if position is not None}

    def insert(
        self, modules: dict[int, nn.Module], source: Position | Callable[[int], Position], keep_rotary: bool
    ) -> None:
        """Add a separate Position to every selected attention module, as a submodule."""
        for layer, module in modules.items():
            position = copy.deepcopy(source) if isinstance(source, Position) else source(layer)
            _require_attachable(position)
            self._hooks += track_settings(position, layer, keep_rotary)
            setattr(module, KEY, position.to(execution_device("attach(...)", module)))
            if position.reads_input or "clock" in position.effects:
                self._hooks += pass_input(module, KEY)
            self._modules[layer] = module
        base = unwrap_peft(self.model)
        self._hooks.append(warn_before_saving(base))
        self._hooks += watch_calls(getattr(base, "base_model", base), modules.values())
        if base is not self.model:
            self._restore_adapter = add_to_adapter(self.model, list(modules.values()), KEY)

    def remove_rotation(self) -> None:
        """Replace the model's own rotation by the identity in the selected layers that rotate."""
        modules = [self._modules[layer] for layer in self.rotary_layers]
        self._hooks += [m.register_forward_pre_hook(RemoveRotation(), with_kwargs=True) for m in modules]

    def detach(self) -> None:
        """Restore the model exactly. A second call does nothing."""
        if self._switch is None:
            return
        self._positions = self.positions
        for hook in self._hooks:
            hook.remove()
        for position in self._positions.values():
            untrack_settings(position)
        for module in self._modules.values():
            delattr(module, KEY)
        forget_calls(self._modules.values())
        if self._restore_adapter is not None:
            self._restore_adapter()
        self._switch.restore()
        self._switch = None

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


def attach(
    model: Any, position: PositionLike, *, layers: Sequence[int] | None = None, keep_rotary: bool = True
) -> Attachment:
    """Add a Position to the attention of a causal language model of transformers.

    ``attach`` runs tiny forward passes to verify that the mechanism is active in every selected layer and that no future
    token changes an earlier logit. ``Attachment.detach`` restores the model exactly.

    Args:
        model: a causal language model whose family calls its attention through transformers' attention interface. For a
            PEFT model, the positions become part of its active adapter: they are trained, saved and loaded with it.
        position: a Position, which is copied for every layer; a function that builds one from a layer's index; or a
            text such as ``"Alibi(scale=2)"``, ``"my_module:Bell"`` or ``"./bell.py:Bell(heads=4)"``, as in
            ``whence.position.expression``, in which the sizes of the model are filled in (``model_dims``). The positions
            become submodules of the attention modules, named ``whence``: they train, move and are saved with the model.
        layers: indices of layers; all by default. The other layers are unchanged.
        keep_rotary: whether the model's own rotation of queries and keys stays active in the selected layers. ``False``
            replaces it by the identity, so that a ``Rotary`` of whence can take its place. Layers that do not rotate (the
            NoPE layers of llama4, smollm3, cohere2 or exaone4) have no rotation to remove. ``attachment.rotary_layers``
            lists those that do; pass them as ``layers`` to keep a ``Rotary`` out of the others.

    Everything else in the model stays: grouped queries, windows, sinks, softcaps, caches and masks. Distances are counted
    in tokens of the cache, so cached decoding equals a full forward pass. Families that do not use the interface, models
    in which a token sees the future, encoders and encoder-decoders raise an error. For a model that mixes attention with
    other layers, such as state-space layers, pass ``layers=attention_layers(model)``.

    ``torch.compile(model, fullgraph=True)`` traces an attached model as one graph, in training and in decoding steps with
    a static cache. No tensor value is read while it traces, so masks are recognized from the model's config, and
    ``position_ids`` that do not count the tokens raise a RuntimeError when the compiled model runs.

    Example::

        attachment = attach(model, PowerPrior(heads=9, alpha=0.01))      # or: attach(model, "PowerPrior(alpha=0.01)")
        ...
        attachment.detach()

        with attach(model, PowerPrior(heads=9, alpha=0.01)):             # detached at the end of the block
            ...
    """
    subject = "attach(...)"
    _check_arguments(subject, model, position)
    attachment = Attachment(subject, model)
    model = unwrap_peft(model)
    try:
        source = build_with_fixed_seed(position, model_dims(model)) if isinstance(position, str) else position
        modules = select_layers(subject, model, find_attention_layers(subject, model), layers)
        attachment.insert(modules, source, keep_rotary)
        _find_rotation(subject, model, modules, attachment, keep_rotary)
        if not keep_rotary:
            attachment.remove_rotation()
        verify_attachment(subject, model, modules)
    except BaseException:
        attachment.detach()
        raise
    return attachment


def build_with_fixed_seed(text: str, dims: ModelDims) -> Position:
    """The mechanism of a text with the same random initial values in every process, so that an interrupted command resumes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_position(text, dims)


def model_dims(model: Any) -> ModelDims:
    """The sizes that a mechanism may have to match, from the text config of a model.

    ``context`` and ``max_length`` are ``max_position_embeddings``, or 2048 if the config does not state it.
    """
    config = model.config.get_text_config()
    heads, embed_dim = int(config.num_attention_heads), int(config.hidden_size)
    context = int(getattr(config, "max_position_embeddings", None) or DEFAULT_CONTEXT)
    head_dim = int(getattr(config, "head_dim", None) or embed_dim // heads)
    return ModelDims(heads=heads, head_dim=head_dim, embed_dim=embed_dim, context=context, max_length=context)


def _check_arguments(subject: str, model: Any, position: object) -> None:
    if isinstance(position, Position):
        _require_attachable(position)
    elif isinstance(position, type):
        require_position("attach(position=...)", position)
    elif not isinstance(position, str) and not callable(position):
        raise usage_error(
            subject,
            f"position={type(position).__name__}",
            "position must be a whence.Position, a text, or a function from a layer's index to a Position",
            'pass a Position such as whence.Alibi(heads), or its text "Alibi()"',
        )
    if not isinstance(model, nn.Module):
        raise usage_error(
            subject,
            f"model={type(model).__name__}",
            "the model must be a transformers PreTrainedModel",
            "load it with whence.hf.load",
        )
    occupied = [name for name, module in model.named_modules() if active_position(module._modules.get(KEY))]
    if occupied:
        raise usage_error(
            subject,
            f"a model that has a position at {occupied[0]}",
            "a model holds one attachment at a time",
            "call detach() on the other attachment first",
        )
    if getattr(getattr(model, "config", None), "_attn_implementation", None) == KEY:
        if not any(OBSERVERS in module.__dict__ for module in model.modules()):
            raise usage_error(
                subject,
                "a model that shares its config object with another model, to which a position is attached",
                "the config selects the attention of both, so detaching one would change the other",
                "build the second model from copy.deepcopy(config)",
            )
        raise usage_error(
            subject,
            "a model that is being captured",
            "the end of the capture would disable the position",
            "attach before capture",
        )


def _require_attachable(position: object) -> None:
    """Raise for a Position that cannot act inside a layer, or not with a cache."""
    subject = "attach(position=...)"
    if not isinstance(position, Position):
        raise usage_error(
            subject,
            f"a function that returned {format_value(position)}",
            "the function must return a whence.Position for a layer's index",
            "return a Position, or wrap a score_mod with whence.from_score_mod(fn)",
        )
    require_initialized(position)
    for part in position.parts:
        name = type(part).__name__
        if "embed" in part.effects:
            raise usage_error(
                subject,
                name,
                "a position inside the layers of a model acts on attention, not on embeddings",
                "use a rotary or relative mechanism, such as whence.Alibi(heads)",
            )
        if part.length == "sequence":
            raise usage_error(
                subject,
                f"{name} with length='sequence'",
                "the model generates with a cache, and each new token would change every earlier weight",
                "use length='context', or length='query' if the mechanism has it",
            )


def _find_rotation(
    subject: str, model: Any, modules: dict[int, nn.Module], attachment: Attachment, keep_rotary: bool
) -> None:
    """Set ``rotary_layers``. Raise if queries and keys would rotate twice, or if a rotation cannot be removed."""
    finder = RotationFinder()
    hooks = [module.register_forward_hook(finder, with_kwargs=True) for module in modules.values()]
    try:
        find_attention_layers(subject, model)
    finally:
        for hook in hooks:
            hook.remove()
    internal = [layer for layer, module in modules.items() if id(module) in finder.internal]
    attachment.rotary_layers = [layer for layer, module in modules.items() if id(module) in finder.rotating]
    name = f"{type(model).__name__} ({model.config.model_type})"
    if not keep_rotary and internal:
        raise usage_error(
            "attach(keep_rotary=False)",
            f"{name}, whose layers {internal} compute their rotation inside the attention module",
            "only a rotation that is passed to the attention module can be removed",
            "omit keep_rotary=False, or --replace-rotary on the command line",
        )
    if not keep_rotary and not attachment.rotary_layers:
        raise usage_error(
            "attach(keep_rotary=False)",
            f"{name}, whose layers {sorted(modules)} do not rotate queries and keys",
            "there is no rotation to remove",
            "omit keep_rotary=False, or --replace-rotary on the command line",
        )
    rotating = [] if not keep_rotary else sorted({*attachment.rotary_layers, *internal})
    twice = [layer for layer in rotating if rotates_queries(attachment.positions[layer])]
    if twice:
        raise usage_error(
            subject,
            f"a position that rotates in layers {twice}, on top of the model's own rotation",
            "queries and keys must rotate once",
            "use a position that does not rotate"
            if set(twice) & set(internal)
            else "pass keep_rotary=False, in commands --replace-rotary",
        )


def rotates_queries(position: Position) -> bool:
    """Whether a part rotates queries and keys. A part that only scales them may be added to the model's rotation."""
    return any(("rotate" in part.effects and part.rotates) or isinstance(part, RegionRotary) for part in position.parts)
