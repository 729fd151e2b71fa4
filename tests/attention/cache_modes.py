"""Ways to fill a cache: each returns the cached outputs and those of one full pass.

The full pass is the dense float64 reference without a cache.
"""

from collections.abc import Callable

import pytest
import torch

from whence import Attention, KVCache
from whence.position.catalogue import CATALOGUE

HEADS, HEAD_WIDTH, WIDTH, TOKENS, WINDOW = 4, 4, 16, 12, 4

MECHANISMS: dict[str, Callable] = {entry.name: entry.make for entry in CATALOGUE}

every_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


def build(mechanism, **about):
    torch.manual_seed(0)
    position = MECHANISMS[mechanism](HEADS, HEAD_WIDTH)
    layer = Attention(WIDTH, HEADS, position, **({"backend": "reference", "causal": True} | about)).double()
    with torch.no_grad():
        for p in layer.parameters():  # larger than at the start, so that no effect hides below the tolerance
            p.add_(torch.randn_like(p) * 0.3)
    return layer


def tokens(batch=2, length=TOKENS, seed=1):
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def full(layer, x, **arguments):
    """One pass without a cache through the reference."""
    backend, layer.backend = layer.backend, "reference"
    try:
        with torch.no_grad():
            return layer(x, **arguments)
    finally:
        layer.backend = backend


def feed(layer, x, cache, chunks, **arguments):
    """The outputs of x given to a cache in chunks; arguments have the tokens on their last axis."""
    assert sum(chunks) == x.shape[1]
    outs, first = [], 0
    for count in chunks:
        here = slice(first, first + count)
        with torch.no_grad():
            outs.append(layer(x[:, here], cache=cache, **{n: t[..., here] for n, t in arguments.items()}))
        first += count
    return torch.cat(outs, 1)


ONE_BY_ONE = [1] * TOKENS

# --- the modes: each gives what was found and what one full pass says --------------------------------------------------


def grown_token_by_token(mechanism):
    layer, x = build(mechanism), tokens()
    return feed(layer, x, KVCache(), ONE_BY_ONE), full(layer, x)


def grown_in_chunks(mechanism):
    layer, x = build(mechanism), tokens()
    return feed(layer, x, KVCache(), [5, 1, 4, 2]), full(layer, x)


def preallocated_token_by_token(mechanism):
    layer, x = build(mechanism), tokens()
    return feed(layer, x, KVCache(capacity=TOKENS), ONE_BY_ONE), full(layer, x)


def preallocated_in_chunks(mechanism):
    layer, x = build(mechanism), tokens()
    return feed(layer, x, KVCache(capacity=TOKENS + 7), [1, 6, 5]), full(layer, x)


def window_in_a_growing_cache(mechanism):
    layer, x = build(mechanism, window=WINDOW), tokens()
    return feed(layer, x, KVCache(), [3, 1, 8]), full(layer, x)


def ring_token_by_token(mechanism):
    layer, x = build(mechanism, window=WINDOW), tokens()
    return feed(layer, x, KVCache(window=WINDOW), ONE_BY_ONE), full(layer, x)


def ring_in_chunks_larger_than_the_window(mechanism):
    layer, x = build(mechanism, window=WINDOW), tokens()
    return feed(layer, x, KVCache(window=WINDOW), [6, 1, 5]), full(layer, x)


def ring_wider_than_the_window(mechanism):
    layer, x = build(mechanism, window=WINDOW), tokens()
    return feed(layer, x, KVCache(window=WINDOW + 2), [2, 5, 1, 4]), full(layer, x)


def ring_with_rollback(mechanism):
    layer, x = build(mechanism, window=WINDOW), tokens()
    cache = KVCache(window=WINDOW, rollback=3)
    before = feed(layer, x[:, :7], cache, [4, 3])
    for draft in (1, 2, 3):  # several rejected drafts, the longest that rollback allows
        feed(layer, x[:, 7 : 7 + draft] + 1, cache, [draft])
        cache.crop(7)
    return torch.cat([before, feed(layer, x[:, 7:], cache, [1, 4])], 1), full(layer, x)


