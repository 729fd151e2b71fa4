"""The decoder of whence.models as a model of transformers: the same numbers, generation, storage and training."""

import json

import pytest
import torch
import torch.nn.functional as F
import transformers
from qwen3_pair import SIZES, SPEC, VOCABULARY, copy_qwen3_weights, tiny_qwen3
from safetensors.torch import load_file, save_file

from whence import Alibi, Rotary, WhenceError
from whence.hf import (
    AttentionRows,
    HiddenStates,
    KeyProfile,
    LastRow,
    WhenceConfig,
    WhenceForCausalLM,
    attach,
    capture,
    capture_unavailable,
    load,
)
from whence.models import PRESETS, ModelSpec, build
from whence.position.expression import build_position

PRIOR = "rotary + PowerPrior(alpha=0.3, beta=0.7)"
#: a prior, absolute positions at the input, and positions that count from the query
POSITIONS = (PRIOR, "Learned(max_length=64) + alibi", "Epar(length='query', learnable=True)")
GREEDY = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def make(position=PRIOR, spec=SPEC):
    """A model with weights large enough for attention to matter."""
    torch.manual_seed(0)
    model = WhenceForCausalLM(WhenceConfig.from_spec(spec, position, context=64)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "position" not in name:
                weight.add_(torch.randn(weight.shape) * 0.3)
    return model


def tokens(batch=3, length=8, seed=1):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def left_padded():
    """Three rows that lack 0, 2 and 5 tokens at the beginning, with their mask."""
    mask = torch.arange(8) >= torch.tensor([[0], [2], [5]])
    return tokens() * mask, mask.long()


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.fixture(scope="module", params=POSITIONS)
def any_model(request):
    return make(request.param)


def test_logits_are_those_of_the_decoder(any_model):
    assert torch.equal(any_model(tokens()).logits, any_model.decoder(tokens()))
    ids, mask = left_padded()
    assert torch.equal(any_model(ids, attention_mask=mask).logits, any_model.decoder(ids, key_mask=mask.bool()))
    segments = torch.tensor([0] * 3 + [1] * 5)
    assert torch.equal(
        any_model(tokens(), segment_ids=segments).logits, any_model.decoder(tokens(), segment_ids=segments)
    )
    kept = any_model(tokens(), logits_to_keep=2).logits
    torch.testing.assert_close(kept, any_model.decoder(tokens())[:, -2:])
    assert any_model(tokens(), return_dict=False)[0].shape == (3, 8, VOCABULARY)


def test_the_same_seed_builds_the_same_weights():
    torch.manual_seed(3)
    wanted = build(
        SPEC, lambda layer: build_position(PRIOR, WhenceConfig.from_spec(SPEC, context=64).dims)
    ).state_dict()
    torch.manual_seed(3)
    state = WhenceForCausalLM(WhenceConfig.from_spec(SPEC, PRIOR, context=64)).decoder.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in wanted.items())


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"num_beams": 3, "num_return_sequences": 2}], ids=str)
def test_generation_with_a_cache_equals_generation_without(any_model, options):
    ids, mask = left_padded()
    first, second = (
        any_model.generate(ids, attention_mask=mask, use_cache=cached, **GREEDY, **options) for cached in (True, False)
    )
    assert torch.equal(first, second)


def test_greedy_generation_is_the_decoders(any_model):
    assert torch.equal(
        any_model.generate(tokens(), attention_mask=torch.ones(3, 8), **GREEDY),
        any_model.decoder.generate(tokens(), 6, temperature=0),
    )


def test_beams_are_followed_by_the_cache(model, monkeypatch):
    """The cache is really used: without its reordering the beams differ."""
    from whence.hf.decoder_cache import DecoderCache

    wanted = model.generate(tokens(), num_beams=4, **GREEDY)
    monkeypatch.setattr(DecoderCache, "reorder_cache", lambda self, index: None)
    assert not torch.equal(model.generate(tokens(), num_beams=4, **GREEDY), wanted)


