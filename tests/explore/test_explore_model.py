"""What the tab of models shows, without a browser, on a tiny random model."""

import pytest
import torch

from whence.errors import WhenceError
from whence.explore import model_session
from whence.explore.model_reading import (
    FILLER,
    MAX_TOKENS,
    NOTHING,
    SMALLEST,
    changed,
    find_change,
    read,
    ready_cures,
    split_documents,
)
from whence.explore.model_session import ModelSession, ReadText
from whence.explore.model_tab import guard, slider_ends, view_generation, view_needle, view_text
from whence.explore.model_view import distance_profile, draw_reading

TEXT = "one two three one two"
DOCUMENTS = "one two\n\nthree one one\n\ntwo three\n\none"


@pytest.fixture(scope="module")
def session():
    pytest.importorskip("transformers")
    session = ModelSession()
    session.get(SMALLEST)
    return session


@pytest.fixture(scope="module")
def lm(session):
    return session.get(SMALLEST)


def last(steps):
    *_, end = steps
    return end


@torch.no_grad()
def test_a_reading_is_the_attention_of_the_model(lm):
    reading = read(lm, TEXT)
    lm.model.set_attn_implementation("eager")
    tokens = torch.tensor([lm.tokenizer(TEXT, add_special_tokens=False)["input_ids"]])
    output = lm.model(tokens, output_attentions=True)
    for layer, weights in enumerate(output.attentions):
        torch.testing.assert_close(reading.rows(layer), weights[0], atol=1e-5, rtol=1e-4)
    first = torch.stack([layer[0, :, -1, 0] for layer in output.attentions])
    torch.testing.assert_close(reading.first_share(), first, atol=1e-5, rtol=1e-4)
    assert "".join(reading.tokens) == TEXT and reading.total == len(reading.tokens)
    torch.testing.assert_close(reading.next_probabilities, output.logits[0, -1].softmax(-1), atol=1e-5, rtol=1e-4)
    rows = reading.rows(1)
    slow = torch.stack([rows.diagonal(-distance, -2, -1).mean(-1) for distance in range(rows.shape[-1])], -1)
    torch.testing.assert_close(distance_profile(rows), slow)


def test_a_change_is_seen_and_undone(session, lm):
    before = read(lm, TEXT)
    with_it = read(lm, TEXT, "Alibi(scale=4)")
    assert float((with_it.rows(0) - before.rows(0)).abs().max()) > 0.01
    own = lm.model.config.rope_parameters["rope_theta"]
    torch.testing.assert_close(
        read(lm, TEXT, f"Rotary(base={own})").rows(2), before.rows(2)
    )  # in place of the model's own
    figures, following, done = last(view_text(session, None, SMALLEST, TEXT, "Alibi(scale=4)", 99, 99, 99))
    assert "layer 2, head 3" in figures and "changed" in following
    assert torch.equal(read(lm, TEXT).rows(0), before.rows(0)) and slider_ends(done)[:2] == (2, 3)
    assert "changed" not in last(view_text(session, None, SMALLEST, TEXT, NOTHING, 0, 0, 0))[1]


def test_the_chosen_layer_is_drawn_while_the_others_run_and_a_known_text_is_not_read_again(session, monkeypatch):
    monkeypatch.setattr(model_session, "INTERVAL", -1.0)
    passes = []
    monkeypatch.setattr(
        model_session, "read", lambda lm, change, **others: passes.append(change) or read(lm, change=change, **others)
    )
    steps = list(view_text(session, None, SMALLEST, TEXT, NOTHING, 0, 0, 0))
    assert "Layer" in "".join(following for _, following, _ in steps[:-1]) and steps[-1][2].text == TEXT
    done = steps[-1][2]
    with_change = last(view_text(session, done, SMALLEST, TEXT, "log-n", 0, 0, 0))[2]
    assert last(view_text(session, with_change, SMALLEST, TEXT, "log-n", 2, 1, 3))[2].readings == with_change.readings
    assert passes == [NOTHING, "log-n"]
    last(view_text(session, with_change, SMALLEST, TEXT + " one", NOTHING, 0, 0, 0))
    assert passes == [NOTHING, "log-n", NOTHING]


