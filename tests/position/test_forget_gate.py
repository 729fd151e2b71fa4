"""The forget gate and data-dependent ALiBi: the papers' and public codes' numbers."""

import math

import pytest
import torch

from whence import Alibi, Attention, DataDependentAlibi, ForgetGate, WhenceError


def test_the_initial_gates_of_the_public_code():
    torch.manual_seed(0)
    gate = ForgetGate(512, 4)
    assert gate.b.tolist() == [0.0] * 4 and gate.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert gate.clock(torch.zeros(1, 1, 512)).flatten().tolist() == pytest.approx([math.log(0.5)] * 4)
    fixed = ForgetGate(8, 7, form="fixed", decay_times=(2, 128))
    assert fixed.b[-1].item() == pytest.approx(4.8481, abs=1e-4) and not fixed.trainable
    times = -1 / fixed.clock(torch.zeros(1, 1, 8)).flatten()
    torch.testing.assert_close(times, torch.tensor([2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]))
    assert [name for name, _ in ForgetGate(8, 2, form="bias").named_parameters()] == ["b"]


def test_data_dependent_alibi_starts_near_no_decay():
    gate = DataDependentAlibi(16, 2, log_scale=2.0)
    assert gate.b.tolist() == [5.0, 5.0]
    assert gate.clock(torch.zeros(1, 1, 16)).flatten().tolist() == pytest.approx([2 * -0.00672] * 2, abs=1e-5)
    assert gate.weight.abs().max() <= 16**-0.5


def test_a_fixed_gate_of_decay_time_t_is_alibi_of_slope_1_over_t():
    torch.manual_seed(0)
    gate, alibi = ForgetGate(8, 2, form="fixed", decay_times=(2, 8)), Alibi(2, slope=[0.5, 0.125])
    layer, x = Attention(8, 2, gate, causal=True), torch.randn(1, 7, 8)
    out = layer(x)
    layer.position = alibi
    torch.testing.assert_close(out, layer(x))


def test_the_gate_is_the_sigmoid_of_a_projection_of_the_input():
    torch.manual_seed(0)
    gate, x = ForgetGate(8, 2), torch.randn(3, 5, 8)
    torch.nn.init.normal_(gate.b)
    f = torch.sigmoid(x @ gate.weight.T + gate.b)
    torch.testing.assert_close(gate.clock(x).exp(), f.transpose(1, 2))
    assert gate.clock(x.bfloat16()).dtype == torch.float32


def test_gate_and_bias_learn():
    torch.manual_seed(0)
    gate = ForgetGate(8, 2)
    layer = Attention(8, 2, gate, causal=True)
    layer(torch.randn(2, 6, 8)).square().sum().backward()
    assert (gate.weight.grad != 0).all() and (gate.b.grad != 0).all()


def test_what_it_says_of_itself_and_refuses():
    assert repr(ForgetGate(8, 2)) == "ForgetGate(heads=2, embed_dim=8, form='data', learnable)"
    assert ForgetGate(8, 2).effects == {"clock"} and ForgetGate(8, 2).relative
    x = torch.randn(1, 3, 4)
    with pytest.raises(WhenceError, match=r"causal=False.*pass causal=True"):
        Attention(4, 2, ForgetGate(4, 2))(x)
    with pytest.raises(WhenceError, match=r"clock\(x\) got shape \[1, 3, 4\].*embed_dim=4"):
        Attention(4, 2, ForgetGate(8, 2), causal=True)(x)
    with pytest.raises(WhenceError, match=r"form=.*'full'.*'data', 'bias' or 'fixed'"):
        ForgetGate(8, 2, form="full")
    for times in (3.0, (0, 2), (1.0, "x")):
        with pytest.raises(WhenceError, match=r"decay_times.*\(2\.0, 128\.0\)"):
            ForgetGate(8, 2, form="fixed", decay_times=times)
    with pytest.raises(WhenceError, match=r"decay_times.*layer input.*form=\"bias\""):
        ForgetGate(8, 2, decay_times=(4.0, 8.0))
