"""Attention calibration: the published properties, the measurement with dummy documents, and the checks of every cure."""

import copy
import itertools

import cure_checks as checks
import pytest
import torch

from whence import WhenceError, hf
from whence.mend.answer_loss import answer_losses
from whence.mend.calibration import (
    DUMMY_TEXT,
    PUBLISHED_TEMPERATURE,
    AttentionCalibration,
    calibrate,
    relevance_logits,
)
from whence.probe.probed_model import tiny_random_model
from whence.probe.tasks import build_task

IDS = torch.tensor([[-1, 0, 0, 1, 1, 1, -1, 2]])
LENGTHS = torch.tensor([[2.0, 3.0, 1.0]])


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(1, 2, 4, 8, generator=generator, dtype=torch.float64).softmax(-1)


def means(weights, ids=IDS[0], count=3):
    return torch.stack([weights[..., ids == document].mean(-1) for document in range(count)], -1)


def test_rows_keep_their_mass_and_means_follow_alpha(weights):
    logits = torch.tensor([[[0.5, -1.0, 2.0], [0.0, 0.3, -0.2]]], dtype=torch.float64)
    after = calibrate(weights, IDS, LENGTHS.double(), logits)
    torch.testing.assert_close(after.sum(-1), weights.sum(-1))
    alpha = logits.softmax(-1)[:, :, None]
    ratio = means(after) / alpha
    torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio))
    assert torch.equal(after[..., IDS[0] < 0], weights[..., IDS[0] < 0])
    inside = weights[..., 1] / weights[..., 2]
    torch.testing.assert_close(after[..., 1] / after[..., 2], inside)


def test_a_document_that_is_not_seen_stays_so(weights):
    weights = weights.clone()
    weights[..., 7] = 0
    logits = torch.tensor([[[0.0, 1.0, 80.0]]], dtype=torch.float64)
    after = calibrate(weights, IDS, LENGTHS.double(), logits)
    torch.testing.assert_close(after.sum(-1), weights.sum(-1))
    assert not after[..., 7].any()
    torch.testing.assert_close(means(after)[..., 1] / means(after)[..., 0], torch.full((1, 2, 4), torch.e).double())


def test_an_additive_model_is_recovered_up_to_a_constant():
    generator = torch.Generator().manual_seed(0)
    bias, relevance = torch.rand(2, 3, 5, generator=generator), torch.rand(2, 3, 5, generator=generator)
    exists = torch.ones(2, 1, 5, dtype=torch.bool)
    for absolute in (True, False):
        logits = relevance_logits(bias + relevance, bias + 0.3, exists, 0.7, absolute)
        t = 0.7 if absolute else 0.7 * (bias + relevance).mean(-1, keepdim=True)
        torch.testing.assert_close(logits * t + 0.3, relevance)


@pytest.mark.parametrize("family", checks.FAMILIES)
def test_every_check(family):
    cure = AttentionCalibration(0.1, [0, 1])
    checks.check_cure(cure, family, identity=cure.identity())


def last_means(model, ids, layer, queries=1):
    """Mean attention of the last tokens to each document in one layer, ``[batch, heads, documents]``."""
    means = []
    for length in range(ids.shape[1] - queries + 1, ids.shape[1] + 1):
        row = hf.LastRow()
        with hf.capture(model, row, layers=[layer]), torch.no_grad():
            model(input_ids=ids[:, :length])
        means.append(torch.stack([row[layer][..., start:end].mean(-1) for start, end in checks.DOCUMENTS], -1))
    return torch.stack(means).mean(0)


FOLLOW = checks.LENGTH - checks.DOCUMENTS[-1][1]  # tokens after the documents


