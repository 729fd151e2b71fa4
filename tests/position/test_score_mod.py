"""``from_score_mod`` against FlexAttention itself, and in ``check``."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import whence
from whence import Alibi, KVCache, attend, from_score_mod
from whence.checks import CHECKS

B, H, G, T, D = 2, 4, 2, 6, 8
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64)
TABLE = torch.linspace(-1, 1, 2 * T, dtype=torch.float64).repeat(H, 1)


def relative_bias(score, b, h, q_idx, kv_idx):
    return score + TABLE[h, (q_idx - kv_idx).clamp(-T, T - 1) + T]


def causal(score, b, h, q_idx, kv_idx):
    return torch.where(q_idx >= kv_idx, score, -float("inf"))


def softcap(score, b, h, q_idx, kv_idx):
    return 2 * torch.tanh(score / 2)


def all_arguments(score, b, h, q_idx, kv_idx):
    return score * (1 + 0.1 * b) - SLOPES[h] * (q_idx - kv_idx).abs() + 0.05 * q_idx


MODS = [relative_bias, causal, softcap, all_arguments]


def inputs(rows=T):
    torch.manual_seed(0)
    sizes = (H, rows, D), (G, rows, D), (G, rows, D)
    return [torch.randn(B, *size, dtype=torch.float64, requires_grad=True) for size in sizes]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("backend", ["reference", "blockwise", "auto"])
@pytest.mark.parametrize("mod", MODS)
def test_it_is_what_flex_attention_computes(mod, backend):
    tensors = [x.detach() for x in inputs()]  # on a CPU FlexAttention has no backward
    ours = attend(*tensors, position=from_score_mod(mod), backend=backend)
    torch.testing.assert_close(ours, flex_attention(*tensors, score_mod=mod, enable_gqa=True))


@pytest.mark.parametrize("mod", MODS)
def test_it_is_the_function_at_every_scalar(mod):
    """FlexAttention's contract, by ``vmap`` over all four indices."""
    q, k, v = inputs()
    score = D**-0.5 * q @ k.repeat_interleave(H // G, 1).mT
    every = mod
    for dims in (
        (0, None, None, None, 0),
        (0, None, None, 0, None),
        (0, None, 0, None, None),
        (0, 0, None, None, None),
    ):
        every = torch.vmap(every, in_dims=dims)
    changed = every(score, *(torch.arange(n) for n in (B, H, T, T)))
    expected = torch.softmax(changed, -1) @ v.repeat_interleave(H // G, 1)
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (q, k, v), upstream)
    for backend in ("reference", "blockwise"):
        out = attend(q, k, v, position=from_score_mod(mod), backend=backend)
        torch.testing.assert_close(out, expected)
        for mine, theirs in zip(torch.autograd.grad(out, (q, k, v), upstream), wanted, strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("mod", [relative_bias, causal, softcap])
def test_every_common_check_holds(mod):
    report = whence.check(from_score_mod(mod, heads=H))
    assert not report.failed and mod.__name__ in report.position


def test_check_takes_the_function_itself(monkeypatch):
    monkeypatch.delitem(CHECKS, "compiled decoding step")  # most of the time; the test above has it
    assert not whence.check(softcap).failed
    with pytest.raises(whence.CheckFailed, match=r"FAILED .*content_bias: row 1"):  # a row alone has another number
        whence.check(all_arguments)
    with pytest.raises(whence.CheckFailed, match=r"FAILED .*content_bias: .*(same arguments|deterministic|differ)"):
        whence.check(lambda score, b, h, q_idx, kv_idx: score + torch.rand(()))
    with pytest.raises(whence.WhenceError, match=r"class Alibi.*Alibi\(heads=...\)"):
        whence.check(Alibi)


def test_positions_continue_from_a_cache():
    q, k, v = (x.detach() for x in inputs())
    position, cache = from_score_mod(all_arguments), KVCache()
    whole = attend(q, k, v, position=position, causal=True)
    parts = [
        attend(*(x[:, :, t : t + 1] for x in (q, k, v)), position=position, causal=True, cache=cache) for t in range(T)
    ]
    torch.testing.assert_close(torch.cat(parts, 2), whole)


def test_it_composes_and_learns():
    class Slope(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

        def forward(self, score, b, h, q_idx, kv_idx):
            return score - self.slope * (q_idx - kv_idx)

    q, k, v = inputs()
    position = from_score_mod(Slope()) + Alibi(H)
    assert [name for name, _ in position.named_parameters()] == ["members.0.fn.slope"]
    gradients = [
        torch.autograd.grad(
            attend(q, k, v, position=position, causal=True, backend=backend).square().sum(), position.parameters()
        )[0]
        for backend in ("reference", "blockwise")
    ]
    assert gradients[0] != 0
    torch.testing.assert_close(*gradients)


def test_errors():
    for wrong in ("alibi", Alibi, None):
        with pytest.raises(whence.WhenceError, match=r"from_score_mod\(fn\).*score, b, h, q_idx, kv_idx"):
            from_score_mod(wrong)
    for answer in (1.0, torch.zeros(T + 1)):
        with pytest.raises(whence.WhenceError, match=r"from_score_mod\(fn\).*\[2, 4, 6, 6\]"):
            attend(*inputs(), position=from_score_mod(lambda *_, answer=answer: answer))
    with pytest.raises(whence.WhenceError, match=r"backend='sdpa'.*content_bias.*backend='blockwise'"):
        attend(*inputs(), position=from_score_mod(softcap), backend="sdpa")
