"""What is captured is what the model computes: held against its own eager attention, and against sums over it."""

import pytest
import torch
from tiny_models import FAMILIES, everything_of, left_padded, same, tiny, tokens
from torch.utils._python_dispatch import TorchDispatchMode

import whence
from whence import hf
from whence.hf import recorders


def eager(model, **given):
    """The weights of all layers as transformers itself forms them, ``[layers, B, H, T, S]``."""
    model.set_attn_implementation("eager")
    weights = torch.stack(model(**given, output_attentions=True).attentions)
    return weights.nan_to_num(0)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_attention_rows_match_the_models_eager_attention(family):
    model = tiny(family)
    padded = left_padded(tokens(), (5, 0))
    rows, last = hf.AttentionRows([8, -3]), hf.LastRow()
    before = everything_of(model)
    plain = model(**padded).logits
    with hf.capture(model, rows, last):
        assert (model(**padded).logits - plain)[padded["attention_mask"].bool()].abs().max() < 1e-4
    assert same(before, everything_of(model))
    wanted = eager(model, **padded)
    torch.testing.assert_close(rows.stack(), wanted[:, :, :, [8, 11]], atol=1e-5, rtol=0)
    torch.testing.assert_close(last.stack(), wanted[:, :, :, -1], atol=1e-5, rtol=0)


