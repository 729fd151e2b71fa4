"""Masks are recognized as structure; position ids with gaps are used or raise an error."""

from types import SimpleNamespace

import pytest
import torch
import transformers.masking_utils as masking
from tiny_models import tiny, tokens

import whence
from whence import hf
from whence.hf.masks import build_mask

PRIOR = {"heads": 4, "alpha": 0.3}


def mask_info(**given):
    return build_mask(
        **{"batch_size": 2, "mask_function": masking.causal_mask_function, "q_length": 5, "kv_length": 5} | given
    ).mask_info


def dense(**given):
    return masking.sdpa_mask(allow_is_causal_skip=False, **{"batch_size": 2, "q_length": 5, "kv_length": 5} | given)[
        :, 0
    ]


@pytest.mark.parametrize(
    "key_mask", [None, [[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9], [[1] * 9, [1, 1, 1, 0, 0, 1, 1, 1, 1]]]
)
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("place", [(9, 9, 0, 0), (4, 9, 5, 0), (2, 6, 7, 3), (3, 12, 2, 0)])
def test_recognized_masks_equal_those_of_transformers(place, window, key_mask):
    queries, keys, q_offset, k_offset = place
    given = {"q_length": queries, "kv_length": keys, "q_offset": q_offset, "kv_offset": k_offset}
    if window is not None:
        given |= {"local_size": window, "mask_function": masking.sliding_window_causal_mask_function(window)}
    mask = None if key_mask is None else torch.tensor(key_mask, dtype=torch.bool)
    if key_mask is not None:
        given["attention_mask"] = mask
    seen = mask_info(**given).visible_keys(torch.arange(queries)).expand(2, -1, -1)
    assert torch.equal(seen, dense(**given))


def test_packed_segments_are_recognized_by_row():
    numbers = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
    function = masking.and_masks(masking.causal_mask_function, masking.packed_sequence_mask_function(numbers))
    actual = mask_info(mask_function=function)
    assert torch.equal(actual.segment_ids, numbers)
    assert torch.equal(actual.visible_keys(torch.arange(5)), dense(mask_function=function))


def test_mask_info_keeps_its_offset_when_a_static_cache_changes_it():
    offset = torch.tensor(3)
    actual = mask_info(q_offset=offset, kv_length=12)
    offset.add_(5)
    assert actual.q_slots.tolist() == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "function",
    [
        masking.and_masks(masking.causal_mask_function, lambda b, h, q, k: k != 2),
        masking.chunked_causal_mask_function(2, torch.zeros(2, dtype=torch.long)),
    ],
)
def test_other_masks_raise(function):
    with pytest.raises(whence.WhenceError, match="neither causal, window, chunks, padding nor packed segments"):
        mask_info(
            mask_function=function, q_offset=3, kv_length=8
        )  # chunks come with their size, which is not given here


@pytest.mark.parametrize(
    "function",
    [masking.bidirectional_mask_function, masking.or_masks(masking.causal_mask_function, lambda b, h, q, k: k < 7)],
)
def test_a_bidirectional_mask_raises(function):
    with pytest.raises(whence.WhenceError, match=r"sees later ones.*encoders and encoder-decoders are not"):
        mask_info(mask_function=function, q_offset=3, kv_length=8)


@pytest.mark.parametrize("place", [(9, 9, 0, 0), (4, 9, 5, 0), (3, 12, 2, 0)])
@pytest.mark.parametrize("left", [[0, 0], [4, 0]])
def test_chunks_are_recognized_with_padding_and_with_a_cache(place, left):
    queries, keys, q_offset, k_offset = place
    given = {"q_length": queries, "kv_length": keys, "q_offset": q_offset, "kv_offset": k_offset, "local_size": 3}
    given["mask_function"] = masking.chunked_causal_mask_function(3, torch.tensor(left))
    if any(left):
        given["attention_mask"] = torch.arange(9) >= torch.tensor(left)[:, None]
    seen = mask_info(**given)
    assert seen.structure.chunks is not None and seen.structure.window is None
    assert torch.equal(seen.visible_keys(torch.arange(queries)).expand(2, -1, -1), dense(**given))


def test_positions_count_through_chunks():
    """A chunk hides what stands before it; it does not begin a text."""
    chunks = masking.chunked_causal_mask_function(2, torch.zeros(2, dtype=torch.long))
    actual = mask_info(mask_function=chunks, local_size=2)
    for position in (whence.Alibi(4), whence.Epar(4, length="query")):
        arguments = actual.attend_arguments(position, torch.arange(5)[None])
        assert arguments["q_positions"].tolist() == [0, 1, 2, 3, 4]
        q, k = arguments["segment_ids"]
        assert q.tolist() == k.tolist() == [0, 0, 1, 1, 2]


