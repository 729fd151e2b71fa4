"""The generated texts, and what models learn of them in seconds: names no one ever saw can be copied by a pointer alone."""

from dataclasses import replace

import pytest
import torch

from whence.errors import WhenceError
from whence_papers.pointer.pointer_generator import PointerGenerator, PointerGeneratorSpec
from whence_papers.pointer.summaries import CLOSE, OPEN, TOPICS, Pair, Summaries, SummaryScores, score_summaries, train

TASK = Summaries()


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_every_pair_follows_the_rule():
    seen = set()
    for pair in TASK.draw(300, seeded(0)) + TASK.test(300):
        first, last = pair.text.index(OPEN), pair.text.index(CLOSE)
        marked = pair.text[first + 1 : last]
        opening, closing = TOPICS[pair.text[0]]
        assert pair.summary == (opening, *marked, closing) and 1 <= len(marked) <= 4
        assert opening not in pair.text and closing not in pair.text
        names = [word for word in pair.text if word not in TASK.vocabulary.numbers]
        assert len(names) == len(set(names)) and set(marked) <= set(names)
        assert first - 1 <= 4 and len(pair.text) - last - 1 <= 4
        seen |= {("marked", len(marked)), ("before", first - 1), ("behind", len(pair.text) - last - 1), pair.text[0]}
    assert len(seen) == 4 + 5 + 5 + len(TOPICS)


def test_test_names_are_in_no_training_text():
    def names(pairs):
        return {word for pair in pairs for word in pair.text if word not in TASK.vocabulary.numbers}

    training, test = names(TASK.draw(400, seeded(1))), names(TASK.test(400))
    assert len(training) > 400 and len(test) > 400 and not training & test


def test_draws_follow_the_generator_and_tests_are_fixed():
    assert TASK.draw(5, seeded(2)) == TASK.draw(5, seeded(2)) != TASK.draw(5, seeded(3))
    assert TASK.test(5) == TASK.test(5) == TASK.test(9)[:5]
    assert Summaries(max_names=5).test(5) != TASK.test(5)


@pytest.mark.parametrize("setting", [{"max_names": 0}, {"around": -1}, {"names": 11}])
def test_refusals(setting):
    ((name, value),) = setting.items()
    with pytest.raises(WhenceError, match=rf"Summaries\({name}=...\) got {value}, but {name} is at least"):
        Summaries(**setting)


def test_the_judge_counts_by_hand(monkeypatch):
    from whence_papers.pointer import summaries
    from whence_papers.pointer.pointer_generator import Hypothesis

    pairs = [Pair(("sport", OPEN, "n1", "n2", CLOSE), ("match", "n1", "n2", "won")), Pair(("music", OPEN, "n3", CLOSE), ("concert", "n3", "played"))]  # fmt: skip
    texts = [["match", "n1", "n1", "won"], ["match", "n3"]]
    sources, _ = TASK.batch(pairs)

    def search(model, arguments, max_length):
        numbers = [{word: n for n, word in enumerate((*TASK.vocabulary.words, *beyond))} for beyond in sources.beyond]
        return [
            Hypothesis(tuple(number[w] for w in text), 0.0, 0.0, True, repeated)
            for text, number, repeated in zip(texts, numbers, (0.5, 0.1), strict=True)
        ]

    monkeypatch.setattr(summaries, "greedy_search", search)
    got = score_summaries(torch.nn.Linear(1, 1), TASK, pairs)
    assert got == SummaryScores(exact=0.0, copied=2 / 3, generated=2 / 4, repeated_words=1 / 6, coverage_loss=0.3)
    texts[1] = ["concert", "n3", "played"]
    assert score_summaries(torch.nn.Linear(1, 1), TASK, pairs).exact == 1 / 2


@pytest.fixture(scope="module")
def trained():
    """Three models from the same start: without a pointer, with one, and with one that goes on with coverage (the source's
    order) or, as its control, as many steps without. Some 15 seconds."""

    def build_model(**arm):
        torch.manual_seed(0)
        spec = PointerGeneratorSpec(len(TASK.vocabulary), embedding=16, hidden_size=24, attention="additive", **arm)
        return PointerGenerator(replace(spec, coverage_loss_weight=0.0))

    def went_on(model, seed=1):
        train(model, TASK, steps=40, seed=seed)
        return model

    generator, pointer = build_model(output="generator"), build_model()
    train(generator, TASK, steps=90)
    train(pointer, TASK, steps=90)
    covered = went_on(pointer.with_coverage())
    before = score_summaries(pointer, TASK, TASK.test(100))
    return {
        "generator": score_summaries(generator, TASK, TASK.test(100)),
        "pointer": before,
        "longer": score_summaries(went_on(pointer), TASK, TASK.test(100)),
        "covered": score_summaries(covered, TASK, TASK.test(100)),
    }


def test_only_the_pointer_learns_to_copy_what_it_never_saw(trained):
    assert trained["generator"].copied == 0 and trained["generator"].exact == 0
    assert trained["generator"].generated > 0.9  # it learnt what can be learnt without copying
    assert trained["pointer"].copied > 0.9 and trained["pointer"].generated > 0.8


def test_coverage_lowers_the_coverage_loss_and_costs_nothing_here(trained):
    """Words are hardly said again by any pointer here, so that the loss, where attention goes, is what can fall."""
    assert trained["covered"].coverage_loss < 0.8 * trained["longer"].coverage_loss
    assert trained["covered"].copied > 0.9 and trained["covered"].generated > 0.9
    assert trained["longer"].repeated_words < 0.02 and trained["covered"].repeated_words < 0.02
