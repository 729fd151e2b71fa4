"""What every cure must satisfy on every family, as functions that tests of cures call."""

import math
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1] / "hf"))
from tiny_models import everything_of, left_padded, tiny, tokens

from whence import hf
from whence.hf.interface import observe
from whence.hf.rotary_config import rotate_at

#: families in which a cure can take another path: norms of q and k, a softcap, two rotations, a partial or no rotation
FAMILIES = ("llama", "qwen3", "gemma2", "gemma3", "gpt_neox", "gpt2")
#: tests/hf/test_hf_intervene.py runs each kind of edit, of which all cures are made, in these families too
ALL_FAMILIES = (*FAMILIES, "qwen2", "mistral", "phi3", "olmo2")
ROTARY = tuple(name for name in FAMILIES if name != "gpt2")
LENGTH = 24  # of the prompts
DOCUMENTS = ((2, 7), (7, 12), (14, 18))  # of every prompt, counted from its first token
TOLERANCE = 2e-5


def model_of(family):
    """A tiny model whose windows are wider than the prompts."""
    config = {"sliding_window": 64} if family in ("mistral", "gemma2", "gemma3") else {}
    return tiny(family, **config)


def check_cure(
    cure, family, *, identity=None, documents=DOCUMENTS, chunks=True, tolerance=TOLERANCE, model=None, beams=None
):
    """Everything a cure must satisfy. ``identity`` is the setting that changes nothing, if there is one.

    Beam search and the texts of the identity take half the time, so a cure has them in two families.
    tests/hf/test_hf_intervene.py has them in every family, for each kind of edit.
    """
    beams = family in ("llama", "gemma3") if beams is None else beams
    model, ids = model_of(family) if model is None else model, tokens(2, LENGTH + 5)
    before, everything = logits(model, ids[:, :LENGTH]), everything_of(model)
    if identity is not None:
        greedy = model.generate(ids[:, :LENGTH], **GREEDY) if beams else None
        with identity.apply(model), requested(model, ids, documents):
            equal(logits(model, ids[:, :LENGTH]), before, tolerance)
            assert not beams or torch.equal(model.generate(ids[:, :LENGTH], **GREEDY), greedy)
    try:
        with cure.apply(model):
            check_effect(model, ids, documents, before)
            check_cache(model, ids, documents, tolerance)
            if chunks:
                check_chunks(model, ids, documents, tolerance)
            check_padding(model, ids, documents, tolerance)
            if beams:
                check_beams(model, ids, documents)
            raise InterruptedError
    except InterruptedError:
        check_removed(model, ids, before, everything)


GREEDY = {"max_new_tokens": 4, "do_sample": False}


def requested(model, ids, documents=DOCUMENTS, end=LENGTH):
    """The request of a batch of equal prompts."""
    rows = len(ids)
    return hf.request(model, documents=None if documents is None else [documents] * rows, prompt_ends=[end] * rows)


@torch.no_grad()
def logits(model, ids, **options):
    return model(input_ids=ids, **options).logits


@contextmanager
def edited_calls(cure, model, ids, **options):
    """Inside the block the model has the cure: the ``EditedCall`` of each layer in one forward pass, None if it has no edit."""
    calls = []
    with cure.apply(model):
        remove = observe([layer.self_attn for layer in model.model.layers], lambda call: calls.append(call.edited))
        with torch.no_grad():
            model(ids, **options)
        remove()
        yield calls


def region_distances(call, row):
    """The distance between the query ``row`` and each key up to it, as the regions of the first edit place them."""
    rows, distances = torch.tensor([row]), torch.full((row + 1,), -1.0)
    for region in call.edits[0].regions(call, rows):
        distance = (region.q_positions[0, 0] - region.k_positions[0, 0])[: row + 1].float()
        where = region.where[0, 0, 0, : row + 1]
        assert bool((distances[where] == -1).all())  # each pair is in one region
        distances[where] = distance[where]
    return distances.tolist()


