"""The sliders of a mechanism: every parameter has one, and all of its values are accepted by the constructor."""

import inspect

import pytest

from whence.errors import WhenceError
from whence.explore.controls import MODEL_SIZES, combine, find_controls, set_argument, write_snippet
from whence.position.catalogue import SHORT_NAMES
from whence.position.expression import ModelDims, build_position, parse_position

DIMS = ModelDims(heads=2, head_dim=8, embed_dim=16, context=32, max_length=64)
TEXTS = [
    *SHORT_NAMES.values(), "Kerple(form='power')", "Rotary(scaling=Yarn(factor=4.0))", "Rotary(scaling=Llama3(factor=4.0))",
    "Rotary(scaling=Proportional(partial_rotary_factor=0.5))", "Rotary(scaling=DynamicNtk(factor=4.0), length='context')",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_each_parameter_has_a_control_whose_ends_are_accepted(text):
    (controls,) = find_controls(text, DIMS)
    (term,) = parse_position(text).terms
    signature = inspect.signature(term.factory).parameters
    parameters = set(signature) - MODEL_SIZES
    if term.name == "NoPosition" or (term.name == "Rotary" and "DynamicNtk" not in text):  # their length has no use
        parameters -= {"length"}
    shown = {control.path[1] for control in controls}
    plain = {name for name in parameters if isinstance(signature[name].default, bool | str | int | float)}
    assert plain <= shown <= parameters  # a pair of numbers, such as a grid, is typed
    for control in controls:
        values = {"flag": (True, False), "choice": control.choices}.get(control.kind, (control.low, control.high))
        for value in values:
            value = int(value) if control.kind == "integer" else value
            build_position(set_argument(text, control.path, value, logarithmic=control.logarithmic), DIMS)
        if control.kind in ("number", "integer"):
            assert control.low <= control.value <= control.high and control.low < control.high


@pytest.mark.parametrize(
    "text, name, low, high",
    [
        ("Alibi()", "scale", 0, 4), ("Epar()", "beta", 0, 4), ("Epar(learnable=True)", "beta", 0.02, 4), ("PowerPrior()", "alpha", -4, 4),
        ("Kerple(form='power', learnable=False)", "r2", 0.02, 2), ("Rotary()", "rotary_dim", 2, 8), ("Sandwich()", "dim", 2, 512),
        ("T5Bias()", "max_distance", 17, 512), ("Alibi(scale=9.0)", "scale", 0, 9),
    ],
)  # fmt: skip
def test_the_range_ends_where_the_constructor_refuses(text, name, low, high):
    control = next(one for one in find_controls(text, DIMS)[0] if one.name == name)
    assert (control.low, control.high) == (low, high)


def test_controls_of_a_nested_call_and_of_a_sum():
    first, second = find_controls("Rotary(scaling=Yarn(factor=4.0)) + alibi", DIMS)
    assert {"scaling", "scaling.factor", "scaling.truncate"} <= {control.name for control in first}
    changed = set_argument("Rotary(scaling=Yarn(factor=4.0)) + alibi", (0, "scaling", "factor"), 8.0)
    assert changed == "Rotary(scaling=Yarn(factor=8.0)) + Alibi()"
    assert set_argument(changed, (0, "scaling"), "Linear") == "Rotary(scaling=Linear(factor=4.0)) + Alibi()"
    assert set_argument(changed, second[1].path, 2.0) == "Rotary(scaling=Yarn(factor=8.0)) + Alibi(scale=2.0)"


def test_an_argument_equal_to_its_default_is_left_out():
    assert set_argument("Alibi(scale=2.0)", (0, "scale"), 1.0) == "Alibi()"
    assert set_argument("Rotary()", (0, "base"), 5.0, logarithmic=True) == "Rotary(base=100000.0)"


def test_an_expression_that_cannot_be_built_has_no_controls():
    with pytest.raises(WhenceError, match="scale"):
        find_controls("Alibi(scale=-1)", DIMS)


def test_picking_keeps_arguments_and_ones_own_class(tmp_path):
    (tmp_path / "bell.py").write_text("from whence import Position\nclass Bell(Position):\n    pass\n")
    own = f"{tmp_path}/bell.py:Bell"
    assert combine(["Sink", "Alibi"], f"Alibi(scale=2) + {own}") == f"Sink() + Alibi(scale=2) + {own}()"
    assert combine([], "Alibi(") == "NoPosition()" and combine(["Alibi"], "nonsense +") == "Alibi()"


@pytest.mark.parametrize("text", ["epar", "learned", "sink", "Rotary(scaling=Yarn(factor=4)) + alibi"])
def test_the_snippet_builds_the_same_mechanism(text):
    names: dict = {}
    exec(write_snippet(text, DIMS), names)
    assert [type(part) for part in names["position"].parts] == [type(part) for part in build_position(text, DIMS).parts]
    assert names["output"].shape == (1, 32, DIMS.embed_dim)
    assert repr(names["position"]) == repr(build_position(text, DIMS))


def test_the_snippet_of_ones_own_class_names_its_file(tmp_path):
    (tmp_path / "bell.py").write_text(
        "from whence import Position\nclass Bell(Position):\n    def bias(self, distance, length):\n        return -distance.abs()\n"
    )
    names: dict = {}
    exec(write_snippet(f"rotary + {tmp_path}/bell.py:Bell", DIMS), names)
    assert type(names["position"].parts[1]).__name__ == "Bell"
