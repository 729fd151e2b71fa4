"""Parallel context windows: separate forward passes in one, and no order of documents."""

import cure_checks as checks
import pytest
import torch
import transformers
from tiny_models import tiny, tokens

from whence import WhenceError, hf
from whence.mend.document_windows import find_windows
from whence.mend.parallel_windows import ParallelWindows, parallel_positions

SPANS = [(3, 8), (8, 15), (15, 19)]


@pytest.mark.parametrize("family", checks.ROTARY)
def test_every_check(family):
    checks.check_cure(ParallelWindows(), family, identity=ParallelWindows(1))


def test_a_model_without_rotary_positions_is_refused():
    assert "gpt2" in ParallelWindows().unavailable(checks.model_of("gpt2"))
    assert ParallelWindows().unavailable(checks.model_of("llama")) is None


@torch.no_grad()
def test_equals_windows_that_run_separately():
    model, ids = tiny("llama"), tokens(1, 24)
    with ParallelWindows().apply(model), hf.request(model, documents=[SPANS]):
        ours = checks.logits(model, ids)
    caches = []
    for start, end in SPANS:
        window = torch.cat((ids[:, :3], ids[:, start:end]), 1)
        out = model(input_ids=window, use_cache=True)
        caches.append(out.past_key_values)
        checks.equal(ours[:, start:end], out.logits[:, 3:])
    joined = transformers.DynamicCache(config=model.config)
    for layer in range(2):
        parts = [(cache.layers[layer].keys, cache.layers[layer].values) for cache in caches]
        first = [tensor[:, :, :3] for tensor in parts[0]]
        joined.update(
            *(torch.cat([first[n], *(part[n][:, :, 3:] for part in parts)], 2) for n in (0, 1)), layer_idx=layer
        )
    positions = torch.arange(3 + 7, 3 + 7 + 5)[None]  # after the longest window
    theirs = model(input_ids=ids[:, 19:], past_key_values=joined, position_ids=positions).logits
    checks.equal(ours[:, 19:], theirs)


@pytest.mark.parametrize("family", ("llama", "gemma3", "phi3"))
def test_the_order_of_documents_does_not_matter(family):
    model, ids = checks.model_of(family).double(), tokens(1, 24)
    order, moved, spans = [2, 0, 1], [ids[:, :3]], []
    for index in order:
        start, end = SPANS[index]
        at = sum(part.shape[1] for part in moved)
        spans.append((at, at + end - start))
        moved.append(ids[:, start:end])
    with ParallelWindows().apply(model):
        with hf.request(model, documents=[SPANS]):
            before = checks.logits(model, ids)
        with hf.request(model, documents=[spans]):
            after = checks.logits(model, torch.cat((*moved, ids[:, 19:]), 1))
    checks.equal(after[:, 19:], before[:, 19:], 1e-12)


def test_one_document_is_the_model_itself():
    model, ids = checks.model_of("qwen3"), tokens(1, 24)
    before = checks.logits(model, ids)
    with ParallelWindows().apply(model), hf.request(model, documents=[[(3, 19)]]):
        checks.equal(checks.logits(model, ids), before)


def test_prompts_of_a_batch_have_their_own_documents():
    model, ids = checks.model_of("llama"), tokens(2, 24)
    spans = [SPANS, [(1, 9), (9, 20)]]
    with ParallelWindows().apply(model):
        with hf.request(model, documents=spans):
            both = checks.logits(model, ids)
        for row in (0, 1):
            with hf.request(model, documents=spans[row : row + 1]):
                checks.equal(both[row : row + 1], checks.logits(model, ids[row : row + 1]))


def test_positions_of_grouped_documents():
    windows = find_windows([[(1, 3), (4, 6), (6, 7)], [(2, 9)]], groups=2)
    positions = parallel_positions(windows, torch.arange(10)[None])
    assert positions.tolist() == [[0, 1, 2, 3, 1, 2, 3, 4, 5, 6], list(range(10))]
    assert windows.lengths.tolist() == [[3, 3], [7, 0]]
    assert windows.index(torch.tensor([[-2, 0, 1, 3, 6, 7]])).tolist() == [[-1, -1, 0, 0, 1, -1], [-1, -1, -1, 0, 0, 0]]


def test_a_window_shorter_than_the_prompt_is_refused():
    model, ids = tiny("mistral", sliding_window=16), tokens(1, 24)
    refused = pytest.raises(WhenceError, match=r"24 tokens.* sees 16.*shorter prompt")
    with ParallelWindows().apply(model), hf.request(model, documents=[SPANS]), refused:
        checks.logits(model, ids)
    with pytest.raises(WhenceError, match=r"windows=\.\.\.\) got 0"):
        ParallelWindows(0)


def test_documents_must_be_known():
    model = checks.model_of("llama")
    with (
        ParallelWindows().apply(model),
        pytest.raises(WhenceError, match=r"ParallelWindows got no documents.*hf\.request"),
    ):
        checks.logits(model, tokens(1, 24))
