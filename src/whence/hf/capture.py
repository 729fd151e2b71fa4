"""``capture``: record a model's attention and states while it runs, and restore the model afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from whence.errors import WhenceError, usage_error
from whence.hf.integrations import unwrap_peft
from whence.hf.interface import KEY, AttentionCall, AttentionSwitch, observe
from whence.hf.layers import find_attention_layers, select_layers
from whence.hf.recorders import HookRecorder, ProfileRecorder, Recorder, RowRecorder, record_profiles


@contextmanager
def capture(model: Any, *recorders: Recorder, layers: Sequence[int] | None = None) -> Iterator[None]:
    """Record every forward pass inside the block.

    Args:
        model: a causal language model of transformers, with or without an attached Position.
        recorders: what to record: ``LastRow``, ``AttentionRows``, ``SegmentMass``, ``KeyProfile``, ``DistanceProfile``,
            ``HiddenStates``, ``RotatedQK``.
        layers: indices of layers; all by default. A model that mixes attention with other layers needs
            ``layers=attention_layers(model)``.

    ``capture_unavailable`` reports in advance whether a model can be captured.

    Example::

        last, distance = LastRow(), DistanceProfile()
        with capture(model, last, distance):
            model(tokens)
        last[3]        # [batch, heads, keys]: the attention of the last token in layer 3
    """
    subject = "capture(...)"
    for recorder in recorders:
        if not isinstance(recorder, Recorder):
            raise usage_error(
                subject,
                type(recorder).__name__,
                "recorders are those of whence.hf",
                "pass LastRow(), DistanceProfile() or another",
            )
    model = unwrap_peft(model)
    with ExitStack() as undo:
        if getattr(getattr(model, "config", None), "_attn_implementation", None) != KEY:
            undo.callback(AttentionSwitch(subject, model, observe_only=True).restore)
        all_modules = find_attention_layers(subject, model)
        modules = select_layers(subject, model, all_modules, layers)
        for recorder in recorders:
            if isinstance(recorder, HookRecorder):
                recorder.install(model, modules, all_modules, undo)
        undo.callback(observe(modules, _dispatch(recorders, modules)))
        yield


def attention_layers(model: Any) -> list[int]:
    """The layers that ``attach`` and ``capture`` can use: those that attend through transformers' interface.

    These are all layers of most models, and some layers of a hybrid of attention and state-space layers.
    """
    subject = "attention_layers(...)"
    model = unwrap_peft(model)
    with ExitStack() as undo:
        if getattr(getattr(model, "config", None), "_attn_implementation", None) != KEY:
            undo.callback(AttentionSwitch(subject, model, observe_only=True).restore)
        return list(find_attention_layers(subject, model))


def capture_unavailable(model: Any, layers: Sequence[int] | None = None) -> str | None:
    """The reason why ``capture(model, layers=layers)`` would raise, in one sentence; ``None`` if it would run.

    Log-likelihoods need no capture, so a model that cannot be captured can still be measured by its answers.
    """
    try:
        with capture(model, layers=layers):
            return None
    except WhenceError as error:
        return str(error)


def _dispatch(recorders: Sequence[Recorder], modules: dict[int, nn.Module]) -> Callable[[AttentionCall], None]:
    """An observer that passes each attention call to the recorders."""
    layer_of = {id(module): layer for layer, module in modules.items()}
    row_recorders = [recorder for recorder in recorders if isinstance(recorder, RowRecorder)]
    profiles = [recorder for recorder in recorders if isinstance(recorder, ProfileRecorder)]

    def record(call: AttentionCall) -> None:
        layer = layer_of[id(call.module)]
        for recorder in row_recorders:
            recorder.record(layer, call)
        if profiles:
            record_profiles(profiles, layer, call)

    return record
