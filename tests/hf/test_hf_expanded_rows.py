"""Expanded rows: several rows of a batch for each sequence, one distribution, and caches that follow."""

import copy
import gc
import sys
import weakref
from pathlib import Path

import pytest
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1] / "mend"))
import cure_checks as checks
from tiny_models import tiny, tokens

from whence import WhenceError, hf


def first(logits):
    return logits[:, 0]


def mean(logits):
    return logits.mean(1)


@pytest.mark.parametrize("family", ("llama", "gemma3", "gpt2"))
def test_equal_rows_change_nothing(family):
    model, ids = checks.model_of(family), tokens(2, 20)
    before = checks.everything_of(model)
    plain, greedy = checks.logits(model, ids), model.generate(ids, **checks.GREEDY)
    beams = model.generate(ids, **checks.GREEDY, num_beams=3)
    with hf.expand_rows(model, 3, mean):
        checks.equal(checks.logits(model, ids), plain)
        assert torch.equal(model.generate(ids, **checks.GREEDY), greedy)
        for options in ({}, {"cache_implementation": "static"}, {"use_cache": False}):
            assert torch.equal(model.generate(ids, **checks.GREEDY, num_beams=3, **options), beams)
    checks.check_removed(model, ids, plain, before)


@torch.no_grad()
def test_rows_of_a_sequence_stay_together():
    """Rows that differ: noise is added to the embeddings of every second row, so a wrong row would show."""
    model, ids = tiny("llama"), tokens(3, 12)

    def disturb(module, args, out):
        out = out.clone()
        out[1::2] = out[1::2].flip(-1)
        return out

    handle = model.get_input_embeddings().register_forward_hook(disturb)
    try:
        with hf.expand_rows(model, 2, mean):
            whole = checks.logits(model, ids)
            for change in ("reorder_cache", "batch_select_indices", "batch_repeat_interleave"):
                cache = model(input_ids=ids[:, :10], use_cache=True).past_key_values
                assert cache.layers[0].keys.shape[0] == 6
                cache = copy.deepcopy(cache)
                if change == "batch_repeat_interleave":
                    order = torch.tensor([0, 0, 1, 1, 2, 2])
                    cache.batch_repeat_interleave(2)
                else:
                    order = torch.tensor([2, 0, 0])
                    getattr(cache, change)(order)
                out = model(input_ids=ids[order, 10:], past_key_values=cache)
                checks.equal(out.logits, whole[order, 10:])
    finally:
        handle.remove()


@torch.no_grad()
def test_a_cache_is_freed_with_its_last_reference():
    """Not later, by the garbage collector: the caches of many batches would fill the memory of a GPU."""
    model, ids = tiny("llama"), tokens(2, 12)
    gc.disable()
    try:
        with hf.expand_rows(model, 2, mean):
            cache = model(input_ids=ids, use_cache=True).past_key_values
            keys = weakref.ref(copy.deepcopy(cache).layers[0].keys), weakref.ref(cache.layers[0].keys)
            del cache
        assert [key() for key in keys] == [None, None]
    finally:
        gc.enable()


@torch.no_grad()
def test_loss_tuples_and_early_allocation():
    model, ids = tiny("llama"), tokens(2, 12)
    plain = model(input_ids=ids, labels=ids)
    cache = transformers.StaticCache(config=model.config, max_cache_len=16)
    cache.early_initialization(2, 2, 8, torch.float32, torch.device("cpu"))
    with hf.expand_rows(model, 2, first):
        out = model(input_ids=ids, labels=ids, past_key_values=cache)
        checks.equal(out.loss, plain.loss)
        assert cache.batch_size == 4
        loss, logits, *_ = model(input_ids=ids, labels=ids, return_dict=False)
    checks.equal(loss, plain.loss)
    checks.equal(logits, plain.logits)


def test_together_with_an_edit_and_a_static_cache():
    """The masks of edited layers are repeated with what they carry."""
    model, ids = checks.model_of("gemma3"), tokens(2, 12)
    padded = checks.left_padded(ids, (3, 0))
    options = {**checks.GREEDY, "attention_mask": padded["attention_mask"], "cache_implementation": "static"}
    with hf.intervene(model, hf.AttentionEdit()):
        expected = model.generate(padded["input_ids"], **options)
        with hf.expand_rows(model, 2, first):
            assert torch.equal(model.generate(padded["input_ids"], **options), expected)


@torch.no_grad()
def test_what_cannot_be_expanded():
    model, ids = tiny("llama"), tokens(2, 12)
    cache = model(input_ids=ids, use_cache=True).past_key_values
    with hf.expand_rows(model, 2, first):
        with pytest.raises(WhenceError, match=r"1 rows for each sequence.*empty cache"):
            model(input_ids=ids, past_key_values=cache)
        with pytest.raises(WhenceError, match="expanded already"), hf.expand_rows(model, 2, first):
            pass
