"""``attn_mask`` and ``mask_fn``: SDPA's meaning, every backend, gradients, caches and errors.

``test_independent_reference`` draws both in random calls with every mechanism.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_inputs import BACKENDS, B, D, G, H, T, by_sdpa, inputs, random_mask

import whence
from whence import Alibi, Attention, Cope, Epar, KVCache, Position, Sink, attend, explain


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["bool", "float", "float with -inf"])
@pytest.mark.parametrize("shape", [(T, T), (B, 1, T, T), (B, H, T, T), (1, H, T, T), (B, 1, 1, T), (1, T), (T, 1)])
def test_it_means_what_it_means_in_sdpa(shape, kind, backend):
    q, k, v = inputs()
    mask = random_mask(shape, kind)
    torch.testing.assert_close(attend(q, k, v, attn_mask=mask, backend=backend), by_sdpa(q, k, v, mask))


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    sizes=st.tuples(*(st.integers(1, n) for n in (3, 2, 3, 7, 7))),
    own=st.tuples(*[st.booleans()] * 4),
    kind=st.sampled_from(["bool", "float", "float with -inf"]),
    backend=st.sampled_from(BACKENDS),
    seed=st.integers(0, 999),
)
def test_random_shapes_mean_what_they_mean_in_sdpa(sizes, own, kind, backend, seed):
    batch, groups, share, rows, keys = sizes
    q, k, v = inputs(batch, groups * share, groups, rows, keys, seed)
    full = (batch, groups * share, rows, keys)
    mask = random_mask(tuple(n if its else 1 for n, its in zip(full, own, strict=True)), kind, seed)
    torch.testing.assert_close(attend(q, k, v, attn_mask=mask, backend=backend), by_sdpa(q, k, v, mask))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(T, T), (B, H, T, T), (1, H, 1, T)])
def test_the_gradient_of_a_learnable_mask(shape, backend, small_tiles):
    q, k, v = inputs()
    actual = []
    for name in ("reference", backend):
        mask = random_mask(shape, "float").requires_grad_()
        out = attend(q, k, v, position=Alibi(H), causal=True, attn_mask=mask, temperature=2.0, backend=name)
        actual.append(torch.autograd.grad(out.square().sum(), mask)[0])
    torch.testing.assert_close(actual[0], actual[1])
    if shape == (T, T):
        mask = random_mask(shape, "float").requires_grad_()
        assert torch.autograd.gradcheck(
            lambda m: attend(q, k, v, causal=True, attn_mask=m, backend=backend), (mask,), fast_mode=True
        )


def test_auto_does_not_round_a_mask_and_learns_in_linear_memory():
    q, k, v = inputs()
    mask = torch.zeros(T, T, dtype=torch.float64)
    assert explain(q, k, v, attn_mask=mask).backend == "sdpa"
    assert explain(q, k, v, attn_mask=mask.requires_grad_()).backend == "blockwise"
    half = [x.half() for x in (q, k, v)]
    assert explain(*half, attn_mask=mask.detach()).backend == "blockwise"
    assert explain(*half, attn_mask=mask.detach() == 0).backend == "sdpa"


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_without_keys_give_zeros_and_no_gradient(backend):
    q, k, v = (x.requires_grad_() for x in inputs())
    mask = torch.zeros(T, T, dtype=torch.float64)
    mask[2] = -torch.inf
    for masked in (
        {"attn_mask": mask.requires_grad_()},
        {"attn_mask": mask > -1},
        {"mask_fn": lambda b, h, i, j: i != 2},
    ):
        out = attend(q, k, v, backend=backend, **masked)
        assert (out[:, :, 2] == 0).all() and (out[:, :, 3] != 0).any()
        gradients = torch.autograd.grad(out.sum(), (q, k, v))
        assert all(g.isfinite().all() for g in gradients) and (gradients[0][:, :, 2] == 0).all()


def test_functions_take_the_arguments_they_are_called_with():
    q, k, v = inputs()
    with pytest.raises(
        whence.WhenceError, match=r"mask_fn.*\(i, j\).*def mask_fn\(batch, head, q_position, k_position\)"
    ):
        attend(q, k, v, mask_fn=lambda i, j: i >= j)
    with pytest.raises(
        whence.WhenceError, match=r"from_score_mod.*\(score, i, j\).*def fn\(score, b, h, q_idx, kv_idx\)"
    ):
        whence.from_score_mod(lambda score, i, j: score)
    with pytest.raises(whence.WhenceError, match=r"Short.bias.*\(self, distance\).*def bias\(self, distance, length\)"):
        type("Short", (Position,), {"bias": lambda self, distance: distance})
    type("Static", (Position,), {"bias": staticmethod(lambda distance, length=None: distance)})
    type("Any", (Position,), {"rotate": lambda self, *arguments: arguments[:2]})


# --- the mask function --------------------------------------------------------------------------------------------------


def by_loops(mask_fn, q_positions, k_positions):
    """The function pair by pair: ``[B, H, T, S]`` from positions ``[B, T]`` and ``[B, S]``."""
    return torch.tensor([
        [[[bool(mask_fn(b, h, i, j)) for j in k_positions[b].tolist()] for i in q_positions[b].tolist()] for h in range(H)]
        for b in range(B)
    ])  # fmt: skip


FUNCTIONS = {
    "keys only": lambda b, h, i, j: j % 3 != 1,
    "every argument": lambda b, h, i, j: (j <= i + h) & ((i + j + b) % 4 != 3),
    "heads only": lambda b, h, i, j: h % 2 == 0,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("place", ["counted", "passed", "by row", "padded", "packed"])
def test_a_mask_function_receives_positions(name, place, backend, small_tiles):
    q, k, v = inputs()
    positions = torch.arange(T).expand(B, T)
    about = {}
    if place == "passed":
        positions = torch.tensor([4, 2, 9, 9, 0, 7]).expand(B, T)
        about = {"q_positions": positions[0]}
    elif place == "by row":
        positions = torch.stack([torch.arange(T), torch.arange(T) * 2 + 5])
        about = {"q_positions": positions}
    elif place == "padded":
        real = torch.arange(T) >= torch.tensor([[0], [2]])
        positions, about = (real.cumsum(-1) - 1), {"key_mask": real}
    elif place == "packed":
        positions = torch.tensor([0, 1, 0, 1, 2, 0]).expand(B, T)
        about = {"segment_ids": torch.tensor([0, 0, 1, 1, 1, 2])}
    about |= {"causal": True, "window": 4, "position": Alibi(H)}
    mask = by_loops(FUNCTIONS[name], positions, positions)
    by_function = attend(q, k, v, mask_fn=FUNCTIONS[name], backend=backend, **about)
    by_mask = attend(q, k, v, attn_mask=mask, backend="reference", **about)
    real = about.get("key_mask", torch.ones(B, T, dtype=torch.bool))[:, None, :, None]
    torch.testing.assert_close(by_function * real, by_mask * real)


@pytest.mark.parametrize("backend", BACKENDS)
def test_both_masks_combine(backend):
    q, k, v = inputs()
    mask, mask_fn = random_mask((B, 1, T, T), "bool"), FUNCTIONS["every argument"]
    positions = torch.arange(T).expand(B, T)
    both = attend(q, k, v, attn_mask=mask, mask_fn=mask_fn, backend=backend)
    torch.testing.assert_close(both, attend(q, k, v, attn_mask=mask & by_loops(mask_fn, positions, positions)))


def test_a_function_written_for_flex_attention_needs_no_change():
    from torch.nn.attention.flex_attention import create_mask

    lengths = torch.tensor([4, 6])

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (kv_idx < lengths[b])

    q, k, v = inputs()
    mask = create_mask(mask_mod, B, H, T, T, device="cpu")
    torch.testing.assert_close(attend(q, k, v, mask_fn=mask_mod), attend(q, k, v, attn_mask=mask))


def test_a_mask_is_visible_to_mechanisms_that_count_keys():
    q, k, v = inputs()
    position = Cope(D).double()
    with torch.no_grad():
        for parameter in position.parameters():
            parameter.normal_()
    mask = random_mask((B, H, T, T), "bool") | torch.eye(T, dtype=torch.bool)
    outs = [attend(q, k, v, position=position, causal=True, attn_mask=m, backend=b)
            for m in (mask, torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)) for b in ("reference", "blockwise")]  # fmt: skip
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0])


# --- caches, layers, tracing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [KVCache, lambda: KVCache(capacity=T)], ids=["growing", "preallocated"])
@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
def test_a_cached_mask_covers_all_keys(make, backend):
    q, k, v = inputs()
    mask = random_mask((B, H, T, T), "float with -inf")
    mask_fn = FUNCTIONS["every argument"]
    about = {"position": Alibi(H), "causal": True, "mask_fn": mask_fn, "backend": backend}
    whole, cache, outs = attend(q, k, v, attn_mask=mask, **about), make(), []
    for first, last in ((0, 3), (3, 4), (4, 6)):
        new = slice(first, last)
        chunk = (x[:, :, new] for x in (q, k, v))
        outs.append(attend(*chunk, cache=cache, attn_mask=mask[:, :, new, :last], **about))
    torch.testing.assert_close(torch.cat(outs, 2), whole)


def test_a_mask_of_the_new_tokens_alone_is_refused_and_the_cache_stays():
    q, k, v = inputs()
    cache = KVCache()
    attend(q, k, v, causal=True, cache=cache)
    one = [x[:, :, :1] for x in (q, k, v)]
    with pytest.raises(whence.WhenceError, match=r"attn_mask.*\[1, 2\].*cache"):
        attend(*one, causal=True, cache=cache, attn_mask=ones(1, 2))
    assert len(cache) == T


def test_a_layer_passes_both_on():
    torch.manual_seed(0)
    layer, x = Attention(16, 2, Epar(2), causal=True).double(), torch.randn(1, T, 16, dtype=torch.float64)
    mask = random_mask((T, T), "bool") | torch.eye(T, dtype=torch.bool)
    by_mask = layer(x, attn_mask=mask)
    torch.testing.assert_close(by_mask, layer(x, mask_fn=lambda b, h, i, j: mask[i, j]))
    assert (by_mask - layer(x)).abs().max() > 1e-3
    memory = torch.randn(1, 3, 16, dtype=torch.float64)
    cross = Attention(16, 2, causal=False).double()
    seen = cross(x, memory, attn_mask=torch.tensor([[True, False, True]]).expand(T, 3), return_weights=True)[1]
    assert (seen[..., 1] == 0).all()


def test_masks_compile_and_transform():
    q, k, v = inputs()
    mask, position = random_mask((T, T), "float"), Epar(H)

    def run(q, mask):
        return attend(q, k, v, position=position, causal=True, attn_mask=mask, mask_fn=FUNCTIONS["every argument"])

    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="eager")(q, mask), run(q, mask))
    tangent = torch.ones_like(mask)
    forward = torch.func.jvp(lambda m: run(q, m).sum(), (mask,), (tangent,))[1]
    backward = torch.func.grad(lambda m: run(q, m).sum())(mask).sum()
    torch.testing.assert_close(forward, backward)


def test_dropout_and_weights_with_a_mask():
    q, k, v = inputs()
    mask = random_mask((T, T), "bool") | torch.eye(T, dtype=torch.bool)
    out, weights = attend(q, k, v, position=Sink(H), attn_mask=mask, return_weights=True)
    assert (weights.masked_select(~mask) == 0).all() and (weights.sum(-1) < 1).all()
    dropped = attend(q, k, v, attn_mask=mask, dropout=0.5, backend="blockwise")
    assert dropped.shape == out.shape and (dropped != attend(q, k, v, attn_mask=mask)).any()


# --- backends that take none, and errors -------------------------------------------------------------------------------


def test_triton_declines_with_a_reason():
    q, k, v = inputs()
    for masked in ({"attn_mask": torch.ones(T, T, dtype=torch.bool)}, {"mask_fn": lambda b, h, i, j: i >= j}):
        assert "attn_mask" in dict(explain(q, k, v, **masked).others)["triton"]
        with pytest.raises(whence.WhenceError, match=r"backend='triton'.*attn_mask.*backend="):
            attend(q, k, v, backend="triton", **masked)


def ones(*shape, dtype=torch.bool, **about):
    return torch.ones(shape, dtype=dtype, **about)


@pytest.mark.parametrize(
    "wrong, text",
    [
        ({"attn_mask": ones(T, T, dtype=torch.uint8)}, r"attn_mask.*torch.uint8.*attn_mask.bool\(\)"),
        ({"attn_mask": ones(T, T, dtype=torch.int64)}, r"attn_mask.*torch.int64.*attn_mask.bool\(\)"),
        ({"attn_mask": ones(T, T, dtype=torch.complex64)}, r"attn_mask.*torch.complex64"),
        ({"attn_mask": [[True] * T] * T}, r"attn_mask.*list.*torch.as_tensor"),
        ({"attn_mask": ones(T)}, r"attn_mask.*\[6\].*\[2, 4, 6, 6\]"),
        ({"attn_mask": ones(B, T, T)}, r"attn_mask.*\[2, 6, 6\].*attn_mask\[:, None\]"),
        ({"attn_mask": ones(B, G, T, T)}, r"attn_mask.*\[2, 2, 6, 6\].*\[2, 4, 6, 6\]"),
        ({"attn_mask": ones(T, T + 1)}, r"attn_mask.*\[6, 7\].*every key"),
        ({"attn_mask": ones(T, T, device="meta")}, r"attn_mask.*meta"),
        ({"attn_mask": ones(T, T).to_sparse()}, r"attn_mask.*sparse"),
        ({"mask_fn": ones(T, T)}, r"mask_fn.*\[6, 6\].*attn_mask"),
        ({"mask_fn": Alibi(H)}, r"mask_fn.*Alibi.*pass a function"),
        ({"mask_fn": int}, r"mask_fn.*int.*pass a function"),
        ({"mask_fn": lambda b, h, i, j: (i >= j).to_sparse()}, r"mask_fn.*k_position <= q_position"),
        ({"mask_fn": lambda b, h, i, j: True}, r"mask_fn.*bool.*k_position <= q_position"),
        ({"mask_fn": lambda b, h, i, j: i - j}, r"mask_fn.*int64.*k_position <= q_position"),
        ({"mask_fn": lambda b, h, i, j: torch.ones(T + 1) > 0}, r"mask_fn.*\[7\].*\[2, 4, 6, 6\]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["auto", "blockwise"])
def test_errors(wrong, text, backend):
    with pytest.raises(whence.WhenceError, match=text):
        attend(*inputs(), backend=backend, **wrong)


def test_a_mask_function_needs_positions_where_lengths_differ():
    q, k, v = inputs(rows=2)
    with pytest.raises(whence.WhenceError, match=r"2 queries for 6 keys.*q_positions=torch.arange\(4, 6\)"):
        attend(q, k, v, mask_fn=lambda b, h, i, j: i >= j)
    attend(q, k, v, attn_mask=ones(2, T))  # a mask names its pairs itself
