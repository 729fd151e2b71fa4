"""What content hooks see beside rotated queries and keys: those before rotation, and values; and wider queries and keys."""

import itertools

import pytest
import torch

import whence
from whence import Attention, Dape, Epar, Fire, GrapeA, KVCache, Position, Rotary, Shaw, WhenceError, attend
from whence.attention import recomputed_rows
from whence.attention.layout import Layout


class ValueNorm(Position):
    """Prefers keys that point along the query before rotation and have small values."""

    reads_rotated = False

    def content_bias(self, rows):
        return rows.unrotated_q @ rows.unrotated_k.mT - rows.v.square().sum(-1)[:, :, None, :]

    def value_bias(self, weights, rows):
        return weights @ rows.v


def tensors(groups=2, dtype=torch.float64):
    torch.manual_seed(0)
    q = torch.randn(2, 4, 7, 6, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(2, groups, 7, n, dtype=dtype, requires_grad=True) for n in (6, 3))
    return q, k, v


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("groups", [4, 2])
def test_projected_queries_keys_and_values_in_both_backends_with_gradients(backend, groups, small_tiles):
    q, k, v = tensors(groups)
    full_k, full_v = (x.repeat_interleave(4 // groups, 1) for x in (k, v))
    term = q @ full_k.mT - full_v.square().sum(-1)[:, :, None, :]
    wanted = 2 * attend(q, full_k, full_v, position=Rotary(), attn_mask=term, causal=True, backend="reference")
    out = attend(q, k, v, position=Rotary() + ValueNorm(), causal=True, backend=backend)
    torch.testing.assert_close(out, wanted)
    sides = (torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (out, wanted))
    for mine, theirs in zip(*sides, strict=True):
        torch.testing.assert_close(mine, theirs)


@torch.no_grad()
def test_a_cache_holds_what_the_hooks_see():
    layer = Attention(12, 4, Rotary() + ValueNorm(), causal=True, num_kv_heads=2, head_dim=6)
    x, cache = torch.randn(2, 9, 12), KVCache()
    steps = [layer(x[:, n : n + 3], cache=cache) for n in range(0, 9, 3)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x), rtol=1e-5, atol=1e-5)


def test_a_block_of_rows_gets_the_keys_that_some_row_sees():
    keys = 9
    for offset, causal, window in itertools.product((-12, -3, 0, 4, 12), (True, False), (None, 1, 3, 20)):
        q_positions = torch.arange(6)[None] + offset
        layout = Layout(q_positions, torch.arange(keys)[None], offset, causal, window, None, None, None)
        for rows in (slice(0, 6), slice(0, 2), slice(2, 5)):
            seen = layout.visible(rows)[0, 0].any(0).nonzero().flatten().tolist() or [None]
            given = layout.visible_keys(rows)
            assert given.stop - given.start == len(seen), (offset, causal, window, rows)
            assert seen[0] in (None, given.start)
            fewer = layout.select_keys(given)
            assert torch.equal(fewer.visible(rows), layout.visible(rows)[..., given])
            assert fewer.offset == int(fewer.q_positions[0, 0] - fewer.k_positions[0, 0])


@pytest.mark.parametrize("options", [{"window": 3}, {"segment_ids": torch.tensor([0] * 4 + [1] * 3)}])
def test_fewer_keys_leave_the_result_unchanged(options, small_tiles):
    q, k, v = tensors()
    for position in (Rotary() + ValueNorm(), GrapeA(4, 6), Epar(4, length="sequence"), Dape(4), Fire(4)):
        results = []
        for backend in ("reference", "blockwise"):
            out = attend(q, k, v, position=position.double(), causal=True, backend=backend, **options)
            wanted = [q, k, v, *(p for p in position.parameters() if p.requires_grad)]
            gradients = torch.autograd.grad(out.square().sum(), wanted, allow_unused=True)
            results.append([out, *(g for g in gradients if g is not None)])
        for exact, result in zip(*results, strict=True):
            torch.testing.assert_close(result, exact)


def test_recomputed_rows_draw_the_same_dropout_on_the_device_of_the_queries(small_tiles, monkeypatch):
    """torch restores the random numbers of the devices of a checkpoint's arguments; those inside a closure are unknown to it."""
    given = []

    def record(*arguments, **options):
        given.append([x.device for x in arguments if isinstance(x, torch.Tensor)])
        return checkpoint(*arguments, **options)

    checkpoint = recomputed_rows.checkpoint
    monkeypatch.setattr(recomputed_rows, "checkpoint", record)
    q, k, v = tensors()
    attend(q, k, v, position=Shaw(6, acts_on="keys").double(), causal=True, dropout=0.5, backend="blockwise")
    assert len(given) > 1 and all(devices == [q.device] for devices in given)


def test_rows_without_values_say_so():
    q, at = torch.zeros(1, 1, 2, 3), torch.arange(2)[None]
    rows = whence.Rows(q, q, q @ q.mT, at, at, torch.ones(1, 1, 2, 2, dtype=torch.bool), 1.0)
    assert rows.unrotated_q is q and rows.unrotated_k is q
    with pytest.raises(WhenceError, match=r"no values.*values=v"):
        _ = rows.v


class Twice(Position):
    """Doubles the columns, so that scores double."""

    widens = True

    def rotate(self, q, k, q_positions, k_positions):
        return torch.cat([q, q], -1), torch.cat([k, k], -1)


class Ragged(Twice):
    def rotate(self, q, k, q_positions, k_positions):
        return torch.cat([q, q], -1), k


class Undeclared(Twice):
    widens = False


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa", "auto"])
def test_the_scale_is_that_of_the_projected_columns(backend):
    q, k, v = tensors()
    wanted = attend(q, k, v, scale=2 * 6**-0.5, causal=True, backend="reference")
    torch.testing.assert_close(attend(q, k, v, position=Twice(), causal=True, backend=backend), wanted)


def test_widths_that_do_not_fit_are_refused():
    q, k, v = (x.detach() for x in tensors())
    with pytest.raises(WhenceError, match=r"Ragged.rotate.*\[2, 2, 7, 6\].*\[2, 2, 7, 12\]"):
        attend(q, k, v, position=Ragged())
    with pytest.raises(WhenceError, match=r"Undeclared.rotate.*12\].*\[2, 4, 7, 6\]"):
        attend(q, k, v, position=Undeclared())
    for other in (Rotary(), Shaw(6)):
        with pytest.raises(WhenceError, match=rf"{type(other).__name__} beside Twice.*scores or distances"):
            other + Twice()
    (whence.LogTemperature() + Twice() + ValueNorm() + whence.Alibi(4)).rotate(q, k, *(torch.arange(7)[None],) * 2)
