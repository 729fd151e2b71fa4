"""Additive attention and coverage against loops over Python's floats, and the two ways to mask against one another."""

import plain_pointers as plain
import pytest
import torch

from whence.attention.additive import (
    AdditiveAttention,
    CoverageAttention,
    count_additive_parameters,
    coverage_loss,
    masked_log_softmax,
    renormalized_softmax,
)
from whence.errors import WhenceError

ENCODER, DECODER, WIDTH, LENGTH = 6, 4, 5, 7
PADDINGS = {
    "none": None,
    "right": torch.arange(LENGTH) < torch.tensor([[7], [4], [1]]),
    "left": torch.arange(LENGTH) >= torch.tensor([[0], [3], [6]]),
    "holes": torch.tensor([[1, 0, 1, 1, 0, 1, 0], [0, 1, 0, 0, 0, 1, 1], [0, 0, 0, 1, 0, 0, 0]]).bool(),
}


def build(kind, dtype=torch.float64):
    torch.manual_seed(3)
    attention = kind(ENCODER, DECODER, WIDTH).to(dtype)
    states = 2 * torch.randn(3, LENGTH, ENCODER, dtype=torch.float64)
    return attention, states.to(dtype), 2 * torch.randn(4, 3, DECODER, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("key_mask", PADDINGS)
@pytest.mark.parametrize("kind", [AdditiveAttention, CoverageAttention])
def test_four_steps_are_those_of_the_loops(kind, key_mask):
    attention, states, decoder = build(kind)
    mask = PADDINGS[key_mask]
    memory, coverage = attention.build_memory(states, key_mask=mask), None
    real = torch.ones(3, LENGTH).bool() if mask is None else mask
    w_c = attention.coverage_proj.weight[:, 0].tolist() if kind is CoverageAttention else [0.0] * WIDTH
    numbers = [
        attention.encoder_proj.weight.tolist(), attention.decoder_proj.weight.tolist(), attention.decoder_proj.bias.tolist(),
        attention.score.weight[0].tolist(), w_c,
    ]  # fmt: skip
    before = [[0.0] * LENGTH for _ in range(3)]
    for step, state in enumerate(decoder):
        seen = attention(memory, state, coverage)
        for row in range(3):
            context, weights, after, repeated = plain.additive(
                states[row].tolist(), state[row].tolist(), real[row].tolist(), before[row], *numbers
            )
            for got, want in ((seen.context, context), (seen.weights, weights), (seen.coverage, after)):
                torch.testing.assert_close(got[row].tolist(), want, rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(seen.coverage_loss[row].item(), repeated, rtol=1e-12, atol=1e-13)
            before[row] = after
        coverage = seen.coverage
        assert (seen.weights[~real] == 0).all() and torch.isneginf(seen.log_weights[~real]).all()
        assert (seen.coverage_loss == 0).all() if step == 0 else (seen.coverage_loss > 0).all()
        assert (seen.coverage_loss <= 1 + 1e-15 * LENGTH).all()  # but for the rounding of a sum
    torch.testing.assert_close(coverage.sum(-1), torch.full((3,), 4.0, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_renormalising_and_minus_infinity_agree(dtype):
    torch.manual_seed(0)
    scores = (3 * torch.randn(64, 20, dtype=dtype)).requires_grad_()
    real = torch.rand(64, 20) < 0.6
    real[:, 0] = True
    ours, theirs = masked_log_softmax(scores, real).exp(), renormalized_softmax(scores, real)
    tolerance = 10 * torch.finfo(dtype).eps
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    upstream = torch.randn_like(ours)
    for one, other in zip(*(torch.autograd.grad(out, scores, upstream) for out in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e3 * tolerance, atol=1e2 * tolerance)


def test_they_part_where_padding_scores_far_above_the_rest():
    """The source's way loses what is real to underflow; ours does not look at padding at all."""
    real = torch.tensor([[True, True, False]])
    assert renormalized_softmax(torch.tensor([[0.0, 1.0, 200.0]]), real).isnan().all()
    want = torch.tensor([[0.0, 1.0]]).softmax(-1)
    for score in (200.0, 1e30, torch.inf):
        torch.testing.assert_close(masked_log_softmax(torch.tensor([[0.0, 1.0, score]]), real).exp()[:, :2], want)


def test_padding_changes_nothing_and_gets_no_gradient():
    attention, states, decoder = build(CoverageAttention)
    states = states.requires_grad_()
    alone = attention(attention.build_memory(states[1:2, 3:6]), decoder[0, 1:2])
    inside = torch.zeros(1, LENGTH).bool()
    inside[:, 3:6] = True
    padded = attention(attention.build_memory(states[1:2], key_mask=inside), decoder[0, 1:2])
    torch.testing.assert_close(padded.context, alone.context)
    torch.testing.assert_close(padded.weights[:, 3:6], alone.weights)
    padded.context.sum().backward()
    assert (states.grad[1, :3] == 0).all() and (states.grad[1, 6:] == 0).all() and (states.grad[1, 3:6] != 0).any()


def test_coverage_that_weighs_nothing_is_no_coverage():
    attention, states, decoder = build(AdditiveAttention)
    covered = CoverageAttention.from_plain(attention)
    plain_seen = covered_seen = None
    for state in decoder:
        plain_seen = attention(attention.build_memory(states), state, plain_seen and plain_seen.coverage)
        covered_seen = covered(covered.build_memory(states), state, covered_seen and covered_seen.coverage)
        for name in ("context", "weights", "coverage", "coverage_loss"):
            assert torch.equal(getattr(plain_seen, name), getattr(covered_seen, name))
    # and it is ready to learn
    covered_seen.coverage_loss.sum().backward()
    assert (covered.coverage_proj.weight.grad != 0).any()


def test_gradients_are_those_of_finite_differences():
    attention, states, decoder = build(CoverageAttention)
    mask = PADDINGS["right"]

    def two_steps(h, s, w_c):
        attention.coverage_proj.weight.data = w_c.detach()  # for the numbers; the graph goes through functional_call
        named = {"coverage_proj.weight": w_c}
        memory = attention.build_memory(h, key_mask=mask)
        first = torch.func.functional_call(attention, named, (memory, s))
        second = torch.func.functional_call(attention, named, (memory, 2 * s, first.coverage))
        return second.context, second.weights, second.coverage_loss

    given = states.requires_grad_(), decoder[0].requires_grad_(), torch.randn(WIDTH, 1).double().requires_grad_()
    assert torch.autograd.gradcheck(two_steps, given)


def test_coverage_loss_between_nothing_and_everything():
    weights = torch.tensor([[0.2, 0.3, 0.5]])
    assert coverage_loss(weights, torch.zeros(1, 3)).item() == 0
    torch.testing.assert_close(coverage_loss(weights, 100 * torch.ones(1, 3)), torch.ones(1))


def test_memories_of_a_beam():
    attention, states, decoder = build(AdditiveAttention)
    memory = attention.build_memory(states, key_mask=PADDINGS["right"])
    rows = torch.tensor([2, 0, 0])
    torch.testing.assert_close(
        attention(memory.select(rows), decoder[0][rows]).context, attention(memory, decoder[0]).context[rows]
    )
    assert attention.build_memory(states).select(rows).real is None


def test_half_precision_keeps_its_weights_in_float32():
    attention, states, decoder = build(CoverageAttention, torch.bfloat16)
    memory = attention.build_memory(states)
    seen = attention(memory, decoder[0])
    seen = attention(memory, decoder[1], seen.coverage)
    assert seen.context.dtype == torch.bfloat16 and seen.log_weights.dtype == seen.coverage.dtype == torch.float32


def test_the_sources_count_of_parameters():
    """512 x 512 + 512 x 256 + 512 + 512: the source prints 393,728, and the sum is 394,240."""
    attention = AdditiveAttention(512, 256, 512)
    assert sum(p.numel() for p in attention.parameters()) == count_additive_parameters(512, 256, 512) == 394_240
    covered = CoverageAttention(512, 256, 512)
    assert sum(p.numel() for p in covered.parameters()) == 394_240 + 512


@pytest.mark.parametrize(
    "wrong, text",
    [
        (lambda a, s, d: AdditiveAttention(6, 0, 5), r"AdditiveAttention\(decoder_dim=...\) got 0"),
        (lambda a, s, d: a.build_memory(s[..., :5]), r"got shape \[3, 7, 5\], but .*\[batch, length, 6\]"),
        (lambda a, s, d: a.build_memory(s, lengths=torch.tensor([7, 0, 2])), r"build_memory got lengths or key_mask without a real token in sequence 1"),
        (lambda a, s, d: a(a.build_memory(s), d[0, :2]), r"AdditiveAttention\(state\) got shape \[2, 4\] of torch.float64.*for this memory.*\[3, 4\]"),
        (lambda a, s, d: a(a.build_memory(s), d[0], torch.zeros(3, 6)), r"\(coverage\) got shape \[3, 6\] of torch.float32.*for this memory.*\[3, 7\]"),
    ],
)  # fmt: skip
def test_errors(wrong, text):
    with pytest.raises(WhenceError, match=text):
        wrong(*build(AdditiveAttention))


def test_states_have_the_dtype_of_the_layer():
    attention, states, decoder = build(AdditiveAttention)
    with pytest.raises(WhenceError, match=r"states.*float32"):
        attention.build_memory(states.float())
    with pytest.raises(WhenceError, match=r"state.*float32"):
        attention(attention.build_memory(states), decoder[0].float())