def test_a_text_that_begins_alike_is_read_from_where_it_differs(session, lm, request):
    before = last(session.read(None, SMALLEST, TEXT, NOTHING))
    longer, lengths = "one two three one three two one", []
    fresh, said = read(lm, longer), last(view_generation(session, SMALLEST, longer, NOTHING))
    hook = lm.model.model.embed_tokens.register_forward_hook(lambda _, ids, out: lengths.append(ids[0].shape[1]))
    request.addfinalizer(hook.remove)
    for text, expected in ((longer, fresh), (TEXT, before.shown)):  # longer, then cut again
        common = before.shown.known.count_common(expected.known.ids)
        done = last(session.read(before, SMALLEST, text, NOTHING))
        assert done.shown.tokens == expected.tokens
        for layer in range(3):
            torch.testing.assert_close(done.shown.rows(layer), expected.rows(layer), atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(done.shown.next_probabilities, expected.next_probabilities, atol=1e-6, rtol=1e-4)
        assert lengths[-1] == len(expected.tokens) - common and common > 4
        before = done
    done = last(session.read(None, SMALLEST, longer, NOTHING))
    lengths.clear()
    assert last(view_generation(session, SMALLEST, longer, NOTHING, done)) == said and set(lengths) == {1}
    lengths.clear()
    session.needle = None
    shares = [view_needle(session, SMALLEST, "It is blue.", "It is", "blue", place, NOTHING) for place in (11, 12)]
    assert lengths[-1] < lengths[0] / 4
    session.needle = None
    assert view_needle(session, SMALLEST, "It is blue.", "It is", "blue", 12, NOTHING) == shares[1]


def test_a_long_text_is_cut_and_says_so(lm):
    reading = read(lm, "one " * (MAX_TOKENS + 100))
    assert len(reading.tokens) == MAX_TOKENS < reading.total
    assert f"the first {MAX_TOKENS} of {reading.total}" in draw_reading(reading, 0, 0, 0)


@pytest.mark.parametrize("cure", ready_cures())
def test_each_cure_of_the_list_runs_as_it_is(lm, cure):
    reading = read(lm, DOCUMENTS, cure)
    assert torch.isfinite(reading.next_probabilities).all() and torch.isfinite(reading.rows(2)).all()


def test_documents_are_the_paragraphs_before_the_last(lm):
    plain, windows = read(lm, DOCUMENTS), read(lm, DOCUMENTS, "parallel-windows")
    second = split_documents(DOCUMENTS).slots[1][0]
    query = len(lm.tokenizer(DOCUMENTS[: second + 3], add_special_tokens=False)["input_ids"]) - 1
    assert float(plain.rows(0)[:, query, 0].min()) > 0
    assert float(windows.rows(0)[:, query, 0].abs().max()) == 0  # a document does not see the one before it
    assert float(windows.rows(0)[:, -1, 0].min()) > 0
    for cure in ("pine", "reorder", "calibration"):
        with pytest.raises(WhenceError, match=r"(?s)0 documents.*empty line"), changed(lm, cure, split_documents(TEXT)):
            pass


def test_a_continuation_and_a_needle(session):
    assert last(view_generation(session, SMALLEST, TEXT, "Alibi(scale=4)")).count("<p") == 2
    assert "probability of “blue”" in view_needle(session, SMALLEST, "It is blue.", "It is", "blue", 1, "pine")
    with pytest.raises(WhenceError, match="type a word"):
        view_needle(session, SMALLEST, "It is blue.", "It is", " ", 1, NOTHING)
    for cure, remedy in (("scale-channel", r"type scale-channel\(channel="), ("in2", r"type in2\(adapter=")):
        with pytest.raises(WhenceError, match=f"Change got {cure} without .*{remedy}"):
            find_change(cure)
    with pytest.raises(WhenceError, match="did you mean ms-poe"):
        find_change("mspoe")
    with pytest.raises(WhenceError, match="at least 2"):
        list(session.read(None, SMALLEST, "", NOTHING))
    assert FILLER.endswith(".")


def test_one_model_is_loaded_once_and_errors_are_sentences(session):
    assert session.get(SMALLEST) is session.get(SMALLEST)
    pytest.importorskip("gradio")
    shown = guard(lambda name: (("", one) for one in ModelSession().read(None, name, TEXT, NOTHING)), ("", None))
    error, cleared, _ = last(shown(""))
    assert "type smollm2" in error and cleared == ""
    assert isinstance(last(session.read(None, SMALLEST, TEXT, "")), ReadText)
