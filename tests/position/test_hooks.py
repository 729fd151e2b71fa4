"""What a class may override, and which forms of a hook belong to it."""

import pytest
import torch

from whence import Alibi, Cope, Position, Shaw, SwinBias, WhenceError, attend
from whence.position.hooks import HOOKS, OPTIONAL_CONTENT_HOOKS, OPTIONAL_HOOKS, TABLE_HOOKS


def test_effects_are_the_hooks_that_a_class_overrides():
    class Bell(Position):
        def bias(self, distance, length):
            return torch.exp(-(distance**2))

    class Gated(Bell):
        def gated_bias_table(self, q, unrotated_q, scale):
            return None

    assert Position().effects == frozenset()
    assert Bell().effects == {"bias"}
    assert Gated().effects == {"bias", "content_bias"}
    assert Shaw(4).effects == {"content_bias", "value_bias"}


@pytest.mark.parametrize("hook", [*HOOKS, *OPTIONAL_HOOKS, *TABLE_HOOKS])
def test_a_hook_with_other_parameters_is_refused(hook):
    with pytest.raises(WhenceError, match=rf"Wrong\.{hook}.*write def {hook}\(self"):
        type("Wrong", (Position,), {hook: lambda self, one, too, many, of, them: None})


def test_one_term_has_one_form_in_a_class():
    with pytest.raises(WhenceError, match=r"Two\.content_bias got a class that also has content_bias_table.*their sum"):

        class Two(Position):
            def content_bias_table(self, q, unrotated_q, scale):
                return None

            def content_bias(self, rows):
                return rows.scores


@pytest.mark.parametrize(("name", "meant"), [("biass", "bias"), ("score_scales", "score_scale"), ("rotat", "rotate")])
def test_a_misspelled_hook_is_refused(name, meant):
    wrong = type("Wrong", (Position,), {name: lambda self, distance, length: None})
    for cls in (wrong, type("Wrong", (wrong,), {})):
        with pytest.raises(WhenceError, match=rf"Wrong\.{name} .*rename it {meant}\b"):
            cls()
    helper = {name: lambda self, distance, length: None, "bias": lambda self, distance, length: distance}
    assert type("Right", (Position,), helper)().effects == {"bias"}
    assert type("Right", (wrong,), {"bias": helper["bias"]})().effects == {"bias"}  # the helper of a base class
    assert type("Private", (Position,), {f"_{name}": helper["bias"]})().effects == frozenset()


@pytest.mark.parametrize("hook", OPTIONAL_CONTENT_HOOKS)
def test_a_form_for_kernels_needs_the_hook_itself(hook):
    with pytest.raises(WhenceError, match=f"{hook} is another form of content_bias.*write content_bias too"):
        type("Alone", (Position,), {hook: getattr(Position, hook)})


def test_derivatives_do_not_outlive_the_function_that_they_belong_to():
    class Steeper(Alibi):
        def bias(self, distance, length):
            return 2 * super().bias(distance, length)

    class Complete(Alibi):
        def bias(self, distance, length):
            return 2 * super().bias(distance, length)

        def bias_slope(self):
            return 2 * super().bias_slope()

    assert Alibi(2).bias_slope() is not None
    assert (
        Steeper(2).bias_slope() is None and Steeper(2, learnable=True).parameter_gradients(torch.ones(3), None) is None
    )
    torch.testing.assert_close(Complete(2).bias_slope(), 2 * Alibi(2).bias_slope())
    assert Complete(2, learnable=True).parameter_gradients(torch.ones(3), None) is None


def test_a_subclass_that_overrides_nothing_keeps_all_forms():
    class Named(Alibi):
        pass

    torch.testing.assert_close(Named(2).bias_slope(), Alibi(2).bias_slope())


def test_the_table_of_a_base_is_not_that_of_a_new_content_bias():
    class Scores(Shaw):
        def content_bias(self, rows):
            return rows.scores

    assert Scores.content_bias_table is Position.content_bias_table
    assert Scores.value_bias_table is Shaw.value_bias_table


