"""The specification itself, against plain Python loops over queries and keys that share no code with it."""

import math

import pytest
import torch

import whence

torch.manual_seed(0)
B, H, G, T, D, E = 2, 4, 2, 7, 6, 5


def inputs(length=T):
    generator = torch.Generator().manual_seed(3)
    sizes = ((H, length, D), (G, length, D), (G, length, E))
    return [torch.randn(B, *s, generator=generator, dtype=torch.float64) for s in sizes]


def loops(q, k, v, logit, sees, sink=None, temperature=1.0):
    """Attention by the book: ``logit(b, h, i, j, score)``, ``sees(b, i, j)`` and ``sink(h, i)`` in Python numbers."""
    out = torch.zeros(q.shape[0], q.shape[1], q.shape[2], v.shape[3], dtype=torch.float64)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            for i in range(q.shape[2]):
                terms = {}
                for j in range(k.shape[2]):
                    if sees(b, i, j):
                        score = sum(float(q[b, h, i, c] * k[b, g, j, c]) for c in range(q.shape[3])) / math.sqrt(
                            q.shape[3]
                        )
                        terms[j] = math.exp(logit(b, h, i, j, score) / temperature)
                total = sum(terms.values()) + (math.exp(sink(h, i) / temperature) if sink else 0.0)
                for j, term in terms.items():
                    out[b, h, i] += term / total * v[b, g, j]
    return out


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


SLOPE = [2.0 ** (-2 * (h + 1)) for h in range(H)]


def causal(b, i, j):
    return j <= i


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
def test_no_position(backend):
    q, k, v = inputs()
    same(whence.attend(q, k, v, causal=True, backend=backend), loops(q, k, v, lambda b, h, i, j, s: s, causal))
    same(whence.attend(q, k, v, backend=backend), loops(q, k, v, lambda b, h, i, j, s: s, lambda b, i, j: True))


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
def test_alibi_is_added(backend):
    q, k, v = inputs()
    expected = loops(q, k, v, lambda b, h, i, j, s: s - SLOPE[h] * (i - j), causal)
    same(whence.attend(q, k, v, position=whence.Alibi(H).double(), causal=True, backend=backend), expected)


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
def test_scale_and_temperature(backend):
    q, k, v = inputs()
    for window in (None, 20):  # a window takes the masked way through torch's kernel, and hides nothing here
        for position in (whence.NoPosition(), whence.Alibi(H).double()):
            slope = SLOPE if position.effects else [0.0] * H
            expected = loops(
                q, k, v, lambda b, h, i, j, s, m=slope: 0.3 * s * math.sqrt(D) - m[h] * (i - j), causal, temperature=1.5
            )
            given = {"position": position, "causal": True, "window": window, "backend": backend}
            same(whence.attend(q, k, v, scale=0.3, temperature=1.5, **given), expected)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_epar_multiplies_before_a_bias_is_added_and_a_sink_takes_its_share(backend):
    q, k, v = inputs()
    position = (whence.Epar(context=5) + whence.Alibi(H, form="symmetric") + whence.Sink(H, value=0.7)).double()

    def logit(b, h, i, j, s):
        factor = (1 + 0.5 * math.exp(-abs(i - j) / 5)) / 1.5
        return s * factor - SLOPE[h] * abs(i - j)

    sink = float(torch.tensor(0.7))  # a parameter starts in float32
    expected = loops(q, k, v, logit, lambda b, i, j: True, lambda h, i: sink, temperature=1.5)
    same(whence.attend(q, k, v, position=position, temperature=1.5, backend=backend), expected)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("length", ["query", "sequence"])
