"""A clock inside a pretrained model, and a table made by the layer input: both read the attention's input, and the steps follow
every cache of transformers."""

import pytest
import torch

import whence
from whence import hf
from whence.hf.clocks import pack_steps, unpack_steps
from whence.models import ModelSpec

transformers = pytest.importorskip("transformers")
FAMILIES = {"llama": ("Llama", {}), "a window": ("Mistral", {"sliding_window": 5})}


def build(kind="llama", dtype=torch.float32):
    torch.manual_seed(0)
    family, options = FAMILIES[kind]
    config = getattr(transformers, f"{family}Config")(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, **options,
    )  # fmt: skip
    return getattr(transformers, f"{family}ForCausalLM")(config).eval().to(dtype)


def attach(model):
    attachment = hf.attach(model, "ForgetGate() + Sink() + QueryTable(source='input', extent=6, std=1.0)")
    for position in attachment.positions.values():
        torch.nn.init.normal_(position.parts[0].weight)
    return attachment


def tokens(length=12, batch=2):
    return torch.randint(1, 64, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", FAMILIES)
def test_caches_continue_the_sum(kind):
    model, ids = build(kind), tokens()
    plain = model(ids).logits
    attachment = attach(model)
    with torch.no_grad():
        whole = model(ids).logits
        assert (whole - plain).abs().max() > 1e-3
        first = model(ids[:, :7], use_cache=True)
        parts = [first.logits] + [
            model(ids[:, i : i + 1], past_key_values=first.past_key_values).logits for i in range(7, 12)
        ]
        torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-4)
        padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), ids], 1)
        left = model(padded, attention_mask=(padded > 0).long()).logits[:, 3:]
        torch.testing.assert_close(left, whole, atol=1e-5, rtol=1e-4)
        options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
        for search in ({}, {"num_beams": 2}):
            without = model.generate(ids, use_cache=False, **search, **options)
            assert torch.equal(model.generate(ids, **search, **options), without)
        static = model.generate(ids, cache_implementation="static", **options)
        assert torch.equal(static, model.generate(ids, use_cache=False, **options))
    attachment.detach()
    assert torch.equal(model(ids).logits, plain)


def test_half_precision_caches_hold_every_digit():
    torch.manual_seed(0)
    steps = -torch.rand(2, 4, 5) * torch.logspace(-6, 2, 5)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        values = torch.zeros(2, 2, 5, 3, dtype=dtype)
        columns = pack_steps(steps, values)
        assert columns.dtype == dtype and columns.shape == (2, 2, 5, 2 * (3 if dtype == torch.bfloat16 else 1))
        assert torch.equal(unpack_steps(columns, steps), steps)
    # float16 has no digits below 6e-8
    half = unpack_steps(pack_steps(steps, torch.zeros(2, 2, 5, 3, dtype=torch.float16)), steps)
    torch.testing.assert_close(half, steps, atol=6e-8, rtol=0)


def test_captured_weights_are_those_of_the_clock():
    model, ids = build(dtype=torch.float64), tokens()  # float32 differs by 4e-5 on some processors
    attach(model)
    rows, decoded = hf.AttentionRows([5, -1]), hf.LastRow()
    with torch.no_grad():
        weights = torch.stack(model(ids, output_attentions=True).attentions)
        with hf.capture(model, rows):
            model(ids)
        cache = model(ids[:, :-1], use_cache=True).past_key_values
        with hf.capture(model, decoded):
            model(ids[:, -1:], past_key_values=cache)
    torch.testing.assert_close(rows.stack(), weights[:, :, :, [5, 11]], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(decoded.stack(), weights[:, :, :, -1], atol=1e-6, rtol=1e-5)


def test_captured_weights_of_a_decoder_of_whence():
    spec = ModelSpec("decoder", vocab_size=16, layers=2, embed_dim=32, heads=4)
    model = hf.WhenceForCausalLM(
        hf.WhenceConfig.from_spec(spec, "forget + rotary + QueryTable(source='input', extent=6, std=1.0)", context=64)
    ).eval()
    ids, rows, decoded = tokens() % 16, hf.AttentionRows([5, -1]), hf.LastRow()
    with torch.no_grad():
        weights = torch.stack(model(ids, output_attentions=True).attentions)
        with hf.capture(model, rows):
            model(ids)
        cache = model(ids[:, :-1], use_cache=True).past_key_values
        with hf.capture(model, decoded):
            model(ids[:, -1:], past_key_values=cache)
    torch.testing.assert_close(rows.stack(), weights[:, :, :, [5, 11]], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(decoded.stack(), weights[:, :, :, -1], atol=1e-6, rtol=1e-5)


def test_gates_train_and_are_saved(tmp_path):
    model, ids = build(), tokens()
    attachment = attach(model)
    model(ids, labels=ids).loss.backward()
    gate = attachment.positions[0].parts[0]
    assert (gate.weight.grad != 0).any() and (gate.b.grad != 0).all()
    assert attachment.positions[0].parts[2].projection.grad.any()
    assert not any(name in ("_whence_steps", "_whence_input") for module in model.modules() for name in vars(module))
    hf.save_positions(model, tmp_path)
    other = build()
    hf.attach_saved(other, tmp_path)
    assert torch.equal(other(ids).logits, model(ids).logits)


def test_what_is_refused():
    model, ids = build(), tokens()
    cache = model(ids[:, :4], use_cache=True).past_key_values
    attach(model)
    with pytest.raises(whence.WhenceError, match=r"past_key_values.*8 columns.*have 10.*empty cache"):
        model(ids[:, 4:], past_key_values=cache)
    with pytest.raises(whence.WhenceError, match=r"embed_dim=32"):
        hf.attach(build(), whence.ForgetGate(16, 4))
