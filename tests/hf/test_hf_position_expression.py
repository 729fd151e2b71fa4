"""``attach`` takes a mechanism as text, also one of the user's own file, and fills in the sizes of the model."""

import pytest
import torch
from tiny_models import tiny, tokens

import whence
from whence import hf
from whence.hf.attach import model_dims

BELL = '''
import torch
from whence import Position


class Bell(Position):
    """A bump around the query, with a learned height for each head."""

    def __init__(self, heads, width=3.0):
        super().__init__(heads=heads)
        self.width = width
        self.height = torch.nn.Parameter(torch.ones(heads, 1))

    def bias(self, distance, length):
        return self.height * torch.exp(-((distance / self.width) ** 2))
'''


@torch.no_grad()
def logits(model):
    return model(tokens()).logits


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_a_text_is_the_mechanism_with_the_models_sizes(family):
    model = tiny(family)
    with hf.attach(model, whence.PowerPrior(4, alpha=0.3)):
        expected = logits(model)
    with hf.attach(model, "PowerPrior(heads=4, alpha=0.3)"):
        assert torch.equal(logits(model), expected)
    with hf.attach(model, "Alibi() + Shaw(clip=4)") as attachment:
        alibi, shaw = attachment.positions[1].parts
        assert alibi.heads == 4 and shaw.head_dim == 8


def test_a_users_own_file(tmp_path, monkeypatch):
    (tmp_path / "bell.py").write_text(BELL)
    monkeypatch.chdir(tmp_path)
    model = tiny("llama")
    plain = logits(model)
    attachment = hf.attach(model, "./bell.py:Bell(width=2.0)")
    positions = attachment.positions
    assert [type(position).__name__ for position in positions.values()] == ["Bell", "Bell"]
    assert positions[0].height.shape == (4, 1) and positions[0].width == 2.0
    assert positions[0].height is not positions[1].height  # a copy for every layer
    changed = logits(model)
    assert not torch.allclose(changed, plain)
    hf.save_positions(model, tmp_path / "saved")
    attachment.detach()
    assert torch.equal(logits(model), plain)
    with pytest.raises(whence.WhenceError, match=r"class Bell.*position="):
        hf.attach_saved(model, tmp_path / "saved")
    again = hf.attach_saved(model, tmp_path / "saved", position="./bell.py:Bell(width=2.0)")
    assert torch.equal(logits(model), changed)
    again.detach()


def test_a_wrong_text_leaves_the_model_unchanged():
    model = tiny("llama")
    plain = logits(model)
    for text, match in (("Alibis()", "Alibis"), ("Alibi(size=3)", "size"), ("./absent.py:Bell", r"absent\.py")):
        with pytest.raises(whence.WhenceError, match=match):
            hf.attach(model, text)
    assert torch.equal(logits(model), plain) and model.config._attn_implementation != "whence"


def test_sizes_are_those_of_the_text_config():
    dims = model_dims(tiny("gemma3"))
    assert (dims.heads, dims.head_dim, dims.embed_dim, dims.context) == (4, 8, 32, 256)
    assert model_dims(tiny("gpt2")).context == 256


def test_random_initial_values_of_a_text_are_those_of_every_process():
    """A command that attaches a text resumes the records of the same model."""
    model = tiny("llama")
    outputs = []
    for seed in range(2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        with hf.attach(model, "T5Bias(std=1.0)"):
            outputs.append(logits(model))
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*outputs)
