"""Interventions: named by text, applied to a model and undone, with an identity for records."""

from importlib.metadata import EntryPoint

import pytest
import torch
import transformers

from whence.errors import WhenceError
from whence.mend import AttentionTemperature, Intervention, identify_intervention, load_intervention

OWN = '''
from contextlib import contextmanager

class Louder:
    """Multiply the logits."""

    name = "louder"

    def __init__(self, by=2.0):
        self.by = by

    def settings(self):
        return {"by": self.by}

    @contextmanager
    def apply(self, model):
        handle = model.lm_head.register_forward_hook(lambda module, given, out: out * self.by)
        try:
            yield
        finally:
            handle.remove()

    def controls(self):
        return ()
'''


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(vocab_size=64, initializer_range=0.3, **sizes)
    return transformers.LlamaForCausalLM(config).eval()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(3, 17)[None]).logits


def test_temperature_one_changes_nothing_and_the_model_is_restored(model):
    before = logits(model)
    hot = AttentionTemperature(2.0)
    assert isinstance(hot, Intervention)
    with hot.apply(model):
        assert not torch.allclose(logits(model), before)
    assert torch.equal(logits(model), before)
    (control,) = hot.controls()
    with control.apply(model):
        assert torch.equal(logits(model), before)
    assert control.controls() == ()


def test_temperature_divides_the_scores_of_every_layer(model):
    scale = model.config.head_dim**-0.5
    with AttentionTemperature(4.0).apply(model):
        assert [layer.self_attn.scaling for layer in model.model.layers] == [scale / 4] * 2


def test_an_error_inside_the_block_restores_the_model(model):
    before = logits(model)
    with pytest.raises(RuntimeError), AttentionTemperature(2.0).apply(model):
        raise RuntimeError
    assert torch.equal(logits(model), before)


def test_custom_file(model, tmp_path, monkeypatch):
    (tmp_path / "louder.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    before = logits(model)
    louder = load_intervention("./louder.py:Louder(by=3.0)")
    with louder.apply(model):
        torch.testing.assert_close(logits(model), before * 3)
    assert torch.equal(logits(model), before)
    identity = identify_intervention(louder)
    assert identity["name"] == "louder" and identity["settings"] == {"by": 3.0} and len(identity["source_sha256"]) == 64
    (tmp_path / "louder.py").write_text(OWN + "\n# changed\n")
    changed = identify_intervention(load_intervention("./louder.py:Louder(by=3.0)"))
    assert changed["source_sha256"] != identity["source_sha256"]


def test_an_installed_package_registers_by_entry_point(monkeypatch, tmp_path):
    (tmp_path / "louder_package.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("louder", "louder_package:Louder", "whence.interventions")
    monkeypatch.setattr("whence.plugins.entry_points", lambda group: {"louder": point})
    assert load_intervention("louder(by=5)").settings() == {"by": 5}
    assert load_intervention("louder").settings() == {"by": 2.0}


@pytest.mark.parametrize(
    "text, match",
    [
        ("nonesuch", "--intervention nonesuch.*attention-temperature"),
        ("attention-temperature(temperature=0)", "temperature.* 0,"),
        ("attention-temperature(temperature=float)", "temperature=float"),
        ("attention-temperature(heat=2)", "the setting heat=2.*settings are temperature; remove or rename it"),
        ("log-n(trainde=5)", r"trainde=5; did you mean trained\? \(the settings are .*trained"),
        ("log-n(trained=5", "closing parenthesis.*add the"),
        ("collections:OrderedDict", "OrderedDict without name"),
        ("whence.plugins:INTERVENTIONS", "a str"),
    ],
)
def test_what_cannot_be_built_is_an_error(text, match):
    with pytest.raises(WhenceError, match=match):
        load_intervention(text)


def test_settings_must_be_json():
    class Odd(AttentionTemperature):
        def settings(self):
            return {"temperature": torch.ones(1)}

    with pytest.raises(WhenceError, match=r"Odd.settings\(\).*JSON"):
        identify_intervention(Odd())


def test_a_model_without_scaling_is_refused():
    with pytest.raises(WhenceError, match=r"Linear.*scaling"), AttentionTemperature(2.0).apply(torch.nn.Linear(2, 2)):
        pass


def test_a_cure_of_the_text_alone_needs_no_edits_and_every_cure_has_an_identity(model):
    from whence.mend.cure import Cure

    class Shout(Cure):
        name = "shout"

        def identity(self):
            return self

    before = logits(model)
    with Shout().apply(model):
        assert torch.equal(logits(model), before)
    with pytest.raises(TypeError, match="identity"):
        type("Mute", (Cure,), {"name": "mute"})()
