"""Positional vectors taken out of what attention reads: the identity, the vectors, their positions, and what stays behind."""

import pytest
import torch

from whence.probe import ablating, likelihood, states
from whence.probe.plan import Asked, Plan
from whence.probe.subject import Subject, quick_subject
from whence.probe.tasks import task


@pytest.fixture(scope="module")
def subject():
    return quick_subject(layers=2)


@pytest.fixture(scope="module")
def vectors(subject):
    return ablating.input_vectors(subject, states.plain_texts(subject, 3, 600))


def test_vectors_are_the_mean_of_what_enters_the_projections(subject, vectors):
    texts = states.plain_texts(subject, 3, 600)
    total = {0: 0, 1: 0}
    with torch.inference_mode(), states.attention_inputs(subject, [0, 1]) as seen:
        for text in texts:
            subject.model(input_ids=text[None])
            total = {layer: total[layer] + seen[layer][0] / 3 for layer in total}
    for layer, wanted in total.items():
        torch.testing.assert_close(vectors[layer], wanted, atol=1e-5, rtol=1e-5)


def test_each_arm_reads_what_it_says(subject, vectors):
    text = states.random_texts(subject, 1, 50)
    read = {}
    for name, change in ablating.changes(vectors).items():
        with torch.inference_mode(), ablating.changed_inputs(subject, change):
            with states.attention_inputs(subject, [0]) as seen:
                subject.model(input_ids=text)
            read[name] = seen[0][0]
    p = vectors[0][:50]
    moving = p - vectors[0][4:].mean(0)
    plain = read["untouched"]
    assert all(torch.equal(one[:4], plain[:4]) for one in read.values())
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))[:50]
    shuffled = plain - (vectors[0] - vectors[0][4:].mean(0))[order]
    for name, wanted in {
        "shuffled": shuffled,
        "no moving": plain - moving,
        "no vector": plain - p,
        "no content": p,
    }.items():
        torch.testing.assert_close(read[name][4:], wanted[4:], atol=1e-6, rtol=1e-6)


def test_untouched_is_the_model_to_the_bit_and_all_is_undone(subject, vectors):
    text = states.random_texts(subject, 2, 40)
    with torch.inference_mode():
        before = subject.model(input_ids=text).logits
        with ablating.changed_inputs(subject, ablating.changes(vectors)["untouched"]):
            assert torch.equal(subject.model(input_ids=text).logits, before)
        with ablating.changed_inputs(subject, ablating.changes(vectors)["no vector"]):
            assert (subject.model(input_ids=text).logits - before).abs().max() > 0.01
        assert torch.equal(subject.model(input_ids=text).logits, before)


@pytest.mark.parametrize("arm", ["shuffled", "no moving", "no vector", "no content"])
def test_a_cache_and_branches_keep_the_positions(subject, vectors, arm):
    """Answers side by side after a cached prompt, against each in a forward of its own that begins at zero."""
    made = task("key-value", 2, pairs=3)
    prompts = [made.prompt(item, place) for place, item in enumerate(made.items)]
    with ablating.changed_inputs(subject, ablating.changes(vectors)[arm]):
        got = likelihood.contest(subject, prompts)
        wanted = [likelihood.row_by_row(subject, one) for one in likelihood.branches(subject, prompts)]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), atol=1e-3, rtol=1e-4)
    plain = likelihood.contest(subject, prompts)
    assert (torch.tensor(got) - torch.tensor(plain)).abs().max() > 0.01


def test_modules_that_are_not_handed_positions_read_the_right_ones(subject):
    """OPT's attention gets none, and its answers still stand side by side."""
    from transformers import OPTConfig, OPTForCausalLM

    size = len(subject.tokenizer)
    config = OPTConfig(vocab_size=size, hidden_size=32, word_embed_proj_dim=32, ffn_dim=48, num_hidden_layers=2,
                       num_attention_heads=4, max_position_embeddings=1024, init_std=0.3)  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        other = Subject("opt", OPTForCausalLM(config).eval(), subject.tokenizer)
    vectors = ablating.input_vectors(other, states.plain_texts(other, 3, 600))
    made = task("key-value", 1, pairs=3)
    prompts = [made.prompt(made.items[0], 1)]
    with ablating.changed_inputs(other, ablating.changes(vectors)["no moving"]):
        got = likelihood.contest(other, prompts)
        wanted = [likelihood.row_by_row(other, one) for one in likelihood.branches(other, prompts)]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), atol=1e-3, rtol=1e-4)


def test_every_arm_has_its_curves(subject):
    plan = Plan("quick", (Asked("key-value", 2, 3, {"pairs": 3}),), texts=3, intervened=2)
    found = ablating.ablated(subject, plan)
    assert found["task"] == "key-value" and found["places"] == [0, 1, 2] and found["items"] == 2
    for arm in found["arms"].values():
        assert len(arm["share"]) == len(arm["right"]) == len(arm["gold"]) == 3
        assert all(0 <= value <= 1 for value in arm["share"] + arm["gold"])


def test_models_without_projections_are_left_out(subject, monkeypatch):
    monkeypatch.setattr(states, "_projecting", lambda subject: {})
    assert ablating.ablated(subject, Plan("quick", (Asked("key-value", 2, 3, {"pairs": 3}),))) == {}