def test_left_padding_changes_nothing(any_model):
    ids, mask = left_padded()
    batch = any_model.generate(ids, attention_mask=mask, **GREEDY)
    logits = any_model(ids, attention_mask=mask).logits
    for row, missing in enumerate((0, 2, 5)):
        alone = ids[row : row + 1, missing:]
        assert torch.equal(any_model.generate(alone, **GREEDY)[0], batch[row, missing:])
        torch.testing.assert_close(any_model(alone).logits[0], logits[row, missing:], rtol=1e-4, atol=1e-5)


def test_samples_depend_on_the_seed_alone(model):
    results = []
    for cached in (True, False, True):
        torch.manual_seed(7 if len(results) < 2 else 8)
        options = {**GREEDY, "do_sample": True, "top_k": 10, "use_cache": cached}
        results.append(model.generate(tokens(), **options))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_a_cache_continues_crops_and_copies_rows(model):
    with torch.no_grad():
        whole = model(tokens()).logits
        out = model(tokens()[:, :5], use_cache=True)
        cache = out.past_key_values
        assert cache.get_seq_length() == 5 and cache.batch_size == 3 and len(cache) == 2
        rest = model(tokens()[:, 5:], past_key_values=cache).logits
        torch.testing.assert_close(rest, whole[:, 5:], rtol=1e-4, atol=1e-5)
        cache.crop(-2)
        cache.crop(5)
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([0, 3, 5]))
        again = model(tokens()[:, 5:], past_key_values=cache).logits
        torch.testing.assert_close(again, whole[:, 5:], rtol=1e-4, atol=1e-5)
    assert model(tokens()).past_key_values is None
    cache.reset()
    assert cache.get_seq_length() == 0


def test_assisted_generation_is_greedy_generation(model):
    prompt = tokens(batch=1)
    helped = model.generate(prompt, assistant_model=make("alibi"), **GREEDY)
    assert torch.equal(helped, model.generate(prompt, **GREEDY))


@pytest.mark.parametrize("backend", ["auto", "blockwise"])
def test_weights_and_states_on_request(model, monkeypatch, backend):
    for layer in model.decoder.body.stack():
        monkeypatch.setattr(layer.attention, "backend", backend)
    ids, mask = left_padded()
    with torch.no_grad():
        out = model(ids, attention_mask=mask, output_attentions=True, output_hidden_states=True)
    assert len(out.attentions) == 2 and out.attentions[0].shape == (3, 4, 8, 8)
    torch.testing.assert_close(
        out.attentions[1].sum(-1)[mask.bool()[:, None].expand(3, 4, 8)], torch.ones(15 * 4 + 4 * 2)
    )
    assert len(out.hidden_states) == 3
    logits = model.decoder.output(out.hidden_states[-1], model.decoder.body.embedding.weight)
    assert torch.equal(logits, out.logits)
    assert all(layer.attention.backend == backend for layer in model.decoder.body.stack())


def test_loss_of_labels(model):
    labels = tokens().clone()
    labels[0, :4] = -100
    out = model(tokens(), labels=labels)
    flat = out.logits[:, :-1].flatten(0, 1)
    torch.testing.assert_close(out.loss, F.cross_entropy(flat, labels[:, 1:].flatten()))
    total = model(tokens(), labels=labels, num_items_in_batch=100).loss
    torch.testing.assert_close(total, F.cross_entropy(flat, labels[:, 1:].flatten(), reduction="sum") / 100)


# --- storage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "position", [*POSITIONS, "Shaw(clip=3) + Sandwich() + Sinusoidal()", "Rotary(scaling=Yarn(factor=4))"]
)
def test_a_saved_model_is_the_same_model(position, tmp_path):
    model = make(position)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(again, WhenceForCausalLM) and again.config.spec == SPEC
    assert not again.training and torch.equal(again(tokens()).logits, model(tokens()).logits)
    text = json.loads((tmp_path / "config.json").read_text())["position"]
    assert text == again.config.position and "alibi" not in text  # no short names


