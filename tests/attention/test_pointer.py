"""The pointer against loops over Python's floats and against ``attend``; copying, the gate and their mixture."""

import math

import plain_pointers as plain
import pytest
import torch

from whence import Alibi, Epar, Learned, NoPosition, PowerPrior, Recency, Rotary, Sink, Sinusoidal, WhenceError, attend
from whence.attention.pointer import (
    Gate,
    PointerAttention,
    count_pointer_parameters,
    last_item,
    log_add,
    mix,
    scatter_to_vocabulary,
)
from whence.position.catalogue import CATALOGUE

WIDTH, LENGTH = 8, 7
COUNTS = (7, 4, 1)
PADDINGS = {
    "right": torch.arange(LENGTH) < torch.tensor(COUNTS)[:, None],
    "left": torch.arange(LENGTH) >= LENGTH - torch.tensor(COUNTS)[:, None],
    "both": torch.tensor([[1] * 7, [0, 1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 0, 0, 0]]).bool(),
}
FITTING = [entry for entry in CATALOGUE if not entry.make(1, WIDTH).effects & {"sink", "embed"}]


def build(position=None, dtype=torch.float64):
    torch.manual_seed(5)
    pointer = PointerAttention(WIDTH, position).to(dtype)
    with torch.no_grad():
        for p in pointer.position.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return pointer, 2 * torch.randn(3, LENGTH, WIDTH, dtype=torch.float64).to(dtype)


def placed(items, key_mask):
    """The first items of each sequence, moved to where the padding mask has them; noise elsewhere."""
    out = 9 * torch.randn_like(items)
    for row, count in enumerate(COUNTS):
        out[row, key_mask[row]] = items[row, :count]
    return out


def hooks(position):
    """The mechanism's formulas, written down once more."""
    if isinstance(position, Recency):
        table = position.table.tolist()
        return {"bias": lambda d: table[min(d + 1, len(table) - 1)]}
    if isinstance(position, Alibi):
        return {"bias": lambda d: -(2.0**-8) * d}
    if isinstance(position, Epar):
        alpha, beta, gamma = (q().item() for q in (position.alpha, position.beta, position.gamma))
        return {"score_scale": lambda d: alpha * (1 + gamma * math.exp(-beta * d / 64)) / (1 + gamma)}
    if isinstance(position, Rotary):
        return {"turn": plain.turned}
    if isinstance(position, PowerPrior):
        alpha, beta = position.alpha.item(), position.beta().item()
        return {"bias": lambda d: -(abs(alpha * d) ** beta) if d else 0.0}
    assert isinstance(position, NoPosition)
    return {}


@pytest.mark.parametrize("key_mask", PADDINGS)
@pytest.mark.parametrize(
    "position",
    [None, Recency(5), Alibi(1), Epar(context=64, learnable=True), Rotary(), PowerPrior(alpha=0.3, beta=0.7)],
    ids=lambda p: type(p).__name__,
)
def test_weights_are_those_of_the_loops(position, key_mask):
    pointer, items = build(position)
    items, real = placed(items, PADDINGS[key_mask]), PADDINGS[key_mask]
    got = pointer(items, key_mask=real)
    numbers = [
        x.tolist() for x in (pointer.queries.weight, pointer.queries.bias, pointer.keys.weight, pointer.keys.bias)
    ]
    for row in range(3):
        want = plain.pointer(items[row].tolist(), real[row].tolist(), *numbers, **hooks(pointer.position))
        torch.testing.assert_close(got[row].exp().tolist(), want, rtol=1e-12, atol=1e-13)
    assert torch.isneginf(got[~real]).all()