def test_packed_segments_and_chunks_are_recognized_together():
    numbers = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]])
    chunks = masking.chunked_causal_mask_function(2, torch.zeros(2, dtype=torch.long))
    function = masking.and_masks(chunks, masking.packed_sequence_mask_function(numbers))
    config = SimpleNamespace(attention_chunk_size=2)  # which tells chunks from a window over texts of two tokens
    actual = mask_info(mask_function=function, local_size=2, config=config)
    assert torch.equal(actual.segment_ids, numbers)
    assert torch.equal(actual.visible_keys(torch.arange(5)), dense(mask_function=function))


def test_a_window_of_another_size_raises():
    with pytest.raises(whence.WhenceError, match="neither causal"):
        mask_info(local_size=2, mask_function=masking.sliding_window_causal_mask_function(3))


@torch.no_grad()
def test_packed_segments_do_not_see_each_other():
    model, ids = tiny("llama"), tokens(batch=1, length=12)
    packed = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
    for position in (whence.PowerPrior(**PRIOR), whence.Epar(4, length="query", beta=4.0)):
        with hf.attach(model, position):
            together = model(ids, position_ids=packed, use_cache=False).logits
            torch.testing.assert_close(together[:, :5], model(ids[:, :5]).logits, atol=2e-5, rtol=0)
            torch.testing.assert_close(together[:, 5:], model(ids[:, 5:]).logits, atol=2e-5, rtol=0)


@torch.no_grad()
def test_position_ids_with_gaps_are_used_without_a_cache_and_raise_with_one():
    model, ids = tiny("llama", num_hidden_layers=1), tokens(length=8)
    skipping = torch.tensor([[0, 1, 2, 3, 40, 41, 42, 43]])
    with hf.attach(model, whence.Rotary() + whence.PowerPrior(**PRIOR), keep_rotary=False):
        padded = torch.cat((ids[:, :4], torch.zeros(2, 36, dtype=torch.long), ids[:, 4:]), 1)
        hidden = (padded != 0).long()
        wanted = model(padded, attention_mask=hidden, position_ids=torch.arange(44)[None]).logits[:, -4:]
        got = model(ids, position_ids=skipping, attention_mask=torch.ones_like(ids), use_cache=False).logits[:, -4:]
        torch.testing.assert_close(got, wanted, atol=2e-5, rtol=0)
        hole = torch.tensor([[1, 1, 0, 1, 1, 1, 1, 1]] * 2)
        counted = (hole.cumsum(-1) - 1) * hole
        assert torch.isfinite(model(ids, attention_mask=hole, position_ids=counted, use_cache=False).logits).all()
        row = hf.AttentionRows(torch.tensor([[7], [6]]))
        with hf.capture(model, row):
            model(ids, position_ids=skipping, attention_mask=torch.ones_like(ids), use_cache=False)
        assert torch.allclose(row[0].sum(-1), torch.ones(2, 4, 1))
        cache = model(ids[:, :4], use_cache=True).past_key_values
        with pytest.raises(whence.WhenceError, match="ids with gaps, together with a cache"):
            model(ids[:, 4:], position_ids=skipping[:, 4:], past_key_values=cache)
        falling = torch.tensor([[0, 1, 2, 3, 3, 2, 1, 0]])
        over_a_hole = {"attention_mask": hole, "position_ids": torch.tensor([[0, 5, 0, 2, 6, 7, 8, 9]])}
        for masked_inputs in ({"position_ids": falling, "attention_mask": torch.ones_like(ids)}, over_a_hole):
            with pytest.raises(whence.WhenceError, match="ids that do not increase"):
                model(ids, **masked_inputs, use_cache=False)
    with hf.attach(
        model, whence.NoPosition()
    ):  # nothing depends on distances: the model's own rotation honours any ids
        attached = model(ids, position_ids=falling, attention_mask=torch.ones_like(ids), use_cache=False).logits
    plain = model(ids, position_ids=falling, attention_mask=torch.ones_like(ids), use_cache=False).logits
    torch.testing.assert_close(attached, plain, atol=1e-5, rtol=0)


@torch.no_grad()
def test_softcap_and_sinks_do_not_depend_on_position_ids():
    for family in ("gpt_oss", "gemma2"):
        model, ids = tiny(family), tokens(batch=1, length=5)
        with hf.attach(model, whence.NoPosition()):
            cache = model(ids[:, :3], use_cache=True).past_key_values
            model(ids[:, 3:], position_ids=torch.tensor([[8, 9]]), past_key_values=cache)


def test_a_mask_on_another_device_raises():
    model, ids = tiny("llama"), tokens()
    dense = torch.ones(2, 1, 14, 14, dtype=torch.bool).tril()
    with (
        hf.attach(model, whence.NoPosition()),
        pytest.raises(whence.WhenceError, match=r"shape \[2, 1, 14, 14\] made elsewhere"),
    ):
        model(ids, attention_mask=dense)