@pytest.mark.parametrize(("scope", "queries"), [("head", 1), ("model", 1), ("head", 2), ("model", FOLLOW + 5)])
def test_attention_follows_the_relevance_measured_against_dummies(scope, queries):
    model, ids, used = checks.model_of("llama"), checks.tokens(2, checks.LENGTH), min(queries, FOLLOW)
    plain, biases = [last_means(model, ids, layer, used) for layer in (0, 1)], [[], []]
    for place, (start, end) in enumerate(checks.DOCUMENTS):
        other = ids.clone()
        other[:, start:end] = torch.tensor([9, 11]).repeat(9)[: end - start]
        for layer in (0, 1):
            biases[layer].append(last_means(model, other, layer, used)[..., place])
    bias = [torch.stack(one, -1) for one in biases]
    if scope == "model":
        plain, bias = ([torch.stack(both).mean((0, 2))[:, None]] * 2 for both in (plain, bias))
    alpha = ((plain[1] - bias[1]) / (0.5 * plain[1].mean(-1, keepdim=True))).softmax(-1)
    calls = []
    cure = AttentionCalibration(scope=scope, dummy=[9, 11], query_tokens=queries)
    with cure.apply(model), checks.requested(model, ids):
        handle = model.register_forward_hook(lambda *call: calls.append(call))
        row = hf.LastRow()
        with hf.capture(model, row, layers=[1]):
            calls.clear()
            checks.logits(model, ids)
        handle.remove()
    assert len(calls) == 1 + 1 + len(checks.DOCUMENTS)
    after = torch.stack([row[1][..., start:end].mean(-1) for start, end in checks.DOCUMENTS], -1)
    torch.testing.assert_close(after / after.sum(-1, keepdim=True), alpha.expand_as(after), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(row[1].sum(-1), torch.ones(2, 4))


def test_a_high_temperature_equalizes_documents():
    model, ids = checks.model_of("qwen3"), checks.tokens(2, checks.LENGTH)
    with AttentionCalibration(1e9).apply(model), checks.requested(model, ids):
        after = last_means(model, ids, 1)
    torch.testing.assert_close(after, after.mean(-1, keepdim=True).expand_as(after))


def test_prompts_with_different_documents_in_one_batch_read_in_chunks():
    model, ids = checks.model_of("gpt2"), checks.tokens(2, checks.LENGTH)
    spans = [((1, 4), (6, 9)), checks.DOCUMENTS, ()]
    rows = [ids[0, 5:], ids[1], ids[0, 2:]]
    options = {**checks.GREEDY, "output_logits": True, "return_dict_in_generate": True}
    with AttentionCalibration(0.1, [0, 1]).apply(model):
        alone = []
        for row, documents in zip(rows, spans, strict=True):
            with hf.request(model, documents=[documents]):
                alone.append(model.generate(row[None], **options))
        tokens = torch.stack([torch.nn.functional.pad(row, (checks.LENGTH - len(row), 0)) for row in rows])
        mask = torch.stack(
            [torch.nn.functional.pad(torch.ones_like(row), (checks.LENGTH - len(row), 0)) for row in rows]
        )
        for chunks in ({}, {"prefill_chunk_size": 5}):
            with hf.request(model, documents=spans):
                out = model.generate(tokens, attention_mask=mask, **options, **chunks)
            for index, one in enumerate(alone):
                checks.equal(out.logits[0][index], one.logits[0][0])
                checks.equal(out.logits[-1][index], one.logits[-1][0])
    untouched = model.generate(rows[1][None], **options)
    assert float((untouched.logits[0] - alone[1].logits[0]).abs().max()) > 1e-3


def test_the_search_takes_the_best_settings_and_a_dummy_text():
    lm, task = tiny_random_model(layers=2), build_task("key-value", 1, pairs=3)
    prompts = [task.prompt(task.items[0], place) for place in (0, 2)]
    published = AttentionCalibration(PUBLISHED_TEMPERATURE, absolute=True).search(lm, prompts)
    assert published.temperature == 5e-5 and lm.tokenizer.decode(published.dummy) == DUMMY_TEXT
    losses = {}
    for temperature, queries in itertools.product((0.1, 5.0), (1, 4)):
        with AttentionCalibration(temperature, query_tokens=queries, dummy=published.dummy).apply(lm.model):
            losses[temperature, queries] = float(answer_losses(lm, prompts, documents=True).mean())
    chosen = AttentionCalibration(temperatures=(0.1, 5.0), query_counts=(1, 4), samples=2).search(lm, prompts)
    assert (chosen.temperature, chosen.query_tokens) == min(losses, key=losses.get)
    assert chosen.dummy == published.dummy
    assert AttentionCalibration(**chosen.settings()).settings() == chosen.settings()


def test_what_cannot_be_calibrated_is_an_error():
    model, ids = checks.model_of("llama"), checks.tokens(1, checks.LENGTH)
    cached = model(input_ids=ids[:, :4], use_cache=True).past_key_values
    with AttentionCalibration().apply(model):
        with pytest.raises(WhenceError, match=r"no documents.*whence.hf.request"):
            model(ids)
        with hf.request(model, documents=[[(2, 40)]]), pytest.raises(WhenceError, match=r"token 40.*24 tokens"):
            model(ids)
        with hf.request(model, documents=[checks.DOCUMENTS]):
            with pytest.raises(WhenceError, match="pass input_ids"):
                model(inputs_embeds=model.get_input_embeddings()(ids))
            with pytest.raises(WhenceError, match="before the intervention"):
                model(input_ids=ids[:, 4:], past_key_values=cached)
            model(ids)
            with pytest.raises(WhenceError, match="call the model itself"):
                model.model(input_ids=ids)
        two = hf.request(model, documents=[checks.DOCUMENTS] * 2, prompt_ends=[20, 22])
        with two, pytest.raises(WhenceError, match="pad the prompts on the left"):
            model(input_ids=ids[:, :21].expand(2, -1))
    assert "got 99, but the model has the tokens 0 to 63" in AttentionCalibration(dummy=[99]).unavailable(model)
    lists = ({"temperatures": 0.5}, {"query_counts": []}, {"layers": 1}, {"dummy": []})
    for settings in ({"temperature": 0}, {"scope": "layer"}, {"strength": 2.0}, *lists):
        with pytest.raises(WhenceError, match=next(iter(settings))):
            AttentionCalibration(**settings)


def test_a_cache_may_be_copied_and_repeated_and_a_prompt_without_documents_is_unchanged():
    model, ids = checks.model_of("llama"), checks.tokens(1, checks.LENGTH + 2)
    prompt, after = ids[:, : checks.LENGTH], ids[:, checks.LENGTH :]
    before = checks.logits(model, ids)
    with AttentionCalibration(0.1).apply(model), checks.requested(model, ids), torch.no_grad():
        whole = checks.logits(model, ids)
        cache = copy.deepcopy(model(input_ids=prompt, use_cache=True).past_key_values)
        cache.batch_repeat_interleave(3)
        out = model(input_ids=after.expand(3, -1), past_key_values=cache, use_cache=True).logits
        checks.equal(out, whole[:, checks.LENGTH :].expand(3, -1, -1))
        with hf.request(model, documents=[()]):
            checks.equal(checks.logits(model, ids), before)
