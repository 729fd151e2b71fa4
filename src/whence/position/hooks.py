"""The names of the hooks of a Position, and the rules for a class that overrides them."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from whence.errors import usage_error
from whence.validation import require_parameters

HOOKS = ("embed", "rotate", "score_scale", "bias", "content_bias", "value_bias", "sink", "clock")
OPTIONAL_HOOKS = ("parameter_gradients", "bias_slope", "score_scale_decay", "pair_function")
OPTIONAL_CONTENT_HOOKS = ("relative_keys", "distance_slopes", "head_network")
#: hooks that return a table, and the hook whose default evaluates the table
TABLE_HOOKS = {
    "content_bias_table": "content_bias", "coordinate_bias_table": "content_bias", "gated_bias_table": "content_bias",
    "value_bias_table": "value_bias",
}  # fmt: skip


def override_hooks(cls: Any, interface: Any) -> frozenset[str]:
    """Check the hooks that a new class defines, and return the names of all hooks that it overrides.

    A hook that belongs to one of a later base, such as its derivative, is that of ``interface`` again. A table that is replaced so
    by the hook that evaluates it stays under ``name_of_replaced``, for ``super()``.
    """
    for hook in (*HOOKS, *OPTIONAL_HOOKS, *OPTIONAL_CONTENT_HOOKS, *TABLE_HOOKS):
        if hook in cls.__dict__:
            _require_hook_parameters(cls, interface, hook)
    for hook in sorted(set(TABLE_HOOKS.values())):  # one term, written in one of several ways
        ways = [*_tables_of(hook), hook]
        _require_one_way(cls, interface, hook, ways)
        latest = min(_place_of(cls, interface, way) for way in ways)
        later = [way for way in ways if _place_of(cls, interface, way) > latest]
        for table in _tables_of(hook):
            if _place_of(cls, interface, hook) > latest:
                setattr(cls, name_of_replaced(table), None)
            elif table in later and getattr(cls, table) is not getattr(interface, table):
                setattr(cls, name_of_replaced(table), inspect.getattr_static(cls, table))
        _reset_hooks(cls, interface, later)
    overridden = {hook for hook in (*HOOKS, *TABLE_HOOKS) if getattr(cls, hook) is not getattr(interface, hook)}
    effects = frozenset(TABLE_HOOKS.get(hook, hook) for hook in overridden)
    for optional in OPTIONAL_CONTENT_HOOKS:
        if optional in cls.__dict__ and "content_bias" not in effects:
            rule = f"{optional} is another form of content_bias, for kernels, and has no effect alone"
            subject, got = f"{cls.__name__}.{optional}", "a class without content_bias"
            raise usage_error(subject, got, rule, "write content_bias too")
    of_content = ("content_bias", *_tables_of("content_bias"))
    for hooks, others in ((("score_scale", "bias"), OPTIONAL_HOOKS), (of_content, OPTIONAL_CONTENT_HOOKS)):
        latest = min(_place_of(cls, interface, hook) for hook in hooks)
        _reset_hooks(cls, interface, [optional for optional in others if _place_of(cls, interface, optional) > latest])
    return effects


def name_of_replaced(table: str) -> str:
    """The attribute of a class with the table of a base that its own hook replaces, or None."""
    return f"_replaced_{table}"


def _tables_of(hook: str) -> tuple[str, ...]:
    """The hooks that return a hook's effect as a table."""
    return tuple(table for table, effect in TABLE_HOOKS.items() if effect == hook)


def _place_of(cls: type, interface: type, hook: str) -> int:
    """The place of the class that defines a hook among a class and its bases."""
    return next(place for place, base in enumerate(cls.__mro__) if base is interface or _defines(base, interface, hook))


def _defines(cls: type, interface: type, hook: str) -> bool:
    """Whether a class has a hook of its own. One that was reset is that of ``interface``."""
    return hook in cls.__dict__ and cls.__dict__[hook] is not interface.__dict__[hook]


def _reset_hooks(cls: type, interface: type, names: list[str]) -> None:
    for name in names:
        if getattr(cls, name) is not getattr(interface, name):
            setattr(cls, name, getattr(interface, name))


def _require_one_way(cls: type, interface: type, hook: str, ways: list[str]) -> None:
    written = [way for way in ways if _defines(cls, interface, way)]
    if len(written) > 1:
        rule = f"each of them is the whole {hook}"
        remedy = f"write {written[0]} alone, or two classes and their sum"
        raise usage_error(f"{cls.__name__}.{written[1]}", f"a class that also has {written[0]}", rule, remedy)


def require_no_misspelled_hook(cls: type, interface: type) -> None:
    """Refuse an instance of a class that overrides no hook and has a function whose name is almost that of one."""
    bases = cls.__mro__[: cls.__mro__.index(interface)]
    for name in [name for base in bases for name, value in base.__dict__.items() if callable(value)]:
        near = [] if name.startswith("_") else difflib.get_close_matches(name, (*HOOKS, *TABLE_HOOKS), n=1, cutoff=0.85)
        if near and not hasattr(interface, name):
            rule = "it is the name of no hook, and the class overrides none, so it would change nothing"
            raise usage_error(f"{cls.__name__}.{name}", "a function", rule, f"rename it {near[0]}")


def _require_hook_parameters(cls: Any, interface: type, hook: str) -> None:
    """Refuse a hook that does not take the arguments of the interface, when its class is defined."""
    names = tuple(inspect.signature(getattr(interface, hook)).parameters)
    if hook == "content_bias_table" and cls.reads_input is True:
        names = (*names, "q_input")
    bound = isinstance(cls.__dict__[hook], staticmethod | classmethod)
    remedy = f"write def {hook}({', '.join(names)})"
    require_parameters(f"{cls.__name__}.{hook}", getattr(cls, hook), names[1:] if bound else names, remedy)
