"""``intervene``: compute the attention of chosen layers with ``AttentionEdit`` objects, for the length of a block.

Three parts of a model are wrapped, and restored exactly afterwards: the forward of the chosen attention modules, to see
their input and their cache; ``generate``, which knows where the prompt ends; and the attention function.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from whence import torch_modes
from whence.errors import usage_error
from whence.hf.clocks import CACHE_ARGUMENTS
from whence.hf.edits import AttentionEdit, EditedCall
from whence.hf.expanded_rows import COPIES
from whence.hf.integrations import unwrap_peft
from whence.hf.interface import EDITOR, KEY, AttentionSwitch
from whence.hf.layers import (
    TINY_REQUEST,
    find_attention_layers,
    is_causal,
    not_causal_error,
    run_tiny_forward,
    select_layers,
    tiny_input,
)
from whence.hf.masks import MaskInfo
from whence.hf.requests import current_request, generating, set_request
from whence.hf.rotary_config import build_rotary, rotate_at
from whence.hf.rotation import ARGUMENT, identity_rotation, is_rotation
from whence.position.rotary import Rotary

STATE = "_whence_state"  # the attribute of a cache with the state of the edits
CHECKED_POSITIONS = (0, 1, 7, 130, 900, 2000)
FLOAT32_EPS = torch.finfo(torch.float32).eps


@contextmanager
def intervene(
    model: Any, edits: AttentionEdit | Mapping[int, AttentionEdit], *, layers: Sequence[int] | None = None
) -> Iterator[None]:
    """Apply edits to the attention of a model inside the block. Nested blocks add their edits to the outer ones.

    Args:
        model: a causal language model of transformers that calls its attention through the attention interface.
        edits: one edit for all chosen layers, or one for each layer index.
        layers: the layers of a single edit; all by default.

    Tiny forward passes verify that every chosen layer is active, that the model's rotation is understood if an edit
    replaces it, and that no token changes an earlier logit unless an edit looks ahead on purpose.
    """
    subject = "intervene(...)"
    model = unwrap_peft(model)
    with ExitStack() as undo:
        if any(KEY in module._modules for module in model.modules()):
            raise usage_error(
                subject,
                "a model with an attached position",
                "an edit computes the attention of the model as it was trained",
                "call detach() first",
            )
        if getattr(getattr(model, "config", None), "_attn_implementation", None) != KEY:
            undo.callback(AttentionSwitch(subject, model).restore)
        every = find_attention_layers(subject, model)
        chosen = sorted(edits) if isinstance(edits, Mapping) else layers
        modules = select_layers(subject, model, every, chosen)
        for layer, module in modules.items():
            edit = edits[layer] if isinstance(edits, Mapping) else edits
            _add(subject, model, layer, module, edit, undo)
        if "generate" not in model.__dict__:
            model.generate = _wrap_generate(model)
            undo.callback(model.__dict__.pop, "generate")
        _verify(subject, model, modules)
        yield


class LayerEditor:
    """The edits of one layer, and what its attention function must know about the current forward pass."""

    def __init__(self, model: Any, layer: int, module: nn.Module) -> None:
        self.model, self.layer, self.module = model, layer, module
        self.edits: list[AttentionEdit] = []
        self.rotary: Rotary | None = None
        self.capturing: list[tuple[Tensor, Tensor]] | None = None  # queries and keys of a changed input
        self.changed: tuple[Tensor, Tensor] | None = None
        self.state: dict[Any, Any] = {}
        self.checked_at: Tensor | None = None  # positions at which the next forward pass compares the rotations
        self.rotates_alike = False

    def forward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The forward of the attention module: with un-rotated keys, and with the state of its cache."""
        bound = inspect.signature(original).bind(*args, **kwargs)
        arguments: dict[str, Any] = {**bound.arguments, **bound.arguments.pop("kwargs", {})}
        arguments.pop("kwargs", None)
        name = next((one for one in CACHE_ARGUMENTS if arguments.get(one) is not None), None)
        cache = None if name is None else arguments[name]
        self.state = {} if cache is None else cache.__dict__.setdefault(STATE, {}).setdefault(self.layer, {})
        if cache is not None and cache.get_seq_length(self.layer) == 0:
            self.state.clear()  # the cache was reset
        if self.rotary is not None and is_rotation(arguments.get(ARGUMENT)):
            before, arguments = arguments, {**arguments, ARGUMENT: identity_rotation(arguments[ARGUMENT])}
            if self.checked_at is not None:
                self._compare_rotations(original, before, arguments)
        x = arguments["hidden_states"]
        changed = next((y for edit in self.edits if (y := edit.change_input(x)) is not None), None)
        try:
            if changed is not None:
                self.changed = self._project(original, {**arguments, "hidden_states": changed}, name)
                if cache is not None:
                    assert name is not None
                    arguments[name] = PairedKeys(cache, self)
            return original(**arguments)
        finally:
            self.changed = None

    def _project(
        self, original: Callable[..., Any], arguments: dict[str, Any], cache: str | None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys of another input, from the module's own projections, norms and rotation."""
        self.capturing = []
        try:
            original(**arguments if cache is None else {**arguments, cache: None})
            return self.capturing[0]
        finally:
            self.capturing = None

    def _compare_rotations(self, original: Callable[..., Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        """Find the layout in which ``self.rotary`` does what the model's own rotation does to queries and keys."""
        assert self.rotary is not None and self.checked_at is not None
        theirs, plain = self._project(original, before, None), self._project(original, after, None)
        # transformers computes angles in float32, also in a float64 model, and rounds cosines to the model's precision
        tolerance = 4 * (max(CHECKED_POSITIONS) * FLOAT32_EPS + torch.finfo(theirs[0].dtype).eps)
        for layout in ("half", "interleaved"):
            rotary = build_rotary("intervene(...)", self.model.config.get_text_config(), self.layer, layout=layout)
            ours = [rotate_at(rotary, x, self.checked_at[None, None]) for x in plain]
            errors = [(a - b).abs().max() / b.abs().max() for a, b in zip(ours, theirs, strict=True)]
            if max(errors) <= tolerance:
                self.rotary, self.rotates_alike = rotary, True
                return

    def capture(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        """While a changed input is projected: keep queries and keys, and return an output that is thrown away."""
        if self.capturing is None:
            return None
        self.capturing.append((q, k))
        return v.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[3])

    def call(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        info: MaskInfo,
        scale: float | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> EditedCall:
        """The attention call as the edits see it."""
        if torch_modes.is_tracing():
            raise usage_error(
                "an edited model",
                "a call inside torch.compile",
                "edits read values, such as the end of the prompt",
                "run it without compile; pass disable_compile=True to generate",
            )
        if info.segment_ids is not None:
            raise usage_error(
                "an edited model",
                "packed sequences",
                "an edit needs one prompt in each row",
                "pass one sequence in each row, with attention_mask",
            )
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        request = current_request(self.model)
        arguments = (self.module, self.layer, self.edits, q, k, v, self.changed, info, request, self.state, self.rotary)
        return EditedCall(*arguments, scale=scale, softcap=softcap, sinks=sinks)


class PairedKeys:
    """A cache that keeps the keys of a changed input beside the model's own keys, as further columns."""

    def __init__(self, cache: Any, editor: LayerEditor) -> None:
        self.cache, self.editor = cache, editor

    def update(self, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        assert self.editor.changed is not None
        q, changed = self.editor.changed
        both, values = self.cache.update(torch.cat((k, changed), -1), v, *args, **kwargs)
        dim = k.shape[-1]
        self.editor.changed = (q, both[..., dim:])
        return both[..., :dim], values

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)


def _add(subject: str, model: Any, layer: int, module: nn.Module, edit: AttentionEdit, undo: ExitStack) -> None:
    """Add an edit to a layer, and its removal to ``undo``."""
    editor = module.__dict__.get(EDITOR)
    if editor is None:
        editor = LayerEditor(model, layer, module)
        module.__dict__[EDITOR] = editor
        undo.callback(module.__dict__.pop, EDITOR)
        _replace_forward(module, editor, undo)
    elif edit.unrotated and editor.rotary is not None:
        raise usage_error(
            subject,
            f"two edits of layer {layer} that choose positions",
            "queries and keys are rotated once",
            "apply one of them",
        )
    if edit.unrotated and COPIES in model.__dict__:
        raise usage_error(
            subject,
            "a model with several rows for each sequence, as of Attention Buckets, and an edit that chooses positions",
            "queries and keys are rotated once",
            "apply one of them",
        )
    if edit.unrotated:
        editor.rotary = build_rotary(subject, model.config.get_text_config(), layer)
        undo.callback(setattr, editor, "rotary", None)
    editor.edits.append(edit)
    undo.callback(editor.edits.remove, edit)


def _replace_forward(module: nn.Module, editor: LayerEditor, undo: ExitStack) -> None:
    before = module.__dict__.get("forward")  # accelerate sets one
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return editor.forward(original, *args, **kwargs)

    def restore() -> None:
        if before is None:
            del module.forward
        else:
            module.forward = before

    module.forward = forward
    undo.callback(restore)


def _wrap_generate(model: Any) -> Callable[..., Any]:
    """``generate`` that states where the prompt ends. Edits keep state while it runs, so threads take turns."""
    original, turn = model.generate, threading.RLock()

    def generate(*args: Any, **kwargs: Any) -> Any:
        given = [
            value
            for value in (*args, *map(kwargs.get, ("inputs", "input_ids", "inputs_embeds")))
            if isinstance(value, Tensor)
        ]
        with turn, generating(model, given[0].shape[1]) if given else nullcontext():
            return original(*args, **kwargs)

    return generate


def _verify(subject: str, model: Any, modules: dict[int, nn.Module]) -> None:
    editors: list[LayerEditor] = [module.__dict__[EDITOR] for module in modules.values()]
    rotating = [editor for editor in editors if editor.rotary is not None and not editor.rotates_alike]
    if rotating:
        _verify_rotation(subject, model, rotating)
    if not all(edit.causal for editor in editors for edit in editor.edits):
        run_tiny_forward(model, tiny_input(subject, model))  # errors appear here
    elif not is_causal(subject, model):
        raise not_causal_error(subject, model)


def _verify_rotation(subject: str, model: Any, editors: list[LayerEditor]) -> None:
    """Raise unless the ``Rotary`` built from the config rotates as the model does, at positions far apart."""
    tokens = tiny_input(subject, model)
    positions = torch.tensor(CHECKED_POSITIONS, device=tokens.device)
    for editor in editors:
        editor.checked_at = positions
    try:
        with torch.no_grad(), torch_modes.eval_mode(model), set_request(model, TINY_REQUEST):
            model(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), position_ids=positions[None], use_cache=False
            )
    finally:
        for editor in editors:
            editor.checked_at = None
    wrong = [editor.layer for editor in editors if not editor.rotates_alike]
    if wrong:
        raise usage_error(
            subject,
            f"{type(model).__name__} ({model.config.model_type}), whose layers {wrong} do not rotate as their config says",
            "the edit replaces the model's rotation by a Rotary built from its config",
            "use a model of another family, such as llama or qwen3",
        )
