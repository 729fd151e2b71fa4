"""A position mechanism as text, so that it can be typed in a shell, stored in a record and hashed.

    alibi                                        a short name
    Rotary(scaling=Yarn(factor=4))               a class of whence.position, with keyword arguments
    my_module:Bell                               a class of your own, from a module
    ./bell.py:Bell(heads=4)                      from a file
    bell                                         a name that a package registers in the entry-point group whence.positions
    ./bell.py                                    the only mechanism of a file
    ./mods.py:relative                           a FlexAttention score_mod, or a function that returns a Position
    rotary + ./bell.py:Bell                      a sum of any of these

Arguments are literals, or calls of the classes in ``catalogue.ARGUMENT_CLASSES``. They are parsed and never evaluated.
Code runs only when a module or a file is named.

The sizes of the model (``ModelDims``) determine some arguments. They are filled in where the constructor has a
parameter of that name, the text does not set it, and its default is not None. A class names further parameters to fill
in ``Position.model_arguments``, and other arguments for attention without a causal mask in
``Position.noncausal_arguments``.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whence import plugins
from whence.errors import WhenceError, usage_error
from whence.plugin_sources import hash_source_file
from whence.position import catalogue
from whence.position.base import Position, is_built_in
from whence.position.hooks import HOOKS
from whence.position.score_mod import from_score_mod
from whence.position.sum import Sum
from whence.validation import format_value

#: tables of positions reach this many times the training context, for tests of length extrapolation
EXTRAPOLATION_FACTOR = 8
_NAMED = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)\s*(?P<arguments>\(.*\))?", re.DOTALL)
_FORMS = "a position is a short name, a class of whence.position, my_module:Name or ./file.py:Name, or a sum of these"


@dataclass(frozen=True)
class ModelDims:
    """The sizes of a model that a mechanism may have to match.

    Args:
        heads: number of query heads.
        head_dim: dimension of a query head.
        embed_dim: dimension of the layer input.
        context: length of the training inputs.
        causal: whether the attention is causal.
        max_length: the number of positions that occur; ``None`` for 8 times the context plus 1.
        layer: index of the layer, for a mechanism whose layers differ.
    """

    heads: int
    head_dim: int
    embed_dim: int
    context: int
    causal: bool = True
    max_length: int | None = None
    layer: int = 0

    @property
    def arguments(self) -> dict[str, Any]:
        """The values by the names of constructor parameters."""
        max_length = EXTRAPOLATION_FACTOR * self.context + 1 if self.max_length is None else self.max_length
        return {
            "heads": self.heads, "head_dim": self.head_dim, "embed_dim": self.embed_dim, "context": self.context,
            "causal": self.causal, "max_length": max_length, "layer": self.layer,
        }  # fmt: skip


@dataclass(frozen=True)
class Term:
    """One constructor call of an expression: its name as written, its arguments, and the class or function."""

    name: str
    arguments: Mapping[str, Any]  # literals, and a Term for each nested call
    factory: Callable[..., Any] = field(repr=False, compare=False)

    def __str__(self) -> str:
        arguments = (
            f"{name}={value if isinstance(value, Term) else repr(value)}" for name, value in self.arguments.items()
        )
        return f"{self.name}({', '.join(arguments)})"


@dataclass(frozen=True)
class PositionExpression:
    """A parsed expression. ``text`` has no short names, so its meaning does not change when a short name does."""

    text: str
    terms: tuple[Term, ...]

    def build(self, dims: ModelDims) -> Position:
        """A new instance for a model."""
        parts = [_build_term(term, dims, _subject(self.text)) for term in self.terms]
        return parts[0] if len(parts) == 1 else Sum(*parts)

    def fill(self, dims: ModelDims) -> PositionExpression:
        """The same expression with the sizes of a model written out, as ``build`` passes them to the constructors.

        >>> parse_position("rotary + alibi").fill(ModelDims(heads=2, head_dim=16, embed_dim=32, context=64)).text
        'Rotary() + Alibi(heads=2)'
        """
        terms = tuple(
            term if is_score_mod(term.factory) else Term(term.name, _fill_arguments(term, dims), term.factory)
            for term in self.terms
        )
        return PositionExpression(" + ".join(map(str, terms)), terms)

    @property
    def normal_form(self) -> str:
        """The same text for all spellings of an expression: with parentheses, and with arguments in order of name.

        >>> parse_position("Rotary").normal_form == parse_position("Rotary( )").normal_form
        True
        """
        return " + ".join(map(_normalize_term, self.terms))

    def hash_sources(self) -> dict[str, str | None]:
        """SHA-256 of the source file of each class or function from outside whence, by its name in the expression."""
        return {
            term.name: hash_source_file(term.factory)
            for term in self.terms
            if term.factory.__module__.partition(".")[0] != "whence"
        }


def parse_position(text: str) -> PositionExpression:
    """Parse a text and find its classes; nothing is built yet.

    >>> parse_position("rotary + Alibi(scale=2)").text
    'Rotary() + Alibi(scale=2)'
    """
    if not isinstance(text, str):
        raise usage_error("position", format_value(text), _FORMS, "pass a string")
    written = [piece.strip() for piece in split_outside(text)]
    pieces = [
        plugins.complete_reference(piece, _subject(text), Position, "subclass of whence.Position") for piece in written
    ]
    terms = tuple(_parse_term(piece, text) for piece in pieces)
    is_short = any(piece.partition("(")[0].strip() in catalogue.SHORT_NAMES for piece in pieces) or pieces != written
    return PositionExpression(" + ".join(map(str, terms)) if is_short else text.strip(), terms)


def rebase_position(text: str, folder: Path) -> str:
    """An expression with the relative paths in it resolved against a folder.

    >>> rebase_position("rotary + ./bell.py:Bell", Path("/studies"))
    'rotary + /studies/bell.py:Bell'
    """
    return " + ".join(plugins.rebase_file(piece.strip(), folder) for piece in split_outside(text))


def build_position(text: str, dims: ModelDims) -> Position:
    """Parse a text and build the mechanism for a model.

    >>> build_position("Rotary() + Alibi(scale=1.1)", ModelDims(heads=2, head_dim=16, embed_dim=32, context=64))
    Rotary(base=10000, layout='half') + Alibi(heads=2, form='causal', scale=1.1, slope=[0.0625, 0.00390625])
    """
    return parse_position(text).build(dims)


def hash_position_sources(text: str) -> dict[str, str | None]:
    """SHA-256 of the source file of each class from outside whence that a text names; for records.

    >>> hash_position_sources("rotary + alibi")
    {}
    """
    return parse_position(text).hash_sources()


def _normalize_term(term: Term) -> str:
    arguments = (
        f"{name}={_normalize_term(value) if isinstance(value, Term) else repr(value)}"
        for name, value in sorted(term.arguments.items())
    )
    return f"{term.name}({', '.join(arguments)})"


def _subject(text: str) -> str:
    return f"position {format_value(text)}"


def split_outside(text: str, separator: str = "+") -> list[str]:
    """Split at each separator that is outside parentheses, quotes and paths.

    >>> split_outside("a + B(c='+', d=(1 + 2)) + ./e+f.py:F")
    ['a ', " B(c='+', d=(1 + 2)) ", ' ./e+f.py:F']
    """
    pieces, start, depth, quote, escaped, path_end = [], 0, 0, "", False, 0
    for index, character in enumerate(text):
        if index == start and (file := plugins.split_file(text[start:])):
            path_end = len(text) - len(file[1])
        if index < path_end:  # a path may contain + and parentheses
            continue
        if quote:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == separator and depth == 0:
            pieces.append(text[start:index])
            start = index + 1
    return [*pieces, text[start:]]


def _parse_term(piece: str, text: str) -> Term:
    subject = _subject(text)

    def parse_call(call: ast.Call) -> Term:
        return _parse_nested(call, subject)

    if plugins.is_reference(piece):
        module, name, arguments = plugins.split_reference(piece, "position")
        factory = plugins.load_reference(plugins.PluginReference(module, name), subject)
        name = f"{module}:{name}"
    else:
        match = _NAMED.fullmatch(piece)
        if match is None:
            raise usage_error(
                subject, f"the term {format_value(piece)}", _FORMS, "write for example: Rotary() + Epar(learnable=True)"
            )
        name, arguments = match["name"], match["arguments"]
        if name in catalogue.SHORT_NAMES:
            term = _parse_term(catalogue.SHORT_NAMES[name], text)
            keywords = plugins.parse_arguments(arguments, subject, parse_call)
            _require_parameters(term.factory, term.name, keywords, subject)
            return Term(term.name, {**term.arguments, **keywords}, term.factory)
        factory = _find_factory(name, subject)
    _require_mechanism(factory, name, subject)
    keywords = plugins.parse_arguments(arguments, subject, parse_call)
    _require_parameters(factory, name, keywords, subject)
    return Term(name, keywords, factory)


def _parse_nested(call: ast.Call, subject: str) -> Term:
    """A call as the value of an argument."""
    known = {cls.__name__: cls for cls in catalogue.ARGUMENT_CLASSES}
    name = ast.unparse(call.func)
    if name not in known:
        raise usage_error(
            subject,
            f"{format_value(ast.unparse(call))} as the value of an argument",
            f"the classes that can be values are {', '.join(known)}",
            plugins.did_you_mean(name, known, "use one of them, or a literal"),
        )
    arguments = plugins.parse_keywords(call, subject, lambda inside: _parse_nested(inside, subject))
    _require_parameters(known[name], name, arguments, subject)
    return Term(name, arguments, known[name])


def _find_factory(name: str, subject: str) -> Any:
    if name in catalogue.__all__:
        return getattr(catalogue, name)
    found = plugins.load_registered(plugins.POSITIONS, name, subject)
    if found is not None:
        return found
    known = [*catalogue.SHORT_NAMES, *plugins.entry_points(plugins.POSITIONS), *catalogue.__all__]
    scalings = [cls.__name__ for cls in catalogue.ARGUMENT_CLASSES]
    if name in scalings:
        rule = f"{', '.join(scalings)} are scalings of Rotary"
        raise usage_error(subject, f"the scaling {name}", rule, f"write Rotary(scaling={name}(...))")
    remedy = "use one of them, or your own as my_module:Name or ./file.py:Name"
    raise usage_error(
        subject,
        f"the unknown mechanism {name}",
        f"the known ones are {', '.join(known)}",
        plugins.did_you_mean(name, known, remedy),
    )


def _require_mechanism(factory: Any, name: str, subject: str) -> None:
    if (inspect.isclass(factory) and issubclass(factory, Position)) or inspect.isfunction(factory):
        return
    got = f"the class {factory.__name__}" if inspect.isclass(factory) else format_value(factory)
    raise usage_error(
        subject,
        f"{name}, which is {got}",
        "a mechanism is a subclass of whence.Position, a function that returns one, or a score_mod",
        "name the class, or write a function that builds one",
    )


def is_score_mod(factory: Any) -> bool:
    """Whether a function is a FlexAttention score_mod: it takes score and four indices, all required."""
    if not inspect.isfunction(factory):
        return False
    parameters = list(inspect.signature(factory).parameters.values())
    required = [one for one in parameters if one.default is inspect.Parameter.empty]
    return len(required) == 5 and required[0].name == "score"


def _require_parameters(factory: Any, name: str, arguments: Mapping[str, Any], subject: str) -> None:
    parameters = {} if is_score_mod(factory) else inspect.signature(factory).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for argument in arguments:
        if argument not in parameters:
            raise usage_error(
                subject,
                f"{name}({argument}=...)",
                f"the arguments of {name} are {', '.join(parameters)}" if parameters else f"{name} has no arguments",
                plugins.did_you_mean(argument, parameters, f"remove or rename {argument}"),
            )


def _require_effect(subject: str, position: object) -> None:
    """Refuse a mechanism of the user that changes nothing, which a comparison would find equivalent to no position."""
    if isinstance(position, Position) and not position.effects and not is_built_in(position):
        name = type(position).__name__
        rule = "it overrides no hook, so it changes nothing"
        raise usage_error(subject, f"the class {name}", rule, f"write one of {', '.join(HOOKS)}, or use NoPosition()")


def _build_term(term: Term, dims: ModelDims, subject: str) -> Position:
    if is_score_mod(term.factory):
        return from_score_mod(term.factory)
    position = _construct(term, _fill_arguments(term, dims), subject)
    if not isinstance(position, Position):
        raise usage_error(
            subject,
            f"{format_value(position)} from {term.name}",
            "a mechanism is a whence.Position",
            f"let {term.name} return a Position",
        )
    return position


def _fill_arguments(term: Term, dims: ModelDims) -> dict[str, Any]:
    """The arguments of a term with the sizes of the model."""
    noncausal = {} if dims.causal else getattr(term.factory, "noncausal_arguments", {})
    return _fill_sizes(term, {**noncausal, **term.arguments}, dims.arguments)


def _fill_sizes(term: Term, arguments: dict[str, Any], model_arguments: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in arguments.items():
        if isinstance(value, Term):  # a rotary scaling stretches the length that the model was trained on
            inside = {**model_arguments, "original": model_arguments["context"]}
            arguments[name] = Term(value.name, _fill_sizes(value, dict(value.arguments), inside), value.factory)
    parameters = inspect.signature(term.factory).parameters
    also = getattr(term.factory, "model_arguments", ())
    for name, value in model_arguments.items():
        if name in parameters and name not in arguments:
            wanted = parameters[name].default is not None or name in also
            if wanted or (name == "context" and arguments.get("length") == "context"):
                arguments[name] = value
    return arguments


def _construct(term: Term, arguments: Mapping[str, Any], subject: str) -> Any:
    arguments = {
        name: _construct(value, value.arguments, subject) if isinstance(value, Term) else value
        for name, value in arguments.items()
    }
    parameters = inspect.signature(term.factory).parameters
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        and name not in arguments
    ]
    if missing:
        raise usage_error(
            subject,
            f"{term.name} without {' and '.join(missing)}",
            "only sizes of the model are filled in",
            f"write {term.name}({', '.join(f'{name}=...' for name in missing)})",
        )
    try:
        position = term.factory(**arguments)
        _require_effect(subject, position)
        return position
    except WhenceError:
        raise
    except Exception as error:  # the constructor of a user's class may raise anything
        raise usage_error(
            subject,
            f"{type(error).__name__} ({error}) from {Term(term.name, arguments, term.factory)}",
            "the constructor must accept its arguments",
            "correct the arguments, or the class",
        ) from error
