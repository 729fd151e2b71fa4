"""The common checks hold for every mechanism of the list, and for a user's own, and fail when something is wrong."""

import pytest
import torch

import whence
from whence.checks import CHECKS, TOKENS
from whence.position import DynamicNtk, Linear, Llama3, LongRope, Yarn
from whence.position.catalogue import CATALOGUE

HALF = 4  # pairs of a head of width 8
VARIANTS = {
    "Rotary interleaved": lambda: whence.Rotary(layout="interleaved"),
    "Rotary partial": lambda: whence.Rotary(width=4),
    "Rotary linear": lambda: whence.Rotary(scaling=Linear(4.0)),
    "Rotary dynamic": lambda: whence.Rotary(scaling=DynamicNtk(4.0, original=4), context=16),
    "Rotary dynamic, sequence": lambda: whence.Rotary(scaling=DynamicNtk(4.0, original=4), length="sequence"),
    "Rotary llama3": lambda: whence.Rotary(scaling=Llama3(8.0, original=16)),
    "Rotary longrope": lambda: whence.Rotary(
        scaling=LongRope(short=[1.0] * HALF, long=[2.0] * HALF, original=8, factor=4.0), context=32
    ),
    "Rotary yarn": lambda: whence.Rotary(scaling=Yarn(4.0, original=8)),
    "Alibi symmetric, learnable": lambda: whence.Alibi(3, form="symmetric", learn=True, scale=1.1),
    "T5 bidirectional": lambda: whence.T5Bias(4, form="bidirectional", buckets=8, max_distance=16),
    "Shaw keys per head": lambda: whence.Shaw(8, acts_on="keys", heads=4, clip=3),
    "Shaw values": lambda: whence.Shaw(8, acts_on="values", clip=3),
    "Cope per head": lambda: whence.Cope(8, heads=4, positions=4),
    "Epar sequence": lambda: whence.Epar(length="sequence", learn=True),
    "Fire context": lambda: whence.Fire(4, length="context", context=64, threshold=4.0),
    "Recency per head": lambda: whence.Recency(6, heads=4),
    "StableMask learnable": lambda: whence.StableMask(4, context=12, learn=True),
    "Rotary + Epar + Sink": lambda: whence.Rotary() + whence.Epar(4, learn=True, context=16) + whence.Sink(4),
    "Learned + Alibi": lambda: whence.Learned(32, 64) + whence.Alibi(4),
}


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda e: e.name)
def test_every_mechanism_of_the_list(entry):
    report = whence.check(entry.make(4, 8))
    assert len(report.passed) + len(report.skipped) == len(CHECKS)
    assert len(report.skipped) <= 2  # shift invariance and the other side, where they are not claimed


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant(name):
    report = whence.check(VARIANTS[name]())
    assert not report.failed


class Bell(whence.Position):
    """A user's own, which does not even say its number of heads."""

    def __init__(self, heads):
        super().__init__()
        self.width = torch.nn.Parameter(torch.full((heads, 1), 64.0))

    def bias(self, distance, length):
        return -((distance / self.width) ** 2)


def test_a_users_own():
    report = whence.check(Bell(8))
    assert len(report.passed) == len(CHECKS)
    assert "holds    gradients against finite differences" in str(report)


class WrongShape(Bell):
    def bias(self, distance, length):
        return super().bias(distance, length)[:, :1]


class Detached(Bell):
    def bias(self, distance, length):  # the value at the present width, hidden from autograd
        return -((distance / self.width.detach()) ** 2) + 0 * self.width


class NotFinite(Bell):
    def bias(self, distance, length):
        return -((distance / self.width) ** 2) + torch.log(distance.abs())


class Absolute(Bell):
    """Claims to be relative and looks at where keys stand."""

    def content(self, rows):
        return rows.scores * 0 + 0.1 * rows.k_positions[:, None, None, :]

    def values(self, weights, rows):
        return (weights * rows.k_positions[:, None, None, :]).sum(-1, keepdim=True).expand(-1, -1, -1, rows.q.shape[-1])


class LooksAhead(Bell):
    def content(self, rows):
        return rows.scores.mean(-1, keepdim=True) * rows.scores


class CountsKeys(Bell):
    """Depends on how many keys there are, which differs between one pass and a cache."""

    def content(self, rows):
        return rows.scores * rows.k.shape[2] / TOKENS


class Unsteady(Bell):
    """Answers differently from call to call."""

    def __init__(self, heads):
        super().__init__(heads)
        self.calls = 0

    def bias(self, distance, length):
        self.calls += 1
        return super().bias(distance, length) * self.calls


class Forgetful(Bell):
    """Loses its parameter on the way to disk."""

    def load_state_dict(self, state, strict=True, assign=False):
        return super().load_state_dict({}, strict=False)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (WrongShape, "shapes and dtypes of the answers"),
        (Detached, "gradients against finite differences"),
        (NotFinite, "shapes and dtypes of the answers"),
        (Absolute, "shift invariance"),
        (LooksAhead, "no look at later tokens"),
        (CountsKeys, "one pass = token by token"),
        (Unsteady, "backends agree, with gradients"),
        (Forgetful, "repr and state round trip"),
    ],
)
def test_what_is_wrong_is_named(wrong, named):
    with pytest.raises(whence.CheckFailed) as caught:
        whence.check(wrong(2))
    assert f"FAILS    {named}" in str(caught.value)
