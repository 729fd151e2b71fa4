"""Generation with every kind of cache gives what the whole forward gives, token by token."""

import pytest
import torch
import transformers
from tiny_models import left_padded, tiny, tokens

import whence
from whence import hf

POSITIONS = {
    "relative": lambda: whence.PowerPrior(heads=4, alpha=[0.1, 0.3, 0.5, 0.9], beta=0.8),
    "absolute": lambda: whence.Epar(4, length="query", beta=4.0),
}
CACHES = {
    "dynamic": lambda model: transformers.DynamicCache(config=model.config),
    "static": lambda model: transformers.StaticCache(config=model.config, max_cache_len=20),
}
LLAMA, WINDOWED, BOTH = "llama", "mistral", "gemma3"  # full layers, windows of 6 tokens, one of each


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("family", [LLAMA, WINDOWED, BOTH])
@torch.no_grad()
def test_chunks_and_steps_with_a_cache_equal_the_full_forward(family, kind, position):
    model = tiny(family)
    padded = left_padded(tokens(length=17), (5, 0))
    real = padded["attention_mask"].bool()
    with hf.attach(model, POSITIONS[position]()):
        whole = model(**padded, use_cache=False).logits
        cache, parts = CACHES[kind](model), []
        for begin, end in ((0, 4), (4, 9), (9, 10), (10, 11), (11, 14), (14, 15), (15, 16), (16, 17)):
            out = model(
                padded["input_ids"][:, begin:end],
                attention_mask=padded["attention_mask"][:, :end],
                position_ids=padded["position_ids"][:, begin:end],
                past_key_values=cache,
                use_cache=True,
            )
            parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1)[real], whole[real], atol=2e-5, rtol=0)


def by_hand(model, ids, count):
    """Greedy text without any cache, one row after the other."""
    rows = []
    for row in ids:
        row = row[row != 0]
        for _ in range(count):
            row = torch.cat((row, model(row[None], use_cache=False).logits[0, -1:].argmax(-1)))
        rows.append(row[-count:])
    return torch.stack(rows)


@pytest.mark.parametrize("implementation", [None, "static"])
@pytest.mark.parametrize("family", [LLAMA, WINDOWED, BOTH])
@torch.no_grad()
def test_greedy_decoding_of_a_padded_batch_matches_each_row_alone(family, implementation):
    model = tiny(family)
    padded = left_padded(tokens(length=11), (5, 0))
    del padded["position_ids"]  # generate makes them
    with hf.attach(model, POSITIONS["absolute"]() + POSITIONS["relative"]()):
        got = model.generate(**padded, max_new_tokens=6, do_sample=False, cache_implementation=implementation)
        assert torch.equal(got[:, -6:], by_hand(model, padded["input_ids"], 6))


@torch.no_grad()
def test_beam_search_reorders_the_cache():
    model, ids = tiny("llama"), tokens(length=8)
    with hf.attach(model, POSITIONS["relative"]()):
        for cached in (True, False):
            out = model.generate(
                ids, max_new_tokens=6, num_beams=3, do_sample=False, use_cache=cached,
                return_dict_in_generate=True, output_scores=True,
            )  # fmt: skip
            if cached:
                wanted = out
        assert torch.equal(out.sequences, wanted.sequences)
        torch.testing.assert_close(out.sequences_scores, wanted.sequences_scores, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", [LLAMA, BOTH])
@torch.no_grad()
def test_assisted_decoding_gives_the_same_tokens(family):
    model, helper, ids = tiny(family), tiny(family), tokens(batch=1, length=9)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for weight in helper.parameters():  # alike enough to be right at times, and wrong at others
            weight.add_(0.05 * torch.randn_like(weight))
    helper.generation_config.num_assistant_tokens = 4
    helper.generation_config.num_assistant_tokens_schedule = "constant"
    helper.generation_config.assistant_confidence_threshold = 0.0
    try:
        model.generate(ids, assistant_model=helper, max_new_tokens=10, do_sample=False)
    except RuntimeError as error:  # 5.17: a helper's sliding cache hands out more keys than its mask is made for
        pytest.skip(f"transformers {transformers.__version__} cannot do this with the untouched model: {error}")
    crops = []
    original = transformers.DynamicCache.crop
    transformers.DynamicCache.crop = lambda cache, count: (crops.append(count), original(cache, count))[1]
    try:
        with hf.attach(model, POSITIONS["relative"]()), hf.attach(helper, POSITIONS["relative"]()):
            wanted = by_hand(model, ids, 10)
            got = model.generate(ids, assistant_model=helper, max_new_tokens=10, do_sample=False)
    finally:
        transformers.DynamicCache.crop = original
    assert torch.equal(got[:, -10:], wanted)
    assert any(count < 0 for count in crops)
