"""Positions are saved with their settings; reading them into other settings is an error."""

import json
import re

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import tiny, tokens

import whence
from whence import hf
from whence.hf import settings
from whence.position.catalogue import CATALOGUE
from whence.probe.probed_model import byte_tokenizer


class Bell(whence.Position):
    """A mechanism of a user's own."""

    def __init__(self, width=3.0, *, heads=None):
        super().__init__(heads=heads)
        self.width = width
        self.height = torch.nn.Parameter(torch.tensor(1.0))

    def bias(self, distance, length):
        return self.height * torch.exp(-((distance / self.width) ** 2))


class Named(Bell):
    """One whose constructor hides what it was given."""

    def __init__(self, reach):
        super().__init__(width=2.0 * reach)


def trained(position, family="llama", **options):
    """A model with a position whose parameters have moved away from their initial values."""
    model = tiny(family)
    attachment = hf.attach(model, position, **options)
    with torch.no_grad():
        for layer, one in attachment.positions.items():
            for weight in one.parameters():
                weight.add_(0.05 * (layer + 1))
    return model


@torch.no_grad()
def logits(model, ids=None):
    return model(input_ids=tokens() if ids is None else ids).logits


def saved(tmp_path, position, **options):
    model = trained(position, **options)
    model.save_pretrained(tmp_path)
    return model


def test_a_saved_model_comes_back_with_its_positions(tmp_path):
    model = saved(tmp_path, whence.T5Bias(4, std=1.0) + whence.Alibi(4, scale=2.0, learnable=True), layers=[1])
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.warns(
        UserWarning, match=r"contains positions, which are not part of the model.*whence\.hf\.attach_saved\(model, "
    ):
        other = hf.load(tmp_path).model
    assert not torch.equal(logits(other), logits(model))
    before = torch.random.get_rng_state()
    attachment = hf.attach_saved(other, tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert list(attachment.positions) == [1]
    assert torch.equal(logits(other), logits(model))
    assert hf.attached_settings(other) == hf.attached_settings(model)
    attachment.detach()
    assert torch.equal(logits(other), logits(tiny("llama")))


@pytest.mark.parametrize("entry", [e for e in CATALOGUE if "embed" not in e.make(4, 8).effects], ids=lambda e: e.name)
def test_every_mechanism_is_built_again_from_its_settings(entry):
    position = entry.make(4, 8)
    description = json.loads(json.dumps(settings.describe(position)))
    again = settings.build_from_description("test", description)
    assert type(again) is type(position) and settings.difference(description, settings.describe(again)) is None
    again.load_state_dict(position.state_dict())
    assert repr(again) == repr(position)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (whence.Alibi(4, scale=2.0), whence.Alibi(4), r"scale=2\.0, while the attached one has scale=1\.0"),
        (whence.Rotary(base=500.0), whence.Rotary(), r"base=500\.0, while the attached one has base=10000\.0"),
        (whence.Epar(4, context=64), whence.Epar(4, context=32), "context=64, while the attached one has context=32"),
        (whence.PowerPrior(4), whence.PowerPrior(), "heads=4, while the attached one has heads=None"),
        (whence.PowerPrior(4), whence.Alibi(4), "PowerPrior, while Alibi is attached"),
        (whence.Sink(4), whence.Sink(4, learnable=False), r"parameters \['value'\], while the attached one has \[\]"),
        (Bell(3.0), Bell(4.0), r"width=3\.0, while the attached one has width=4\.0"),
        (whence.Alibi(4) + Bell(3.0), whence.Alibi(4) + Bell(4.0), r"Bell with width=3\.0"),
        (whence.Alibi(4) + Bell(3.0), Bell(3.0), r"Alibi \+ Bell, while Bell is attached"),
        (
            whence.Rotary(scaling=whence.position.Yarn(factor=4.0, original=64)),
            whence.Rotary(scaling=whence.position.Yarn(factor=2.0, original=64)),
            r"'factor': 4\.0.*'factor': 2\.0",
        ),
    ],
)
def test_other_settings_raise_and_both_are_named(one, other, both, tmp_path):
    keep = "rotate" not in one.effects
    model = saved(tmp_path, one, keep_rotary=keep)
    receiving = tiny("llama")
    hf.attach(receiving, other, keep_rotary=keep)
    before = {name: tensor.clone() for name, tensor in receiving.state_dict().items()}
    with pytest.raises(whence.WhenceError, match=both):
        hf.read_positions(receiving, tmp_path)
    with pytest.raises(whence.WhenceError, match=both):  # whoever loads the weights
        receiving.load_state_dict(model.state_dict(), strict=False)
    assert all(torch.equal(tensor, before[name]) for name, tensor in receiving.state_dict().items() if "whence" in name)