def test_the_saved_folder_says_where_the_classes_are(model, tmp_path, monkeypatch):
    """For processes that do not import whence, such as lm_eval. The registrations are taken away, as a new process has none."""
    model.save_pretrained(tmp_path / "saved")
    from_pretrained = transformers.AutoModelForCausalLM.from_pretrained
    with monkeypatch.context() as patch:
        for mapping in (transformers.CONFIG_MAPPING, transformers.MODEL_FOR_CAUSAL_LM_MAPPING):
            patch.setattr(mapping, "_extra_content", {})
        patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
        patch.syspath_prepend(tmp_path / "modules")
        with pytest.raises(ValueError, match="trust_remote_code"):
            from_pretrained(tmp_path / "saved", trust_remote_code=False)
        loaded = from_pretrained(tmp_path / "saved", trust_remote_code=True)
        loaded.save_pretrained(tmp_path / "again")
    assert type(loaded) is WhenceForCausalLM and torch.equal(loaded(tokens()).logits, model(tokens()).logits)
    assert type(from_pretrained(tmp_path / "again")) is WhenceForCausalLM  # without trust_remote_code
    for name in ("config.json", "modeling_whence.py"):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / "saved" / name).read_text()
    assert "causal_lm.py" not in {path.name for path in (tmp_path / "again").iterdir()}  # no copy of whence's code


def test_untied_weights_and_other_dtypes(tmp_path):
    spec = ModelSpec("decoder", VOCABULARY, **{**PRESETS["qwen3-20m"], **SIZES, "tie_embeddings": False, "bias": True})
    model = make(spec=spec)
    model.save_pretrained(tmp_path)
    again = WhenceForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert again.dtype == torch.float64
    torch.testing.assert_close(again(tokens()).logits, model.double()(tokens()).logits)
    assert model.get_output_embeddings().weight.shape == (VOCABULARY, 24)


def test_load_finds_it_with_its_tokenizer(model, tmp_path):
    from tokenizers import Tokenizer, models

    vocabulary = {f"t{n}": n for n in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0").save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    assert torch.equal(loaded.model(tokens()).logits, model(tokens()).logits) and len(loaded.tokenizer) == VOCABULARY


def test_a_decoder_becomes_a_model_without_a_copy():
    dims = WhenceConfig.from_spec(SPEC, context=64).dims
    decoder = build(SPEC, lambda layer: build_position(PRIOR, dims), seed=0).eval()
    model = WhenceForCausalLM.from_decoder(decoder, PRIOR, context=64)
    assert model.decoder is decoder and model.config.spec == SPEC
    for text in (
        "rotary + PowerPrior(learnable=False)",
        "alibi",
        "Sinusoidal() + rotary + PowerPrior(alpha=0.3, beta=0.7)",
    ):
        with pytest.raises(WhenceError, match=r"from_decoder.*(PowerPrior|Alibi|mechanisms|Sinusoidal).*pass the text"):
            WhenceForCausalLM.from_decoder(decoder, text, context=64)
    with pytest.raises(WhenceError, match=r"from_decoder.*got Linear.*whence\.models\.build"):
        WhenceForCausalLM.from_decoder(torch.nn.Linear(2, 2), PRIOR, context=64)


def test_a_checkpoint_without_a_weight_is_refused(model, tmp_path):
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["decoder.body.layers.1.feed_forward.gate.weight"]
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(WhenceError, match=r"from_pretrained.*1 of the model's weights.*gate\.weight.*save it again"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_saved_position_outside_of_whence_runs_only_if_the_caller_names_it(tmp_path):
    bell = tmp_path / "bell.py"
    bell.write_text(
        "import pathlib, torch, whence\n"
        f"pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
        "class Bell(whence.Position):\n"
        "    def bias(self, distance, length):\n"
        "        return -(distance / 4) ** 2\n"
    )
    text = f"rotary + {bell}:Bell"
    model = make(text)
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "ran").unlink()
    with pytest.raises(WhenceError, match=r"position .*bell\.py:Bell.*pass position="):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert not (tmp_path / "ran").exists()
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", position=text)
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)


