"""position_ids of WhenceForCausalLM: their meaning in transformers, with caches, padding and packed sequences."""

import inspect

import pytest
import torch
from qwen3_pair import SPEC, VOCABULARY, copy_qwen3_weights, tiny_qwen3
from transformers import DataCollatorWithFlattening

from whence import WhenceError
from whence.hf import AttentionRows, WhenceConfig, WhenceForCausalLM, capture
from whence.probe.probed_model import ProbedModel

POSITIONS = (
    "rotary + PowerPrior(alpha=0.3, beta=0.7)", "Learned(max_length=64) + alibi", "Epar(length='query', learnable=True)",
    "ForgetGate()",
)  # fmt: skip
GAPS = torch.tensor([[0, 1, 4, 5, 6, 11, 12, 30]])
PACKED = torch.tensor([[0, 1, 2, 0, 0, 1, 2, 3]])
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
GREEDY = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def fresh_compiler():
    """Compiled calls of other tests count to the limit of recompilations."""
    torch.compiler.reset()


def make(position):
    torch.manual_seed(0)
    model = WhenceForCausalLM(WhenceConfig.from_spec(SPEC, position, context=64)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "position" not in name:
                weight.add_(torch.randn(weight.shape) * 0.3)
    return model


def tokens(batch=3, length=8):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


def left_padded():
    """Three rows that lack 0, 2 and 5 tokens at the beginning, their mask, and ids with 1 on padding."""
    mask = (torch.arange(8) >= torch.tensor([[0], [2], [5]])).long()
    return tokens() * mask, mask, (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)


@pytest.fixture(scope="module", params=POSITIONS)
def any_model(request):
    return make(request.param)


@pytest.fixture(scope="module")
def pair():
    """A decoder and the Qwen3 of transformers with the same weights."""
    theirs, ours = tiny_qwen3(), make("Rotary(base=1e6)").double()
    copy_qwen3_weights(theirs, ours.decoder)
    theirs.set_attn_implementation("sdpa")  # eager attention of a padded row in float64 is NaN there
    return ours, theirs


def test_ids_that_count_change_nothing(any_model):
    usual = any_model(tokens()).logits
    for ids in (torch.arange(8), torch.arange(8)[None], torch.arange(8).expand(3, 8), torch.arange(8).int()[None]):
        assert torch.equal(any_model(tokens(), position_ids=ids).logits, usual)
    padded, mask, ids = left_padded()
    usual = any_model(padded, attention_mask=mask).logits
    for given in (ids, mask.cumsum(-1) - 1):  # some programs leave -1 on padding
        assert torch.equal(any_model(padded, attention_mask=mask, position_ids=given).logits, usual)


def test_ids_continue_after_a_cache(any_model):
    padded, mask, ids = left_padded()
    first = any_model(padded[:, :6], attention_mask=mask[:, :6], position_ids=ids[:, :6], use_cache=True)
    options = {"attention_mask": mask, "position_ids": ids[:, 6:], "past_key_values": first.past_key_values}
    rest = any_model(padded[:, 6:], **options).logits
    torch.testing.assert_close(rest, any_model(padded, attention_mask=mask).logits[:, 6:], **CLOSE)


def test_ids_that_start_again_are_packed_sequences(any_model):
    segments = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2])
    wanted = any_model(tokens(), segment_ids=segments).logits
    assert torch.equal(any_model(tokens(), position_ids=PACKED).logits, wanted)
    ones = torch.ones(3, 8)
    again = any_model(tokens(), position_ids=PACKED, segment_ids=segments, attention_mask=ones).logits
    torch.testing.assert_close(again, wanted, **CLOSE)
    for start in (0, 3, 4):
        alone = tokens()[:, start : {0: 3, 3: 4, 4: 8}[start]]
        torch.testing.assert_close(any_model(alone).logits, wanted[:, start : start + alone.shape[1]], **CLOSE)


def test_ids_with_gaps_and_a_cache(any_model):
    ones = torch.ones(3, 8)
    whole = any_model(tokens(), attention_mask=ones, position_ids=GAPS).logits
    if any_model.config.position != "ForgetGate()":  # it counts tokens, not positions
        assert (whole - any_model(tokens()).logits).abs().max() > 1e-3
    cache = any_model(
        tokens()[:, :3], attention_mask=ones[:, :3], position_ids=GAPS[:, :3], use_cache=True
    ).past_key_values
    middle = any_model(tokens()[:, 3:5], past_key_values=cache).logits  # 5 and 6 continue after 4
    rest = any_model(tokens()[:, 5:], position_ids=GAPS[:, 5:], past_key_values=cache).logits
    torch.testing.assert_close(torch.cat([middle, rest], 1), whole[:, 3:], **CLOSE)


