"""Attached models trace through torch.compile without a graph break, and compute what they compute in eager mode."""

import pytest
import torch
import transformers
import transformers.masking_utils as masking
from functorch.compile import make_boxed_func
from tiny_models import left_padded, tiny, tokens
from torch._dynamo.backends.common import aot_autograd

import whence
from whence import hf
from whence.hf.default_positions import CALL
from whence.hf.mask_structure import MaskRequest, recognize, recognize_while_tracing

POSITIONS = {
    "epar": lambda: whence.Epar(4, learnable=True),
    "power_prior": lambda: whence.PowerPrior(4, alpha=0.3),
    "rotary + epar": lambda: whence.Rotary() + POSITIONS["epar"](),
    "alibi + power_prior": lambda: whence.Alibi(4, learnable=True) + POSITIONS["power_prior"](),
}
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


pytestmark = pytest.mark.usefixtures("fresh_compiler")


def compiled(model, backend="aot_eager"):
    # these backends trace and differentiate as inductor does, and skip its slow compilation of kernels
    return torch.compile(model, fullgraph=True, backend=backend, dynamic=False)


def step(model, run, given):
    """The loss and every gradient of one training step."""
    model.zero_grad(set_to_none=True)
    loss = run(**given).loss
    loss.backward()
    return {"loss": loss.detach()} | {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("name", "padded"), [("rotary + epar", False), ("alibi + power_prior", True)])
def test_a_training_step_traces_as_one_graph(name, padded):
    model, ids = tiny("llama", num_hidden_layers=1), tokens()
    given = left_padded(ids, (5, 0)) if padded else {"input_ids": ids}
    labels = ids.masked_fill(given["attention_mask"] == 0, -100) if padded else ids
    given |= {"labels": labels, "use_cache": False}
    with hf.attach(model, POSITIONS[name](), keep_rotary="rotary" not in name):
        wanted = step(model, model, given)
        got = step(model, compiled(model), given)
    assert got.keys() == wanted.keys()
    assert sum(".whence." in parameter for parameter in got) == 3  # the mechanism's own parameters train too
    for parameter in wanted:
        torch.testing.assert_close(got[parameter], wanted[parameter], **CLOSE)


@torch.no_grad()
def test_a_prompt_and_steps_with_a_static_cache_trace_as_one_graph_each(monkeypatch):
    monkeypatch.setattr("whence.attention.blockwise.SCORES", 2 * 4 * 20 * 4)  # blocks of four rows
    monkeypatch.setattr("whence.attention.reference.Reference.run", None)  # no matrix of all pairs is formed
    model, ids = tiny("llama", num_hidden_layers=1), tokens()
    padded = left_padded(ids, (5, 0))
    with hf.attach(model, POSITIONS["epar"]() + POSITIONS["power_prior"]()):
        wanted = model(**padded).logits
        cache = transformers.StaticCache(config=model.config, max_cache_len=20)
        mask = torch.cat((padded["attention_mask"], torch.zeros(2, 6, dtype=torch.long)), 1)
        run, steps = compiled(model, "eager"), []
        prompt = run(ids[:, :11], attention_mask=mask[:, :11], past_key_values=cache).logits
        for n in range(11, 14):
            seen = mask.clone()
            seen[:, n + 1 :] = 0
            steps.append(run(ids[:, n : n + 1], attention_mask=seen, past_key_values=cache).logits)
    real = mask[:, :14].bool()
    torch.testing.assert_close(torch.cat([prompt, *steps], 1)[real], wanted[real], **CLOSE)


@pytest.mark.parametrize(("family", "position"), [("gemma2", "Alibi()"), ("gpt_oss", "StableMask()")])
@torch.no_grad()
def test_a_model_with_a_softcap_or_sinks_traces_as_one_graph(family, position):
    model, ids = tiny(family), tokens(batch=1)
    with hf.attach(model, position, layers=[1]):
        wanted = model(ids, use_cache=False).logits
        got = compiled(model, "eager")(ids, use_cache=False).logits
    torch.testing.assert_close(got, wanted, **CLOSE)


@torch.no_grad()
def test_packed_segments_stay_separate_in_a_compiled_model_and_other_ids_raise():
    model, ids = tiny("llama", num_hidden_layers=1), tokens(batch=1, length=12)
    packed = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
    with hf.attach(model, whence.PowerPrior(4, alpha=0.3)):
        run = compiled(model, "eager")
        wanted = model(ids, position_ids=packed, use_cache=False).logits
        torch.testing.assert_close(run(ids, position_ids=packed, use_cache=False).logits, wanted, **CLOSE)
        assert not torch.allclose(wanted[:, 5:], model(ids, use_cache=False).logits[:, 5:], atol=1e-3)
        torch.testing.assert_close(run(ids, use_cache=False).logits, model(ids, use_cache=False).logits, **CLOSE)
        torch.testing.assert_close(run(ids, position_ids=packed, use_cache=False).logits, wanted, **CLOSE)
        skipping = torch.tensor([[0, 1, 2, 3, 40, 41, 42, 43, 44, 45, 46, 47]])
        with pytest.raises(RuntimeError, match="position_ids that count the tokens"):
            run(ids, position_ids=skipping, attention_mask=torch.ones_like(ids), use_cache=False)


