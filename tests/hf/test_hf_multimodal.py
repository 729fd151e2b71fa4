"""Multimodal models: positions act in the language model, on text and, where its mask stays causal, on images."""

import pytest
import torch
import transformers
from multimodal_models import CONFIGS, cross_attending, multimodal
from tiny_models import everything_of, same, tokens

import whence
from whence import hf
from whence.probe import analyses, hidden_states
from whence.probe.likelihood import build_branches, score_choices, score_separately
from whence.probe.probed_model import ProbedModel, byte_tokenizer, tiny_random_model
from whence.probe.tasks.task import Prompt

IDS = tokens().clamp(max=59)  # the tokens above stand for images


def image_in(ids, slots):
    changed = ids[:1].clone()
    changed[0, slots] = 60
    return changed


@pytest.mark.parametrize("family", CONFIGS)
def test_positions_act_in_the_language_model_and_are_saved(family, tmp_path):
    model = multimodal(family)
    before = everything_of(model)
    with torch.no_grad():
        plain = model(input_ids=IDS).logits
        text = model.generate(input_ids=IDS, max_new_tokens=3, do_sample=False)
        with hf.attach(model, whence.NoPosition()):
            torch.testing.assert_close(model(input_ids=IDS).logits, plain, atol=1e-4, rtol=0)
            assert torch.equal(model.generate(input_ids=IDS, max_new_tokens=3, do_sample=False), text)
        assert same(before, everything_of(model))
        attachment = hf.attach(model, whence.Alibi(4, scale=2.0, learnable=True))
        assert list(attachment.positions) == [0, 1]
        for layer, position in attachment.positions.items():
            position.slope.raw.add_(0.1 * (layer + 1))
        seen = hf.LastRow()
        with hf.capture(model, seen):
            wanted = model(input_ids=IDS).logits
        assert seen.stack().shape == (2, 2, 4, 14) and not torch.equal(wanted, plain)
        model.save_pretrained(tmp_path)
        other = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
        with (
            hf.attach(other, whence.Alibi(4, learnable=True)),
            pytest.raises(whence.WhenceError, match=r"scale=2\.0, while"),
        ):
            hf.read_positions(other, tmp_path)
        hf.attach_saved(other, tmp_path)
        assert torch.equal(other(input_ids=IDS).logits, wanted)


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "model_inputs"),
    [
        ("llava", {"input_ids": image_in(IDS, slice(2, 6)), "pixel_values": torch.ones(1, 3, 8, 8)}),
        (
            "qwen2_vl",
            {
                "input_ids": image_in(IDS, slice(2, 3)),
                "pixel_values": torch.ones(4, 96),
                "image_grid_thw": torch.tensor([[1, 2, 2]]),
                "mm_token_type_ids": (image_in(IDS, slice(2, 3)) == 60).long(),
            },
        ),
    ],
)
def test_the_image_encoder_is_unchanged(family, model_inputs):
    model = multimodal(family)
    plain = model(**model_inputs).logits
    assert not torch.equal(plain, model(**model_inputs | {"pixel_values": -model_inputs["pixel_values"]}).logits)
    with hf.attach(model, whence.NoPosition()):
        torch.testing.assert_close(model(**model_inputs).logits, plain, atol=1e-4, rtol=0)
    with hf.attach(model, whence.Alibi(4, scale=9.0)):
        assert (model(**model_inputs).logits - plain).abs().max() > 0.1


def test_unsupported_multimodal_inputs_raise():
    ids = image_in(IDS, slice(2, 6))
    model_inputs = {"input_ids": ids, "pixel_values": torch.ones(1, 3, 8, 8), "token_type_ids": (ids == 60).long()}
    model = multimodal("gemma3")
    with hf.attach(model, whence.Alibi(4)), pytest.raises(whence.WhenceError, match=r"a mask of gemma3_text"):
        model(**model_inputs)  # the tokens of an image see each other
    with pytest.raises(whence.WhenceError, match=r"mllama.*layers \[1\].*pass layers=\[0\]"):
        hf.attach(cross_attending(), whence.Alibi(4))
    with hf.attach(cross_attending(), whence.Alibi(4), layers=[0]) as attachment:
        assert list(attachment.positions) == [0]


def test_a_multimodal_folder_is_loaded(tmp_path):
    multimodal("llava").save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    assert type(hf.load(tmp_path).model).__name__ == "LlavaForConditionalGeneration"


def test_a_model_without_text_raises(tmp_path):
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    with pytest.raises(whence.WhenceError, match=r"a vit model.*causal language model"):
        hf.load(tmp_path)


def test_the_probe_uses_the_language_model_only():
    config = CONFIGS["llava"]()
    config.vision_config.num_hidden_layers = 4
    model = transformers.LlavaForConditionalGeneration(config)
    modules = hidden_states.attention_modules(ProbedModel("llava", model, tiny_random_model().tokenizer))
    assert modules == {layer: block.self_attn for layer, block in enumerate(model.model.language_model.layers)}


def test_the_probe_of_a_multimodal_model():
    tokenizer, config = byte_tokenizer(), CONFIGS["llava"]()
    config.text_config.vocab_size, config.image_token_index = len(tokenizer), len(tokenizer) - 1
    torch.manual_seed(0)
    lm = ProbedModel("llava", transformers.LlavaForConditionalGeneration(config).eval(), tokenizer)
    assert (lm.layers, lm.heads, lm.longest) == (2, 4, 256)
    prompt = Prompt("a is 1, b is 2; b is", ((0, 6), (8, 14)), 1, " 2", (" 1", " 7"), (1, 0, None), (" 2",))
    batch_branches = score_choices(lm, [prompt])
    assert lm.supports_branching and batch_branches[0] == pytest.approx(
        score_separately(lm, build_branches(lm, [prompt])[0]), abs=1e-4
    )
    actual = analyses.score_split(lm, hidden_states.random_texts(lm, 2, 16))
    assert [one["layer"] for one in actual] == [0, 1] and all(len(one["heads"]) == 4 for one in actual)