def test_the_length_of_a_query_and_of_a_sequence(backend, length):
    q, k, v = inputs()

    def logit(b, h, i, j, s):
        return s * math.exp(-(i - j) / (i + 1 if length == "query" else T))

    position = whence.Epar(form="basic", length=length).double()
    expected = loops(q, k, v, logit, causal)
    same(whence.attend(q, k, v, position=position, causal=True, backend=backend), expected)


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
def test_masks(backend):
    q, k, v = inputs()
    position = whence.Alibi(H, form="symmetric").double()

    def logit(b, h, i, j, s):
        return s - SLOPE[h] * abs(i - j)

    def run(**given):
        return whence.attend(q, k, v, position=position, backend=backend, **given)

    same(run(window=3), loops(q, k, v, logit, lambda b, i, j: abs(i - j) < 3))
    same(run(window=3, causal=True), loops(q, k, v, logit, lambda b, i, j: 0 <= i - j < 3))
    lengths = torch.tensor([4, 0])  # the second sequence sees nothing at all
    same(run(lengths=lengths), loops(q, k, v, logit, lambda b, i, j: j < lengths[b]))
    key_mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]]).bool()
    same(run(key_mask=key_mask, causal=True), loops(q, k, v, logit, lambda b, i, j: j <= i and bool(key_mask[b, j])))
    segment_ids = torch.tensor([0, 0, 1, 1, 1, 2, 2])
    same(
        run(segment_ids=segment_ids, causal=True),
        loops(q, k, v, logit, lambda b, i, j: j <= i and bool(segment_ids[i] == segment_ids[j])),
    )


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
def test_positions_are_what_counts_not_places(backend):
    q, k, v = inputs()
    where = torch.tensor([[3, 0, 9, 4, 1, 20, 6], [0, 1, 2, 5, 6, 7, 8]])
    expected = loops(
        q,
        k,
        v,
        lambda b, h, i, j, s: s - SLOPE[h] * float(where[b, i] - where[b, j]),
        lambda b, i, j: bool(where[b, j] <= where[b, i]),
    )
    position = whence.Alibi(H).double()
    same(
        whence.attend(q, k, v, position=position, causal=True, q_positions=where, k_positions=where, backend=backend),
        expected,
    )


def test_weights_are_returned_and_sum_to_one():
    q, k, v = inputs()
    out, weights = whence.attend(q, k, v, causal=True, return_weights=True)
    same(weights.sum(-1), torch.ones(B, H, T, dtype=torch.float64))
    same(weights @ v.repeat_interleave(H // G, 1), out)
    _, short = whence.attend(q, k, v, position=whence.Sink(H).double(), causal=True, return_weights=True)
    assert (short.sum(-1) < 1).all()


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
def test_dropout_keeps_the_mean_and_its_gradient_is_that_of_the_same_draw(backend):
    q, k, v = (x[:1, :, :4].requires_grad_(True) for x in inputs())
    position = whence.Alibi(H).double() if backend == "sdpa" else whence.Epar(H, context=4, learnable=True).double()

    def run(q, k, v):
        torch.manual_seed(5)
        return whence.attend(q, k, v, position=position, causal=True, dropout=0.4, backend=backend)

    assert torch.autograd.gradcheck(run, (q, k, v), fast_mode=True)  # element by element for tiles in test_export.py
    torch.manual_seed(0)
    with torch.no_grad():
        draws = [
            whence.attend(q, k, v, position=position, causal=True, dropout=0.4, backend=backend) for _ in range(200)
        ]
        exact = whence.attend(q, k, v, position=position, causal=True)
    spread = torch.stack(draws).std(0) / math.sqrt(len(draws))
    assert ((torch.stack(draws).mean(0) - exact).abs() < 5 * spread + 1e-12).all()


def test_a_long_input_takes_many_tiles(monkeypatch):
    """Several blocks of rows, several groups of heads and several sequences in a tile give one and the same answer."""
    from whence.attention import blockwise_kernel

    q, k, v = (x.requires_grad_(True) for x in inputs(50))
    position = (whence.Epar(H, context=9, learnable=True) + whence.Alibi(H, learnable=True)).double()
    leaves = [q, k, v, *position.parameters()]
    for window in (None, 11):
        exact = whence.attend(q, k, v, position=position, causal=True, window=window, backend="reference")
        wanted = torch.autograd.grad(exact.square().sum(), leaves)
        for block, tile in ((7, 1), (16, 900), (50, 1 << 20), (3, 5000)):
            monkeypatch.setattr(blockwise_kernel, "BLOCK", block)
            monkeypatch.setattr(blockwise_kernel, "TILE", tile)
            actual = whence.attend(q, k, v, position=position, causal=True, window=window, backend="blockwise")
            same(actual, exact)
            for a, b in zip(torch.autograd.grad(actual.square().sum(), leaves), wanted, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_rows_are_recomputed_in_blocks(monkeypatch):
    from whence.attention import blockwise

    monkeypatch.setattr(blockwise, "SCORES", 1)
    q, k, v = (x.requires_grad_(True) for x in inputs())
    position = whence.Shaw(D, value_dim=E).double()
    leaves = [q, k, v, *position.parameters()]
    results = [whence.attend(q, k, v, position=position, causal=True, backend=b) for b in ("reference", "blockwise")]
    same(results[1], results[0])
    grads = [torch.autograd.grad(r.square().sum(), leaves) for r in results]
    for a, b in zip(*grads, strict=True):
        same(a, b)