def crop_and_redo(mechanism):
    layer, x = build(mechanism), tokens()
    cache = KVCache()
    before = feed(layer, x[:, :5], cache, [5])
    feed(layer, x[:, 5:9] + 1, cache, [1, 3])
    cache.crop(5)
    return torch.cat([before, feed(layer, x[:, 5:], cache, [1, 6])], 1), full(layer, x)


def preallocated_crop_and_redo(mechanism):
    layer, x = build(mechanism), tokens()
    cache = KVCache(capacity=TOKENS)
    before = feed(layer, x[:, :5], cache, [2, 3])
    feed(layer, x[:, 5:] + 1, cache, [7])
    cache.crop(8)
    cache.crop(5)
    return torch.cat([before, feed(layer, x[:, 5:], cache, [3, 4])], 1), full(layer, x)


def crop_to_nothing(mechanism):
    layer, x = build(mechanism), tokens()
    cache = KVCache()
    feed(layer, x[:, :4] + 1, cache, [4])
    cache.crop(0)
    return feed(layer, x, cache, [7, 5]), full(layer, x)


def beams_permuted_and_duplicated(mechanism):
    layer, x = build(mechanism), tokens(batch=3)
    index = torch.tensor([2, 0, 0])
    cache = KVCache()
    feed(layer, x[:, :6], cache, [6])
    cache.reorder(index)
    more = tokens(batch=3, length=4, seed=2)
    return feed(layer, more, cache, [1, 3]), full(layer, torch.cat([x[index, :6], more], 1))[:, 6:]


def one_prompt_becomes_three_beams(mechanism):
    layer, x = build(mechanism), tokens(batch=1)
    index = torch.zeros(3, dtype=torch.long)
    cache = KVCache(capacity=TOKENS)
    feed(layer, x[:, :6], cache, [6])
    cache.reorder(index)
    more = tokens(batch=3, length=4, seed=2)
    return feed(layer, more, cache, [1] * 4), full(layer, torch.cat([x[index, :6], more], 1))[:, 6:]


def beams_in_a_ring(mechanism):
    layer, x = build(mechanism, window=WINDOW), tokens(batch=2)
    index = torch.tensor([1, 1])
    cache = KVCache(window=WINDOW)
    feed(layer, x[:, :6], cache, [6])
    cache.reorder(index)
    more = tokens(batch=2, length=4, seed=2)
    return feed(layer, more, cache, [1] * 4), full(layer, torch.cat([x[index, :6], more], 1))[:, 6:]


def _left_padded(mechanism, cache, chunks, lengths=(3, 7, 5), **about):
    """A left-padded prefill of 7 places, then 5 more tokens; and each row alone without padding."""
    layer, x = build(mechanism, **about), tokens(batch=len(lengths))
    real = torch.arange(7) >= 7 - torch.tensor(lengths)[:, None]
    outs = torch.cat([feed(layer, x[:, :7], cache, chunks, key_mask=real), feed(layer, x[:, 7:], cache, [1, 4])], 1)
    rows = [(b, slice(7 - n, None)) for b, n in enumerate(lengths)]
    result = torch.cat([outs[b, row] for b, row in rows])
    return result, torch.cat([full(layer, x[b : b + 1, row])[0] for b, row in rows])


def left_padded_batch_then_decode(mechanism):
    return _left_padded(mechanism, KVCache(), [7])


def left_padded_batch_preallocated(mechanism):
    return _left_padded(mechanism, KVCache(capacity=TOKENS), [7])


def left_padded_batch_in_a_ring(mechanism):
    return _left_padded(mechanism, KVCache(window=WINDOW), [7], window=WINDOW)


def left_padded_prefill_in_chunks(mechanism):
    # in the first chunk the first row has nothing but padding: it must not count as tokens
    return _left_padded(mechanism, KVCache(), [3, 2, 2])


def left_padded_batch_of_one(mechanism):
    return _left_padded(mechanism, KVCache(), [7], lengths=(4,))


