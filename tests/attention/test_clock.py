"""A clock: steps of tokens whose running sum gives the bias ``C_i - C_j``, with masks, caches and errors."""

import pytest
import torch

import whence
from whence import (
    Alibi,
    Attention,
    DataDependentAlibi,
    ForgetGate,
    KVCache,
    Position,
    Rotary,
    Sink,
    WhenceError,
    attend,
    explain,
)
from whence.position.evaluate import evaluate_clock

HEADS, DIM, WIDTH = 2, 4, 8
BACKENDS = ("reference", "blockwise", "sdpa")
#: gates of 4 tokens and what they leave of each key in the last row (Forgetting Transformer, computed by hand)
GATES, FACTORS, WEIGHTS = (0.5, 0.8, 0.25, 0.9), (0.18, 0.225, 0.9, 1.0), (0.0781, 0.0976, 0.3905, 0.4338)


class Steps(Position):
    """The layer input itself is the step."""

    def clock(self, x):
        return x.transpose(1, 2)


def draw(length=9, batch=2, heads=HEADS, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    q, k, v = (torch.randn(batch, heads, length, DIM, dtype=dtype) for _ in range(3))
    return q, k, v, -torch.rand(batch, heads, length, dtype=dtype)


def layer(position, **options):
    torch.manual_seed(1)
    return Attention(WIDTH, HEADS, position, causal=True, **options).double()


def strong_gate():
    torch.manual_seed(2)
    gate = ForgetGate(WIDTH, HEADS)
    torch.nn.init.normal_(gate.weight, std=0.5)
    return gate


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_of_the_paper(backend):
    steps, zero = torch.tensor(GATES).log()[None, None], torch.zeros(1, 1, 4, 2)
    out = attend(zero, zero, torch.eye(4)[None, None], position=Steps(), clock=steps, causal=True, backend=backend)
    torch.testing.assert_close(out[0, 0, 3], torch.tensor(WEIGHTS), atol=5e-5, rtol=0)
    torch.testing.assert_close(out[0, 0, 3] / out[0, 0, 3, 3], torch.tensor(FACTORS))


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_steps_are_alibi_and_steps_of_0_are_nothing(backend):
    q, k, v, _ = draw()
    slopes = torch.tensor([0.3, 0.05], dtype=torch.float64)
    steps = -slopes[:, None].expand(2, HEADS, 9)
    options = {"causal": True, "backend": backend}
    alibi = attend(q, k, v, position=Alibi(HEADS, slope=slopes.tolist()).double(), **options)
    torch.testing.assert_close(attend(q, k, v, position=Steps(), clock=steps, **options), alibi, rtol=1e-6, atol=1e-7)
    plain = attend(q, k, v, causal=True)
    torch.testing.assert_close(attend(q, k, v, position=Steps(), clock=0 * steps, **options), plain)
    # without a causal mask the sum is signed: a later key has the steps up to it, with the other sign
    both = attend(q, k, v, position=Steps(), clock=steps, backend=backend)
    distance = torch.arange(9)[:, None] - torch.arange(9)
    dense = torch.softmax((q @ k.mT) / 2 - slopes[:, None, None] * distance, -1) @ v
    torch.testing.assert_close(both, dense)


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_has_no_step(backend):
    """Whatever the steps of padding are, results and gradients of real tokens are those without it; its own step gets none."""
    q, k, v, steps = draw()
    real = torch.tensor([[0, 0, 1, 1, 0, 1, 1, 1, 0], [1] * 9]).bool()
    results = []
    for noise in (0.0, 1e6):
        noisy = torch.where(real[:, None], steps, steps - noise).requires_grad_()
        out = attend(q, k, v, position=Steps(), clock=noisy, key_mask=real, causal=True, backend=backend)
        (grad,) = torch.autograd.grad(out.transpose(1, 2)[real].square().sum(), noisy)
        assert not grad.transpose(1, 2)[~real].any()
        results.append((out.transpose(1, 2)[real], grad))
    torch.testing.assert_close(results[1], results[0])
    alone = [x[:1, :, real[0]] for x in (q, k, v, steps)]
    out = attend(*alone[:3], position=Steps(), clock=alone[3], causal=True)
    torch.testing.assert_close(out[0].transpose(0, 1), results[0][0][: int(real[0].sum())])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_segment_counts_its_own_tokens(backend):
    q, k, v, steps = draw()
    options = {"position": Steps(), "causal": True, "backend": backend}
    packed = attend(q, k, v, clock=steps, segment_ids=torch.tensor([0] * 4 + [1] * 5), **options)
    for part in (slice(0, 4), slice(4, 9)):
        alone = attend(*(x[:, :, part] for x in (q, k, v)), clock=steps[..., part], **options)
        torch.testing.assert_close(packed[:, :, part], alone)
    # a segment in two pieces: the tokens between them belong to another and do not count
    ids, at = torch.tensor([0, 0, 1, 1, 1, 0, 0, 1, 0]), torch.arange(9)
    pieces = attend(q, k, v, clock=steps, segment_ids=ids, q_positions=at, k_positions=at, **options)
    for segment in (0, 1):
        own = ids == segment
        alone = attend(*(x[:, :, own] for x in (q, k, v)), clock=steps[..., own], **options)
        torch.testing.assert_close(pieces[:, :, own], alone)


@pytest.mark.parametrize("backend", BACKENDS)
def test_positions_order_the_tokens(backend):
    q, k, v, steps = draw()
    options = {"position": Steps(), "causal": True, "backend": backend}
    whole = attend(q, k, v, clock=steps, **options)
    order = torch.tensor([3, 0, 8, 1, 7, 2, 6, 5, 4])
    mixed = attend(
        q, k[:, :, order], v[:, :, order], clock=steps[..., order], q_positions=torch.arange(9), k_positions=order, **options
    )  # fmt: skip
    torch.testing.assert_close(mixed, whole)
    last = attend(
        q[:, :, 6:], k, v, clock=steps, q_positions=torch.arange(6, 9), k_positions=torch.arange(9), **options
    )
    torch.testing.assert_close(last, whole[:, :, 6:])
    # queries after the last key, and before the first one, where they see none
    later = attend(q, k, v, clock=steps, q_positions=torch.arange(20, 29), k_positions=torch.arange(9), **options)
    since = steps.flip(-1).cumsum(-1).flip(-1)[:, :, None] - steps[:, :, None]
    torch.testing.assert_close(later, torch.softmax((q @ k.mT) / 2 + since, -1) @ v)
    before = attend(q, k, v, clock=steps, q_positions=torch.arange(9), k_positions=torch.arange(7, 16), **options)
    assert not before[:, :, :7].any() and before[:, :, 7:].any()


CACHES = {
    "growing": (KVCache, None),
    "preallocated": (lambda: KVCache(capacity=12), None),
    "sliding": (lambda: KVCache(window=4, rollback=2), 4),
}


@pytest.mark.parametrize("kind", CACHES)
def test_the_sum_goes_on_from_a_cache(kind):
    make, window = CACHES[kind]
    attention = layer(strong_gate() + Rotary() + Alibi(HEADS) + Sink(HEADS), window=window)
    x, cache = torch.randn(2, 12, WIDTH, dtype=torch.float64), make()
    with torch.no_grad():
        whole = attention(x)
        parts = [attention(x[:, a:b], cache=cache) for a, b in ((0, 5), (5, 6), (6, 9))]
        torch.testing.assert_close(torch.cat(parts, 1), whole[:, :9])
        attention(torch.ones_like(x[:, :2]), cache=cache)  # rejected
        cache.crop(9)
        beams = torch.tensor([1, 0, 1])
        cache.reorder(beams)
        torch.testing.assert_close(attention(x[beams, 9:], cache=cache), whole[beams, 9:])
    assert cache.entries().clock.dtype == torch.float64 and cache.entries().clock.shape[2] == HEADS


def test_a_growing_cache_carries_the_gradient_of_earlier_steps():
    attention, x = layer(strong_gate()), torch.randn(1, 6, WIDTH, dtype=torch.float64)
    results = []
    for cuts in ([6], [4, 2]):
        attention.zero_grad()
        cache = KVCache()
        outs = [attention(part, cache=cache) for part in x.split(cuts, 1)]
        outs[-1][:, -2:].square().sum().backward()
        results.append(attention.position.weight.grad)
    torch.testing.assert_close(*results)


def test_a_cache_holds_a_clock_for_all_its_tokens_or_for_none():
    attention, x = layer(strong_gate()), torch.randn(1, 3, WIDTH, dtype=torch.float64)
    for first, then, got in (
        (None, attention.position, "a position with a clock"),
        (attention.position, None, "no clock"),
    ):
        cache = KVCache()
        attention.position = whence.NoPosition() if first is None else first
        attention(x, cache=cache)
        attention.position = whence.NoPosition() if then is None else then
        with pytest.raises(WhenceError, match=rf"cache=.*{got}.*one cache for each layer"):
            attention(x, cache=cache)
        assert len(cache) == 3


@pytest.mark.parametrize("mask", [{}, {"window": 20}, {"lengths": torch.tensor([150, 200])}])
def test_blockwise_and_sdpa_match_the_reference_in_every_dtype(mask):
    """Twice what plain arithmetic in the same dtype loses, plus rounding; gradients included."""
    together = {"blockwise": ForgetGate(WIDTH, HEADS) + Sink(HEADS) + Alibi(HEADS)}
    together["sdpa"] = ForgetGate(WIDTH, HEADS) + Alibi(HEADS)
    q, k, v, steps = draw(200, dtype=torch.float32)
    real = torch.arange(200) < mask.get("lengths", torch.tensor([200, 200]))[:, None]

    def run(position, dtype, backend):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)] + [
            steps.to(torch.promote_types(dtype, torch.float32)).requires_grad_()
        ]
        out = attend(*leaves[:3], clock=leaves[3], position=position.to(dtype), causal=True, backend=backend, **mask)
        out = out * real[:, None, :, None]
        return [out.detach().double(), *(g.double() for g in torch.autograd.grad(out.square().sum(), leaves))]

    for backend, position in together.items():
        exact = run(position, torch.float64, "reference")
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            results = (exact, run(position, dtype, "reference"), run(position, dtype, backend))
            for wanted, plain, fast in zip(*results, strict=True):
                budget = 2 * (plain - wanted).abs().max() + 16 * torch.finfo(dtype).eps * wanted.abs().max()
                assert (fast - wanted).abs().max() <= budget, (backend, dtype)


