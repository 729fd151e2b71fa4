"""One reading, many answers: the same numbers as a forward for each, and effects that do what they say."""

import pytest
import torch

from whence.errors import WhenceError
from whence.probe.likelihood import (
    CachedPrompts,
    ScaledScore,
    ScaledWeight,
    _tokenize,
    build_branches,
    choice_probabilities,
    emphasis_class,
    last_attention_row,
    score_choices,
    score_separately,
)
from whence.probe.measurement import generate_answers
from whence.probe.probed_model import ProbedModel, byte_tokenizer, tiny_random_model, token_span
from whence.probe.tasks import build_task


@pytest.fixture(scope="module")
def lm():
    return tiny_random_model(layers=2)


@pytest.fixture(scope="module")
def prompt():
    instance = build_task("key-value", 1, pairs=3)
    return instance.prompt(instance.items[0], 1)


def by_hand(lm, prompt, scored):
    """Every answer in a forward of its own, in float64."""
    model = tiny_random_model(layers=2).model.double()
    actual = []
    for end in (prompt.answer, *prompt.rivals):
        whole, before = lm.tokens(prompt.text + end), len(build_branches(lm, [prompt], scored)[0].shared)
        known = model(torch.tensor([whole])).logits[0].log_softmax(-1).detach()
        after = whole[before : before + scored]
        actual.append(sum(float(known[before + i - 1, token]) for i, token in enumerate(after)))
    return actual


def test_branches_give_what_separate_forwards_give(lm, prompt):
    expected = by_hand(lm, prompt, 5)
    [instance] = build_branches(lm, [prompt], 5)
    reading = CachedPrompts(lm, [instance])
    assert reading.scores()[0] == pytest.approx(expected, abs=2e-4)
    assert score_separately(lm, instance) == pytest.approx(expected, abs=2e-4)
    assert reading.scores() == reading.scores()  # what was fed leaves the cache again
    assert len({round(score, 3) for score in expected}) > 1


def test_branches_share_the_longest_beginning(lm, prompt):
    [instance] = build_branches(lm, [prompt], 4)
    assert lm.tokenizer.decode(list(instance.shared)).endswith('Corresponding value: "')
    assert all(len(end) == 4 for end in instance.ends) and len(instance.inputs) == 1 + 3 * 3


def test_the_row_is_that_of_eager_attention(lm, prompt):
    [instance] = build_branches(lm, [prompt])
    row = CachedPrompts(lm, [instance]).rows()[0]
    eager = tiny_random_model(layers=2).model
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        weights = eager(torch.tensor([instance.shared]), output_attentions=True).attentions
    expected = torch.stack(weights)[:, 0, :, -1]
    assert torch.allclose(row, expected, atol=1e-6) and torch.allclose(
        last_attention_row(lm, instance.shared), expected, atol=1e-6
    )
    assert lm.model.config._attn_implementation != "whence"


def dense(answering, span, change):
    """Attention with every score formed, in which ``change`` acts on those of the answering rows to a span."""

    def attention(module, q, k, v, mask, scaling=None, **others):
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = q @ k.transpose(-1, -2) * scaling
        rows, keys = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        chosen = (rows >= answering) & (keys >= span[0]) & (keys < span[1])
        scores = torch.where(chosen, change(scores), scores).masked_fill(keys > rows, -torch.inf)
        weights = scores.softmax(-1)
        SEEN.append(weights[0, :, answering, span[0] : span[1]].sum(-1).mean())
        return (weights @ v).transpose(1, 2).contiguous(), weights

    return attention


SEEN = []


@pytest.mark.parametrize("factor", [3.0, 0.5])
@pytest.mark.parametrize(
    "kind, change",
    [
        (ScaledWeight, lambda scores, factor: (scores.exp() * factor).log()),
        (ScaledScore, lambda scores, factor: scores * factor),
    ],
    ids=["weight", "score"],
)
def test_emphasis_is_that_of_dense_attention(lm, prompt, kind, change, factor):
    from transformers import AttentionInterface

    [instance] = build_branches(lm, [prompt])
    span, last = lm.token_spans(prompt.text, prompt.slots)[2], len(instance.shared) - 1
    model = tiny_random_model(layers=2).model.double()
    AttentionInterface.register("dense-emphasis", dense(last, span, lambda scores: change(scores, factor)))
    model.set_attn_implementation("dense-emphasis")
    expected = []
    for end in instance.ends:
        known = model(torch.tensor([[*instance.shared, *end]])).logits[0].log_softmax(-1).detach()
        expected.append(sum(float(known[last + place, token]) for place, token in enumerate(end)))
    reading = CachedPrompts(lm, [instance])
    plain = reading.scores()
    assert reading.scores([kind(span, factor)])[0] == pytest.approx(expected, abs=1e-3)
    assert plain[0] != pytest.approx(expected, abs=1e-2)
    assert (
        reading.scores([kind(span, 1.0)]) == plain == reading.scores()
    )  # 1 changes nothing, and nothing stays changed
    if kind is ScaledScore:
        [row] = reading.rows([kind(span, factor)])
        seen = row[..., span[0] : span[1]].sum(-1).mean(-1)
        torch.testing.assert_close(seen.double(), torch.stack(SEEN[-2:]).detach(), atol=1e-6, rtol=0)
        assert not torch.allclose(row, reading.rows()[0], atol=1e-5)


def test_what_emphasis_cannot_be_is_refused():
    with pytest.raises(WhenceError, match="a weight is multiplied by a number above 0"):
        ScaledWeight((0, 1), 0.0)
    with pytest.raises(WhenceError, match="multiplies a weight or a score"):
        emphasis_class("value")
    assert ScaledScore((0, 1), -1.0).factor == -1.0