def test_segments_with_gaps(any_model):
    """The last id of one segment is the highest of all."""
    segments, ids = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]), torch.tensor([[0, 3, 9, 0, 1, 5, 6, 9]])
    together = any_model(tokens(), position_ids=ids, segment_ids=segments).logits
    for part in (slice(0, 3), slice(3, 8)):
        alone = any_model(tokens()[:, part], position_ids=ids[:, part], attention_mask=ONES[:, part]).logits
        torch.testing.assert_close(together[:, part], alone, **CLOSE)


def test_arguments_that_change_nothing_are_ignored(any_model):
    """As programs of transformers pass them."""
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    texts = [tokens()[0, :length].tolist() for length in (3, 1, 4)]
    batch = collate([{"input_ids": text} for text in texts])
    assert {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"} < batch.keys()
    output = any_model(**batch)
    wanted = [any_model(torch.tensor([text])).logits for text in texts]
    torch.testing.assert_close(output.logits, torch.cat(wanted, 1), **CLOSE)
    segments = {"segment_ids": batch["seq_idx"][0].long(), "seq_idx": batch["seq_idx"]}
    assert torch.equal(any_model(batch["input_ids"], **segments).logits, output.logits)
    one = {"cu_seq_lens_q": torch.tensor([0, 8]), "max_length_q": 8, "seq_idx": torch.full((3, 8), 5)}
    first = any_model(tokens(), use_cache=True, cache_position=torch.arange(8), token_type_ids=tokens(), **one)
    assert torch.equal(first.logits, any_model(tokens(), inputs_embeds=None).logits)
    any_model(tokens(), past_key_values=first.past_key_values, cache_position=torch.arange(8, 16))


def test_a_compiled_model_takes_them(fresh_compiler):
    model = make(POSITIONS[0])
    run = torch.compile(model, backend="aot_eager")
    bounds = {"cu_seq_lens_q": torch.tensor([0, 3, 4, 8]), "max_length_q": 4}
    usual = model(tokens(), position_ids=PACKED).logits
    torch.testing.assert_close(run(tokens(), position_ids=PACKED, **bounds).logits, usual, **CLOSE)
    with pytest.raises(RuntimeError, match="other packed sequences"):
        run(tokens(), position_ids=torch.arange(8)[None], **bounds)
    with pytest.raises(RuntimeError, match="ids below 0"):
        run(tokens(), position_ids=torch.arange(-3, 5)[None])


def test_input_embeddings_take_the_ids():
    model = make("Learned(max_length=64)")
    moved = make("Learned(max_length=64)")
    table, target = (next(p for name, p in m.named_parameters() if "at_input" in name) for m in (model, moved))
    target[:8] = table[GAPS[0]]
    logits = model(tokens(), attention_mask=torch.ones(3, 8), position_ids=GAPS).logits
    torch.testing.assert_close(logits, moved(tokens()).logits, **CLOSE)


def test_the_ids_mean_what_they_mean_in_transformers(pair):
    padded, mask, ids = left_padded()
    calls = [
        (tokens(), {"attention_mask": torch.ones(3, 8), "position_ids": GAPS}),
        (tokens(), {"position_ids": PACKED}),
        (tokens(), {"position_ids": torch.arange(5, 13)[None]}),
        (padded, {"attention_mask": mask, "position_ids": ids}),
        (padded, {"attention_mask": mask, "position_ids": 3 * ids}),
        (padded, {"attention_mask": mask, "position_ids": 3 * (mask.cumsum(-1) - 1)}),  # below 0 on padding
    ]
    for text, options in calls:
        ours, theirs = (model(text, use_cache=False, **options).logits for model in pair)
        real = options.get("attention_mask", torch.ones(3, 8)).bool()
        torch.testing.assert_close(ours[real], theirs[real], rtol=1e-5, atol=1e-5)
    rest = []
    for model in pair:
        options = {"attention_mask": torch.ones(3, 8), "position_ids": GAPS.expand(3, 8)}
        cache = model(tokens()[:, :5], use_cache=True, **{k: v[:, :5] for k, v in options.items()}).past_key_values
        rest.append(model(tokens()[:, 5:], past_key_values=cache, **{**options, "position_ids": GAPS[:, 5:]}).logits)
    torch.testing.assert_close(*rest, rtol=1e-5, atol=1e-5)


def test_generate_with_ids(pair):
    options = {"attention_mask": torch.ones(3, 8, dtype=torch.long), "position_ids": GAPS.expand(3, 8)}
    ours, theirs = (model.generate(tokens(), **options, **GREEDY) for model in pair)
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, pair[0].generate(tokens(), **GREEDY))


def test_generate_without_ids_passes_none(any_model, monkeypatch):
    """The decoder counts; ids on every step would cost a comparison."""
    seen, forward = [], WhenceForCausalLM.forward

    def record(self, *args, position_ids=None, **kwargs):
        seen.append(position_ids)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(any_model), "forward", record)
    record.__signature__ = inspect.signature(forward)
    any_model.generate(tokens(), **GREEDY)
    assert len(seen) == 5 and all(ids is None for ids in seen)