def test_a_sum_of_mechanisms():
    pointer, items = build(Rotary() + Epar(context=64) + Recency(6))
    rotary, epar, recency = pointer.position.parts
    every = hooks(rotary) | hooks(epar) | hooks(recency)
    numbers = [
        x.tolist() for x in (pointer.queries.weight, pointer.queries.bias, pointer.keys.weight, pointer.keys.bias)
    ]
    want = plain.pointer(items[0].tolist(), [True] * LENGTH, *numbers, **every)
    torch.testing.assert_close(pointer(items)[0].exp().tolist(), want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("key_mask", PADDINGS)
@pytest.mark.parametrize("entry", FITTING, ids=[entry.name for entry in FITTING])
def test_every_mechanism_points_as_it_attends(entry, key_mask):
    """The weights of ``attend``'s last row, and the same wherever the padding stands."""
    pointer, items = build(entry.make(1, WIDTH))
    got = pointer(placed(items, PADDINGS[key_mask]), key_mask=PADDINGS[key_mask]).exp()
    for row, count in enumerate(COUNTS):
        x = items[row : row + 1, :count]
        q, k = pointer.queries(x)[:, None], pointer.keys(x)[:, None]
        clock = pointer.position.clock(x) if "clock" in pointer.position.effects else None
        _, weights = attend(q, k, k, position=pointer.position, clock=clock, causal=True, return_weights=True)
        torch.testing.assert_close(got[row, PADDINGS[key_mask][row]], weights[0, 0, -1], rtol=1e-10, atol=1e-12)


def test_lengths_are_right_padding_and_positions_may_be_given():
    pointer, items = build(Recency(9))
    by_mask = pointer(items, key_mask=PADDINGS["right"])
    assert torch.equal(pointer(items, lengths=torch.tensor(COUNTS)), by_mask)
    assert torch.equal(pointer(items, key_mask=PADDINGS["right"], positions=100 + torch.arange(LENGTH)), by_mask)
    hours = torch.tensor([0, 30, 31, 32, 50, 51, 60])
    far = pointer(items, positions=hours)
    want = pointer.position.table[(60 - hours + 1).clamp(max=8)] - pointer.position.table[7 - torch.arange(7)]
    change = (far - pointer(items))[0] - want
    torch.testing.assert_close(change, change[:1].expand(7))  # but for the normaliser


def test_last_item_is_what_asks():
    _, items = build()
    for name, key_mask in PADDINGS.items():
        last = last_item(items, key_mask=key_mask)
        at = {"right": (6, 3, 0), "left": (6, 6, 6), "both": (6, 4, 3)}[name]
        assert torch.equal(last, torch.stack([items[row, place] for row, place in enumerate(at)]))
    assert torch.equal(last_item(items), items[:, -1])


def test_gradients_reach_everything_but_padding():
    pointer, items = build(Recency(9))
    items.requires_grad_()
    pointer(items, key_mask=PADDINGS["both"])[:, 3].sum().backward()
    assert all(p.grad.isfinite().all() for p in pointer.parameters())
    assert (pointer.position.table.grad != 0).any() and pointer.position.table.grad[0] == 0  # padding's index
    assert (items.grad[~PADDINGS["both"]] == 0).all() and (items.grad[1, 1:5] != 0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copying_adds_up_what_stands_at_several_places(dtype):
    torch.manual_seed(0)
    weights = torch.rand(4, 30, dtype=dtype)
    weights[:, 5] = 0  # a weight of exactly 0
    weights = weights / weights.sum(-1, keepdim=True)
    items = torch.randint(9, (4, 30))
    items[:, 5] = 10  # a word with no weight at all; 9 and 11 stand nowhere
    copied = scatter_to_vocabulary(weights.log(), items, 12).exp()
    for row in range(4):
        want = plain.scatter_to_vocabulary(weights[row].tolist(), items[row].tolist(), 12)
        torch.testing.assert_close(copied[row].double(), torch.tensor(want).double(), rtol=1e-6, atol=1e-7)
    assert (copied[:, 9:] == 0).all()
    torch.testing.assert_close(copied.sum(-1), torch.ones(4, dtype=dtype))


def test_what_is_all_but_impossible_keeps_value_and_gradient():
    """exp(-800) is 0 in any precision, and its logarithm is -800 all the same."""
    log_weights = torch.tensor([[0.0, -800.0, -801.0, -torch.inf]], requires_grad=True)
    copied = scatter_to_vocabulary(log_weights, torch.tensor([[0, 1, 1, 2]]), 4)
    torch.testing.assert_close(copied[0, 1].item(), -800 + math.log(1 + math.exp(-1)))
    copied[0, 1].backward()
    share = 1 / (1 + math.exp(-1))
    torch.testing.assert_close(log_weights.grad, torch.tensor([[0.0, share, 1 - share, 0.0]]))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_the_mixture_is_that_of_the_loops(dtype, tolerance):
    torch.manual_seed(2)
    scores, gate = 3 * torch.randn(5, 6, dtype=dtype), torch.tensor([-40.0, -2.0, 0.0, 1.0, 40.0], dtype=dtype)
    items = torch.randint(9, (5, 4))
    weights = torch.randn(5, 4, dtype=dtype).softmax(-1)
    log_p = mix(scores, scatter_to_vocabulary(weights.log(), items, 9), gate)
    for row in range(5):
        copied = plain.scatter_to_vocabulary(weights[row].tolist(), items[row].tolist(), 9)
        want = plain.mixture(scores[row].tolist(), copied, gate[row].item())
        torch.testing.assert_close(log_p[row].exp().tolist(), want, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(5, dtype=dtype))


def test_the_gate_wide_open_and_shut():
    scores, items = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[4, 0]])
    copied = scatter_to_vocabulary(torch.tensor([[0.25, 0.75]]).log(), items, 5)
    for gate in (200.0, torch.inf):  # p_gen = 1: the vocabulary's softmax
        p = mix(scores, copied, torch.tensor([gate])).exp()
        torch.testing.assert_close(p[:, :3], scores.softmax(-1))
        assert (p[:, 3:] < 1e-30).all()
    for gate in (-200.0, -torch.inf):  # p_gen = 0: words of the source alone
        p = mix(scores, copied, torch.tensor([gate])).exp()
        torch.testing.assert_close(p, torch.tensor([[0.75, 0, 0, 0, 0.25]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gate", [-torch.inf, -1e4, 0.0, 1e4, torch.inf])
def test_gradients_are_finite_where_probabilities_are_zero(gate, dtype):
    """Zeros of every kind: a word that is not in the source, a word beyond the vocabulary that no place has, a vocabulary
    word that is forbidden, a weight that vanished, and a gate that is shut."""
    scores = torch.tensor([[0.0, -torch.inf, 1.0, -2000.0]], dtype=dtype, requires_grad=True)
    logits = torch.tensor([[0.0, 3.0, -3000.0, -torch.inf]], dtype=dtype, requires_grad=True)
    opening = torch.tensor([gate], dtype=dtype, requires_grad=True)
    items = torch.tensor([[0, 4, 5, 2]])
    log_p = mix(scores, scatter_to_vocabulary(logits.log_softmax(-1), items, 7), opening)
    assert not log_p.isnan().any() and (log_p <= 0).all()
    assert torch.isneginf(log_p[0, 1]) and torch.isneginf(log_p[0, 6])
    for word in range(7):
        for leaf in torch.autograd.grad(log_p[0, word], (scores, logits, opening), retain_graph=True):
            assert leaf.isfinite().all(), word
    loss = -(log_p.exp() * torch.arange(7)).sum()
    assert all(leaf.isfinite().all() for leaf in torch.autograd.grad(loss, (scores, logits, opening)))


def test_the_mixtures_gradients_are_those_of_finite_differences():
    torch.manual_seed(1)
    items = torch.tensor([[0, 3, 3, 5], [2, 2, 2, 2]])

    def mixture(scores, logits, gate):
        log_p = mix(scores, scatter_to_vocabulary(logits.log_softmax(-1), items, 6), gate)
        return log_p[0, [0, 1, 2, 3, 5]], log_p[1, :4]  # what is possible

    given = [torch.randn(shape).double().requires_grad_() for shape in ((2, 4), (2, 4), (2,))]
    assert torch.autograd.gradcheck(mixture, given)


def test_adding_logarithms_of_nothing():
    a = torch.tensor([-torch.inf, -torch.inf, 0.0, -1e4], requires_grad=True)
    b = torch.tensor([-torch.inf, 1.0, -torch.inf, -1e4], requires_grad=True)
    out = log_add(a, b)
    torch.testing.assert_close(out, torch.tensor([-torch.inf, 1.0, 0.0, -1e4 + math.log(2)]))
    out[1:].sum().backward()
    assert a.grad.tolist() == [0, 0, 1, 0.5] and b.grad.tolist() == [0, 1, 0, 0.5]


def test_gates():
    torch.manual_seed(0)
    gate = Gate(3, 2).double()
    parts = torch.randn(4, 3).double(), torch.randn(4, 2).double()
    weight, bias = gate.layers[0].weight[0].tolist(), gate.layers[0].bias.item()
    for row in range(4):
        seen = parts[0][row].tolist() + parts[1][row].tolist()
        want = sum(w * x for w, x in zip(weight, seen, strict=True)) + bias
        torch.testing.assert_close(gate(*parts)[row].item(), want)
    assert sum(p.numel() for p in Gate(64, hidden_dim=32).parameters()) == 64 * 32 + 32 + 32 + 1


def test_autocast_and_half_precision_keep_logarithms_in_float32():
    pointer, items = build(Recency(9), torch.float32)
    want = pointer(items)
    with torch.autocast("cpu", torch.bfloat16):
        assert pointer(items).dtype == torch.float32
        torch.testing.assert_close(pointer(items), want, rtol=0.1, atol=0.1)
    assert pointer.to(torch.bfloat16)(items.to(torch.bfloat16)).dtype == torch.float32


def test_it_exports_and_compiles():
    pointer, items = build(Recency(9), torch.float32)

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.pointer = pointer

        def forward(self, x, key_mask, words):
            return scatter_to_vocabulary(self.pointer(x, key_mask=key_mask), words, 20)

    given = items, PADDINGS["both"], torch.arange(21).reshape(3, 7) % 20
    want = Whole()(*given)
    torch.testing.assert_close(torch.compile(Whole(), backend="eager", fullgraph=True)(*given), want)
    torch.testing.assert_close(torch.export.export(Whole(), given).module()(*given), want)


def test_the_sources_count_of_parameters():
    """64 x 64 twice and 150 biases are 8,342, as the source prints; its code has two more vectors of 64: 8,470."""
    for bias, want in ((False, 8_342), (True, 8_470)):
        pointer = PointerAttention(64, Recency(150), bias=bias)
        assert sum(p.numel() for p in pointer.parameters()) == count_pointer_parameters(64, 150, bias=bias) == want


@pytest.mark.parametrize(
    "wrong, text",
    [
        (lambda: PointerAttention(0), r"PointerAttention\(embed_dim=...\) got 0"),
        (lambda: PointerAttention(8, Sink(1)), r"position=.*Sink with sink.*without sink"),
        (lambda: PointerAttention(8, Learned(8, 9) + Recency(4)), r"position=.*Sum with bias/embed"),
        (lambda: PointerAttention(8, Sinusoidal(8)), r"position=.*Sinusoidal with embed"),
        (lambda: PointerAttention(8, "recency"), r"position=.*str"),
        (lambda: PointerAttention(8, Alibi(2)), r"position=.*Alibi for 2 heads.*heads=1"),
        (lambda: Gate(), r"Gate\(\) got no dims"),
        (lambda: Gate(3, 0), r"Gate\(dims=...\) got 0"),
        (lambda: PointerAttention(8)(torch.ones(1, 3, 7)), r"shape \[1, 3, 7\], but .*\[batch, length, 8\]"),
        (lambda: PointerAttention(8)(torch.ones(2, 3, 8), lengths=torch.tensor([3, 0])), r"without a real token in sequence 1"),
        (lambda: last_item(torch.ones(1, 3, 8), lengths=torch.tensor([0])), r"last_item.*lengths.*sequence 0"),
        (lambda: scatter_to_vocabulary(torch.zeros(1, 2), torch.tensor([[0, 5]]), 5), r"items.*0 to 5.*0 and 4.*size"),
        (lambda: scatter_to_vocabulary(torch.zeros(1, 2), torch.tensor([[0]]), 5), r"items.*\[1, 2\] of torch.float32.*\[1, 1\] of torch.int64"),
        (lambda: mix(torch.zeros(1, 4), torch.zeros(1, 3), torch.zeros(1)), r"but these are \[batch, vocabulary\]"),
        (lambda: mix(torch.zeros(2, 4), torch.zeros(2, 5), torch.zeros(2, 1)), r"but these are \[batch, vocabulary\]"),
    ],
)  # fmt: skip
def test_errors(wrong, text):
    with pytest.raises(WhenceError, match=text):
        wrong()