@torch.no_grad()
def test_a_compiled_call_without_position_ids_has_no_segments():
    model, ids, graphs = tiny("llama", num_hidden_layers=1), tokens(batch=1), []

    def keep_graph(graph, inputs):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    with hf.attach(model, whence.PowerPrior(4, alpha=0.3)) as attachment:
        run = compiled(model, aot_autograd(fw_compiler=keep_graph))
        for given in ({}, {"position_ids": torch.arange(ids.shape[1])[None]}):
            run(ids, use_cache=False, **given)
        run(ids, use_cache=False)

        def call_layers(position_ids):  # without the decoder, whose last call had no position_ids
            decoder, x = model.model, model.model.embed_tokens(ids)
            mask = masking.create_causal_mask(decoder.config, x, None, past_key_values=None, position_ids=position_ids)
            rotation = decoder.rotary_emb(x, position_ids=position_ids)
            return decoder.layers[0](x, attention_mask=mask, position_embeddings=rotation, position_ids=position_ids)

        packed = torch.arange(ids.shape[1])[None] % 7
        torch.testing.assert_close(compiled(call_layers)(packed), call_layers(packed), **CLOSE)
        attachment.detach()
    counted = ["cumsum" in str([node.target for node in graph.graph.nodes]) for graph in graphs]
    assert counted == [False, True]  # transformers counts segments from the ids
    assert not model.model._forward_pre_hooks
    assert all(CALL not in vars(module) for module in model.modules())


class Config:
    model_type = "test"

    def __init__(self, **given):
        self.__dict__ |= given


def mask_request(function, **given):
    slots = torch.arange(7)
    usual = {
        "batch": 2,
        "q_slots": slots,
        "k_slots": slots,
        "is_full": True,
        "has_attention_mask": False,
        "local_size": None,
    }
    return MaskRequest(function=function, **usual | {"first_slot": None, "config": Config()} | given)


TEXTS = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]])
PACKED = masking.packed_sequence_mask_function(TEXTS)
WINDOW = masking.sliding_window_causal_mask_function(3)
CHUNKS = masking.chunked_causal_mask_function(3, torch.zeros(2, dtype=torch.long))
LAST = {"q_slots": torch.tensor([6]), "is_full": False}


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (masking.causal_mask_function, {}),
        (masking.causal_mask_function, LAST),
        (masking.and_masks(masking.causal_mask_function, PACKED), {}),
        (WINDOW, {"local_size": 3, "config": Config(sliding_window=3)}),
        (WINDOW, {"local_size": 3, "config": Config(sliding_window=3, attention_chunk_size=8)} | LAST),
        (masking.and_masks(WINDOW, PACKED), {"local_size": 3, "config": Config(sliding_window=3)}),
        (CHUNKS, {"local_size": 3, "config": Config(attention_chunk_size=3)}),
        (CHUNKS, {"local_size": 3, "config": Config(attention_chunk_size=3)} | LAST),
        (masking.and_masks(CHUNKS, PACKED), {"local_size": 3, "config": Config(attention_chunk_size=3)}),
    ],
)
def test_a_mask_is_recognized_without_reading_values(function, given):
    """What is recognised while tracing is the mask itself, at every entry."""
    request = mask_request(function, **given)
    rows = torch.arange(len(request.q_slots))
    entries = request.evaluate(request.q_slots[:, None], request.k_slots[None])
    for structure in (recognize(request, False), recognize_while_tracing(request, False)):
        assert torch.equal(structure.visible_keys(request.q_slots, request.k_slots, rows).expand_as(entries), entries)


@pytest.mark.parametrize(
    ("function", "given", "use_vmap"),
    [
        (masking.bidirectional_mask_function, {}, False),
        (masking.or_masks(masking.causal_mask_function, lambda b, h, q, k: k < 2), {}, False),
        (masking.and_masks(masking.causal_mask_function, lambda b, h, q, k: k != 2), {}, True),
        (masking.and_masks(masking.causal_mask_function, lambda b, h, q, k: k != 2), LAST, False),
        (WINDOW, {"local_size": 3, "config": Config(sliding_window=3, attention_chunk_size=3)}, False),
        (WINDOW, {"local_size": 3, "config": Config(sliding_window=3, is_causal=False)}, False),
    ],
)
def test_a_mask_that_needs_values_raises_while_tracing(function, given, use_vmap):
    with pytest.raises(whence.WhenceError, match=r"torch\.compile traces"):
        recognize_while_tracing(mask_request(function, **given), use_vmap)