def attend_to_random(position, backend):
    q, k, v = torch.randn(3, 1, 2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return attend(q, k, v, position=position.double(), causal=True, backend=backend)


class Doubled:
    def content_bias(self, rows):
        return 2 * super().content_bias(rows)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("base", [Shaw, Cope, SwinBias])
def test_a_hook_extends_the_table_of_a_base(base, compiled, fresh_compiler):
    class Extended(Doubled, base):
        pass

    class Named(Extended):
        pass

    class Twice(Named):
        def content_bias(self, rows):
            return 2 * super().content_bias(rows)

    def make(cls):
        torch.manual_seed(1)
        position = cls(2, (2, 3)) if base is SwinBias else cls(4)
        for parameter in position.parameters():
            torch.nn.init.normal_(parameter)
        return position

    def by_hand(factor):
        plain = make(base)
        hooks = {"content_bias": lambda self, rows: factor * plain.content_bias(rows)}
        if "value_bias" in plain.effects:
            hooks["value_bias"] = lambda self, weights, rows: plain.value_bias(weights, rows)
        return type("ByHand", (Position,), hooks)()

    call = torch.compile(attend_to_random, backend="eager") if compiled else attend_to_random
    for cls, factor in ((Extended, 2), (Named, 2), (Twice, 4)):
        assert not kernel_tables(cls)
        result = call(make(cls), "reference" if compiled else "blockwise")
        torch.testing.assert_close(result, attend_to_random(by_hand(factor), "reference"), check_dtype=False)


def kernel_tables(cls):
    """The tables of content that kernels read."""
    names = [name for name, hook in TABLE_HOOKS.items() if hook == "content_bias"]
    return [name for name in names if getattr(cls, name) is not getattr(Position, name)]


def test_a_value_hook_extends_the_table_of_a_base():
    class Extended(Shaw):
        def value_bias(self, weights, rows):
            return 2 * super().value_bias(weights, rows)

    extended = Extended(4)
    double = Shaw(4)
    with torch.no_grad():
        double.load_state_dict(extended.state_dict())
        double.value_table.mul_(2)
    torch.testing.assert_close(attend_to_random(extended, "blockwise"), attend_to_random(double, "reference"))


def test_a_table_replaces_the_hook_that_extended_another():
    class Extended(Doubled, Shaw):
        pass

    class Gated(Extended):
        def gated_bias_table(self, q, unrotated_q, scale):
            return Cope.gated_bias_table(self.cope, q, unrotated_q, scale)

    gated = Gated(4)
    gated.cope = Cope(4)
    torch.nn.init.normal_(gated.cope.e)
    only = type("Gates", (Shaw,), {"gated_bias_table": Gated.gated_bias_table})(4)
    only.cope = gated.cope
    only.load_state_dict(gated.state_dict())
    assert kernel_tables(Gated) == ["gated_bias_table"]
    torch.testing.assert_close(attend_to_random(gated, "blockwise"), attend_to_random(only, "reference"))


def test_a_class_that_is_made_again_is_the_same_class():
    class Extended(Doubled, Shaw):
        pass

    class Plain(Shaw):
        def content_bias(self, rows):
            return rows.scores

    for cls in (Extended, Plain):
        again = type(cls.__name__, cls.__bases__, {**cls.__dict__})
        torch.manual_seed(2)
        first = attend_to_random(cls(4), "reference")
        torch.manual_seed(2)
        torch.testing.assert_close(attend_to_random(again(4), "reference"), first)


@pytest.mark.parametrize("first", [True, False])
def test_of_two_bases_the_first_decides(first):
    class Double:
        def bias(self, distance, length):
            return super().bias(distance, length) * 2

    bases = (Double, Alibi) if first else (Alibi, Double)
    mixed = type("Mixed", bases, {})(2)
    assert (mixed.bias_slope() is None) == first


@pytest.mark.parametrize("name", ["heads", "length", "context", "relative", "parts", "decays", "effects"])
def test_a_module_cannot_take_the_name_of_an_attribute(name):
    with pytest.raises(WhenceError, match=rf"{name} is an attribute of every Position; .*own_{name}"):
        setattr(Position(), name, torch.nn.Linear(1, 1))


def test_a_length_that_is_missing_is_named():
    class Relative(Position):
        def bias(self, distance, length):
            return distance / length

    q = torch.zeros(1, 1, 3, 2)
    with pytest.raises(
        WhenceError, match=r"Relative\.bias got TypeError.*length is None.*super\(\)\.__init__\(length="
    ):
        attend(q, q, q, position=Relative())
