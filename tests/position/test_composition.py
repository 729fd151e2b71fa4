"""What ``a + b`` is: flat, in order, with one head count and one head width."""

import pytest
import torch

from whence.errors import WhenceError
from whence.position.alibi import Alibi
from whence.position.base import Position
from whence.position.cope import Cope
from whence.position.epar import Epar
from whence.position.hook_types import Rows
from whence.position.no_position import NoPosition
from whence.position.power_prior import PowerPrior
from whence.position.rotary import Rotary
from whence.position.sink import Sink
from whence.position.stable_mask import StableMask
from whence.position.sum import Sum, join_sinks


class Affine(Position):
    """Multiplies and adds wherever order can be seen."""

    def __init__(self, times, plus, head_dim=None):
        super().__init__()
        self.times, self.plus, self.head_dim = times, plus, head_dim

    def embed(self, x, positions):
        return x * self.times + self.plus

    def rotate(self, q, k, q_positions, k_positions):
        return q * self.times + self.plus, k * self.times - self.plus

    def content_bias(self, rows):
        return rows.scores * self.times

    def value_bias(self, weights, rows):
        return weights @ rows.k * self.plus


def rows():
    q, k = torch.randn(2, 1, 2, 3, 4)
    at = torch.arange(3)[None]
    return Rows(q, k, q @ k.mT, at, at, torch.ones(1, 1, 3, 3, dtype=torch.bool), 1.0)


def test_sums_flatten_in_the_order_written():
    a, b, c = Alibi(2), Epar(2), Sink(2)
    for total in ((a + b) + c, Sum(a, b, c), Sum(Sum(a), Sum(b, c))):
        assert total.parts == (a, b, c) and isinstance(total, Sum)
    assert (a + (b + c)).parts == (a, b, c)


def test_embeddings_and_rotations_chain():
    total, x, at = Affine(2.0, 1.0) + Affine(3.0, 5.0), torch.tensor([[[1.0]]]), torch.zeros(1, 1)
    assert total.embed(x, at).item() == (1 * 2 + 1) * 3 + 5
    q, k = total.rotate(x, x, at, at)
    assert (q.item(), k.item()) == ((1 * 2 + 1) * 3 + 5, (1 * 2 - 1) * 3 - 5)


def test_content_and_value_terms_add():
    total, given = Affine(2.0, 1.0) + Affine(3.0, 5.0) + Alibi(2), rows()
    torch.testing.assert_close(total.content_bias(given), given.scores * 5)
    weights = given.scores.softmax(-1)
    torch.testing.assert_close(total.value_bias(weights, given), weights @ given.k * 6)
    assert (Alibi(2) + Epar(2)).content_bias(given) is None and (Alibi(2) + Epar(2)).value_bias(weights, given) is None


def test_effects_and_flags_are_those_of_the_parts():
    total = Alibi(2) + Epar(2, length="query")
    assert total.effects == {"bias", "score_scale"}
    assert total.causal_only and not total.relative
    symmetric = Alibi(2, form="symmetric") + Epar(2)
    assert not symmetric.causal_only and symmetric.relative
    assert not (symmetric + StableMask(2, context=8)).relative
    assert Affine(1.0, 1.0).relative and (Affine(1.0, 1.0) + Alibi(2)).relative
    assert not (Affine(1.0, 1.0) + Rotary()).relative  # its content term sees rotated queries
    assert (Affine(1.0, 0.0) + Alibi(2)).at_input()[0].times == 1.0 and not total.at_input()
    assert (Alibi(2) + PowerPrior(2)).trainable and not total.trainable
    assert (NoPosition() + NoPosition()).effects == frozenset()


def test_parts_keep_their_own_length():
    total = Epar(2, context=16) + Epar(2, length="query")
    assert [(p.length, p.context) for p in total.parts] == [("context", 16), ("query", 4096)] and total.length is None


