"""Greedy and beam search against every text there is."""

import itertools
import math

import pytest
import torch

from whence.errors import WhenceError
from whence_papers.pointer.pointer_generator import (
    PointerGenerator,
    PointerGeneratorSpec,
    Vocabulary,
    beam_search,
    greedy_search,
)
from whence_papers.pointer.pointer_generator.vocabulary import PAD, START, STOP

VOCABULARY = Vocabulary(["to"])
SOURCES = VOCABULARY.sources([["ann", "to", "bob", "ann"], ["to"], ["bob", "to"]])
V, LONGEST = len(VOCABULARY), 3


def build_model(seed=0, **changes):
    torch.manual_seed(seed)
    model = PointerGenerator(PointerGeneratorSpec(V, embedding=3, hidden_size=4, **changes)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4.0)
        model.decoder.out.bias[STOP] += 3.0
    return model


@torch.no_grad()
def sums(model, row, texts):
    """The log-probability of each text of a source, alone and followed by a stop; what the search may not say is -inf.

    Texts are scored one by one and from the beginning, as targets."""
    source = VOCABULARY.sources([[["ann", "to", "bob", "ann"], ["to"], ["bob", "to"]][row]])
    out = {}
    for text in texts:
        encoded, state = model.encode(source)
        total, again, words = 0.0, 0.0, (START, *text)
        for place, word in enumerate(words):
            step, state = model.step(torch.tensor([word]), state, encoded)
            again += step.coverage_loss.item()
            if place < len(text):
                before_stop = again
                total += step.log_p[0, text[place]].item()
            else:
                out[text] = total, total + step.log_p[0, STOP].item(), before_stop if text else 0.0, again
    return out


def all_texts(row):
    size = V + len(SOURCES.beyond[row])
    words = [w for w in range(size) if w not in (PAD, START, STOP)]
    return [text for n in range(LONGEST + 1) for text in itertools.product(words, repeat=n)]


@pytest.fixture(scope="module", params=["additive", "coverage"])
def exhausted(request):
    """A model, and for each source the sums of all texts."""
    model = build_model(attention=request.param)
    return model, [sums(model, row, all_texts(row)) for row in range(3)]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("min_length", [0, 2])
def test_a_beam_wide_enough_finds_the_best_of_all_texts(exhausted, min_length, length_penalty):
    model, of_all = exhausted
    hypotheses = beam_search(
        model,
        SOURCES,
        num_beams=400,
        num_return_sequences=5,
        min_length=min_length,
        max_length=LONGEST,
        length_penalty=length_penalty,
    )
    for row in range(3):
        every = of_all[row]
        ranked = sorted(
            ((stopped / (len(text) + 1) ** length_penalty, text) for text, (_, stopped, _, _) in every.items() if len(text) >= min_length),
            reverse=True,
        )  # fmt: skip
        assert len(hypotheses[row]) == 5
        for hypothesis, (score, text) in zip(hypotheses[row], ranked, strict=False):
            assert hypothesis.words == text and hypothesis.stopped
            assert hypothesis.score == pytest.approx(score, rel=1e-12)
            assert hypothesis.log_p == pytest.approx(every[text][1], rel=1e-12)
            assert hypothesis.coverage_loss == pytest.approx(every[text][3] / (len(text) + 1), rel=1e-12)


def test_one_beam_is_greedy():
    lengths = set()
    for seed in range(25):
        model = build_model(seed)
        greedy = greedy_search(model, SOURCES, max_length=6)
        for row, (hypothesis,) in enumerate(beam_search(model, SOURCES, num_beams=1, max_length=6)):
            assert hypothesis.words == greedy[row].words and hypothesis.stopped == greedy[row].stopped
            for part in ("log_p", "score", "coverage_loss"):
                assert getattr(hypothesis, part) == pytest.approx(getattr(greedy[row], part), rel=1e-12)
            lengths.add((len(hypothesis.words), hypothesis.stopped))
    assert {(0, True), (1, True), (6, False)} <= lengths and len(lengths) > 3  # texts of many kinds


