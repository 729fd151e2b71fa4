"""A hook that returns NaN or an infinity is named where it reaches the output."""

import pytest
import torch

import whence
from whence.errors import NonFiniteHook

Q = torch.randn(2, 4, 6, 8)


class Reciprocal(whence.Position):
    def bias(self, distance, length):
        return 0 / distance


class Overflow(whence.Position):
    def score_scale(self, distance, length):
        return torch.exp(100 * (distance.abs() + 1))


class BadSink(whence.Position):
    def sink(self, position, length):
        return torch.log(-1 - position)


class BadContent(whence.Position):
    def content_bias(self, rows):
        return rows.scores * torch.nan


class BadValue(whence.Position):
    def value_bias(self, weights, rows):
        return torch.full((*weights.shape[:3], 8), torch.inf)


class BadRotation(whence.Position):
    def rotate(self, q, k, q_positions, k_positions):
        return q * torch.nan, k


@pytest.mark.parametrize("backend", ["auto", "reference", "blockwise"])
@pytest.mark.parametrize(
    "position, text",
    [
        (Reciprocal(), r"Reciprocal\.bias got nan for distance 0"),
        (Overflow(), r"Overflow\.score_scale got inf for distance"),
        (BadSink(), r"BadSink\.sink got nan for position 0"),
        (BadContent(), r"BadContent\.content_bias"),
        (BadValue(), r"BadValue\.value_bias"),
        (BadRotation(), r"BadRotation\.rotate"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, whence.Position) else "",
)
def test_the_hook_is_named(position, text, backend):
    with pytest.raises(NonFiniteHook, match=text + r".*whence\.check\(position\)"):
        whence.attend(Q, Q, Q, position=whence.Alibi(4) + position, causal=True, backend=backend)


class NoSink(whence.Position):
    def sink(self, position, length):
        return torch.full_like(position, -torch.inf)


def test_a_sink_of_minus_infinity_is_no_fault():
    with pytest.raises(NonFiniteHook, match=r"Reciprocal\.bias"):
        whence.attend(Q, Q, Q, position=NoSink() + Reciprocal(), causal=True)


def test_inputs_that_are_not_finite_are_no_fault_of_a_hook():
    bad = Q.clone()
    bad[0, 0, 0, 0] = torch.nan
    assert bool(whence.attend(bad, Q, Q, position=whence.Alibi(4), causal=True).isnan().any())
    assert bool(whence.attend(Q, Q, bad, position=Reciprocal(), causal=True).isnan().any())


def test_minus_infinity_of_a_score_mod_hides_keys():
    hide = whence.from_score_mod(lambda s, b, h, i, j: torch.where(j > i, -torch.inf, s))
    assert bool(whence.attend(Q, Q, Q, position=hide).isfinite().all())


def test_an_error_leaves_the_cache_unchanged():
    cache = whence.KVCache()
    whence.attend(Q, Q, Q, cache=cache, causal=True)
    with pytest.raises(NonFiniteHook):
        whence.attend(Q, Q, Q, position=Reciprocal(), cache=cache, causal=True)
    assert len(cache) == 6
