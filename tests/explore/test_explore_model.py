"""What the tab of models shows, without a browser, on a tiny random model."""

import pytest
import torch

from whence.errors import WhenceError
from whence.explore.model_tab import ModelSession, view_generation, view_needle, view_text
from whence.explore.model_view import (
    NOTHING,
    SMALLEST,
    changed,
    distance_profile,
    load_model,
    read,
    simple_cures,
    tokenize,
)

TEXT = "one two three one two"


@pytest.fixture(scope="module")
def lm():
    pytest.importorskip("transformers")
    return load_model(SMALLEST)


@torch.no_grad()
def test_a_reading_is_the_attention_of_the_model(lm):
    reading = read(lm, TEXT, layer=1)
    lm.model.set_attn_implementation("eager")
    output = lm.model(tokenize(lm, TEXT), output_attentions=True)
    torch.testing.assert_close(reading.rows, output.attentions[1][0], atol=1e-5, rtol=1e-4)
    first = torch.stack([layer[0, :, -1, 0] for layer in output.attentions])
    torch.testing.assert_close(reading.first_share, first, atol=1e-5, rtol=1e-4)
    assert "".join(reading.tokens) == TEXT and abs(float(reading.next_probabilities.sum()) - 1) < 1e-5
    profile = distance_profile(reading.rows)
    torch.testing.assert_close(profile[:, -1], reading.rows[:, -1, 0])


def test_a_change_is_seen_and_undone(lm):
    before = read(lm, TEXT, 0)
    with_it = read(lm, TEXT, 0, "Alibi(scale=4)")
    assert float((with_it.rows - before.rows).abs().max()) > 0.01
    figures, following = view_text(lm, TEXT, 99, 99, 99, "Alibi(scale=4)")
    assert "layer 2, head 3" in figures and "changed" in following
    assert torch.equal(read(lm, TEXT, 0).rows, before.rows)
    assert view_text(lm, TEXT, 0, 0, 0, NOTHING)[1].count("changed") == 0


@pytest.mark.parametrize("cure", simple_cures())
def test_each_cure_of_the_list_runs_as_it_is(lm, cure):
    with changed(lm.model, cure):
        assert torch.isfinite(lm.model(tokenize(lm, TEXT)).logits).all()


def test_a_continuation_and_a_needle(lm):
    assert view_generation(lm, TEXT, "Alibi(scale=4)").count("<p") == 2
    assert "probability of “blue”" in view_needle(lm, "It is blue.", "It is", "blue", 1, NOTHING)
    with pytest.raises(WhenceError, match="type a word"):
        view_needle(lm, "It is blue.", "It is", " ", 1, NOTHING)
    with pytest.raises(WhenceError, match="at least 2"):
        tokenize(lm, "")


def test_one_model_is_loaded_once():
    session = ModelSession()
    assert session.get(SMALLEST) is session.get(SMALLEST)
    with pytest.raises(WhenceError, match="type smollm2"):
        session.get("")