def test_a_setting_changed_after_attach_is_saved(tmp_path):
    model = tiny("llama")
    attachment = hf.attach(model, whence.Alibi(4))
    for position in attachment.positions.values():
        position.scale = 3.0
    model.save_pretrained(tmp_path)
    other = tiny("llama")
    assert hf.attach_saved(other, tmp_path).positions[0].scale == 3.0
    assert torch.equal(logits(other), logits(model))


def test_rotation_and_layers_are_restored(tmp_path):
    model = saved(tmp_path, whence.Rotary(base=200.0), layers=[0], keep_rotary=False)
    other = tiny("llama")
    hf.attach_saved(other, tmp_path)
    assert torch.equal(logits(other), logits(model))
    third = tiny("llama")
    hf.attach(third, whence.Rotary(base=200.0), keep_rotary=False)
    with pytest.raises(whence.WhenceError, match=r"no position for layers \[1\].*layers=\[0\]"):
        hf.read_positions(third, tmp_path)
    saved(tmp_path / "kept", whence.Alibi(4))
    fourth = tiny("llama")
    hf.attach(fourth, whence.Alibi(4), keep_rotary=False)
    with pytest.raises(whence.WhenceError, match="saved with keep_rotary=True, while it is False here"):
        hf.read_positions(fourth, tmp_path / "kept")


def test_a_users_class_is_passed(tmp_path):
    model = saved(tmp_path, Bell(2.5))
    with pytest.raises(whence.WhenceError, match=r"class Bell.*classes=\[Bell\]"):
        hf.attach_saved(tiny("llama"), tmp_path)
    for options in ({"classes": [Bell]}, {"position": Bell(2.5)}, {"position": lambda layer: Bell(2.5)}):
        other = tiny("llama")
        hf.attach_saved(other, tmp_path, **options)
        assert torch.equal(logits(other), logits(model))
    other = tiny("llama")
    plain = logits(other)
    with pytest.raises(whence.WhenceError, match=r"width=2\.5, while the attached one has width=9\.0"):
        hf.attach_saved(other, tmp_path, position=Bell(9.0))
    assert torch.equal(logits(other), plain) and not hf.attached_settings(other)


def test_a_class_that_does_not_store_its_arguments_is_passed_as_an_instance(tmp_path):
    model = saved(tmp_path, Named(1.5))
    with pytest.raises(whence.WhenceError, match=r"Named that cannot be built.*reach.*position="):
        hf.attach_saved(tiny("llama"), tmp_path, classes=[Named])
    other = tiny("llama")
    hf.attach_saved(other, tmp_path, position=Named(1.5))
    assert torch.equal(logits(other), logits(model))


def test_save_positions_writes_one_file_atomically(tmp_path, monkeypatch):
    model = trained(whence.PowerPrior(4))
    path = hf.save_positions(model, tmp_path)
    assert path == tmp_path / "whence.safetensors" and [p.name for p in tmp_path.iterdir()] == [path.name]
    other = tiny("llama")
    hf.attach_saved(other, tmp_path)
    assert torch.equal(logits(other), logits(model))
    good = path.read_bytes()

    def broken(*about, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(KeyboardInterrupt):
        hf.save_positions(trained(whence.Alibi(4)), tmp_path)
    assert path.read_bytes() == good and [p.name for p in tmp_path.iterdir()] == [path.name]


def test_two_files_that_differ_raise(tmp_path):
    model = saved(tmp_path, whence.PowerPrior(4))
    hf.save_positions(model, tmp_path)
    hf.attach_saved(tiny("llama"), tmp_path)  # twice the same is once
    hf.save_positions(trained(whence.PowerPrior(4, alpha=0.9)), tmp_path)
    with pytest.raises(whence.WhenceError, match=r"layer 0 in model\.safetensors and whence\.safetensors"):
        hf.attach_saved(tiny("llama"), tmp_path)


def test_damaged_files_are_named(tmp_path):
    hf.save_positions(trained(whence.PowerPrior(4)), tmp_path)
    path = tmp_path / "whence.safetensors"
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-1] ^= 1
    for bad in (good[:-3], good[:20], b"", bytes(flipped)):
        path.write_bytes(bad)
        with pytest.raises(whence.WhenceError, match=r"whence\.safetensors, which is truncated or damaged"):
            hf.attach_saved(tiny("llama"), tmp_path)
    path.unlink()
    with pytest.raises(whence.WhenceError, match="a folder without positions"):
        hf.attach_saved(tiny("llama"), tmp_path)
    with pytest.raises(whence.WhenceError, match="no such folder"):
        hf.attach_saved(tiny("llama"), tmp_path / "absent")


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"format": 1, "layer": 0, "keep_rotary": true, "position": {"class": "Alibi"}}', "damaged"),
        ('{"format": 2, "layer": 0, "keep_rotary": true, "position": {"parts": [{}]}}', "damaged"),
    ],
)
def test_damaged_settings_are_named(text, description, tmp_path):
    saved(tmp_path, whence.Alibi(4))
    state = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.self_attn.whence._settings_json"
    state[name] = torch.tensor(list(text.encode()), dtype=torch.uint8)
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(whence.WhenceError, match=rf"layers\.1\.self_attn\.whence\._settings_json in .*{description}"):
        hf.attach_saved(tiny("llama"), tmp_path)


