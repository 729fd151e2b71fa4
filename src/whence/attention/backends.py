"""``Backend``: the interface of an implementation of attention, and the registry of all backends.

The built-in backends register themselves. A user's backend is registered with ``register_backend`` or by the entry-point
group ``whence.backends`` of an installed package, and is then used by name: ``attend(..., backend="mine")``. A backend of a
module or a file needs no registration: ``backend="my_module:Mine"``, ``backend="./file.py:Mine(size=3)"``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from whence import plugins, shapes
from whence.attention.call import Call, Request
from whence.errors import usage_error
from whence.validation import format_value, require_choice

ENTRY_POINTS = "whence.backends"


class Backend:
    """An implementation of attention. Subclass it, set the attributes, and write ``run``.

    ``backend="auto"`` takes the registered backend of the highest priority among those that support the request. The
    built-in priorities lie between 0 and 40, and ``reference`` (10) supports every request. A backend of priority 0, the
    default, therefore runs only by name.

    >>> import torch
    >>> class Mean(Backend):
    ...     name = "mean"
    ...
    ...     def run(self, call):
    ...         return call.v.mean(2, keepdim=True).expand_as(call.q), None
    >>> register_backend(Mean())
    >>> q = torch.eye(2).reshape(1, 1, 2, 2)
    >>> from whence.attention.attend import attend
    >>> attend(q, q, q, backend="mean")
    tensor([[[[0.5000, 0.5000],
              [0.5000, 0.5000]]]])
    >>> del BACKENDS["mean"]
    """

    #: the name that ``attend(backend=...)`` takes
    name: str
    #: the hooks of a Position it applies, of score_scale, bias, content_bias, value_bias and sink; embed and rotate
    #: happen before any backend
    effects: frozenset[str] = frozenset()
    #: whether it can return the attention weights
    returns_weights: bool = False
    #: whether it applies ``attn_mask`` and ``mask_fn``; causality, window, padding and segments are in ``call.layout``
    takes_masks: bool = False
    #: whether it applies ``call.dropout`` to the weights
    takes_dropout: bool = False
    #: whether k and v may have fewer heads than q
    takes_grouped_heads: bool = False
    #: for the documentation
    memory: str = "not stated"  # such as "linear in length"
    devices: str = "not stated"
    dtypes: str = "not stated"
    gradients: str = "not stated"
    tracing: str = "not stated"  # under torch.compile and torch.export
    purpose: str = "not stated"

    def supports(self, request: Request) -> str | None:
        """Why the backend cannot run a request, as a clause; None when it can. Extend it, and call ``super()`` first."""
        missing = sorted(request.effects - self.effects)
        if missing:
            return f"it does not apply {' and '.join(missing)}"
        if request.return_weights and not self.returns_weights:
            return "it does not form the weights that return_weights=True returns"
        if request.pair_mask is not None and not self.takes_masks:
            return "it takes neither attn_mask nor mask_fn"
        if request.dropout and not self.takes_dropout:
            return "it does not apply dropout"
        if request.grouped_heads and not self.takes_grouped_heads:
            return "it does not take k and v with fewer heads than q"
        return None

    def priority(self, request: Request) -> int:
        """The rank of the backend for a request that it supports; ``auto`` takes the highest."""
        return 0

    def reason(self, request: Request) -> str:
        """Why ``auto`` takes it, as a clause for ``explain``."""
        return "it has the highest priority"

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """The output ``[B, H, T, E]``, and the weights ``[B, H, T, S]`` before dropout where ``call.return_weights``.

        Both may be in a wider dtype than q; ``attend`` converts them.
        """
        raise NotImplementedError


#: the registered backends by name; ``auto`` chooses among these
BACKENDS: dict[str, Backend] = {}
#: backends of installed packages, loaded when they are named; ``auto`` does not consider them
INSTALLED: dict[str, Backend] = {}


def register_backend(backend: Backend, *, replace: bool = False) -> None:
    """Make a backend available as ``attend(..., backend=backend.name)`` and, by its priority, to ``auto``.

    A name that exists is refused unless ``replace`` is True.
    """
    require_backend_object("register_backend(backend)", backend)
    if backend.name in BACKENDS and not replace:
        raise usage_error(
            "register_backend(backend)",
            f"the name {backend.name!r}",
            f"{backend.name!r} is registered already",
            "choose another name, or pass replace=True",
        )
    BACKENDS[backend.name] = backend


def require_backend_object(subject: str, backend: object) -> None:
    if not isinstance(backend, Backend):
        raise usage_error(
            subject, format_value(backend), "a backend is an instance of whence.Backend", "subclass whence.Backend"
        )
    name = getattr(backend, "name", None)
    if not isinstance(name, str) or not name.isidentifier() or name == "auto":
        rule = "the name of a backend is an identifier other than 'auto'"
        raise usage_error(subject, f"the name {format_value(name)}", rule, "set the class attribute name")
    if type(backend).run is Backend.run:
        rule = "a backend computes the output in its own run"
        raise usage_error(subject, f"{type(backend).__name__} without run", rule, "write def run(self, call)")


def require_result(backend: Backend, result: object, call: Call) -> tuple[Tensor, Tensor | None]:
    """What a backend's ``run`` returned: the output and the weights or None. Built-in backends are not checked."""
    if type(backend).__module__.startswith(__package__ + "."):
        return result  # type: ignore[return-value]
    (batch, heads, rows, _), keys, value_dim = call.q.shape, call.k.shape[2], call.v.shape[3]
    shape, weights_shape = (batch, heads, rows, value_dim), (batch, heads, rows, keys)
    subject = f"attend(backend={backend.name!r})"
    rule = "run returns a pair: the output [B, H, T, E], and the weights [B, H, T, S] or None"
    if not isinstance(result, tuple) or len(result) != 2:
        raise usage_error(subject, shapes.describe_tensor(result), rule, "return output, None")
    for what, x, expected in (("an output", result[0], shape), ("weights", result[1], weights_shape)):
        if what == "weights" and x is None:
            continue
        if not isinstance(x, Tensor) or tuple(x.shape) != expected or not x.is_floating_point():
            got, remedy = f"{what} of {shapes.describe_tensor(x)}", f"return a float tensor of shape {list(expected)}"
            raise usage_error(subject, got, rule, remedy)
        if x.device != call.q.device:
            raise usage_error(subject, f"{what} on {x.device}", f"q is on {call.q.device}", "compute on call.q.device")
    return result


