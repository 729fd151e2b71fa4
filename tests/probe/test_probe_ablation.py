"""Positional vectors taken out of what attention reads: the identity, the vectors, their positions, and what stays behind."""

import pytest
import torch

from whence.probe import ablation, hidden_states, likelihood
from whence.probe.plan import Plan, TaskSpec
from whence.probe.probed_model import ProbedModel, tiny_random_model
from whence.probe.tasks import build_task


@pytest.fixture(scope="module")
def lm():
    return tiny_random_model(layers=2)


@pytest.fixture(scope="module")
def vectors(lm):
    return ablation.mean_attention_inputs(lm, hidden_states.plain_texts(lm, 3, 600))


def test_vectors_are_the_mean_of_what_enters_the_projections(lm, vectors):
    texts = hidden_states.plain_texts(lm, 3, 600)
    total = {0: 0, 1: 0}
    with torch.inference_mode(), hidden_states.attention_inputs(lm, [0, 1]) as seen:
        for text in texts:
            lm.model(input_ids=text[None])
            total = {layer: total[layer] + seen[layer][0] / 3 for layer in total}
    for layer, wanted in total.items():
        torch.testing.assert_close(vectors[layer], wanted, atol=1e-5, rtol=1e-5)


def test_each_arm_reads_what_it_says(lm, vectors):
    text = hidden_states.random_texts(lm, 1, 50)
    read = {}
    for name, change in ablation.ablation_arms(vectors).items():
        with torch.inference_mode(), ablation.change_attention_inputs(lm, change):
            with hidden_states.attention_inputs(lm, [0]) as seen:
                lm.model(input_ids=text)
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


def test_untouched_is_the_model_to_the_bit_and_all_is_undone(lm, vectors):
    text = hidden_states.random_texts(lm, 2, 40)
    with torch.inference_mode():
        before = lm.model(input_ids=text).logits
        with ablation.change_attention_inputs(lm, ablation.ablation_arms(vectors)["untouched"]):
            assert torch.equal(lm.model(input_ids=text).logits, before)
        with ablation.change_attention_inputs(lm, ablation.ablation_arms(vectors)["no vector"]):
            assert (lm.model(input_ids=text).logits - before).abs().max() > 0.01
        assert torch.equal(lm.model(input_ids=text).logits, before)


@pytest.mark.parametrize("arm", ["shuffled", "no moving", "no vector", "no content"])
def test_a_cache_and_branches_keep_the_positions(lm, vectors, arm):
    """Answers side by side after a cached prompt, against each in a forward of its own that begins at zero."""
    instance = build_task("key-value", 2, pairs=3)
    prompts = [instance.prompt(item, place) for place, item in enumerate(instance.items)]
    with ablation.change_attention_inputs(lm, ablation.ablation_arms(vectors)[arm]):
        got = likelihood.score_choices(lm, prompts)
        wanted = [likelihood.score_separately(lm, one) for one in likelihood.build_branches(lm, prompts)]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), atol=1e-3, rtol=1e-4)
    plain = likelihood.score_choices(lm, prompts)
    assert (torch.tensor(got) - torch.tensor(plain)).abs().max() > 0.01


def test_modules_that_are_not_handed_positions_read_the_right_ones(lm):
    """OPT's attention gets none, and its answers still stand side by side."""
    from transformers import OPTConfig, OPTForCausalLM

    size = len(lm.tokenizer)
    config = OPTConfig(vocab_size=size, hidden_size=32, word_embed_proj_dim=32, ffn_dim=48, num_hidden_layers=2,
                       num_attention_heads=4, max_position_embeddings=1024, init_std=0.3)  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        other = ProbedModel("opt", OPTForCausalLM(config).eval(), lm.tokenizer)
    vectors = ablation.mean_attention_inputs(other, hidden_states.plain_texts(other, 3, 600))
    instance = build_task("key-value", 1, pairs=3)
    prompts = [instance.prompt(instance.items[0], 1)]
    with ablation.change_attention_inputs(other, ablation.ablation_arms(vectors)["no moving"]):
        got = likelihood.score_choices(other, prompts)
        wanted = [likelihood.score_separately(other, one) for one in likelihood.build_branches(other, prompts)]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), atol=1e-3, rtol=1e-4)


def test_every_arm_has_its_curves(lm):
    plan = Plan("quick", (TaskSpec("key-value", 2, 3, {"pairs": 3}),), texts=3, intervention_items=2)
    actual = ablation.run_ablation(lm, plan)
    assert actual["task"] == "key-value" and actual["gold_slots"] == [0, 1, 2] and actual["items"] == 2
    for arm in actual["arms"].values():
        assert len(arm["probability"]) == len(arm["correct"]) == len(arm["gold_attention"]) == 3
        assert all(0 <= value <= 1 for value in arm["probability"] + arm["gold_attention"])


def test_models_without_projections_are_left_out(lm, monkeypatch):
    monkeypatch.setattr(hidden_states, "_find_projecting_modules", lambda lm: {})
    assert ablation.run_ablation(lm, Plan("quick", (TaskSpec("key-value", 2, 3, {"pairs": 3}),))) == {}
