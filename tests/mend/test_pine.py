"""PINE: the logits do not depend on the order of documents, and positions follow importance."""

import itertools

import cure_checks as checks
import pytest
import torch
from tiny_models import tiny, tokens

from whence import WhenceError, hf
from whence.hf.edits import EditedCall
from whence.hf.rotary_config import rotate_at
from whence.mend.document_windows import find_windows
from whence.mend.pine import Pine, PineEdit, document_importance, rank_shifts, token_importance

SPANS = [(3, 8), (8, 15), (15, 19)]


@pytest.mark.parametrize("family", checks.ROTARY)
def test_every_check(family):
    checks.check_cure(Pine(), family, identity=Pine(1), chunks=False)


def test_a_model_without_rotary_positions_is_refused():
    assert "gpt2" in Pine().unavailable(checks.model_of("gpt2"))
    assert Pine().unavailable(checks.model_of("llama")) is None


def permuted(ids, order):
    """The prompt with its documents in another order, and their spans there."""
    parts, spans, at = [ids[:, :3]], [], 3
    for start, end in (SPANS[index] for index in order):
        spans.append((at, at + end - start))
        parts.append(ids[:, start:end])
        at += end - start
    return torch.cat((*parts, ids[:, 19:]), 1), spans


@pytest.mark.parametrize("family", ("llama", "gemma3", "qwen3", "gpt_neox"))
def test_the_order_of_documents_does_not_matter(family):
    model, ids = checks.model_of(family).double(), tokens(1, 24)
    plain = checks.logits(model, ids)
    with Pine().apply(model):
        for order in itertools.permutations(range(3)):
            moved, spans = permuted(ids, order)
            with hf.request(model, documents=[spans]):
                logits = checks.logits(model, moved)
                text = model.generate(moved, max_new_tokens=4, do_sample=False)[:, -4:]
            if order == (0, 1, 2):
                expected, expected_text = logits, text
            checks.equal(logits[:, 19:], expected[:, 19:], 1e-12)
            assert torch.equal(text, expected_text)
    assert float((expected - plain)[:, -1].abs().max()) > 1e-3


def test_documents_of_equal_text_tie_without_harm():
    model, ids = checks.model_of("llama").double(), tokens(1, 24)
    ids[:, 15:19] = ids[:, 3:7]
    spans, other = [(3, 7), (7, 15), (15, 19)], torch.cat((ids[:, :3], ids[:, 7:15], ids[:, 3:7], ids[:, 15:]), 1)
    with Pine().apply(model):
        with hf.request(model, documents=[spans]):
            before = checks.logits(model, ids)
        with hf.request(model, documents=[[(3, 11), (11, 15), (15, 19)]]):
            checks.equal(checks.logits(model, other)[:, 19:], before[:, 19:], 1e-12)


def test_one_document_is_the_model_itself():
    model, ids = checks.model_of("qwen3"), tokens(1, 24)
    before = checks.logits(model, ids)
    with Pine().apply(model), hf.request(model, documents=[[(3, 19)]]):
        checks.equal(checks.logits(model, ids), before)


def test_prompts_of_a_batch_have_their_own_documents():
    model, ids = checks.model_of("llama"), tokens(2, 24)
    spans = [SPANS, [(1, 9), (9, 20)]]
    with Pine().apply(model):
        with hf.request(model, documents=spans):
            both = checks.logits(model, ids)
        for row in (0, 1):
            with hf.request(model, documents=spans[row : row + 1]):
                checks.equal(both[row : row + 1], checks.logits(model, ids[row : row + 1]))


def attention_call():
    """One attention call of a tiny model, and its windows."""
    model, ids, calls = tiny("llama").double(), tokens(1, 24), []

    class Watch(PineEdit):
        def change_weights(self, call, rows, weights):
            calls.append((call, weights))
            return weights

    with hf.intervene(model, Watch(None), layers=[0]), hf.request(model, documents=[SPANS]):
        calls.clear()
        checks.logits(model, ids)
    return *calls[0], find_windows([SPANS])


