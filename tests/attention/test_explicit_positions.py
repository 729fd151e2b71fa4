"""Positions of any dtype and size that the caller gives, and what a window makes of fractional ones."""

import math

import pytest
import torch

import whence
from whence import KVCache, attend

torch.manual_seed(0)
Q, K, V = (torch.randn(2, 2, 6, 4, dtype=torch.float64) for _ in range(3))
PLACES = torch.tensor([0, 3, 90, 100, 120, 127])


def out(places, backend="auto", **about):
    about = {"position": whence.Alibi(2).double(), "causal": True} | about
    return attend(Q, K, V, q_positions=places, backend=backend, **about)


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa", "auto"])
@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16],
)
def test_narrow_and_unsigned_types(dtype, backend):
    """A difference of bytes wraps around, and causal attention would see the future."""
    torch.testing.assert_close(out(PLACES.to(dtype), backend), out(PLACES, backend))


def test_narrow_types_in_a_cache():
    cache, byte_cache = KVCache(), KVCache()
    for part in (slice(0, 4), slice(4, 6)):
        tensors = [x[:, :, part] for x in (Q, K, V)]
        wanted = attend(*tensors, position=whence.Rotary(), causal=True, q_positions=PLACES[part], cache=cache)
        bytes_ = PLACES[part].to(torch.uint8)
        actual = attend(*tensors, position=whence.Rotary(), causal=True, q_positions=bytes_, cache=byte_cache)
        torch.testing.assert_close(actual, wanted)


def test_documents_and_lengths_of_any_whole_type():
    segment_ids = torch.tensor([0, 0, 1, 1, 2, 2])
    for dtype in (torch.uint8, torch.int16, torch.uint16, torch.uint64):
        actual = attend(Q, K, V, causal=True, segment_ids=segment_ids.to(dtype), position=whence.Rotary())
        torch.testing.assert_close(
            actual, attend(Q, K, V, causal=True, segment_ids=segment_ids, position=whence.Rotary())
        )
        lengths = torch.tensor([3, 6])
        torch.testing.assert_close(
            attend(Q, K, V, lengths=lengths.to(dtype)), attend(Q, K, V, lengths=lengths), rtol=0, atol=0
        )


@pytest.mark.parametrize("bad", [math.inf, math.nan, -1.0, 2.0**53])
def test_positions_that_no_arithmetic_here_can_hold(bad):
    places = PLACES.double()
    places[2] = bad
    with pytest.raises(whence.WhenceError, match=r"attend\(q_positions=\.\.\.\)"):
        out(places)


def test_how_far_positions_go():
    """Differences are exact far out; a mechanism that computes with a position itself does so in float32."""
    far = PLACES + 2**40
    torch.testing.assert_close(out(far), out(PLACES))
    with pytest.raises(whence.WhenceError, match=r"q_positions.*16777216"):
        out(far, position=whence.Rotary())
    assert out(PLACES + 2**24 - 128, position=whence.Rotary()).isfinite().all()


class Slope(whence.Position):
    def bias(self, distance, length):
        return -distance.abs()


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_window_over_fractional_positions(backend, causal):
    """2.75 lies inside a window of 3, and its bias is -2.75: nothing rounds it to the farthest whole distance."""
    q = torch.zeros(1, 1, 3, 2, dtype=torch.float64)
    v = torch.eye(3, dtype=torch.float64)[None, None]
    places = torch.tensor([0.0, 1.5, 2.75], dtype=torch.float64)
    weights = attend(q, q, v, position=Slope(), causal=causal, window=3, q_positions=places, backend=backend)[0, 0]
    torch.testing.assert_close(weights[2], torch.softmax(-torch.tensor([2.75, 1.25, 0.0]).double(), 0))
    far = attend(q, q, v, position=Slope(), causal=causal, window=2, q_positions=places, backend=backend)[0, 0]
    assert far[2, 0] == 0 and far[2, 1] > 0


SCALES = [(-0.5, 1.0), (0.0, 1.0), (0.5, 1e10), (None, 1e8), (-3.0, 1e-3), (1e6, 1.0), (-1e-15, 1e10)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("scale, temperature", SCALES)
def test_scale_and_temperature_of_any_sign_and_size(scale, temperature, dtype):
    """Torch's kernel masks with -inf before it scales: a scale of 0 or below must not reach it."""
    options = {"scale": scale, "temperature": temperature}
    masks = [
        {"causal": True},
        {},
        {"causal": True, "window": 3},
        {"key_mask": torch.tensor([[True] * 4 + [False] * 2] * 2)},
    ]
    for mask in masks:
        for position in (None, whence.Alibi(2, form="symmetric")):
            inputs = [x.to(dtype) for x in (Q, K, V)]
            exact = [x.double() for x in inputs]
            wide = None if position is None else whence.Alibi(2, form="symmetric").double()
            wanted = attend(*exact, position=wide, backend="reference", **options, **mask)
            for backend in ("auto", "sdpa", "blockwise"):
                actual = attend(*inputs, position=position, backend=backend, **options, **mask)
                # a huge scale makes the weights steep in the scores, whose own rounding it magnifies
                steep = min(1.0, torch.finfo(dtype).eps * max(1.0, abs(scale or 1) / temperature))
                room = 8 * torch.finfo(dtype).eps + (0 if dtype == torch.float16 else 8 * steep)
                assert (actual.double() - wanted).abs().max() <= room, (backend, mask)


def test_gradients_where_the_scale_is_negative_or_zero():
    for scale in (-0.5, 0.0):
        grads = []
        for backend in ("sdpa", "reference"):
            q, k, v = (x.clone().requires_grad_() for x in (Q, K, V))
            attend(q, k, v, causal=True, scale=scale, backend=backend).square().sum().backward()
            grads.append((q.grad, k.grad, v.grad))
        torch.testing.assert_close(*grads)


def test_a_position_beyond_int64_is_shown_as_it_is():
    with pytest.raises(whence.WhenceError, match=rf"q_positions.*{2**63 + 5}"):
        out(torch.tensor([0, 1, 2, 3, 4, 2**63 + 5], dtype=torch.uint64))