def require_backend_name(owner: str, name: str) -> None:
    """Refuse a name that is neither ``auto`` nor a registered or installed backend, nor a backend of a module or a file."""
    if isinstance(name, str) and (name == "auto" or name in BACKENDS or name in INSTALLED):
        return
    if isinstance(name, str) and plugins.is_reference(name):
        subject = f"{owner}(backend={name!r})"
        reference = plugins.parse_reference(name, f"{owner} backend")
        INSTALLED[name] = _build_backend(subject, plugins.load_reference(reference, subject), reference.arguments)
        return
    points = plugins.entry_points(ENTRY_POINTS)
    if isinstance(name, str) and name in points:
        subject = f"the entry point {name!r} of {ENTRY_POINTS}"
        plugins.require_unique(ENTRY_POINTS, name, f"{owner}(backend={name!r})")
        backend = _build_backend(subject, plugins.load_entry_point(points[name], subject), {})
        if backend.name != name:
            rule = "a backend is called by the name of its entry point"
            raise usage_error(subject, f"a backend named {backend.name!r}", rule, f"set name = {name!r} in its class")
        INSTALLED[name] = backend
        return
    known = tuple(dict.fromkeys(("auto", *BACKENDS, *INSTALLED, *points)))
    remedy = "choose one of them, write my_module:Name or ./file.py:Name, or call whence.register_backend first"
    if isinstance(name, str):
        remedy = plugins.did_you_mean(name, known, remedy)
    require_choice(owner, "backend", name, known, remedy=remedy)


def _build_backend(subject: str, loaded: Any, arguments: dict[str, Any]) -> Backend:
    """The backend that a class with its arguments makes; an instance as it is."""
    if isinstance(loaded, type):
        try:
            loaded = loaded(**arguments)
        except TypeError as error:
            raise usage_error(subject, str(error), "its arguments must fit the class", "correct them") from error
    elif arguments:
        got = f"arguments for {format_value(loaded)}"
        raise usage_error(subject, got, "only a class takes arguments", "leave them out, or name the class")
    require_backend_object(subject, loaded)
    return loaded


def choose(request: Request, name: str = "auto") -> tuple[Backend, str]:
    """The backend that runs a request, and why. A named backend runs or raises; ``auto`` takes the highest priority."""
    if name == "auto":
        best = best_backend(request)
        return best, best.reason(request)
    backend = BACKENDS[name] if name in BACKENDS else INSTALLED[name]
    unsupported = backend.supports(request)
    if unsupported is not None:
        raise usage_error(
            f"attend(backend={name!r})",
            f"a call that {name} cannot run ({unsupported})",
            "a named backend never falls back to another one",
            f"use backend={best_backend(request).name!r}",
        )
    return backend, "named by the caller"


def best_backend(request: Request) -> Backend:
    """The registered backend of the highest priority among those that support the request."""
    best: Backend | None = None
    for backend in BACKENDS.values():  # a loop, because torch.compile cannot trace max(..., key=...)
        if backend.supports(request) is None and (best is None or backend.priority(request) > best.priority(request)):
            best = backend
    assert best is not None  # reference supports every request
    return best