def test_gradients_of_a_compiled_model_and_of_checkpointing(fresh_compiler):
    results = []
    for kind in ("plain", "checkpointed", "compiled"):
        model = make(POSITIONS[0]).train()
        if kind == "checkpointed":
            model.gradient_checkpointing_enable()
        run = torch.compile(model, backend="aot_eager") if kind == "compiled" else model
        with torch.enable_grad():
            for options in ({"position_ids": PACKED}, {"position_ids": GAPS, "attention_mask": torch.ones(3, 8)}):
                run(tokens(), labels=tokens(), **options).loss.backward()
        results.append([p.grad for p in model.parameters()])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    with pytest.raises(RuntimeError, match="do not increase"), torch.no_grad():
        run(tokens(), position_ids=PACKED, attention_mask=torch.ones(3, 8))


def test_capture_reads_the_ids(any_model):
    rows = AttentionRows(range(8))
    with capture(any_model, rows):
        options = {"attention_mask": torch.ones(3, 8), "position_ids": GAPS, "output_attentions": True}
        out = any_model(tokens(), **options)
    for layer in range(2):
        torch.testing.assert_close(rows[layer], out.attentions[layer], rtol=1e-4, atol=1e-6)
    options = {"attention_mask": torch.ones(3, 8), "position_ids": GAPS, "use_cache": True}
    cache = any_model(tokens(), **options).past_key_values
    with pytest.raises(WhenceError, match=r"capture.*gaps in a cache.*all tokens at once"), capture(any_model, rows):
        any_model(tokens(), past_key_values=cache)


def test_a_probe_gives_it_no_mask_over_pairs(any_model):
    assert not ProbedModel("ours", any_model, None).supports_branching


ONES = torch.ones(3, 8)
INVALID = [
    ({"position_ids": torch.arange(7)[None]}, r"position_ids.*\[1, 7\].*\[3, 8\].*new tokens only"),
    ({"position_ids": torch.arange(8.0)[None]}, r"position_ids.*float32.*integers"),
    ({"position_ids": [0, 1]}, r"position_ids.*list.*integers"),
    ({"position_ids": GAPS}, r"gaps and no attention_mask.*attention_mask=torch\.ones_like\(input_ids\)"),
    ({"position_ids": PACKED, "attention_mask": ONES}, r"do not increase.*segment_ids"),
    ({"position_ids": torch.zeros(1, 8).long(), "attention_mask": ONES}, r"do not increase.*omit position_ids"),
    (
        {"position_ids": PACKED, "segment_ids": torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])},
        r"do not increase.*segment_ids",
    ),
    ({"position_ids": torch.arange(8)[None], "past_key_values": 8}, r"do not increase after those of the cache.*above"),
    ({"position_ids": PACKED, "use_cache": True}, r"do not increase.*use_cache=False or segment_ids"),
    ({"position_ids": torch.arange(-3, 5)[None]}, r"got ids below 0, but positions start at 0; add the same number"),
    (
        {"position_ids": torch.tensor([[-1, 0, 1, 2, -1, 0, 1, 2]]), "segment_ids": torch.arange(8) // 4},
        r"got ids below 0",
    ),
    ({"position_ids": torch.arange(8, device="meta")}, r"got ids on meta.*device cpu.*\.to\(input_ids\.device\)"),
    (
        {"seq_idx": PACKED.expand(3, 8)},
        r"seq_idx=\.\.\.\) got other packed sequences.*pass position_ids that start again",
    ),
    ({"cu_seq_lens_q": torch.tensor([0, 3, 8])}, r"cu_seq_lens_q=\.\.\.\) got other packed sequences.*or segment_ids"),
    (
        {"cu_seq_lens_k": torch.tensor([0, 3, 8]), "position_ids": PACKED},
        r"cu_seq_lens_k=\.\.\.\) got other packed sequences",
    ),
    ({"cu_seq_lens_q": torch.tensor([[0, 8]])}, r"cu_seq_lens_q.*\[1, 2\].*bounds.*leave it out"),
    ({"seq_idx": torch.zeros(1, 8).long()}, r"seq_idx.*\[1, 8\].*sequences \[3, 8\].*leave it out"),
    ({"cache_position": torch.arange(1, 9)}, r"cache_position.*got other places.*the 0 of the cache; leave it out"),
    ({"cache_position": torch.arange(9)}, r"cache_position.*\[9\].*integers \[8\]"),
    ({"inputs_embeds": torch.zeros(3, 8, 4)}, r"inputs_embeds.*embeds tokens itself; pass input_ids"),
    ({"atention_mask": ONES}, r"got atention_mask=.*did you mean attention_mask\?"),
]


@pytest.mark.parametrize(("options", "message"), INVALID)
def test_invalid_ids_raise(any_model, options, message):
    if "past_key_values" in options:
        options = options | {"past_key_values": any_model(tokens(), use_cache=True).past_key_values}
    with pytest.raises(WhenceError, match=message):
        any_model(tokens(), **options)