def test_a_model_with_windows_is_measured_row_by_row(prompt):
    from transformers import MistralConfig, MistralForCausalLM

    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=32, initializer_range=0.3,
    )  # fmt: skip
    windowed = ProbedModel("windowed", MistralForCausalLM(config).eval(), tokenizer)
    assert not windowed.supports_branching
    [instance] = build_branches(windowed, [prompt], 3)
    one = score_separately(windowed, instance)
    assert score_choices(windowed, [prompt], 3)[0] == pytest.approx(one)
    with pytest.raises(WhenceError, match="use score_choices"):
        CachedPrompts(windowed, [instance])


def test_padding_on_the_left_changes_no_written_answer(lm):
    instance = build_task("needle", 2, pieces=2, words=4)
    prompts = [instance.prompt(instance.items[0], 0), instance.closed_book(instance.items[1])]
    batched = generate_answers(lm, prompts, "value")
    assert batched == [generate_answers(lm, [prompt], "value")[0] for prompt in prompts]


def test_a_prompt_that_is_too_long_is_refused():
    small = tiny_random_model(layers=1)
    small.model.config.max_position_embeddings = 64
    instance = build_task("key-value", 1, pairs=3)
    with pytest.raises(WhenceError, match="quick has 64 positions"):
        score_choices(small, [instance.prompt(instance.items[0], 0)])


def test_spans_of_tokens_and_shares():
    assert token_span([(0, 4), (4, 8), (8, 12)], 5, 9) == (1, 3)
    with pytest.raises(WhenceError, match="some token lies in them"):
        token_span([(0, 4)], 9, 12)
    assert sum(choice_probabilities([-3.0, -4.0, -90.0])) == pytest.approx(1)


def test_prompts_read_together_are_answered_as_alone(lm):
    instance = build_task("key-value", 2, pairs=4)
    prompts = [
        instance.prompt(instance.items[0], 1),
        instance.oracle(instance.items[1]),
        instance.prompt(instance.items[1], 3),
    ]
    every = build_branches(lm, prompts)
    alone = [CachedPrompts(lm, [one]) for one in every]
    reading = CachedPrompts(lm, every)
    for batched, one in zip(reading.scores(), alone, strict=True):
        assert batched == pytest.approx(one.scores()[0], abs=1e-4)
    for batched, one in zip(reading.rows(), alone, strict=True):
        assert batched.shape == one.rows()[0].shape and torch.allclose(batched, one.rows()[0], atol=1e-6)
    spans = [lm.token_spans(prompt.text, prompt.slots)[0] for prompt in prompts]
    effects = [ScaledWeight(span, factor) for span, factor in zip(spans, (4.0, 1.0, 0.25), strict=True)]
    changed = reading.scores(effects)
    for batched, one, effect in zip(changed, alone, effects, strict=True):
        assert batched == pytest.approx(one.scores([effect])[0], abs=1e-4)
    assert changed[0] != pytest.approx(reading.scores()[0], abs=1e-3)
    effects_on_scores = [ScaledScore(span, factor) for span, factor in zip(spans, (4.0, 1.0, 0.25), strict=True)]
    for batched, one, effect in zip(reading.scores(effects_on_scores), alone, effects_on_scores, strict=True):
        assert batched == pytest.approx(one.scores([effect])[0], abs=1e-4)


def test_the_last_line_alone_gives_the_tokens_of_the_whole_text(lm):
    from whence.hf.gguf import smollm2_folder

    tokenizers = [lm.tokenizer]
    if smollm2_folder().exists():
        from transformers import AutoTokenizer

        tokenizers.append(AutoTokenizer.from_pretrained(smollm2_folder()))
    for tokenizer in tokenizers:
        reader = ProbedModel("reader", lm.model, tokenizer)
        for name, settings in (("key-value", {"pairs": 5}), ("needle", {"pieces": 3, "words": 9})):
            instance = build_task(name, 2, **settings)
            prompts = [instance.at(item, where) for item in instance.items for where in (0, 2, "closed book", "oracle")]
            for prompt, actual in zip(prompts, _tokenize(reader, prompts), strict=True):
                assert actual == [reader.tokens(prompt.text + end) for end in (prompt.answer, *prompt.rivals)]


def test_a_tokenizer_that_begins_every_text_anew_reads_whole_texts(prompt):
    class Begins:
        """Puts a space before each text, as some do: the last line alone has one token more."""

        def __call__(self, texts, add_special_tokens=True):
            return {"input_ids": [[32, *text.encode()] for text in texts]}

    reader = ProbedModel("reader", None, Begins())
    expected = [[32, *(prompt.text + end).encode()] for end in (prompt.answer, *prompt.rivals)]
    assert _tokenize(reader, [prompt]) == [expected]


def test_neighbours_are_run_together_as_long_as_they_fit(lm):
    assert lm.batches([2000, 2000, 2000, 5000, 10]) == [range(0, 2), range(2, 3), range(3, 4), range(4, 5)]
    assert lm.batches([]) == [] and lm.batches([9999]) == [range(0, 1)]


def test_an_answer_of_one_line_ends_with_it(lm):
    assert [token for token in range(len(lm.tokenizer)) if lm.newline_tokens[token]] == lm.tokens("\n")
    instance = build_task("needle", 3, pieces=2, words=4)
    prompts = [instance.closed_book(item) for item in instance.items]
    long = generate_answers(lm, prompts, "value")
    first = generate_answers(lm, prompts, "subspan")
    for text, line in zip(long, first, strict=True):
        assert line.split("\n")[0].startswith(text.split("\n")[0]) and line.count("\n") <= 1
