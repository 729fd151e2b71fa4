"""Rows of a batch that differ: in their texts, their positions and their padding. Each is what it is alone."""

import pytest
import torch

import whence
from whence import KVCache, attend
from whence.attention import blockwise_kernel

HEADS, WIDTH = 2, 4
MECHANISMS = {
    "Alibi": lambda: whence.Alibi(HEADS),
    "Epar": lambda: whence.Epar(HEADS, context=8, learnable=True),
    "Rotary": lambda: whence.Rotary(),
    "none": lambda: None,
}
BACKENDS = ("reference", "blockwise", "auto")


def tokens(batch, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, batch, HEADS, length, WIDTH, generator=generator, dtype=torch.float64)


def build(name):
    position = MECHANISMS[name]()
    return position if position is None else position.double()


def alone(qkv, row, position, **given):
    """The reference of one row without padding or other texts."""
    q, k, v = qkv[:, row : row + 1]
    return attend(q, k, v, position=position, causal=True, backend="reference", **given)[0]


@pytest.mark.parametrize("scores_in_a_tile", [blockwise_kernel.TILE, 1, 200])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_row_has_its_own_packing(mechanism, scores_in_a_tile, monkeypatch):
    monkeypatch.setattr(blockwise_kernel, "TILE", scores_in_a_tile)  # several rows in a tile, and one head of one row
    position, qkv = build(mechanism), tokens(3, 7)
    cuts = (2, 5, 3)
    segment_ids = torch.stack([(torch.arange(7) >= cut).long() for cut in cuts])
    q, k, v = (x.clone().requires_grad_(True) for x in qkv)
    out = attend(q, k, v, position=position, causal=True, segment_ids=segment_ids, backend="blockwise")
    (result,) = torch.autograd.grad(out.square().sum(), k)
    for row, cut in enumerate(cuts):
        own_q, own_k, own_v = (x[row : row + 1].clone().requires_grad_(True) for x in qkv)
        parts = [
            attend(own_q[:, :, s], own_k[:, :, s], own_v[:, :, s], position=position, causal=True, backend="reference")
            for s in (slice(0, cut), slice(cut, None))
        ]
        whole = torch.cat(parts, 2)
        assert torch.allclose(out[row], whole[0], atol=1e-12)
        assert torch.allclose(result[row], torch.autograd.grad(whole.square().sum(), own_k)[0][0], atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_row_has_an_offset_of_its_own(mechanism, backend):
    position, qkv = build(mechanism), tokens(2, 6)
    q, k, v = qkv[0][:, :, 4:], qkv[1], qkv[2]
    starts = torch.tensor([[4], [9]])
    q_positions, k_positions = starts + torch.arange(2), torch.arange(6).expand(2, -1)
    given = {"position": position, "causal": True}
    out = attend(q, k, v, q_positions=q_positions, k_positions=k_positions, backend=backend, **given)
    for row in range(2):
        one = slice(row, row + 1)
        single = attend(
            q[one], k[one], v[one], q_positions=q_positions[row], k_positions=k_positions[row], backend="reference", **given
        )  # fmt: skip
        assert torch.allclose(out[row], single[0], atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_cache_continues_from_positions_with_gaps(mechanism, backend):
    position, qkv = build(mechanism), tokens(2, 7)
    where = torch.tensor([0, 1, 2, 10, 11, 12, 13])  # the last two are counted, after explicit ones
    for cache in (KVCache(), KVCache(capacity=7)):
        outs = []
        for part, given in ((slice(0, 3), True), (slice(3, 5), True), (slice(5, 6), False), (slice(6, 7), False)):
            q, k, v = qkv[:, :, :, part]
            places = {"q_positions": where[part], "k_positions": where[part]} if given else {}
            with torch.no_grad():
                outs.append(attend(q, k, v, position=position, causal=True, cache=cache, backend=backend, **places))
        for row in range(2):
            wanted = alone(qkv, row, position, q_positions=where, k_positions=where)
            assert torch.allclose(torch.cat(outs, 2)[row], wanted, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_cache_continues_after_right_padding(mechanism, backend):
    position, qkv, lengths = build(mechanism), tokens(2, 7), (4, 2)
    for cache in (KVCache(), KVCache(capacity=7)):
        outs = []
        for part in (slice(0, 4), slice(4, 5), slice(5, 7)):
            q, k, v = qkv[:, :, :, part]
            padded = {"lengths": torch.tensor(lengths)} if part.start == 0 else {}
            with torch.no_grad():
                outs.append(attend(q, k, v, position=position, causal=True, cache=cache, backend=backend, **padded))
        out = torch.cat(outs, 2)
        for row, n in enumerate(lengths):
            kept = [*range(n), *range(4, 7)]
            wanted = alone(qkv[:, :, :, kept], row, position)
            assert torch.allclose(out[row][:, kept], wanted, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_row_of_which_only_padding_was_cached_starts_at_its_first_token(mechanism, backend):
    """Also inside a document that goes on, whose padding has no positions to go on from."""
    position, qkv = build(mechanism), tokens(2, 6)
    real = torch.tensor([[True] * 6, [False] * 4 + [True] * 2])
    for cut in (None, 6, 4, 3):  # where the first row's second document begins: nowhere, inside a chunk, with a chunk
        segment_ids = None if cut is None else torch.tensor([[0] * cut + [1] * (6 - cut), [0] * 6])
        cache, outs = KVCache(), []
        for part in (slice(0, 3), slice(3, 6)):
            q, k, v = qkv[:, :, :, part]
            packed = {} if segment_ids is None else {"segment_ids": segment_ids[:, part]}
            outs.append(
                attend(q, k, v, position=position, causal=True, cache=cache, key_mask=real[:, part], backend=backend, **packed)
            )  # fmt: skip
        out = torch.cat(outs, 2)
        assert torch.allclose(out[1][:, 4:], alone(qkv[:, :, :, 4:], 1, position), atol=1e-12)
        texts = [slice(0, 6)] if cut in (None, 6) else [slice(0, cut), slice(cut, 6)]
        wanted = torch.cat([alone(qkv[:, :, :, text], 0, position) for text in texts], 1)
        assert torch.allclose(out[0], wanted, atol=1e-12)


@pytest.mark.parametrize("cut", [2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_document_that_began_with_padding_counts_from_its_own_first_token(backend, cut):
    """The document before it has real tokens; those are no tokens of this one."""
    position, qkv = whence.Epar(HEADS, length="query").double(), tokens(1, 6)  # it sees where a query stands
    segment_ids, real = torch.tensor([[0, 0, 1, 1, 1, 1]]), torch.tensor([[True, True, False, True, True, True]])
    cache, outs = KVCache(), []
    for part in (slice(0, cut), slice(cut, 6)):
        given = {"segment_ids": segment_ids[:, part], "key_mask": real[:, part], "backend": backend}
        outs.append(attend(*qkv[:, :, :, part], position=position, causal=True, cache=cache, **given))
    out = torch.cat(outs, 2)[0]
    assert torch.allclose(out[:, :2], alone(qkv[:, :, :, :2], 0, position), atol=1e-12)
    assert torch.allclose(out[:, 3:], alone(qkv[:, :, :, 3:], 0, position), atol=1e-12)


@pytest.mark.parametrize("kind", [{}, {"capacity": 9}])
def test_a_document_that_is_taken_up_again_keeps_its_distances(kind):
    """Its new positions went on from those of the last document, and the cache took places for positions."""
    q, k, v = tokens(1, 9)
    segment_ids, positions = torch.tensor([0, 0, 0, 1, 1, 1, 0, 0, 0]), torch.tensor([0, 1, 2, 0, 1, 2, 3, 4, 5])
    position, cache, outs = whence.Epar(HEADS, context=8).requires_grad_(False), KVCache(**kind), []
    for part, given in ((slice(0, 6), None), (slice(6, 9), positions[6:])):
        outs.append(
            attend(
                q[:, :, part], k[:, :, part], v[:, :, part], position=position, causal=True, cache=cache,
                segment_ids=segment_ids[part], q_positions=given,
            )
        )  # fmt: skip
    wanted = attend(
        q, k, v, position=position, causal=True, segment_ids=segment_ids, q_positions=positions, backend="reference"
    )
    assert torch.allclose(torch.cat(outs, 2), wanted, atol=1e-12)


class Fenced(whence.Position):
    """Has no value from the window on, and says which distances it was asked about."""

    def __init__(self, window):
        super().__init__()
        self.window, self.asked = window, set()

    def bias(self, distance, length):
        self.asked |= set(distance.tolist())
        return torch.log(self.window - distance.abs()) * (1 + 0.1 * distance)


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 2, 4])
def test_hooks_receive_distances_inside_the_window(window, causal, backend):
    position, (q, k, v) = Fenced(window), tokens(2, 7)
    out = attend(q, k, v, position=position, causal=causal, window=window, backend=backend)
    assert position.asked == set(range(0 if causal else 1 - window, window))
    distance = torch.arange(7)[:, None] - torch.arange(7)
    seen = (distance.abs() < window) & ((distance >= 0) | (not causal))
    bias = torch.where(
        seen, torch.log(window - distance.abs().clamp(max=window - 1)) * (1 + 0.1 * distance), -torch.inf
    )
    wanted = torch.softmax(q @ k.mT / 2 + bias, -1) @ v
    assert torch.allclose(out, wanted, atol=1e-12)