def one_row_of_a_left_padded_batch(mechanism):
    """A beam search that keeps one sequence of a padded batch."""
    layer, x = build(mechanism), tokens(batch=2)
    cache = KVCache()
    feed(layer, x[:, :6], cache, [6], key_mask=torch.arange(6) >= torch.tensor([[2], [0]]))
    cache.reorder(torch.tensor([0]))
    return feed(layer, x[:1, 6:], cache, [1, 5]), full(layer, x[:1, 2:])[:, 4:]


def right_padded_prefill_then_positions(mechanism):
    """After right padding only the caller knows where each row goes on."""
    layer, x = build(mechanism), tokens(batch=2)
    lengths = torch.tensor([4, 7])
    cache = KVCache()
    with torch.no_grad():
        first = layer(x[:, :7], lengths=lengths, cache=cache)
    places = lengths[:, None] + torch.arange(5)
    later = feed(layer, x[:, 7:], cache, [1, 4], positions=places)
    rows = [torch.cat([x[b : b + 1, :n], x[b : b + 1, 7:]], 1) for b, n in enumerate(lengths.tolist())]
    result = torch.cat([torch.cat([first[b, :n], later[b]]) for b, n in enumerate(lengths.tolist())])
    return result, torch.cat([full(layer, row)[0] for row in rows])


def packed_prefill_then_its_last_document(mechanism):
    layer, x = build(mechanism), tokens()
    segment_ids = torch.tensor([0] * 3 + [1] * 2 + [2] * 7)
    result = feed(layer, x, KVCache(), [8, 1, 1, 2], segment_ids=segment_ids)
    return result, torch.cat([full(layer, part) for part in x.split([3, 2, 7], 1)], 1)


def packed_prefill_then_tokens_without_a_number(mechanism):
    """Tokens that say nothing go on with the last document."""
    layer, x = build(mechanism), tokens()
    cache = KVCache()
    first = feed(layer, x[:, :8], cache, [8], segment_ids=torch.tensor([0] * 3 + [1] * 2 + [2] * 3))
    result = torch.cat([first, feed(layer, x[:, 8:], cache, [1, 3])], 1)
    return result, torch.cat([full(layer, part) for part in x.split([3, 2, 7], 1)], 1)


def a_document_begins_while_decoding(mechanism):
    layer, x = build(mechanism), tokens()
    segment_ids = torch.tensor([[0] * 3 + [1] * 9, [0] * 7 + [1] * 5])
    result = feed(layer, x, KVCache(capacity=TOKENS), [2, 3, 1, 1, 5], segment_ids=segment_ids)
    rows = [
        torch.cat([full(layer, p) for p in x[b : b + 1].split(cut, 1)], 1) for b, cut in enumerate([[3, 9], [7, 5]])
    ]
    return result, torch.cat(rows)


def left_padding_before_packed_documents(mechanism):
    layer, x = build(mechanism), tokens()
    real, segment_ids = torch.arange(TOKENS) >= 2, torch.tensor([0] * 6 + [1] * 6)
    result = feed(layer, x, KVCache(), [8, 4], key_mask=real.expand(2, -1), segment_ids=segment_ids)
    return result[:, 2:], torch.cat([full(layer, x[:, 2:6]), full(layer, x[:, 6:])], 1)


def explicit_consecutive_positions(mechanism):
    layer, x = build(mechanism), tokens()
    places = torch.arange(TOKENS) + 5
    return feed(layer, x, KVCache(), [4, 1, 7], positions=places), full(layer, x, positions=places)


def explicit_positions_with_gaps(mechanism):
    layer, x = build(mechanism), tokens()
    places = torch.tensor([0, 1, 2, 5, 6, 9, 10, 11, 20, 21, 22, 30])
    places = torch.stack([places, places + 3])
    return feed(layer, x, KVCache(capacity=TOKENS), [5, 3, 4], positions=places), full(layer, x, positions=places)


def fractional_positions_after_whole_ones(mechanism):
    # memory taken for whole numbers must not round those that come later
    layer, x = build(mechanism), tokens()
    whole, later = torch.arange(6), 6 + torch.arange(6) * 1.5
    cache = KVCache(capacity=TOKENS)
    first = feed(layer, x[:, :6], cache, [6], positions=whole)
    result = torch.cat([first, feed(layer, x[:, 6:], cache, [2, 4], positions=later)], 1)
    return result, full(layer, x, positions=torch.cat([whole, later]))


