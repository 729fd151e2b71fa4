"""The model's own rotation is known by what a layer does: complex ones too, and NoPE layers are known to have none."""

import pytest
import torch
from families import FAMILIES
from tiny_models import left_padded, tiny, tokens

import whence
from whence import hf


def built(name):
    return next(family for family in FAMILIES if family.name == name).build()


@torch.no_grad()
def test_llama4_does_not_rotate_twice():
    model, ids = built("llama4_text"), tokens()
    with pytest.raises(whence.WhenceError, match=r"rotates in layers \[0\].*pass keep_rotary=False"):
        hf.attach(model, whence.Rotary())
    plain = model(ids).logits
    rotary = whence.Rotary(layout="interleaved", base=model.config.rope_parameters["rope_theta"])
    with hf.attach(model, rotary, keep_rotary=False, layers=[0]):
        torch.testing.assert_close(model(ids).logits, plain, atol=1e-5, rtol=0)
    with hf.attach(model, whence.NoPosition(), keep_rotary=False, layers=[0]):
        assert (model(ids).logits - plain).abs().max() > 1e-3  # there was a rotation, and it is gone


@pytest.mark.parametrize("family", ["llama4_text", "smollm3", "cohere2", "exaone4"])
def test_layers_without_rotation_are_found(family):
    model = built(family)
    with hf.attach(model, whence.NoPosition()) as attachment:
        assert attachment.rotary_layers == [0]
    hf.attach(model, whence.Rotary(), layers=[1]).detach()  # nothing rotates there yet
    with hf.attach(model, whence.Alibi(4), keep_rotary=False) as attachment:
        assert attachment.rotary_layers == [0]
    with pytest.raises(whence.WhenceError, match=r"layers \[1\] do not rotate queries and keys"):
        hf.attach(model, whence.Alibi(4), keep_rotary=False, layers=[1])


def test_a_rotation_inside_the_attention_module_cannot_be_removed_or_doubled():
    model = built("moshi")
    with pytest.raises(whence.WhenceError, match=r"rotates in layers \[0, 1\].*use a position that does not rotate"):
        hf.attach(model, whence.Rotary())
    with pytest.raises(whence.WhenceError, match="compute their rotation inside the attention module"):
        hf.attach(model, whence.NoPosition(), keep_rotary=False)
    with hf.attach(model, whence.Alibi(4)) as attachment:
        assert attachment.rotary_layers == []


class Noting(whence.Position):
    """Turns nothing, and remembers the positions it was handed."""

    def __init__(self, relative):
        super().__init__()
        self.relative, self.queries, self.keys = relative, [], []

    def rotate(self, q, k, q_positions, k_positions):
        self.queries.append(q_positions)
        self.keys.append(k_positions)
        return q, k


@pytest.mark.parametrize("relative", [True, False])
@torch.no_grad()
def test_positions_follow_one_rule_in_a_padded_prefill_and_in_the_next_step(relative):
    """A relative mechanism is handed slots of the cache, any other the tokens since the first real one."""
    model, ids = tiny("llama", num_hidden_layers=1), tokens(length=11)
    padded = left_padded(ids, (5, 0))
    first, step = ({name: x[:, part] for name, x in padded.items()} for part in (slice(10), slice(10, 11)))
    with hf.attach(model, Noting(relative), keep_rotary=False) as attachment:
        noted = attachment.positions[0]
        noted.queries.clear(), noted.keys.clear()
        cache = model(**first, use_cache=True).past_key_values
        model(**step | {"attention_mask": padded["attention_mask"]}, past_key_values=cache)
    prefill, after = (positions.expand(2, -1) for positions in noted.queries)
    keys = noted.keys[1].expand(2, -1)
    missing = torch.tensor([0, 0] if relative else [5, 0])
    real = padded["attention_mask"].bool()
    counted = torch.arange(11) - missing[:, None]
    assert torch.equal(prefill[real[:, :10]], counted[:, :10][real[:, :10]])
    assert torch.equal(after, counted[:, 10:])
    assert torch.equal(keys[real], counted[real])


@torch.no_grad()
def test_a_content_term_on_rotated_queries_is_the_same_in_a_padded_batch():
    model, ids = tiny("llama", num_hidden_layers=1), tokens(length=11)
    torch.manual_seed(0)
    position = whence.Rotary() + whence.Shaw(head_dim=8, acts_on="keys", std=1.0)
    with hf.attach(model, position, keep_rotary=False):
        padded = model(**left_padded(ids, (5, 0))).logits
        alone = model(ids[:1, 5:]).logits
    torch.testing.assert_close(padded[0, 5:], alone[0], atol=1e-5, rtol=1e-4)