def test_a_newer_format_is_an_error():
    record = {**hf.attached_settings(trained(whence.Alibi(4)))[0], "format": 3}
    with pytest.raises(whence.WhenceError, match=r"format 3.*newer version"):
        settings.decode("test", "x", settings.encode(record))


def test_format_1_keeps_its_weights_and_not_its_settings(tmp_path):
    """Its settings have argument names that are gone, so the position cannot be built from them."""
    model = saved(tmp_path, whence.PowerPrior(4))
    state = load_file(tmp_path / "model.safetensors")
    for name in [name for name in state if name.endswith("_settings_json")]:
        record = settings.decode("test", name, state[name])
        record["position"]["settings"] = {"width": 3, **record["position"]["settings"]}
        state[name] = settings.encode(record | {"format": 1})
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(whence.WhenceError, match=r"format 1.*read_positions"):
        hf.attach_saved(tiny("llama"), tmp_path)
    other, third = tiny("llama"), tiny("llama")
    hf.attach(other, whence.PowerPrior(4))
    hf.read_positions(other, tmp_path)
    hf.attach(third, whence.PowerPrior(4))
    third.load_state_dict(state)
    assert torch.equal(logits(other), logits(model)) and torch.equal(logits(third), logits(model))
    assert {record["format"] for record in hf.attached_settings(third).values()} == {2}


def test_names_in_a_file_are_looked_up_and_never_evaluated(tmp_path):
    """A class or setting that a file names is one of the mechanisms, or refused: nothing is imported or called."""
    description = settings.describe(whence.Alibi(4))
    for name in ("Position.__init__", "os.system", "CATALOGUE", "Linear"):
        with pytest.raises(whence.WhenceError, match="a position of class"):
            settings.build_from_description("test", description | {"class": name})
    with pytest.raises(whence.WhenceError, match="a setting of type Popen"):
        settings.build_from_description(
            "test", description | {"settings": {"scale": {"dataclass": "Popen", "fields": {"args": "true"}}}}
        )


def test_positions_saved_without_settings_are_read(tmp_path):
    model = saved(tmp_path, whence.PowerPrior(4))
    state = load_file(tmp_path / "model.safetensors")
    old = {name: tensor for name, tensor in state.items() if "_settings_json" not in name}
    save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(whence.WhenceError, match=r"positions without settings.*read_positions"):
        hf.attach_saved(tiny("llama"), tmp_path)
    other = tiny("llama")
    hf.attach(other, whence.PowerPrior(4))
    hf.read_positions(other, tmp_path)
    assert torch.equal(logits(other), logits(model))
    third = tiny("llama")
    hf.attach(third, whence.PowerPrior(4))
    third.load_state_dict(old)
    assert torch.equal(logits(third), logits(model))
    for wrong, match in ((whence.PowerPrior(), r"of shape \[4, 1\] for \[\]"), (whence.Kerple(4), "same kind")):
        with hf.attach(tiny("llama"), wrong) as attachment, pytest.raises(whence.WhenceError, match=match):
            hf.read_positions(attachment.model, tmp_path)
    with pytest.raises(whence.WhenceError, match=r"a model without positions.*attach_saved"):
        hf.read_positions(tiny("llama"), tmp_path)


def test_detached_positions_have_no_settings_buffer():
    model = tiny("llama")
    attachment = hf.attach(model, whence.PowerPrior(4))
    assert "_settings_json" not in repr(attachment.positions[0])
    attachment.detach()
    position = attachment.positions[0]
    assert list(position.state_dict()) == ["alpha", "beta.raw"]
    hf.attach(model, position)
    assert list(hf.attached_settings(model)) == [0, 1]


def test_half_precision_and_shards(tmp_path):
    model = trained(whence.PowerPrior(4)).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    other = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    hf.attach_saved(other, tmp_path)
    alphas = [attached[0].alpha for attached in map(settings.attached_positions, (model, other))]
    assert torch.equal(alphas[0].float(), alphas[1].float())


def test_the_layer_comes_from_the_settings(tmp_path):
    """Whatever names transformers gives the weights on disk."""
    model = saved(tmp_path, whence.PowerPrior(4))
    state = load_file(tmp_path / "model.safetensors")
    renamed = {re.sub(r"layers\.(\d)\.self_attn", r"blocks.\1.mixers.0", name): one for name, one in state.items()}
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    other = tiny("llama")
    hf.attach_saved(other, tmp_path)
    assert torch.equal(logits(other), logits(model))