def grouped_kv_heads(mechanism):
    layer, x = build(mechanism, num_kv_heads=2), tokens()
    return feed(layer, x, KVCache(), [3, 1, 8]), full(layer, x)


def one_key_head_in_a_ring(mechanism):
    layer, x = build(mechanism, num_kv_heads=1, window=WINDOW), tokens()
    return feed(layer, x, KVCache(window=WINDOW), [3, 1, 8]), full(layer, x)


def blockwise_in_chunks(mechanism):
    layer, x = build(mechanism, backend="blockwise"), tokens()
    return feed(layer, x, KVCache(), [5, 1, 6]), full(layer, x)


def blockwise_ring_with_groups(mechanism):
    layer, x = build(mechanism, backend="blockwise", window=WINDOW, num_kv_heads=2), tokens()
    return feed(layer, x, KVCache(window=WINDOW), [6, 1, 5]), full(layer, x)


def blockwise_left_padded(mechanism):
    return _left_padded(mechanism, KVCache(), [4, 3], backend="blockwise")


def blockwise_packed(mechanism):
    layer, x = build(mechanism, backend="blockwise"), tokens()
    segment_ids = torch.tensor([0] * 3 + [1] * 9)
    result = feed(layer, x, KVCache(), [8, 1, 3], segment_ids=segment_ids)
    return result, torch.cat([full(layer, part) for part in x.split([3, 9], 1)], 1)


def the_backend_of_its_own_choice(mechanism):
    layer, x = build(mechanism, backend="auto"), tokens()
    return feed(layer, x, KVCache(), [5, 1, 6]), full(layer, x)


def reset_and_reuse(mechanism):
    layer, x = build(mechanism), tokens()
    cache = KVCache(capacity=TOKENS)
    # everything that a cache remembers, to be forgotten: padding, documents, odd positions
    feed(layer, x[:, :4] + 1, cache, [4], key_mask=torch.tensor([[False, True, True, True]] * 2))
    feed(layer, x[:, :3] + 1, cache, [3], segment_ids=torch.tensor([3, 3, 4]))
    feed(layer, x[:, :2] + 1, cache, [2], positions=torch.tensor([20, 40]))
    cache.reset()
    return feed(layer, x, cache, [5, 7]), full(layer, x)


def reset_of_a_ring_for_another_batch(mechanism):
    layer, x = build(mechanism, window=WINDOW), tokens()
    cache = KVCache(window=WINDOW)
    feed(layer, tokens(batch=3), cache, [12])
    cache.reset()
    return feed(layer, x, cache, [5, 7]), full(layer, x)


MODES = {
    mode.__name__.replace("_", " "): mode
    for mode in (
        grown_token_by_token, grown_in_chunks, preallocated_token_by_token, preallocated_in_chunks,
        window_in_a_growing_cache, ring_token_by_token, ring_in_chunks_larger_than_the_window,
        ring_wider_than_the_window, ring_with_rollback, crop_and_redo, preallocated_crop_and_redo, crop_to_nothing,
        beams_permuted_and_duplicated, one_prompt_becomes_three_beams, beams_in_a_ring,
        left_padded_batch_then_decode, left_padded_batch_preallocated, left_padded_batch_in_a_ring,
        left_padded_prefill_in_chunks, left_padded_batch_of_one, one_row_of_a_left_padded_batch,
        right_padded_prefill_then_positions, packed_prefill_then_its_last_document,
        packed_prefill_then_tokens_without_a_number, a_document_begins_while_decoding,
        left_padding_before_packed_documents, explicit_consecutive_positions, explicit_positions_with_gaps,
        fractional_positions_after_whole_ones, grouped_kv_heads, one_key_head_in_a_ring, blockwise_in_chunks,
        blockwise_ring_with_groups, blockwise_left_padded, blockwise_packed, the_backend_of_its_own_choice,
        reset_and_reuse, reset_of_a_ring_for_another_batch,
    )
}  # fmt: skip
