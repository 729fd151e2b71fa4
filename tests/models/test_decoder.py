"""One pass, chunks and single tokens are one computation; generation is greedy or drawn, and leaves the model as it was."""

import pytest
import torch
import torch.nn.functional as F
from small_models import HEAD_WIDTH, HEADS, VOCABULARY, WIDTH, assert_same, decoder, tokens

from whence import Learned, Rotary, Sinusoidal, WhenceError
from whence.models import Caches
from whence.models.generation import sample_token
from whence.position.catalogue import CATALOGUE

MECHANISMS = {entry.name: entry.make(HEADS, HEAD_WIDTH) for entry in CATALOGUE}
MECHANISMS |= {"Learned + Rotary": Learned(WIDTH, 64) + Rotary()}
QWEN3 = {
    "norm_type": "rms", "norm_eps": 1e-6, "qk_norm": True, "activation": "silu", "gated_ffn": True, "bias": False,
    "tie_embeddings": True, "init": "scaled",
}  # fmt: skip
CHOSEN = ("Sinusoidal", "Learned", "Rotary", "Shaw", "Cope", "Fire", "Epar, query length", "Sink", "Learned + Rotary")


@pytest.mark.parametrize("name", MECHANISMS)
def test_cached_steps_match_a_full_forward(name):
    model = decoder(MECHANISMS[name], num_kv_heads=1).eval()
    text = tokens()
    with torch.no_grad():
        whole = model(text)
        for caches in (model.caches(), model.caches(capacity=9)):
            parts = [model(part, cache=caches) for part in text.split([4, 1, 1, 3], 1)]
            assert_same(torch.cat(parts, 1), whole)
            assert caches.seq_length == 9


@pytest.mark.parametrize("name", ["Rotary", "PowerPrior", "Learned + Rotary"])
def test_cached_steps_of_a_qwen3_style_model(name):
    model = decoder(MECHANISMS[name], num_kv_heads=1, **QWEN3).eval()
    text = tokens()
    with torch.no_grad():
        whole, caches = model(text), model.caches()
        assert_same(torch.cat([model(part, cache=caches) for part in text.split([4, 1, 1, 3], 1)], 1), whole)


@pytest.mark.parametrize("name", CHOSEN)
def test_left_padding_and_packing_change_nothing(name):
    model = decoder(MECHANISMS[name]).eval()
    text, other = tokens(length=5), tokens(length=4, seed=7)
    real = torch.arange(9).ge(4).expand(2, 9)
    assert_same(model(torch.cat([other, text], 1), key_mask=real)[:, 4:], model(text))
    packed = model(torch.cat([other, text], 1), segment_ids=torch.tensor([0] * 4 + [1] * 5))
    assert_same(packed, torch.cat([model(other), model(text)], 1))


def test_left_padding_through_caches():
    model = decoder(MECHANISMS["Learned + Rotary"]).eval()
    text, filler = tokens(length=5), tokens(length=4, seed=7)
    caches = model.caches()
    model(torch.cat([filler, text[:, :3]], 1), key_mask=torch.arange(7).ge(4).expand(2, 7), cache=caches)
    assert_same(model(text[:, 3:], cache=caches), model(text)[:, 3:])


def test_no_token_sees_the_future():
    model = decoder(Sinusoidal(WIDTH)).eval()
    text = tokens(batch=1)
    other = text.clone()
    other[0, 5] = (other[0, 5] + 1) % VOCABULARY
    assert_same(model(text)[:, :5], model(other)[:, :5])
    assert not torch.allclose(model(text)[:, 5:], model(other)[:, 5:])


@pytest.mark.parametrize("name", CHOSEN)
def test_greedy_generation_is_the_best_token_each_time(name):
    model = decoder(MECHANISMS[name])
    text = tokens(length=4)
    instance = model.generate(text, 5, temperature=0)
    model.eval()
    for _ in range(5):
        text = torch.cat([text, model(text)[:, -1:].argmax(-1)], 1)
    assert torch.equal(instance, text)


def test_generation_keeps_the_mode_and_records_no_gradient():
    model = decoder(Rotary())
    model.body.layers[1].eval()
    before = [module.training for module in model.modules()]
    instance = model.generate(tokens(), 2)
    assert [module.training for module in model.modules()] == before and not instance.requires_grad