def test_weights_equal_the_definition():
    """Every pair by itself: keys move by the documents ranked before theirs, and are visible up to the query's position."""
    call, weights, _ = attention_call()
    assert isinstance(call, EditedCall)
    document = [next((n for n, (a, b) in enumerate(SPANS) if a <= t < b), -1) for t in range(24)]
    length = [b - a for a, b in SPANS]
    base = [t if document[t] < 0 else t + 19 - SPANS[document[t]][1] for t in range(24)]
    k = call.k.repeat_interleave(2, 1)
    plain = call.q @ k.transpose(-1, -2) * call.scale

    def attention(head, row, excluded):
        keys = [t for t in range(24) if document[t] >= 0 and document[t] != excluded]
        share = plain[0, head, row, keys].softmax(-1)
        return [sum(float(p) for p, t in zip(share, keys, strict=True) if document[t] == n) for n in range(3)]

    for head in range(4):
        of_documents = []
        for i, (start, end) in enumerate(SPANS):
            rows = [attention(head, row, i) for row in range(start, end)]
            sums = [sum(row[j] for row in rows) / length[j] for j in range(3)]
            of_documents.append([float("inf") if i == j else sums[j] for j in range(3)])
        for row in range(24):
            if document[row] >= 0:
                importance = of_documents[document[row]]
            else:
                importance = [mass / n for mass, n in zip(attention(head, row, None), length, strict=True)]
            order = sorted(range(3), key=lambda n: -importance[n])
            shift = {n: sum(length[m] for m in order[:rank]) for rank, n in enumerate(order)} | {-1: 0}
            positions = [base[t] - shift[document[t]] for t in range(24)]
            if row < 3:
                visible = [t <= row for t in range(24)]
            else:
                visible = [positions[t] <= base[row] and (t < 19 or row >= 19) for t in range(24)]
            q = rotate_at(call.rotary, call.q[:, head : head + 1, row : row + 1], torch.tensor([[[base[row]]]]))
            scores = q @ rotate_at(call.rotary, k[:, head : head + 1], torch.tensor([[positions]])).transpose(-1, -2)
            scores = (scores[0, 0, 0] * call.scale).masked_fill(~torch.tensor(visible), -torch.inf)
            torch.testing.assert_close(weights[0, head, row], scores.softmax(-1), rtol=0, atol=1e-12)


def test_importance_is_a_share_of_attention():
    call, _, windows = attention_call()
    rows = torch.arange(19, 24)
    importance = token_importance(call, windows, rows)
    torch.testing.assert_close((importance * windows.lengths).sum(-1), torch.ones(1, 4, 5, dtype=torch.float64))
    own = document_importance(call, windows)
    assert torch.isinf(own.diagonal(dim1=-2, dim2=-1)).all()
    others = torch.where(own.isinf(), 0, own * windows.lengths).sum(-1)
    torch.testing.assert_close(others, windows.lengths[:, None].double().expand(1, 4, 3))


def test_ranks():
    importance = torch.tensor([[0.2, 0.7, 0.1], [0.4, 0.4, 0.2]])
    assert rank_shifts(importance, torch.tensor([5, 7, 4])).tolist() == [[7, 0, 12], [0, 5, 12]]


@torch.no_grad()
def test_chunks_and_windows_are_refused():
    model, ids = checks.model_of("llama"), tokens(1, 24)
    with Pine().apply(model), hf.request(model, documents=[SPANS]):
        out = model(input_ids=ids[:, :3], use_cache=True)  # the prefix may come first
        with pytest.raises(WhenceError, match=r"tokens 3 to 9 with documents from 3 to 18.*one piece"):
            model(input_ids=ids[:, 3:10], past_key_values=out.past_key_values)
    model = tiny("gemma3", sliding_window=16)
    refused = pytest.raises(WhenceError, match=r"24 tokens.* sees 16.*shorter prompt")
    with Pine().apply(model), hf.request(model, documents=[SPANS]), refused:
        checks.logits(model, ids)
    with pytest.raises(WhenceError, match=r"groups=\.\.\.\) got 0"):
        Pine(0)