def test_second_derivatives_and_dropout_of_the_tiled_operator():
    q, k, v, steps = draw(5, batch=1)
    position = Steps() + Sink(HEADS).double()

    def run(steps, q):
        return attend(q, k, v, position=position, clock=steps, causal=True, backend="blockwise")

    inputs = (steps.requires_grad_(), q.requires_grad_())
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)
    torch.manual_seed(0)
    dropped = attend(q, k, v, position=position, clock=steps, causal=True, dropout=0.5, backend="blockwise")
    assert all(g.isfinite().all() for g in torch.autograd.grad(dropped.sum(), inputs))


def test_gates_are_computed_in_float32_under_autocast():
    gate, x = strong_gate(), torch.randn(1, 5, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        steps = evaluate_clock(gate, x, HEADS)
    assert steps.dtype == torch.float32
    torch.testing.assert_close(steps, gate.clock(x))


def test_which_backend_runs_a_clock():
    q, k, v, steps = draw()
    text = str(explain(q, k, v, position=Steps() + Alibi(HEADS).double(), clock=steps, causal=True))
    assert text.startswith(
        "sdpa: the only effect is a fixed bias and clock of 324 numbers, small enough for a dense mask"
    )
    text = str(explain(q, k, v, position=strong_gate() + Alibi(HEADS), clock=steps, causal=True))  # it learns
    assert text.startswith("blockwise: bias of distance alone: tiles read a table, and a clock of each token")
    with pytest.raises(WhenceError, match=r"triton.*CUDA device.*use backend='sdpa'"):
        attend(q, k, v, position=Steps(), clock=steps, causal=True, backend="triton")


def test_cross_attention_has_the_clock_of_its_memory():
    attention = Attention(WIDTH, HEADS, Steps()).double()
    x, memory = torch.randn(1, 3, WIDTH, dtype=torch.float64), torch.randn(1, 5, WIDTH, dtype=torch.float64)
    attention.position = type("Two", (Position,), {"clock": lambda self, x: -x[..., :2].abs().transpose(1, 2)})()
    at = {"positions": torch.arange(5, 8), "memory_positions": torch.arange(5)}
    out = attention(x, memory, **at)
    q, k, v = attention.project(x, memory)
    steps = attention.position.clock(memory)
    since = steps.flip(-1).cumsum(-1).flip(-1) - steps
    wanted = torch.softmax((q @ k.mT) / 2 + since[:, :, None], -1) @ v
    torch.testing.assert_close(out, attention.out(wanted.transpose(1, 2).flatten(2)))
    with pytest.raises(WhenceError, match=r"a projected memory.*pass the memory itself"):
        attention(x, attention.project_memory(memory), **at)


def test_errors_name_the_argument_and_a_remedy():
    q, k, v, steps = draw()
    for options, text in (
        ({"position": Steps()}, r"position=Steps\) got no clock.*clock=position\.clock\(x\)"),
        ({"clock": steps}, r"position=None, clock=\.\.\.\) got shape \[2, 2, 9\].*ForgetGate"),
        ({"position": Alibi(2), "clock": steps}, r"position=Alibi, clock=\.\.\.\).*leave clock out"),
        ({"position": Steps(), "clock": steps[:, :1]}, r"clock=\.\.\.\) got shape \[2, 1, 9\].*here \[2, 2, 9\]"),
        ({"position": Steps(), "clock": steps.transpose(1, 2)}, r"shape \[2, 9, 2\].*clock\.transpose\(1, 2\)"),
        ({"position": Steps(), "clock": steps.half()}, r"torch\.float16.*float32 or float64"),
        ({"position": Steps(), "clock": [1.0]}, r"clock=\.\.\.\) got list.*torch\.as_tensor"),
    ):
        with pytest.raises(WhenceError, match=text):
            attend(q, k, v, causal=True, **options)
    with pytest.raises(WhenceError, match=r"Steps\.clock got .*finite"):
        attend(q, k, v, position=Steps(), clock=steps / 0, causal=True)
    with pytest.raises(WhenceError, match=r"Steps\.clock got an output of shape \[2, 8, 9\].*\[2, 2, 9\]"):
        layer(Steps())(torch.randn(2, 9, WIDTH, dtype=torch.float64))
    with pytest.raises(WhenceError, match=r"embed_dim=8 and .*embed_dim=16"):
        ForgetGate(8, 2) + DataDependentAlibi(16, 2)