def test_heads_come_from_the_part_that_names_them():
    assert (Epar() + Alibi(4)).heads == 4 and (Epar() + PowerPrior()).heads is None


def test_state_dict_round_trip():
    one, two = (PowerPrior(2, alpha=a) + Sink(2, value=a) for a in (0.5, 2.0))
    two.load_state_dict(one.state_dict())
    assert [p.tolist() for p in two.parameters()] == [p.tolist() for p in one.parameters()]
    assert sorted(one.state_dict()) == ["members.0.alpha", "members.0.beta.raw", "members.1.value"]


def test_repr_is_the_sum_as_written():
    assert repr(PowerPrior() + Sink(1)) == "PowerPrior(alpha=1, beta=1, learnable) + Sink(heads=1, value=0, learnable)"


def test_refuses_what_is_no_position():
    with pytest.raises(
        WhenceError,
        match=r"Alibi \+ \.\.\. got int, but .*; subclass whence.Position\.",
    ):
        Alibi(2) + 1


def test_refuses_two_head_counts():
    text = r"Alibi \+ Epar got Alibi for 2 heads and Epar for 4 heads, but .*; build them with the same heads\."
    with pytest.raises(WhenceError, match=text):
        Alibi(2) + Epar(4)


def test_refuses_the_same_object_twice():
    alibi = Alibi(2)
    text = r"Alibi \+ Alibi got the same object twice, but .*; build a second instance with parameters of its own\."
    with pytest.raises(WhenceError, match=text):
        alibi + alibi
    with pytest.raises(WhenceError, match="the same object twice"):
        (alibi + Epar()) + alibi
    assert len((Alibi(2) + Alibi(2)).parts) == 2


def test_two_sinks_take_their_shares_together():
    position = torch.arange(8.0)
    sink, stable = Sink(2, value=[0.5, -1.0]), StableMask(2, context=8)
    joined = (sink + Alibi(2) + stable).sink(position, None)
    torch.testing.assert_close(joined.exp(), sink.sink(position, None).exp() + stable.sink(position, 8).exp())


def test_joined_sinks_have_gradients_also_where_a_sink_is_absent():
    first, second = StableMask(2, context=8, learnable=True), StableMask(2, context=8, learnable=True, gamma=2.0)
    joined = (first + second).sink(torch.arange(8.0), 8)
    assert bool(joined[:, -1].isneginf().all())  # both sums are empty in the last row
    joined[:, :-1].sum().backward()
    for part in (first, second):
        (gradient,) = (one.grad for one in part.parameters())
        assert bool(gradient.isfinite().all()) and bool((gradient != 0).all())


def test_the_joined_logit_depends_on_the_temperature():
    one, other = torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0])
    joined = join_sinks(one, other, 0.7)
    torch.testing.assert_close((joined / 0.7).exp(), (one / 0.7).exp() + (other / 0.7).exp())


def test_refuses_two_head_dims():
    text = r"Cope \+ Affine got Cope with head_dim=8 and Affine with head_dim=4, but .*; build them with one head_dim\."
    with pytest.raises(WhenceError, match=text):
        Cope(8) + Affine(1.0, 0.0, head_dim=4)
    assert (Cope(8) + Affine(1.0, 0.0, head_dim=8)).effects >= {"content_bias"}


def test_the_hooks_of_a_sum_answer_for_all_parts():
    """A sum can be asked like any mechanism; a fixed context stays its part's own."""
    d = torch.tensor([0.0, 3.0])
    both = Epar(context=10) + Epar(form="basic", length="query") + Alibi(2) + Alibi(2, form="symmetric")
    one, two = Epar(context=10), Epar(form="basic", length="query")
    torch.testing.assert_close(both.score_scale(d, 4), one.score_scale(d, 10) * two.score_scale(d, 4))
    torch.testing.assert_close(both.bias(d, 4), 2 * Alibi(2).bias(d, None))
    assert both.sink(d, 4) is None
