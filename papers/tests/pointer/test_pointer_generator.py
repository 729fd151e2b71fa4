"""The pointer-generator against a witness in loops, and what must hold of any: methods of See et al. 2017."""

import math
from dataclasses import replace

import plain_pointer_generator as plain
import pytest
import torch

from whence.errors import WhenceError
from whence_papers.pointer.pointer_generator import PointerGenerator, PointerGeneratorSpec, Vocabulary
from whence_papers.pointer.pointer_generator.vocabulary import NO_TARGET, PAD, START, STOP, UNKNOWN

VOCABULARY = Vocabulary(["went", "to", "saw", "and"])
TEXTS = [
    ["ann", "went", "to", "oslo", "and", "ann", "saw", "bob"],
    ["bob", "saw", "saw"],
    ["went"],
]
SUMMARIES = [["ann", "saw", "bob", "twice"], ["bob", "saw"], ["went", "to", "and"]]
SOURCES = VOCABULARY.sources(TEXTS)
TARGETS = VOCABULARY.targets(SUMMARIES, SOURCES)
V = len(VOCABULARY)


def build_model(seed=0, **changes):
    torch.manual_seed(seed)
    spec = PointerGeneratorSpec(V, embedding=3, hidden_size=4, attention_dim=5, **changes)
    model = PointerGenerator(spec).double()
    with torch.no_grad():  # larger than they start, so that every part shows
        for p in model.parameters():
            p.mul_(torch.pi / 1.5)  # and in no number that float32 has
    return model


ARMS = [
    {"attention": "coverage"},
    {"attention": "additive"},
    {"attention": "coverage", "output": "generator"},
]


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: "-".join(arm.values()))
def test_every_step_is_that_of_the_loops(arm):
    """Padding, words beyond the vocabulary and repeated words included; each source is computed alone."""
    model = build_model(**arm)
    result = model(SOURCES, TARGETS)
    weights = model.state_dict()
    assert SOURCES.extra == 3 and result.log_p.shape == (3, 5, V + 3)
    for row, text in enumerate(TEXTS):
        n = len(text)
        steps = plain.tell(
            weights, model.spec, SOURCES.tokens[row, :n].tolist(), SOURCES.extended[row, :n].tolist(),
            TARGETS.inputs[row].tolist(), V + 3,
        )  # fmt: skip
        for t, (p, p_gen, seen, repeated) in enumerate(steps):
            torch.testing.assert_close(result.log_p[row, t].exp().tolist(), p, rtol=1e-11, atol=1e-13)
            torch.testing.assert_close(result.gate[row, t].sigmoid().item(), p_gen, rtol=1e-11, atol=1e-13)
            torch.testing.assert_close(result.weights[row, t, :n].tolist(), seen, rtol=1e-11, atol=1e-13)
            torch.testing.assert_close(result.coverage_loss[row, t].item(), repeated, rtol=1e-11, atol=1e-13)
        assert (result.weights[row, :, n:] == 0).all()


def test_the_loss_is_that_of_the_loops():
    for arm in ARMS:
        model = build_model(**arm, coverage_loss_weight=0.7)
        weights = model.state_dict()
        wanted = TARGETS.extended if model.spec.output == "pointer" else TARGETS.words
        surprises, repetitions = [], []
        for row, text in enumerate(TEXTS):
            n, target_words = len(text), [w for w in wanted[row].tolist() if w != NO_TARGET]
            steps = plain.tell(
                weights, model.spec, SOURCES.tokens[row, :n].tolist(), SOURCES.extended[row, :n].tolist(),
                TARGETS.inputs[row].tolist()[: len(target_words)], V + 3,
            )  # fmt: skip
            surprises.append(
                sum(-math.log(p[w]) for (p, *_), w in zip(steps, target_words, strict=True)) / len(target_words)
            )
            repetitions.append(sum(repeated for *_, repeated in steps) / len(target_words))
        loss = model.loss(SOURCES, TARGETS)
        assert loss.cross_entropy.item() == pytest.approx(sum(surprises) / 3, rel=1e-11)
        assert loss.coverage_loss.item() == pytest.approx(sum(repetitions) / 3, rel=1e-11)
        assert loss.total.item() == pytest.approx(
            loss.cross_entropy.item() + 0.7 * loss.coverage_loss.item(), rel=1e-12
        )


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: "-".join(arm.values()))
def test_probabilities_sum_to_1_and_coverage_loss_lies_between_0_and_1(arm):
    result = build_model(**arm)(SOURCES, TARGETS)
    torch.testing.assert_close(result.log_p.exp().sum(-1), torch.ones(3, 5).double())
    assert (result.coverage_loss[:, 0] == 0).all()
    assert (result.coverage_loss[:, 1:] > 0).all() and (result.coverage_loss <= 1 + 1e-14).all()


