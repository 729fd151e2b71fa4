"""The controls of a mechanism: a slider, a checkbox or a list for each parameter of its constructor.

The range of a slider is found by trying values: it holds only values that the constructor accepts together with the
other arguments. Nothing typed is evaluated; texts go through ``whence.position.expression``.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from whence.errors import WhenceError, usage_error
from whence.position import catalogue
from whence.position.expression import ModelDims, PositionExpression, Term, is_score_mod, parse_position

#: sizes of the model, set once for all mechanisms
MODEL_SIZES = frozenset(
    {"heads", "head_dim", "embed_dim", "context", "max_length", "causal", "num_kv_heads", "value_dim"}
)
#: parameters whose useful values span many powers of ten
LOGARITHMIC = frozenset({"base", "threshold", "scale_base"})
#: numbers that are tried as the start of a parameter without a default number
NOMINAL = (1.0, 0.5, 0.1, 4.0, 16.0, 2.0)
NONE = "none"
LARGEST_SLIDER_INTEGER = 16384
BISECTIONS = 24


@dataclass(frozen=True)
class Control:
    """How one argument of one term is set.

    ``kind`` is flag, choice, number or integer. A logarithmic number is set by its power of ten. ``path`` is the index
    of the term, the argument, and for a nested call its argument.
    """

    path: tuple[int | str, ...]
    kind: str
    value: Any
    low: float = 0.0
    high: float = 1.0
    step: float = 1.0
    choices: tuple[str, ...] = ()
    logarithmic: bool = False
    automatic: bool = False  # the argument is not set; the mechanism chooses

    @property
    def name(self) -> str:
        return ".".join(str(part) for part in self.path[1:])

    @property
    def label(self) -> str:
        """The name of the argument, and what the number means where it is not the value itself."""
        note = " (power of 10)" if self.logarithmic else ""
        return f"{self.name}{note}" + (", automatic until moved" if self.automatic else "")


def find_controls(text: str, dims: ModelDims) -> list[list[Control]]:
    """The controls of each term of an expression. An expression that cannot be built is an error."""
    expression = parse_position(text)
    expression.build(dims)
    terms = expression.terms
    return [_find_term_controls((index,), term, dims, term) for index, term in enumerate(terms)]


def set_argument(text: str, path: Sequence[int | str], value: Any, *, logarithmic: bool = False) -> str:
    """The expression with one argument changed. An argument equal to its default is left out.

    >>> set_argument("rotary + Alibi(scale=2)", (1, "scale"), 3)
    'Rotary() + Alibi(scale=3)'
    >>> set_argument("Rotary(scaling=Yarn(factor=4))", (0, "scaling", "factor"), 8)
    'Rotary(scaling=Yarn(factor=8))'
    >>> set_argument("Rotary(scaling=Yarn(factor=4))", (0, "scaling"), "none")
    'Rotary()'
    """
    terms = list(parse_position(text).terms)
    index, *names = path
    assert isinstance(index, int)
    if logarithmic:
        value = float(f"{10.0**value:.3g}")
    terms[index] = _set_in_term(terms[index], [str(name) for name in names], value)
    return " + ".join(map(str, terms))


def combine(names: Sequence[str], text: str) -> str:
    """An expression of the named built-in mechanisms. Terms that the text already has keep their arguments.

    Classes from outside whence stay in the sum.

    >>> combine(["Rotary", "Sink"], "Rotary(base=500.0) + Alibi()")
    'Rotary(base=500.0) + Sink()'
    """
    terms: tuple[Term, ...] = ()
    with suppress(WhenceError):  # a text with an error is replaced
        terms = parse_position(text).terms
    present = {term.name: str(term) for term in terms}
    own = [text for name, text in present.items() if name not in catalogue.__all__]
    return " + ".join([present.get(name, f"{name}()") for name in names] + own) or "NoPosition()"


def term_names(text: str) -> list[str]:
    """The names of the terms of an expression, as written in it."""
    return [term.name for term in parse_position(text).terms]


def write_snippet(text: str, dims: ModelDims) -> str:
    """Python code that builds the mechanism and attends with it."""
    expression = parse_position(text).fill(dims)
    if all(term.name in catalogue.__all__ for term in expression.terms):
        names = sorted({name for term in expression.terms for name in _class_names(term)})
        build = [f"from whence.position import {', '.join(names)}", "", f"position = {expression.text}"]
    else:
        sizes = f"heads={dims.heads}, head_dim={dims.head_dim}, embed_dim={dims.embed_dim}, context={dims.context}"
        build = [
            "from whence.position.expression import ModelDims, build_position",
            "",
            f"position = build_position({parse_position(text).text!r}, ModelDims({sizes}))",
        ]
    return "\n".join(
        [
            "import torch",
            "",
            "from whence.attention import Attention",
            *build,
            f"layer = Attention({dims.embed_dim}, {dims.heads}, position, causal=True)",
            f"output = layer(torch.randn(1, 32, {dims.embed_dim}))",
        ]
    )


def _class_names(term: Term) -> set[str]:
    nested = [value for value in term.arguments.values() if isinstance(value, Term)]
    return {term.name}.union(*(_class_names(value) for value in nested))


def _set_in_term(term: Term, names: list[str], value: Any) -> Term:
    arguments = dict(term.arguments)
    name, *inside = names
    if inside:
        nested = arguments.get(name)
        if not isinstance(nested, Term):
            raise usage_error(term.name, f"{name}={nested!r}", f"{name} must be a call", f"choose a {name} first")
        arguments[name] = _set_in_term(nested, inside, value)
    elif _takes_scaling(term, name):
        for own in (name, "length", "context"):  # the length belongs to the scaling
            arguments.pop(own, None)
        scaling = {cls.__name__: cls for cls in catalogue.ARGUMENT_CLASSES}.get(value)
        if scaling is not None:
            required = {"partial_rotary_factor": 0.5} if value == "Proportional" else {"factor": 4.0}
            arguments[name] = Term(value, required, scaling)
            if scaling is catalogue.DynamicNtk:
                arguments["length"] = "context"
    else:
        arguments[name] = value
        default = inspect.signature(term.factory).parameters[name].default
        if (type(default) is type(value) and default == value) or (value == NONE and default is None):
            del arguments[name]
    return Term(term.name, arguments, term.factory)


def _takes_scaling(term: Term, name: str) -> bool:
    return name == "scaling" and term.name == "Rotary"


@dataclass(frozen=True)
class Trial:
    """Tries values for one argument of a term."""

    term: Term
    names: tuple[str, ...]
    dims: ModelDims

    def refusal(self, value: Any) -> str | None:
        """Why the constructor refuses a value; None if it accepts it."""
        try:
            position = PositionExpression("", (_set_in_term(self.term, list(self.names), value),)).build(self.dims)
            if "rotate" in position.effects:  # the head dimension bounds what can be rotated
                x = torch.zeros(1, self.dims.heads, 1, self.dims.head_dim)
                positions = torch.zeros(1, 1, dtype=torch.long)
                position.rotate(x, x, positions, positions)
        except WhenceError as error:
            return str(error)
        return None

    def accepts(self, value: Any) -> bool:
        return self.refusal(value) is None

    def find_words(self) -> list[str]:
        """The strings that are accepted, in the order in which an error lists them."""
        listed = (self.refusal("no such word") or "").partition(" must be ")[2]
        return [word for word in re.findall(r"'([^']*)'", listed) if self.accepts(word)]


def _find_term_controls(path: tuple[int | str, ...], term: Term, dims: ModelDims, outer: Term) -> list[Control]:
    if is_score_mod(term.factory) or term.name == "NoPosition":
        return []
    controls = []
    for name, parameter in inspect.signature(term.factory).parameters.items():
        if name in MODEL_SIZES or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        names = (*(str(part) for part in path[1:]), name)
        value = term.arguments.get(name, parameter.default)
        if _takes_scaling(term, name):
            kinds = tuple(cls.__name__ for cls in catalogue.ARGUMENT_CLASSES if cls.__name__ != "LongRope")
            chosen = value.name if isinstance(value, Term) else NONE
            controls.append(
                Control((*path, name), "choice", chosen, choices=tuple(dict.fromkeys((NONE, *kinds, chosen))))
            )
            if isinstance(value, Term):
                controls += _find_term_controls((*path, name), value, dims, outer)
            continue
        if value is inspect.Parameter.empty:
            value = dims.context if name == "original" else None
        control = _make_control((*path, name), value, parameter, Trial(outer, names, dims))
        if control is not None:
            controls.append(control)
    return controls


def _make_control(
    path: tuple[int | str, ...], value: Any, parameter: inspect.Parameter, trial: Trial
) -> Control | None:
    accepts, annotation = trial.accepts, str(parameter.annotation)
    if isinstance(value, bool):
        return Control(path, "flag", value)
    if isinstance(value, str) or (value is None and "str" in annotation):
        choices = trial.find_words()
        if value is None:
            choices.insert(0, NONE)
        return Control(path, "choice", value or NONE, choices=tuple(choices)) if len(choices) > 1 else None
    automatic = value is None
    if automatic:
        numbers: list[Any] = [round(one) for one in NOMINAL if one >= 1] if _is_integer(annotation) else list(NOMINAL)
        value = next((one for one in numbers if accepts(one)), None)
    if isinstance(value, int) and _is_integer(annotation):
        return _integer_control(path, value, _typical(parameter, value), automatic, accepts)
    if isinstance(value, int | float):
        return _number_control(path, float(value), _typical(parameter, value), automatic, accepts)
    return None  # one number per head, or a tuple: typed in the expression


def _is_integer(annotation: str) -> bool:
    return "int" in annotation and "float" not in annotation and "Number" not in annotation


def _typical(parameter: inspect.Parameter, value: float) -> float:
    """The number that sets the extent of a slider: the default where it is a number, so that the extent stays the same."""
    default = parameter.default
    return abs(default if isinstance(default, int | float) and not isinstance(default, bool) else value)


def _integer_control(
    path: tuple[int | str, ...], value: int, typical: float, automatic: bool, accepts: Callable[[Any], bool]
) -> Control | None:
    step = next((step for step in (1, 2, 4, 8) if accepts(value + step) or accepts(value - step)), 1)
    low = _last_accepted(value, min(step, value), accepts, step)
    reach = max(min(4 * max(int(typical), 8), LARGEST_SLIDER_INTEGER), value)
    high = _last_accepted(value, reach, accepts, step)
    return None if low == high else Control(path, "integer", value, low, high, step, automatic=automatic)


def _number_control(
    path: tuple[int | str, ...], value: float, typical: float, automatic: bool, accepts: Callable[[Any], bool]
) -> Control:
    if path[-1] in LOGARITHMIC and value > 0:
        low, high = (math.log10(_last_accepted_number(value, bound, accepts)) for bound in (10.0, 1e7))
        power, low, high = round(math.log10(value), 2), math.ceil(low * 100) / 100, math.floor(high * 100) / 100
        return Control(
            path, "number", power, min(low, power), max(high, power), 0.01, logarithmic=True, automatic=automatic
        )
    reach = 4 * max(typical, 0.25) if typical else 4.0
    step = float(f"{reach / 200:.1g}")
    below, above = (_last_accepted_number(value, bound, accepts) for bound in (-reach, reach))
    # whole steps inside the accepted range, which bisection finds only nearly
    low, high = math.floor(below / step) * step, math.ceil(above / step) * step
    low = next(one for one in (round(low + n * step, 10) for n in range(3)) if accepts(one) or one >= value)
    high = next(one for one in (round(high - n * step, 10) for n in range(3)) if accepts(one) or one <= value)
    return Control(path, "number", value, min(low, value), max(high, value), step, automatic=automatic)


def _last_accepted(value: int, bound: int, accepts: Callable[[Any], bool], step: int) -> int:
    """The value nearest to a bound, in whole steps, that is accepted. The accepted values are assumed to be an interval."""
    steps = (bound - value) // step if bound > value else -((value - bound) // step)
    if accepts(value + steps * step):
        return value + steps * step
    good, bad = 0, steps
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if accepts(value + middle * step) else (good, middle)
    return value + good * step


def _last_accepted_number(value: float, bound: float, accepts: Callable[[Any], bool]) -> float:
    if accepts(bound):
        return bound
    good, bad = value, bound
    for _ in range(BISECTIONS):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if accepts(middle) else (good, middle)
    return good
