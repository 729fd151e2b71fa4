"""Scores under a cure equal plain forward passes, whatever the batch, the padding and the number of choices."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from cure_checks import model_of

from whence import hf
from whence.mend import CURES, AttentionTemperature, Cure, LogN, costs, load_intervention
from whence.mend.measurement import (
    locate_documents,
    rewrite_prompts,
    score_and_attend,
    score_under_cure,
    tokenize_prompts,
)
from whence.probe.hidden_states import plain_texts
from whence.probe.probed_model import ProbedModel, byte_tokenizer, tiny_random_model
from whence.probe.tasks import build_task

FAMILIES = ("gpt2", "gemma3", "qwen3")


def prompts_of(task="key-value", **settings):
    task = build_task(task, 3, **(settings or {"pairs": 3}))
    return [task.prompt(item, slot) for slot, item in enumerate(task.items)]


def family_model(family):
    """A tiny model of a family that knows bytes and has room for the prompts."""
    from tiny_models import CONFIGS, PLAIN
    from transformers import AutoModelForCausalLM

    assert model_of(family) is not None
    tokenizer, config = byte_tokenizer(), CONFIGS[family]()
    for name, value in {**PLAIN, "vocab_size": len(tokenizer), "initializer_range": 0.3}.items():
        setattr(config, name, value)
    setattr(config, "n_positions" if family == "gpt2" else "max_position_embeddings", 1024)
    torch.manual_seed(0)
    return ProbedModel(family, AutoModelForCausalLM.from_config(config).eval(), tokenizer)


def score_plainly(lm, prompt, max_tokens):
    """One forward pass over the prompt and each choice, without a cache or padding."""
    rows = [lm.tokens(prompt.text + choice) for choice in (prompt.answer, *prompt.rivals)]
    start = next(i for i in range(len(rows[0])) if len({row[i] for row in rows}) > 1)
    tokens, documents = locate_documents(lm, prompt)
    totals = []
    for row in rows:
        row = row[: start + max_tokens]
        with hf.request(lm.model, documents=[documents], prompt_ends=[len(tokens)]), torch.no_grad():
            log_probs = lm.model(input_ids=torch.tensor([row]), use_cache=False).logits[0].log_softmax(-1)
        totals.append(sum(float(log_probs[i - 1, row[i]]) for i in range(start, len(row))))
    return totals


@pytest.mark.parametrize("family", ("quick", *FAMILIES))
@pytest.mark.parametrize("cure", (None, LogN(trained=16)))
@pytest.mark.parametrize("batch_tokens", (None, 1))
def test_scores_equal_plain_forward_passes(family, cure, batch_tokens):
    lm = replace(tiny_random_model() if family == "quick" else family_model(family), batch_tokens=batch_tokens)
    prompts = prompts_of()
    prompts[1] = replace(prompts[1], text="Some more words before it. " + prompts[1].text,
                         slots=tuple((a + 27, b + 27) for a, b in prompts[1].slots))  # fmt: skip
    with nullcontext() if cure is None else cure.apply(lm.model):
        expected = [score_plainly(lm, prompt, 4) for prompt in prompts]
    scores = score_under_cure(lm, cure, prompts, 4)
    torch.testing.assert_close(torch.tensor(scores), torch.tensor(expected), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", [name for name in CURES if name != "in2"])  # it needs fine-tuned weights
def test_every_cure_scores_like_plain_forward_passes(name):
    lm, prompts = tiny_random_model(), prompts_of()[1:]
    cure = load_intervention("scale-channel(channel=3)" if name == "scale-channel" else name)
    read = rewrite_prompts(lm, cure, prompts)
    with cure.apply(lm.model):
        expected = [score_plainly(lm, prompt, 3) for prompt in read]
    scores = score_under_cure(lm, cure, prompts, 3)
    torch.testing.assert_close(torch.tensor(scores), torch.tensor(expected), rtol=1e-4, atol=1e-3)


def test_prompts_with_other_numbers_of_choices_and_single_tokens():
    lm, prompts = tiny_random_model(), prompts_of()
    prompts[0] = replace(prompts[0], rivals=prompts[0].rivals[:1], owners=prompts[0].owners[:2])
    prompts[2] = replace(prompts[2], answer=" a", rivals=(" b", " cde"))
    expected = [score_plainly(lm, prompt, 5) for prompt in prompts]
    scores = score_under_cure(lm, None, prompts, 5)
    assert [len(row) for row in scores] == [2, 3, 3]
    for row, plain in zip(scores, expected, strict=True):
        torch.testing.assert_close(torch.tensor(row), torch.tensor(plain), rtol=1e-4, atol=1e-3)


def test_attention_to_the_gold_is_that_of_the_edited_model():
    lm, prompts = tiny_random_model(), prompts_of()
    _, plain = score_and_attend(lm, tokenize_prompts(lm, prompts, 4), 2)
    with AttentionTemperature(1e4).apply(lm.model):
        _, flat = score_and_attend(lm, tokenize_prompts(lm, prompts, 4), 2)
    documents = locate_documents(lm, prompts[0])[1]
    start, end = documents[prompts[0].gold]
    shared = len(lm.tokens(prompts[0].text + prompts[0].answer[:2]))  # the choices share a space and a quotation mark
    assert len(plain) == len(flat) == 2
    assert flat[0] == pytest.approx((end - start) / shared, rel=1e-4) and plain[0] != pytest.approx(flat[0], rel=1e-4)


class Shout(Cure):
    name, title, paper = "shout", "Shout", ""

    def identity(self):
        return self

    def rewrite(self, lm, prompt):
        return replace(prompt, text=prompt.text.upper())

    def apply(self, model):
        return nullcontext()


def test_prompts_are_rewritten():
    lm, prompts = tiny_random_model(), prompts_of()
    upper = [replace(prompt, text=prompt.text.upper()) for prompt in prompts]
    assert rewrite_prompts(lm, Shout(), prompts) == upper
    assert score_under_cure(lm, Shout(), prompts, 4) == score_under_cure(lm, None, upper, 4)


class Slow(LogN):
    """A cure that reads 7 tokens of its own before every prompt, which takes 5 seconds on a clock of the test."""

    clock = 0.0

    def rewrite(self, lm, prompt):
        type(self).clock += 5
        lm.model(torch.arange(7)[None])
        return prompt


def test_costs_include_the_rewriting_of_a_prompt(monkeypatch):
    lm, prompt = tiny_random_model(), prompts_of()[0]
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: Slow.clock))
    untouched, cured = (costs.measure_costs(lm, cure, prompt, 4) for cure in (None, Slow(strength=0)))
    assert cured["tokens_read"] == untouched["tokens_read"] + 7
    assert (untouched["prompt_seconds"], cured["prompt_seconds"], cured["token_seconds"]) == (0, 5, 0)


def test_text_loss_is_that_of_the_second_half():
    lm = tiny_random_model()
    ids = plain_texts(lm, 2, 32)
    with torch.no_grad():
        expected = [
            float(lm.model(row[None], labels=torch.where(torch.arange(32) < 16, -100, row)[None]).loss) for row in ids
        ]
    assert costs.measure_text_loss(lm, None, 2, 32)["losses"] == pytest.approx(expected, abs=1e-5)
