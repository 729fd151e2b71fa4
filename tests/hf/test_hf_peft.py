"""Positions in PEFT models: trained, saved and loaded with the adapter."""

import json
import warnings

import pytest
import torch
import transformers
from tiny_models import everything_of, same, tiny, tokens

import whence
from whence import hf

peft = pytest.importorskip("peft")


def lora(**told):
    return peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], **told)


def position(scale=2.0):
    return whence.Alibi(4, scale=scale, learnable=True)


def train(model, steps=2):
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser, ids = torch.optim.Adam(learning, lr=0.05), tokens()
    model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
    return model.eval()


@torch.no_grad()
def logits(model):
    return model(input_ids=tokens()).logits


def built(order):
    """A LoRA model with positions in its adapter, made in each of the three ways, and the attachment."""
    model = tiny("llama")
    if order == "attach to the PEFT model":
        model = peft.get_peft_model(model, lora())
        return model, hf.attach(model, position())
    attachment = hf.attach(model, position())
    if order == "modules_to_save":
        return peft.get_peft_model(model, lora(modules_to_save=["whence"])), attachment
    model.add_adapter(lora(modules_to_save=["whence"]))
    return model, attachment


@pytest.mark.parametrize("order", ["attach to the PEFT model", "modules_to_save", "transformers' add_adapter"])
def test_positions_learn_and_are_saved_with_the_adapter(order, tmp_path):
    model, attachment = built(order)
    before = {layer: one.slope.raw.detach().clone() for layer, one in attachment.positions.items()}
    train(model)
    assert list(before) == [0, 1]
    assert all((one.slope.raw - before[layer]).abs().min() > 0 for layer, one in attachment.positions.items())
    wanted = logits(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["modules_to_save"] == ["whence"]
    assert (tmp_path / "adapter_model.safetensors").exists() and not (tmp_path / "model.safetensors").exists()

    first = tiny("llama")  # positions from the folder, then the adapter
    hf.attach_saved(first, tmp_path)
    assert torch.equal(logits(peft.PeftModel.from_pretrained(first, tmp_path).eval()), wanted)
    second = peft.PeftModel.from_pretrained(tiny("llama"), tmp_path).eval()  # the adapter, then positions
    hf.attach_saved(second, tmp_path)
    assert torch.equal(logits(second), wanted)
    third = tiny("llama")  # a position of one's own, which the adapter fills
    hf.attach(third, position())
    assert torch.equal(logits(peft.PeftModel.from_pretrained(third, tmp_path).eval()), wanted)


def test_loading_an_adapter_with_other_settings_raises(tmp_path):
    built("modules_to_save")[0].save_pretrained(tmp_path)
    base = tiny("llama")
    hf.attach(base, position(scale=1.0))
    with pytest.raises(whence.WhenceError, match=r"scale=2\.0, while the attached one has scale=1\.0"):
        peft.PeftModel.from_pretrained(base, tmp_path)


def test_a_merged_model_keeps_its_positions(tmp_path):
    model = train(built("attach to the PEFT model")[0])
    wanted = logits(model)
    merged = model.merge_and_unload()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merged.save_pretrained(tmp_path)
    other = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    hf.attach_saved(other, tmp_path)
    assert torch.equal(logits(other), logits(merged))
    torch.testing.assert_close(logits(merged), wanted, atol=1e-4, rtol=0)


def test_saving_an_adapter_without_its_positions_warns(tmp_path):
    base = tiny("llama")
    hf.attach(base, position())
    model = peft.get_peft_model(base, lora())
    with pytest.warns(UserWarning, match=r'modules_to_save=\["whence"\].*whence\.hf\.save_positions'):
        model.save_pretrained(tmp_path)
    hf.save_positions(model, tmp_path)
    other = peft.PeftModel.from_pretrained(tiny("llama"), tmp_path).eval()
    hf.attach_saved(other, tmp_path)
    assert torch.equal(logits(other), logits(model.eval()))


def test_each_adapter_has_its_own_positions():
    model, attachment = built("modules_to_save")
    model.add_adapter("second", lora(modules_to_save=["whence"]))
    train(model)
    first = logits(model)
    model.set_adapter("second")
    assert attachment.positions[0].slope().ne(position().slope()).sum() == 0
    assert not torch.equal(logits(model), first)
    model.set_adapter("default")
    assert torch.equal(logits(model), first)


def test_detach_restores_a_peft_model():
    model = peft.get_peft_model(tiny("llama"), lora())
    before, config = everything_of(model), model.peft_config["default"].to_dict()
    seen, plain = hf.LastRow(), logits(model)
    with hf.capture(model, seen):
        logits(model)
    assert seen.stack().shape == (2, 2, 4, 14)
    with hf.attach(model, position()), hf.capture(model, hf.LastRow()):
        assert not torch.equal(logits(model), plain)
    assert same(before, everything_of(model)) and model.peft_config["default"].to_dict() == config
    assert torch.equal(logits(model), plain)