def test_sampling_uses_the_generator():
    model = decoder(Rotary())
    first, second, other = (
        model.generate(tokens(), 12, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, second) and not torch.equal(first, other)
    assert torch.equal(first[:, :9], tokens()) and first.shape == (2, 21)


def test_samples_follow_the_logits():
    model = decoder(Rotary())
    prompt = tokens(batch=1, length=3).expand(4000, 3)
    instance = model.generate(prompt, 1, temperature=0.7, generator=torch.Generator().manual_seed(0))[:, -1]
    model.eval()
    wanted = (model(prompt[:1])[0, -1] / 0.7).softmax(-1).float()
    assert (instance.bincount(minlength=VOCABULARY) / 4000 - wanted).abs().max() < 0.03


def test_top_k_and_low_temperatures_restrict_sampling():
    model = decoder(Rotary())
    prompt = tokens(batch=1, length=3).expand(500, 3)
    model.eval()
    scores = model(prompt[:1])[0, -1]
    drawn = model.generate(prompt, 1, temperature=5.0, top_k=3)[:, -1].unique()
    assert set(drawn.tolist()) == set(scores.topk(3).indices.tolist())
    assert sample_token(torch.tensor([[99.0, 100.0]]), 1e-308, None, None).item() == 1
    assert torch.equal(model.generate(prompt, 2, top_k=1), model.generate(prompt, 2, temperature=0))


def test_an_end_token_ends_a_row_and_all_of_them_end_generation():
    model, script = decoder(), iter(torch.tensor([[5, 2], [7, 3], [7, 5], [7, 7]]))
    model.forward = lambda new, key_mask, cache: F.one_hot(next(script), VOCABULARY)[:, None]
    instance = model.generate(
        torch.tensor([[5, 1], [5, 1]]), 4, temperature=0, eos_token_id=5
    )  # one in the prompt ends nothing
    assert instance.tolist() == [[5, 1, 5, 5, 5], [5, 1, 2, 3, 5]]


def test_zero_new_tokens_return_the_prompt():
    assert torch.equal(decoder().generate(tokens(), 0), tokens())


def test_caches_crop_reorder_and_reset_together():
    model = decoder(Rotary()).eval()
    text = tokens()
    with torch.no_grad():
        whole, caches = model(text), model.caches()
        model(text, cache=caches)
        caches.crop(6)
        assert_same(model(text[:, 6:], cache=caches), whole[:, 6:])
        caches.crop(6)
        caches.reorder(torch.tensor([1, 0]))
        assert_same(model(text.flip(0)[:, 6:], cache=caches), whole.flip(0)[:, 6:])
        caches.reset()
        assert caches.seq_length == 0
        assert_same(model(text, cache=caches), whole)
    assert repr(caches) == "Caches(2 x KVCache(growing, 9 of 9 tokens stored))"


def test_a_call_that_raises_leaves_the_caches_unchanged():
    model = decoder(Rotary()).eval()
    caches = model.caches()
    model(tokens(length=3), cache=caches)
    model.body.layers[1].attention.backend = "nonsense"  # so that layer 0 has taken the tokens when layer 1 refuses
    with pytest.raises(WhenceError):
        model(tokens(length=2), cache=caches)
    assert [len(cache) for cache in caches] == [3, 3]


INVALID = [
    (lambda m: m(torch.zeros(1, 2)), "model(tokens)", "torch.float32 [1, 2]", "torch.long"),
    (lambda m: m(torch.arange(3)), "model(tokens)", "torch.int64 [3]", "add the missing axis"),
    (lambda m: m.generate([1], 2), "model(tokens)", "list", "add the missing axis"),
    (lambda m: m(torch.tensor([[13]])), "model(tokens)", "token 13", "larger vocab_size"),
    (lambda m: m(torch.tensor([[-1]])), "model(tokens)", "token -1", "larger vocab_size"),
    (lambda m: m(tokens(), cache=Caches(3)), "model(cache=...)", "caches for 3 layers", "model.caches()"),
    (lambda m: m(tokens(), cache=[]), "model(cache=...)", "list", "model.caches()"),
    (lambda m: Caches(0), "Caches(layers)", "0", "pass the model's layers"),
    (lambda m: m.generate(tokens(), -1), "generate(max_new_tokens=...)", "-1", "pass a number of tokens"),
    (lambda m: m.generate(tokens(), 1, temperature=-1.0), "generate(temperature=...)", "-1.0", "temperature=0"),
    (lambda m: m.generate(tokens(), 1, temperature=float("nan")), "generate(temperature=...)", "nan", "temperature=0"),
    (lambda m: m.generate(tokens(), 1, top_k=14), "generate(top_k=...)", "14", "omit top_k"),
    (lambda m: m.generate(tokens(), 1, eos_token_id=13), "generate(eos_token_id=...)", "13", "omit eos_token_id"),
]


@pytest.mark.parametrize(("call", "argument", "value", "remedy"), INVALID)
def test_invalid_arguments_raise(call, argument, value, remedy):
    with pytest.raises(WhenceError) as error:
        call(decoder())
    text = str(error.value)
    assert text.startswith(f"{argument} got {value}, but ") and remedy in text
