"""``capture``: watch a model's attention and states while it runs, and leave it as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from whence.errors import WhenceError, usage_error
from whence.hf.adapters import base_of
from whence.hf.causality_check import attending_layers
from whence.hf.interface import KEY, Attending, Switch, watch
from whence.hf.layers import chosen_layers
from whence.hf.recorders import OfRows, Watching
from whence.hf.reductions import OfAllRows, reduce_all
from whence.hf.states import OfStates


@contextmanager
def capture(model: Any, *watchers: Watching, layers: Sequence[int] | None = None) -> Iterator[None]:
    """Show every forward inside to some watchers.

    Args:
        model: a causal language model of transformers, with a Position attached or without.
        watchers: what to keep: ``LastRow``, ``Rows``, ``BySegment``, ``ByKey``, ``ByDistance``, ``Hidden``, ``Turned``.
        layers: which layers to look at; all by default. A model that mixes attention with other layers needs
            ``layers=attention_layers(model)``.

    ``capture_unavailable`` says beforehand whether a model can be captured.

    Example::

        last, distance = LastRow(), ByDistance()
        with capture(model, last, distance):
            model(tokens)
        last[3]        # [batch, heads, keys]: what the last token of layer 3 attends to
    """
    asked = "capture(...)"
    for watcher in watchers:
        if not isinstance(watcher, Watching):
            raise usage_error(
                asked,
                type(watcher).__name__,
                "watchers are those of whence.hf",
                "give LastRow(), ByDistance() or another",
            )
    model = base_of(model)
    with ExitStack() as undo:
        if getattr(getattr(model, "config", None), "_attn_implementation", None) != KEY:
            undo.callback(Switch(asked, model).back)
        everywhere = attending_layers(asked, model)
        modules = chosen_layers(asked, model, everywhere, layers)
        for watcher in watchers:
            if isinstance(watcher, OfStates):
                watcher.install(model, modules, everywhere, undo)
        undo.callback(watch(modules, _shown(watchers, modules)))
        yield


def attention_layers(model: Any) -> list[int]:
    """The layers that ``attach`` and ``capture`` can act on: those that attend through transformers' interface.

    These are all layers of most models, and some of a hybrid of attention and state-space layers.
    """
    asked = "attention_layers(...)"
    model = base_of(model)
    with ExitStack() as undo:
        if getattr(getattr(model, "config", None), "_attn_implementation", None) != KEY:
            undo.callback(Switch(asked, model).back)
        return list(attending_layers(asked, model))


def capture_unavailable(model: Any, layers: Sequence[int] | None = None) -> str | None:
    """Why ``capture(model, layers=layers)`` would refuse, in one sentence; ``None`` when it would run.

    Log-likelihoods need no capture, so a model without one can still be measured by its answers alone.
    """
    try:
        with capture(model, layers=layers):
            return None
    except WhenceError as error:
        return str(error)


def _shown(watchers: Sequence[Watching], modules: dict[int, nn.Module]) -> Callable[[Attending], None]:
    layer_of = {id(module): layer for layer, module in modules.items()}
    of_rows = [watcher for watcher in watchers if isinstance(watcher, OfRows)]
    of_all = [watcher for watcher in watchers if isinstance(watcher, OfAllRows)]

    def show(attending: Attending) -> None:
        layer = layer_of[id(attending.module)]
        for watcher in of_rows:
            watcher.see(layer, attending)
        if of_all:
            reduce_all(of_all, layer, attending)

    return show