def with_gate(model, logit):
    with torch.no_grad():
        model.decoder.gate.layers[0].weight.zero_()
        model.decoder.gate.layers[0].bias.fill_(logit)
    return model


def test_p_gen_of_1_is_the_vocabularys_softmax():
    pointer = with_gate(build_model(), math.inf)
    generator = PointerGenerator(replace(pointer.spec, output="generator")).double()
    generator.load_state_dict({k: v for k, v in pointer.state_dict().items() if ".gate." not in k})
    one, other = pointer(SOURCES, TARGETS).log_p, generator(SOURCES, TARGETS).log_p
    torch.testing.assert_close(one, other)
    assert torch.isneginf(one[:, :, V:]).all()


def test_p_gen_of_0_has_only_words_of_the_source():
    p = with_gate(build_model(), -math.inf)(SOURCES, TARGETS).log_p.exp()
    for row, text in enumerate(TEXTS):
        own = set(SOURCES.extended[row, : len(text)].tolist())
        outside = [word for word in range(V + 3) if word not in own]
        assert (p[row][:, outside] == 0).all() and (p[row][:, sorted(own)] > 0).all()
    torch.testing.assert_close(p.sum(-1), torch.ones(3, 5).double())


def test_coverage_with_w_c_of_0_is_no_coverage():
    model = build_model(attention="additive")
    covered = model.with_coverage()
    assert covered.spec == replace(model.spec, attention="coverage", coverage_loss_weight=1.0)
    one, other = model(SOURCES, TARGETS), covered(SOURCES, TARGETS)
    for part in ("log_p", "gate", "weights", "coverage_loss"):
        assert torch.equal(getattr(one, part), getattr(other, part))
    with torch.no_grad():
        covered.decoder.attention.coverage_proj.weight.fill_(1.0)
    assert not torch.allclose(covered(SOURCES, TARGETS).log_p, one.log_p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("logit", [None, -1e4, 1e4, -math.inf, math.inf])
def test_gradients_are_finite_even_where_a_probability_is_0(logit, dtype):
    model = build_model().to(dtype)
    if logit is not None:
        with_gate(model, logit)
    p = model(SOURCES, TARGETS).log_p
    assert torch.isneginf(p).any()  # rows have fewer words beyond the vocabulary than the first
    (p.masked_fill(torch.isneginf(p), 0.0).sum() + p.exp().sum()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_a_target_that_cannot_be_copied_still_teaches_to_copy():
    """Attention that is all but certain elsewhere: the loss is large and finite, and so is its gradient."""
    model = with_gate(build_model(attention="additive").float(), -200.0)
    with torch.no_grad():
        model.decoder.attention.score.weight.mul_(1e4)
    loss = model.loss(SOURCES, TARGETS)
    loss.total.backward()
    assert math.isfinite(loss.total.item()) and loss.total.item() > 100
    gradient = model.decoder.attention.encoder_proj.weight.grad
    assert gradient.isfinite().all()


def test_gradients_reach_every_parameter():
    model = build_model()
    model.loss(SOURCES, TARGETS).total.backward()
    for name, p in model.named_parameters():
        assert (p.grad != 0).any(), name
    assert (model.embedding.weight.grad[PAD] == 0).all()


def test_a_batch_is_its_rows():
    """Other sources of a batch change nothing but how many numbers there are."""
    model = build_model()
    result = model(SOURCES, TARGETS)
    for row in range(3):
        sources = VOCABULARY.sources([TEXTS[row]])
        targets = VOCABULARY.targets([SUMMARIES[row]], sources)
        alone = model(sources, targets).log_p
        size, steps = alone.shape[2], alone.shape[1]
        torch.testing.assert_close(result.log_p[row, :steps, :size], alone[0])
        assert torch.isneginf(result.log_p[row, :, size:]).all()


def test_words_beyond_the_vocabulary():
    assert SOURCES.beyond == (("ann", "oslo", "bob"), ("bob",), ())
    assert SOURCES.extended[0].tolist() == [V, 4, 5, V + 1, 7, V, 6, V + 2]
    assert SOURCES.tokens[0].tolist() == [UNKNOWN, 4, 5, UNKNOWN, 7, UNKNOWN, 6, UNKNOWN]
    assert SOURCES.extended[1].tolist() == [V, 6, 6] + [PAD] * 5
    assert TARGETS.inputs[0].tolist() == [START, UNKNOWN, 6, UNKNOWN, UNKNOWN]
    assert TARGETS.extended[0].tolist() == [V, 6, V + 2, UNKNOWN, STOP]  # "twice" is in neither
    assert TARGETS.words[0].tolist() == [UNKNOWN, 6, UNKNOWN, UNKNOWN, STOP]
    assert TARGETS.extended[1].tolist() == [V, 6, STOP, NO_TARGET, NO_TARGET]
    assert VOCABULARY.text(TARGETS.extended[0, :3].tolist(), SOURCES.beyond[0]) == ["ann", "saw", "bob"]


def test_the_papers_counts_of_parameters():
    """21,499,600 without pointer and coverage, 1,153 more for the pointer and 512 for coverage. Torch's three LSTMs have a
    second bias each, 4 x 256 numbers that add nothing."""

    def count(**arm):
        with torch.device("meta"):
            return sum(p.numel() for p in PointerGenerator(PointerGeneratorSpec(50_000, **arm)).parameters())

    assert count(attention="additive", output="generator") - 3 * 4 * 256 == 21_499_600
    assert count(attention="additive") - count(attention="additive", output="generator") == 1_153
    assert count() - count(attention="additive") == 512


@pytest.mark.parametrize(
    "wrong, text",
    [
        (lambda: PointerGeneratorSpec(0), r"PointerGeneratorSpec\(vocab_size=...\) got 0"),
        (lambda: PointerGeneratorSpec(9, attention="self"), r"got 'self', but attention is one of additive, coverage"),
        (lambda: PointerGeneratorSpec(9, coverage_loss_weight=-1), r"got -1, but .*at least 0"),
        (lambda: Vocabulary(["a", "b", "a"]), r"got 'a' twice"),
        (lambda: VOCABULARY.sources([["to"], []]), r"got no words in text 1"),
        (lambda: VOCABULARY.sources([]), r"got no texts"),
        (lambda: VOCABULARY.targets([["to"]], SOURCES), r"got 1 texts for 3 sources"),
        (lambda: VOCABULARY.text([V + 1], ("ann",)), rf"got {V + 1}, but .*from 0 to {V}"),
        (lambda: PointerGenerator(PointerGeneratorSpec(5, 3, 4)).encode(SOURCES), r"got the word id 7, but .*below 5"),
        (lambda: build_model().with_coverage(), r"got a model with coverage"),
    ],
)  # fmt: skip
def test_refusals(wrong, text):
    with pytest.raises(WhenceError, match=text):
        wrong()
