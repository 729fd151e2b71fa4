"""Log-n temperatures: the published numbers, and the code of the models in transformers."""

import sys
from pathlib import Path

import pytest
import torch

from whence import Alibi, LogTemperature, Rotary, WhenceError, attend, hf

sys.path.insert(0, str(Path(__file__).parents[1] / "hf"))
POSITIONS = {
    "llama4": ({8190: 1, 8191: 1.0693, 131071: 1.2833}, {}),
    "ministral3": ({16383: 1, 16384: 1.0693}, {}),
    "inkling": ({8191: 1, 16383: 1.0693, 131071: 1.2773}, {"original": 8192}),
    "log": ({1022: 1, 1024**2 - 1: 2}, {"original": 1024}),
}


def factors(position, at):
    q = torch.ones(1, 2, len(at), 4, dtype=torch.float64)
    rotated, k = position.rotate(q, q, torch.tensor([at]), torch.arange(len(at))[None])
    assert torch.equal(k, q) and torch.equal(rotated, rotated[:, :1, :, :1].expand_as(q))
    return [round(value, 4) for value in rotated[0, 0, :, 0].tolist()]


@pytest.mark.parametrize("form", POSITIONS)
def test_published_factors(form):
    wanted, arguments = POSITIONS[form]
    assert factors(LogTemperature(form=form, **arguments), list(wanted)) == list(wanted.values())


def test_llama_4_is_the_default_and_negative_positions_are_position_0():
    assert repr(LogTemperature()) == "LogTemperature(form='llama4', original=8192, scale=0.1)"
    assert repr(LogTemperature(form="log", original=9)) == "LogTemperature(form='log', original=9)"
    for form in POSITIONS:
        at = LogTemperature(form=form, original=2, scale=0.5)
        assert factors(at, [-7]) == factors(at, [0])


def test_logits_are_multiplied_and_the_bias_is_not():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 9, 4, dtype=torch.float64) for _ in range(3))
    position = LogTemperature(form="ministral3", original=3, scale=0.5)
    factor = 1 + 0.5 * (1 + torch.arange(9) // 3).log()
    bias = -torch.tensor([2**-4, 2**-8])[:, None, None] * (torch.arange(9)[:, None] - torch.arange(9)).double()
    logits = factor[:, None] * (q @ k.mT) / 2 + bias
    wanted = torch.softmax(logits.masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf), -1) @ v
    for backend in ("reference", "blockwise", "sdpa", "auto"):
        actual = attend(q, k, v, position=position + Alibi(2).double(), causal=True, backend=backend)
        torch.testing.assert_close(actual, wanted, rtol=1e-6, atol=1e-9)


@torch.no_grad()
def test_it_is_what_ministral_3_does_after_its_own_rotation():
    transformers = pytest.importorskip("transformers")
    from tiny_models import GROUPED, tokens

    def build(beta):
        torch.manual_seed(0)
        rope = {"rope_type": "default", "rope_theta": 1e4, "original_max_position_embeddings": 5}
        config = transformers.Ministral3Config(
            **GROUPED, head_dim=8, rope_parameters=rope | {"llama_4_scaling_beta": beta}
        )
        model = transformers.Ministral3ForCausalLM(config).eval()
        for parameter in model.parameters():
            parameter.mul_(3)
        return model

    ids, plain = tokens(length=12), build(0.0)
    wanted, without = build(0.9)(ids).logits, plain(ids).logits
    assert (wanted - without)[:, 5:].abs().max() > 1e-2
    with hf.attach(plain, LogTemperature(form="ministral3", original=5, scale=0.9)):
        torch.testing.assert_close(plain(ids).logits, wanted, rtol=0, atol=1e-4)
    with pytest.raises(WhenceError, match="rotates in layers"):  # a part that rotates still may not
        hf.attach(plain, LogTemperature() + Rotary())


@torch.no_grad()
def test_it_is_what_llama_4_does_in_layers_without_rotation():
    pytest.importorskip("transformers")
    from families import FAMILIES
    from tiny_models import tokens

    model = next(family for family in FAMILIES if family.name == "llama4_text").build()
    ids, attention = tokens(length=12), model.model.layers[1].self_attn
    assert not attention.use_rope
    attention.attn_temperature_tuning, attention.floor_scale, attention.attn_scale = True, 4, 0.9
    wanted = model(ids).logits
    attention.attn_temperature_tuning = False
    assert (model(ids).logits - wanted).abs().max() > 1e-3
    with hf.attach(model, LogTemperature(original=4, scale=0.9), layers=[1]):
        torch.testing.assert_close(model(ids).logits, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"form": "cube"}, "form.*'cube'.*choose one of"),
        ({"form": "log"}, r"original.*None.*pass the trained length"),
        ({"form": "inkling"}, r"original.*None.*pass the trained length"),
        ({"original": 1}, "original.*got 1.*pass the trained length"),
        ({"scale": -1.0}, "scale.*-1.*use 0.1"),
    ],
)
def test_errors(arguments, text):
    with pytest.raises(WhenceError, match=text):
        LogTemperature(**arguments)
