"""What a class may override, and which forms of a hook belong to it."""

import pytest
import torch

from whence import Alibi, Position, Shaw, WhenceError
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


@pytest.mark.parametrize("first", [True, False])
def test_of_two_bases_the_first_decides(first):
    class Double:
        def bias(self, distance, length):
            return super().bias(distance, length) * 2

    bases = (Double, Alibi) if first else (Alibi, Double)
    mixed = type("Mixed", bases, {})(2)
    assert (mixed.bias_slope() is None) == first