@pytest.mark.parametrize("seed", range(3))
def test_greedy_takes_the_best_word_each_time(seed):
    model = build_model(seed)
    for row, hypothesis in enumerate(greedy_search(model, SOURCES, max_length=5)):
        assert len(hypothesis.words) <= 5 and (hypothesis.stopped or len(hypothesis.words) == 5)
        source = VOCABULARY.sources([[["ann", "to", "bob", "ann"], ["to"], ["bob", "to"]][row]])
        with torch.no_grad():
            encoded, state = model.encode(source)
            word, total = START, 0.0
            for wanted in (*hypothesis.words, *([STOP] if hypothesis.stopped else [])):
                step, state = model.step(torch.tensor([word]), state, encoded)
                scores = step.log_p[0].tolist()
                scores[PAD] = scores[START] = -math.inf
                word = scores.index(max(scores))
                total += max(scores)
                assert word == wanted
        assert hypothesis.log_p == pytest.approx(total, rel=1e-12)


def test_n_best_are_different_texts_best_first():
    model = build_model(2)
    for row in beam_search(model, SOURCES, num_beams=8, num_return_sequences=8, max_length=6):
        assert len({hypothesis.words for hypothesis in row}) == len(row) == 8
        scores = [hypothesis.score for hypothesis in row if hypothesis.stopped]
        assert scores == sorted(scores, reverse=True)


def never_stops(model):
    with torch.no_grad():
        model.decoder.out.bias[STOP] = -math.inf
    return model


def test_a_model_that_cannot_stop_is_cut_off():
    model = never_stops(build_model())
    for (hypothesis,), greedy in zip(
        beam_search(model, SOURCES, num_beams=3, max_length=4), greedy_search(model, SOURCES, max_length=4), strict=True
    ):
        assert not hypothesis.stopped and len(hypothesis.words) == 4 and math.isfinite(hypothesis.log_p)
        assert hypothesis.score == pytest.approx(hypothesis.log_p / 4)
        assert not greedy.stopped and len(greedy.words) == 4 and math.isfinite(greedy.log_p)


def test_nothing_impossible_is_ever_said():
    """A pointer that only copies, from a source of one word: one text, whatever the beams, and no -inf in it."""
    model = never_stops(build_model())
    with torch.no_grad():
        model.decoder.gate.layers[0].weight.zero_()
        model.decoder.gate.layers[0].bias.fill_(-math.inf)
    (only,) = beam_search(model, VOCABULARY.sources([["to", "to"]]), num_beams=5, num_return_sequences=5, max_length=3)
    assert [hypothesis.words for hypothesis in only] == [(4, 4, 4)]
    assert only[0].log_p == pytest.approx(0, abs=1e-12) and not only[0].stopped


def test_a_model_that_can_say_nothing_ends():
    """Only the unknown word is in its vocabulary's reach, and that is forbidden too."""
    model = never_stops(build_model(output="generator"))
    with torch.no_grad():
        model.decoder.out.bias[1] = model.decoder.out.bias[4] = -math.inf
    assert beam_search(model, SOURCES, num_beams=2, max_length=3) == [[], [], []]
    for hypothesis in greedy_search(model, SOURCES, max_length=3):
        assert hypothesis.words == () and not hypothesis.stopped and hypothesis.log_p == 0


def test_coverage_goes_along_with_each_beginning():
    """A beam's beginnings change places; their coverage must go with them, or the sums would differ from those of the
    texts scored alone."""
    model = build_model(3, attention="coverage")
    with torch.no_grad():
        model.decoder.attention.coverage_proj.weight.mul_(5)
    (row, *_) = beam_search(model, SOURCES, num_beams=6, num_return_sequences=6, max_length=LONGEST)
    every = sums(model, 0, all_texts(0))
    for hypothesis in row:
        alone, stopped, before_stop, again = every[hypothesis.words]
        assert hypothesis.log_p == pytest.approx(stopped if hypothesis.stopped else alone, rel=1e-12)
        steps = len(hypothesis.words) + hypothesis.stopped
        assert hypothesis.coverage_loss == pytest.approx(
            (again if hypothesis.stopped else before_stop) / steps, rel=1e-12
        )


def test_searching_leaves_the_model_as_it_was():
    model = build_model().train()
    model.encoder.eval()
    greedy_search(model, SOURCES, max_length=2)
    beam_search(model, SOURCES, num_beams=2, max_length=2)
    assert model.training and not model.encoder.training
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"num_beams": 0}, r"beam_search\(num_beams=...\) got 0"),
        ({"num_beams": 2, "num_return_sequences": 3}, r"num_beams=2, num_return_sequences=3"),
        ({"min_length": 9, "max_length": 3}, r"min_length=9, max_length=3"),
        ({"length_penalty": math.nan}, r"length_penalty=nan"),
    ],
)
def test_refusals(settings, text):
    with pytest.raises(WhenceError, match=text):
        beam_search(build_model(), SOURCES, **settings)
