"""Models whose weights accelerate keeps on the CPU or on disk until a layer runs."""

from dataclasses import replace

import pytest
import torch
import transformers
from tiny_models import everything_of, tiny, tokens

import whence
from whence import hf
from whence.probe import analyses, hidden_states
from whence.probe.hidden_states import projection_matrix
from whence.probe.probed_model import tiny_random_model

accelerate = pytest.importorskip("accelerate")


def position():
    return whence.PowerPrior(4, alpha=0.3) + whence.Alibi(4, learnable=True)


@torch.no_grad()
def logits(model):
    return model(input_ids=tokens()).logits


@pytest.fixture(scope="module")
def wanted():
    model = tiny("llama")
    plain = logits(model)
    hf.attach(model, position())
    return plain, logits(model)


def mapped(model, folder):
    """A layer on disk, as ``device_map="auto"`` places what fits nowhere else."""
    model.save_pretrained(folder / "model")
    places = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu", "model.norm": "cpu"}
    places |= {"model.rotary_emb": "cpu", "lm_head": "cpu"}
    auto = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder / "model", device_map=places, offload_folder=folder / "offloaded").eval()


OFFLOADED = {
    "cpu": lambda model, folder: accelerate.cpu_offload(model, execution_device="cpu"),
    "disk": lambda model, folder: accelerate.disk_offload(model, folder / "weights", execution_device="cpu"),
    "device_map": mapped,
}


@pytest.mark.parametrize("kind", OFFLOADED)
def test_positions_are_attached_to_offloaded_layers(kind, wanted, tmp_path):
    model = OFFLOADED[kind](tiny("llama"), tmp_path)
    assert model.model.layers[0].self_attn.q_proj.weight.is_meta
    plain, changed = wanted
    attachment = hf.attach(model, position())
    assert torch.equal(logits(model), changed)
    seen = hf.LastRow()
    with hf.capture(model, seen):
        model.generate(input_ids=tokens(), max_new_tokens=2, do_sample=False)
    assert seen.stack().shape == (2, 2, 4, 15)
    hf.save_positions(model, tmp_path / "positions")
    if kind == "device_map":  # what was offloaded otherwise transformers does not save
        model.save_pretrained(tmp_path / "saved")
        other = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
        hf.attach_saved(other, tmp_path / "saved")
        assert torch.equal(logits(other), changed)
    attachment.detach()
    assert torch.equal(logits(model), plain)
    hf.attach_saved(model, tmp_path / "positions")
    assert torch.equal(logits(model), changed)


@pytest.mark.parametrize("kind", ["cpu", "disk"])
@pytest.mark.parametrize("saved_first", [False, True])
def test_a_model_is_offloaded_with_its_positions(kind, saved_first, wanted, tmp_path):
    model = tiny("llama")
    hf.attach(model, position())
    model = OFFLOADED[kind](model, tmp_path)
    if saved_first:
        hf.save_positions(model, tmp_path / "positions")
        other = tiny("llama")
        hf.attach_saved(other, tmp_path / "positions")
        assert torch.equal(logits(other), wanted[1])
    assert torch.equal(logits(model), wanted[1])


def test_the_matrix_of_an_offloaded_projection_is_read(tmp_path):
    own = tiny("llama").model.layers[1].self_attn.k_proj.weight.detach()
    model = accelerate.disk_offload(tiny("llama"), tmp_path, execution_device="cpu")
    matrix = projection_matrix(model.model.layers[1].self_attn.k_proj, model.dtype, torch.device("cpu"))
    assert torch.equal(matrix, own)


def test_a_model_without_weights_raises():
    with torch.device("meta"):
        model = tiny("llama")
    before = everything_of(model)[0]
    with pytest.raises(
        whence.WhenceError, match=r"attach\(\.\.\.\) got a Embedding on the device meta.*from_pretrained"
    ):
        hf.attach(model, whence.Alibi(4))
    with pytest.raises(whence.WhenceError, match=r"capture\(\.\.\.\)"), hf.capture(model, hf.LastRow()):
        pass
    assert everything_of(model)[0] == before


def test_scores_of_offloaded_layers_are_split(tmp_path):
    plain = tiny_random_model(layers=2)
    texts = hidden_states.random_texts(plain, 2, 16)
    wanted = analyses.score_split(plain, texts)
    offloaded = replace(plain, model=accelerate.disk_offload(plain.model, tmp_path, execution_device="cpu"))
    for one, other in zip(analyses.score_split(offloaded, texts), wanted, strict=True):
        assert one["heads"][0] == pytest.approx(other["heads"][0], abs=1e-6)
