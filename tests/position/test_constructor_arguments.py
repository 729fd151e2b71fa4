"""Every argument of every mechanism's constructor refuses what it cannot be, by name."""

import inspect
import math

import pytest

import whence.position as mechanisms
from whence.errors import WhenceError
from whence.position import DynamicNtk, Llama3, Position, Sum, Yarn
from whence.position.catalogue import SHORT_NAMES
from whence.position.expression import parse_position

#: values for arguments without a default: the sizes of a model, and those of the short names
GIVEN = {
    name: value for text in SHORT_NAMES.values() for name, value in parse_position(text).terms[0].arguments.items()
} | {"heads": 2, "head_dim": 4, "embed_dim": 8, "max_length": 16, "context": 16}
#: by the kind of the default, what no argument of that kind can be
NEVER = {bool: ("yes", 1, None), float: (math.nan, math.inf, "x", True), int: (1.5, 0, True, "x"), str: ("nonsense", 3)}
KINDS = {
    name: kind
    for name, kind in vars(mechanisms).items()
    if isinstance(kind, type) and issubclass(kind, Position) and kind not in (Position, Sum) and name[0].isupper()
}


def impossible_arguments(kind):
    for argument, about in inspect.signature(kind).parameters.items():
        default = GIVEN[argument] if about.default is inspect.Parameter.empty else about.default
        for value in NEVER.get(type(default), ()):
            yield argument, value


def built(kind, **changes):
    wanted = inspect.signature(kind).parameters
    needed = {name: GIVEN[name] for name, about in wanted.items() if about.default is inspect.Parameter.empty}
    return kind(**needed | changes)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_is_built_from_what_it_needs(kind):
    try:
        assert isinstance(built(kind), Position)
    except WhenceError:
        assert isinstance(built(kind, context=16), Position)  # a length that is fixed must be given


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_it_cannot_be_is_refused_by_name(kind):
    more = {}
    try:
        built(kind)
    except WhenceError:
        more = {"context": 16}
    for argument, value in impossible_arguments(kind):
        with pytest.raises(WhenceError, match=argument):
            pytest.fail(f"{argument}={value!r} is accepted: {built(kind, **more | {argument: value})}")


@pytest.mark.parametrize("make", [DynamicNtk, Llama3, Yarn], ids=lambda kind: kind.__name__)
def test_scalings_refuse_what_no_length_or_factor_can_be(make):
    for factor in (math.nan, 0.5, "x"):
        with pytest.raises(WhenceError, match="factor"):
            make(factor, original=64)
    for original in (0, 1.5, True):
        with pytest.raises(WhenceError, match="original"):
            make(4.0, original=original)


def test_a_network_that_would_fill_the_memory_is_refused():
    with pytest.raises(WhenceError, match="Fire"):
        mechanisms.Fire(2**16, hidden_dim=2**24)