@torch.no_grad()
def test_rows_can_differ_by_sequence():
    model, ids = tiny("llama"), tokens()
    rows = hf.AttentionRows(torch.tensor([[3, 4], [-1, 0]]))
    with hf.capture(model, rows):
        model(ids)
    wanted = eager(model, input_ids=ids)
    torch.testing.assert_close(rows.stack()[:, 0], wanted[:, 0, :, [3, 4]], atol=1e-6, rtol=0)
    torch.testing.assert_close(rows.stack()[:, 1], wanted[:, 1, :, [13, 0]], atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("scores, side", [(1 << 22, "left"), (64, "left"), (64, "right")])
@torch.no_grad()
def test_profiles_are_means_of_the_eager_weights(family, scores, side, monkeypatch):
    monkeypatch.setattr(recorders, "BLOCK_WEIGHTS", scores)  # in one block, and in many
    monkeypatch.setattr(hf.SegmentMass, "rows_per_block", 4)
    model, length = tiny(family), 14
    padded = left_padded(tokens(), (5, 0))
    if side == "right":  # there, padding sees what is real
        padded = {"input_ids": padded["input_ids"].flip(-1), "attention_mask": padded["attention_mask"].flip(-1)}
    numbers = [-1] * 2 + [0] * 5 + [2] * 7
    per_key, per_distance, per_segment = (
        hf.KeyProfile(),
        hf.DistanceProfile(),
        hf.SegmentMass(numbers, rows=range(length)),
    )
    with hf.capture(model, per_key, per_distance, per_segment, layers=[1]):
        model(**padded)
    assert list(per_key) == [1] and len(per_distance) == 1
    weights = eager(model, **padded)[1]
    real = padded["attention_mask"].bool()
    window = 6 if family == "mistral" else length
    for row in range(2):
        for key in range(length):
            heard = [q for q in range(key, min(length, key + window)) if real[row, q] and real[row, key]]
            mean = weights[row, :, heard, key].mean(-1) if heard else torch.zeros(4)
            torch.testing.assert_close(per_key[1][row, :, key], mean, atol=1e-6, rtol=0)
        for far in range(length):
            pairs = [q for q in range(far, length) if real[row, q] and real[row, q - far] and far < window]
            total = sum((weights[row, :, q, q - far] for q in pairs), torch.zeros(4))
            torch.testing.assert_close(per_distance.totals[1][row, :, far], total, atol=1e-5, rtol=0)
            assert per_distance.counts[1].expand(2, 1, -1)[row, 0, far] == len(pairs)
            torch.testing.assert_close(per_distance[1][row, :, far], total / max(1, len(pairs)), atol=1e-6, rtol=0)
    for segment in range(3):
        wanted = weights[:, :, :, torch.tensor(numbers) == segment].sum(-1)
        got = per_segment[1][..., segment]
        torch.testing.assert_close(got.transpose(1, 2)[real], wanted.transpose(1, 2)[real], atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_cached_step_records_all_keys():
    model, ids = tiny("llama"), tokens()
    last, distance = hf.LastRow(), hf.DistanceProfile()
    with hf.capture(model, last, distance):
        model(ids)
        whole = last.stack()
        cache = model(ids[:, :-1], use_cache=True).past_key_values
        model(ids[:, -1:], past_key_values=cache)
    torch.testing.assert_close(last.stack(), whole, atol=1e-6, rtol=0)
    torch.testing.assert_close(distance.stack().flip(-1), whole, atol=1e-6, rtol=0)


@torch.no_grad()
def test_capture_includes_an_attached_position():
    model, ids = tiny("llama", num_hidden_layers=1), tokens()
    before, after = hf.LastRow(), hf.LastRow()
    with hf.capture(model, before):
        model(ids)
    with hf.attach(model, whence.Alibi(4)), hf.capture(model, after):
        model(ids)
    slope = torch.tensor([2.0 ** -(2 * head) for head in range(1, 5)])[:, None]
    wanted = (before[0].log() - slope * torch.arange(13, -1, -1)).softmax(-1)
    torch.testing.assert_close(after[0], wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_hidden_states_and_rotated_queries_and_keys(family):
    model, ids = tiny(family), tokens()
    wanted = model(ids, output_hidden_states=True).hidden_states
    hidden, rotated = hf.HiddenStates(), hf.RotatedQK()
    used = [hidden] if family in ("gpt2", "opt") else [hidden, rotated]
    before = everything_of(model)
    with hf.capture(model, *used):
        out = model(ids, use_cache=True)
    assert same(before, everything_of(model))
    assert list(hidden) == [0, 1, 2]
    for layer in range(2):
        torch.testing.assert_close(hidden[layer], wanted[layer], atol=1e-4, rtol=1e-4)
    final = getattr(model.model, "norm", None) if hasattr(model, "model") else None
    if final is not None:
        torch.testing.assert_close(final(hidden[2]), wanted[2], atol=1e-4, rtol=1e-4)
    for layer in rotated:
        keys = out.past_key_values.layers[layer].keys  # of a window, the last ones
        torch.testing.assert_close(rotated.after[layer][1][:, :, -keys.shape[2] :], keys, atol=0, rtol=0)
        for part in range(2):
            one, other = rotated.before[layer][part], rotated.after[layer][part]
            assert (one[:, :, 1:] != other[:, :, 1:]).any() and torch.equal(one[:, :, 0], other[:, :, 0])
            torch.testing.assert_close(one.norm(dim=-1), other.norm(dim=-1), atol=1e-4, rtol=1e-4)
    model(ids[:, :3])
    assert hidden[0].shape[1] == ids.shape[1]  # what runs later is not seen


@torch.no_grad()
def test_rotated_queries_and_keys_are_computed_when_read():
    model, ids, rotated = tiny("llama"), tokens(), hf.RotatedQK()
    seen = []
    with hf.capture(model, rotated):
        model(ids)
        seen += [rotated.after[layer] for layer in rotated]
    assert list(rotated.after) == list(rotated) == [0, 1] and len(rotated.after) == len(rotated) == 2
    torch.testing.assert_close(rotated.stack(), torch.stack([queries for queries, _ in seen]), atol=0, rtol=0)
    assert rotated.after[0][0] is not rotated.after[0][0]
    kept = [value for value in vars(rotated).values() if isinstance(value, dict)]
    pointers = {part.data_ptr() for pair in rotated.before.values() for part in pair}
    for one in kept:
        for value in one.values():
            assert {part.data_ptr() for part in (value if isinstance(value, tuple) else (value,))} <= pointers
    with pytest.raises(whence.WhenceError, match=r"RotatedQK\[2\] got results for the layers \[0, 1\]"):
        rotated[2]


def test_invalid_recorders_raise():
    model, ids = tiny("llama"), tokens()
    with pytest.raises(whence.WhenceError, match="recorders are those of"), hf.capture(model, "rows"):
        pass
    with pytest.raises(whence.WhenceError, match="apply_rotary_pos_emb"), hf.capture(tiny("gpt2"), hf.RotatedQK()):
        pass
    for recorder, text in (
        (hf.AttentionRows([14]), "14 queries"),
        (hf.AttentionRows(torch.zeros(3, 1)), "rows for 3 sequences"),
        (hf.SegmentMass([0, 1]), "2 indices for 14 keys"),
    ):
        with pytest.raises(whence.WhenceError, match=text), hf.capture(model, recorder):
            model(ids)
    assert model.config._attn_implementation != "whence"
    with pytest.raises(whence.WhenceError, match=r"AttentionRows\[0\] got results for the layers \[\]"):
        hf.AttentionRows()[0]


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation makes, in bytes."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, given=(), named=None):
        instance = function(*given, **(named or {}))
        for one in instance if isinstance(instance, tuple | list) else (instance,):
            if isinstance(one, torch.Tensor) and not one._is_view():
                self.bytes = max(self.bytes, one.untyped_storage().nbytes())
        return instance


LONG = 8192


@pytest.mark.parametrize(
    "make, kept",
    [
        (hf.LastRow, (1, 2, LONG)),
        (hf.DistanceProfile, (1, 2, LONG)),
        (lambda: hf.SegmentMass([0] * LONG, rows=range(LONG)), (1, 2, LONG, 1)),
    ],
    ids=["LastRow", "DistanceProfile", "SegmentMass"],
)
@torch.no_grad()
def test_8k_tokens_allocate_no_quadratic_tensor(make, kept):
    length = LONG
    model = tiny("llama", num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=length)
    recorder, largest = make(), Largest()
    with hf.capture(model, recorder), largest:
        model(tokens(batch=1, length=length), use_cache=False, logits_to_keep=1)
    assert recorder[0].shape == kept and (1 << 20) < largest.bytes < length**2  # a byte for each pair