def merge_regions(call, rows):
    """The output ``[B, H, n, E]`` as the sum over regions r of ``exp(L_r - L) o_r``, where ``L_r`` is the log of the sum of
    the exponentials of the scores inside r, ``L`` that of all, and ``o_r`` the attention output inside r."""
    visible, group = call.mask_info.visible_keys(rows)[:, None], call.q.shape[1] // call.k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (call.k, call.v))
    sums, outputs = [], []
    for region in call.edits[0].regions(call, rows):
        q = rotate_at(call.rotary, call.q.double()[:, :, rows], region.q_positions)
        scores = q @ rotate_at(call.rotary, k, region.k_positions).mT * call.scale * region.factor
        scores = scores.masked_fill(~(region.where & visible), -math.inf)
        sums.append(scores.logsumexp(-1, keepdim=True))
        outputs.append(scores.softmax(-1).nan_to_num() @ v)  # a row may have no key in a region
    total = torch.stack(sums).logsumexp(0)
    return sum((one - total).exp() * output for one, output in zip(sums, outputs, strict=True))


def check_merge(cure, length=24):
    """One softmax over the scores chosen by region equals the merge of one softmax for each region."""
    with edited_calls(cure, tiny("llama"), tokens(2, length)) as calls:
        rows = torch.arange(length)
        for call in calls:
            torch.testing.assert_close(call.output(rows).double(), merge_regions(call, rows), rtol=1e-4, atol=1e-5)


def equal(a, b, tolerance=TOLERANCE):
    """Equal up to rounding, measured by the largest logit."""
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance * float(b.abs().max()))


def check_effect(model, ids, documents, before):
    """The cure changes the answer's logits; otherwise the other checks say nothing."""
    with requested(model, ids, documents):
        after = logits(model, ids[:, :LENGTH])
    assert float((after - before)[:, -1].abs().max()) > 1e-3 * float(before.abs().max())


@torch.no_grad()
def check_cache(model, ids, documents, tolerance):
    """A prompt and an answer read token by token, from a dynamic and a static cache, equal one pass over both."""
    with requested(model, ids, documents):
        whole = logits(model, ids)
    for cache in (None, transformers.StaticCache(config=model.config, max_cache_len=LENGTH + 8)):
        with requested(model, ids, documents):
            out = model(input_ids=ids[:, :LENGTH], past_key_values=cache, use_cache=True)
            equal(out.logits[:, -1], whole[:, LENGTH - 1], tolerance)
            for place in range(LENGTH, ids.shape[1]):
                out = model(input_ids=ids[:, place : place + 1], past_key_values=out.past_key_values, use_cache=True)
                equal(out.logits[:, 0], whole[:, place], tolerance)


@torch.no_grad()
def check_chunks(model, ids, documents, tolerance):
    """A prompt that is read in chunks equals one pass over it."""
    with requested(model, ids, documents):
        whole, cache = logits(model, ids[:, :LENGTH]), None
        for first in range(0, LENGTH, 7):
            out = model(input_ids=ids[:, first : min(first + 7, LENGTH)], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
        equal(out.logits[:, -1], whole[:, -1], tolerance)


def check_padding(model, ids, documents, tolerance):
    """A row of a left-padded batch equals the same prompt alone, in one pass and under generate."""
    ids = ids[:, :LENGTH]
    padded = left_padded(torch.cat((ids[:, :3], ids), 1), (3, 0))
    with requested(model, ids[:1], documents):
        expected = logits(model, ids[:1])
        text = model.generate(ids[:1], **GREEDY)
    spans = None if documents is None else [documents, documents]
    with hf.request(model, documents=spans, prompt_ends=[LENGTH, LENGTH + 3]), torch.no_grad():
        equal(model(**padded).logits[:1, 3:], expected, tolerance)
    with hf.request(model, documents=spans):  # generate knows the ends of the prompts
        out = model.generate(padded["input_ids"], attention_mask=padded["attention_mask"], **GREEDY)
    assert torch.equal(out[:1, 3:], text)


def check_beams(model, ids, documents):
    """Beam search with a dynamic or a static cache gives the same text as without a cache."""
    prompts, options = ids[:, :LENGTH], {**GREEDY, "num_beams": 3}
    with hf.request(model, documents=None if documents is None else [documents] * len(ids)):
        cached = model.generate(prompts, **options)
        assert torch.equal(model.generate(prompts, **options, use_cache=False), cached)
        assert torch.equal(model.generate(prompts, **options, cache_implementation="static"), cached)


def check_removed(model, ids, before, everything):
    """Nothing is left of a cure after its block, also after an error inside it."""
    assert torch.equal(logits(model, ids[:, :LENGTH]), before)
    model.__dict__.pop("_previous_max_cache_length", None)  # generate leaves it
    (structure, weights), (structure_after, weights_after) = everything, everything_of(model)
    assert structure == structure_after
    assert all(torch.equal(weights[name], weights_after[name]) for name in weights)