# --- training -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant):
    gradients = []
    for checkpointing in (False, True):
        model = make().train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        assert model.is_gradient_checkpointing is checkpointing
        model(tokens(), labels=tokens()).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_trainer_trains_it(tmp_path):
    model = make().train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    rows = [{"input_ids": row, "labels": row} for row in tokens(batch=8)]
    arguments = transformers.TrainingArguments(
        tmp_path, max_steps=2, per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-3,
        report_to=[], use_cpu=True, gradient_checkpointing=True, disable_tqdm=True, logging_steps=1, save_steps=2,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())  # the prior's parameters too
    first = trainer.state.log_history[0]["loss"]
    with torch.no_grad():
        start = make()(tokens(batch=8), labels=tokens(batch=8)).loss
    assert first == pytest.approx(float(start), rel=0.2)  # a mean over tokens, not a sum over the accumulated steps
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-2")
    assert torch.equal(again(tokens()).logits, model.eval()(tokens()).logits)


# --- capture ------------------------------------------------------------------------------------------------------------


def test_capture_records_its_attention(any_model):
    ids, mask = left_padded()
    rows, keys, hidden = AttentionRows(range(8)), KeyProfile(), HiddenStates()
    with torch.no_grad(), capture(any_model, rows, keys, hidden):
        out = any_model(ids, attention_mask=mask, output_attentions=True, output_hidden_states=True)
    real = mask.bool()
    for layer in range(2):
        ours = rows[layer].transpose(1, 2)[real]
        torch.testing.assert_close(ours, out.attentions[layer].transpose(1, 2)[real], rtol=1e-4, atol=1e-6)
        assert torch.equal(hidden[layer], out.hidden_states[layer])
    assert not keys[0][1, :, :2].any() and keys[0][1, :, 2:].all()
    assert not any(layer.attention._forward_hooks for layer in any_model.decoder.body.stack())
    assert capture_unavailable(any_model) is None


def test_capture_with_a_cache(model):
    last = LastRow()
    with torch.no_grad(), capture(model, last, layers=[1]):
        cache = model(tokens()[:, :5], use_cache=True).past_key_values
        out = model(tokens()[:, 5:], past_key_values=cache, output_attentions=True)
    torch.testing.assert_close(last[1], out.attentions[1][:, :, -1], rtol=1e-4, atol=1e-6)


# --- errors -------------------------------------------------------------------------------------------------------------

INVALID = [
    (lambda m: m(), r"input_ids.*no input_ids.*pass input_ids"),
    (lambda m: m(tokens(), attention_mask=torch.ones(3, 5)), r"attention_mask.*\[3, 5\].*pass the attention_mask"),
    (lambda m: m(tokens(), attention_mask=torch.ones(3, 1, 8, 8)), r"attention_mask.*\[3, 1, 8, 8\].*segment_ids"),
    (
        lambda m: m(tokens(), past_key_values=transformers.DynamicCache()),
        r"past_key_values.*DynamicCache.*past_key_values of an output",
    ),
    (lambda m: m(tokens(), use_cache=True).past_key_values.crop(-9), r"crop.*-1.*0 to 8"),
    (lambda m: m(tokens(), use_cache=True).past_key_values.update(1, 2, 3), r"update.*past_key_values"),
    (lambda m: m.resize_token_embeddings(50), r"resize_token_embeddings.*40.*larger vocab_size"),
    (lambda m: attach(m, Alibi(4)), r"attach.*Position of their own.*another position"),
    (lambda m: WhenceConfig.from_spec(ModelSpec("encoder", 5, num_classes=2)), r"from_spec.*encoder.*kind='decoder'"),
    (lambda m: WhenceConfig(position="rotery"), r"rotery.*did you mean rotary\?"),
    (lambda m: WhenceForCausalLM(WhenceConfig(heads=3)), r"ModelSpec\(embed_dim=..., heads=...\).*64 and 3"),
]


@pytest.mark.parametrize(("call", "message"), INVALID)
def test_invalid_calls_raise(model, call, message):
    with pytest.raises(WhenceError, match=message):
        call(model)


def test_the_shape_is_that_of_qwen3_in_transformers():
    """RMSNorm, SwiGLU, QK-norm, grouped queries, rotation and tied embeddings, against an implementation of others."""
    theirs = tiny_qwen3()
    ours = build(SPEC, Rotary(base=1e6)).double().eval()
    copy_qwen3_weights(theirs, ours)
    text = torch.randint(40, (2, 11), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours(text), theirs(text).logits, rtol=1e-5, atol=1e-5)
