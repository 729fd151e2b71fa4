"""Quantized models, with stand-ins that store weights as bitsandbytes does; benchmarks/quantized_models.py runs the libraries."""

from types import SimpleNamespace

import pytest
import torch
from tiny_models import tiny, tokens
from torch import nn

import whence
from whence import hf
from whence.probe import analyses, hidden_states
from whence.probe.hidden_states import projection_matrix
from whence.probe.probed_model import ProbedModel, tiny_random_model

CPU = torch.device("cpu")


class Packed8(nn.Linear):
    """8 bits a weight with a scale a row. A column in which one token is above the threshold is not rounded, for all tokens."""

    def __init__(self, plain, threshold=6.0):
        super().__init__(plain.in_features, plain.out_features, bias=plain.bias is not None)
        self.scales = plain.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = nn.Parameter((plain.weight.detach() / self.scales).round().to(torch.int8), requires_grad=False)
        self.bias = plain.bias
        self.state = SimpleNamespace(threshold=threshold)

    def forward(self, x):
        above = (
            (x.abs() > self.state.threshold).flatten(0, -2).any(0) if self.state.threshold > 0 else torch.tensor(False)
        )
        scale = x.masked_fill(above, 0).abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
        to_rounded_list = torch.where(above, x, (x / scale).round() * scale)
        return nn.functional.linear(to_rounded_list, self.weight.float() * self.scales, self.bias)


class Packed4(Packed8):
    """Two weights a byte, in one long column: the shape says nothing about the matrix."""

    def __init__(self, plain):
        super().__init__(plain)
        self.scales = plain.weight.detach().abs().amax(1, keepdim=True) / 7
        four = (plain.weight.detach() / self.scales).round().to(torch.int8) + 8
        self.weight = nn.Parameter((four.flatten()[::2] * 16 + four.flatten()[1::2]).to(torch.uint8)[:, None], False)

    def matrix(self):
        both = torch.stack([self.weight[:, 0] // 16, self.weight[:, 0] % 16], 1).float() - 8
        return both.reshape(self.out_features, self.in_features) * self.scales

    def forward(self, x):
        return nn.functional.linear(x, self.matrix(), self.bias)


class WithAdapter(nn.Module):
    """A layer beside which a product of two matrices acts, and which is no ``nn.Linear`` itself."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.in_features, self.out_features = base_layer.in_features, base_layer.out_features
        self.down, self.up = nn.Linear(self.in_features, 2, bias=False), nn.Linear(2, self.out_features, bias=False)

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x))


class Rounding(nn.Linear):
    def forward(self, x):
        return super().forward(x.round())


def quantised(model, kind):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and name != "lm_head":
                setattr(module, name, kind(child))
    return model.eval()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", [lambda plain: plain, Packed8, Packed4, WithAdapter])
def test_the_matrix_of_a_projection_is_what_its_forward_multiplies_by(kind, bias):
    torch.manual_seed(0)
    instance = kind(nn.Linear(600, 12, bias=bias))
    matrix = projection_matrix(instance, torch.float32, CPU)
    x = torch.randn(5, 600)
    shift = instance.base_layer.bias if isinstance(instance, WithAdapter) else instance.bias
    wanted = instance(x) - (0 if shift is None else shift)
    assert matrix.shape == (12, 600) and matrix.dtype == torch.float32
    assert (x @ matrix.T - wanted).norm() <= 0.02 * wanted.norm()  # 8 bits round the inputs too
    if isinstance(instance, Packed4):
        torch.testing.assert_close(matrix, instance.matrix(), rtol=1e-5, atol=1e-6)
    elif isinstance(instance, Packed8):
        torch.testing.assert_close(matrix, instance.weight.float() * instance.scales, rtol=1e-5, atol=1e-6)


def test_a_nonlinear_projection_raises():
    with pytest.raises(whence.WhenceError, match=r"Rounding.*not linear"):
        projection_matrix(Rounding(16, 16), torch.float32, CPU)


@pytest.mark.parametrize("kind", [Packed8, Packed4, WithAdapter])
def test_scores_are_split_by_the_matrices_that_act(kind):
    lm = tiny_random_model(layers=2)
    texts = hidden_states.random_texts(lm, 3, 24)
    torch.manual_seed(0)
    model = quantised(lm.model, kind)
    actual = analyses.score_split(ProbedModel("q", model, lm.tokenizer), texts)
    for module in list(model.modules()):  # the same model with the matrices themselves
        for name, child in list(module.named_children()):
            if isinstance(child, kind):
                plain = nn.Linear(child.in_features, child.out_features, bias=False)
                plain.weight = nn.Parameter(projection_matrix(child, torch.float32, CPU))
                setattr(module, name, plain)
    wanted = analyses.score_split(ProbedModel("p", model, lm.tokenizer), texts)
    assert [one["layer"] for one in actual] == [0, 1]
    for one, other in zip(actual, wanted, strict=True):
        for head, plain in zip(one["heads"], other["heads"], strict=True):
            assert head == pytest.approx(plain, abs=0.03)


@torch.no_grad()
@pytest.mark.parametrize("kind", [lambda plain: Packed8(plain, threshold=1.0), Packed4])
def test_positions_are_attached_to_quantized_layers(kind, tmp_path):
    model, ids = quantised(tiny("llama"), kind), tokens()
    plain = model(ids).logits
    with hf.attach(model, whence.PowerPrior(4, alpha=0.3)) as attachment:
        assert all(position.alpha.dtype == torch.float32 for position in attachment.positions.values())
        seen = hf.LastRow()
        with hf.capture(model, seen):
            wanted = model(ids).logits
        torch.testing.assert_close(seen.stack().sum(-1), torch.ones(2, 2, 4))
        assert not torch.equal(wanted, plain)
        hf.save_positions(model, tmp_path)
    hf.attach_saved(model, tmp_path)
    assert torch.equal(model(ids).logits, wanted)
    kept = {m.state.threshold for m in model.modules() if isinstance(m, Packed8)}
    assert kept == {6.0} if kind is Packed4 else kept == {1.0}
