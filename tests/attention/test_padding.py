"""Padding takes no position, wherever it lies: in one pass, in chunks, eagerly and compiled alike."""

import pytest
import torch

import whence
from whence import KVCache, attend
from whence.attention.token_positions import count_tokens

H, D = 2, 4
POSITIONS = {
    "rotation": whence.Rotary,
    "bias": lambda: whence.Alibi(H),
    "both": lambda: whence.Rotary() + whence.Epar(H, context=8),
    "length of the query": lambda: whence.Epar(H, length="query"),
}
REAL = torch.tensor(
    [
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        [0, 0, 1, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 1, 1, 0, 1, 1, 1],
        [0, 1, 0, 1, 0, 1, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 1, 0, 1, 1],
    ]
).bool()
LENGTH = REAL.shape[1]


def tensors(rows=6):
    torch.manual_seed(0)
    return tuple(torch.randn(rows, H, LENGTH, D, dtype=torch.float64) for _ in range(3))


def alone(position, segment_ids=None):
    """Each row's real tokens by themselves, without padding, put back to their places; 0 elsewhere."""
    out = torch.zeros(len(REAL), H, LENGTH, D, dtype=torch.float64)
    for b, real in enumerate(REAL):
        short = [x[b : b + 1][:, :, real] for x in tensors()]
        docs = None if segment_ids is None else segment_ids[b : b + 1, real]
        out[b][:, real] = attend(*short, position=position, causal=True, segment_ids=docs, backend="reference")[0]
    return out


def real_only(out):
    return out.masked_fill(~REAL[:, None, :, None], 0.0)


def test_the_numbers_themselves():
    """Real tokens are counted; a padded place gets the number it would have if all were real from the first one on."""
    counted = count_tokens(REAL, None, LENGTH, torch.device("cpu"))
    assert counted[1].tolist() == [-2, -1, 0, 1, 2, 3, 4, 5, 6, 7]
    assert counted[2].tolist() == list(range(10))
    assert counted[3].tolist() == [0, 1, 2, 3, 2, 3, 6, 4, 5, 6]
    assert counted[5].tolist() == [-5, -4, -3, -2, -1, 0, 1, 2, 2, 3]
    later = count_tokens(REAL[3:4, 2:], None, 8, torch.device("cpu"), before=torch.tensor([[1]]))
    assert later.tolist() == [[2, 3, 2, 3, 6, 4, 5, 6]]
    segment_ids = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 2, 2]])
    packed = count_tokens(REAL[3:5], segment_ids, LENGTH, torch.device("cpu"))
    assert packed.tolist() == [[0, 1, 2, 3, 0, 1, 2, 2, 0, 1], [-1, 0, 1, 1, -1, 0, 1, 1, -2, -1]]
    going_on = count_tokens(REAL[3:4, 2:], segment_ids[:, 2:], 8, torch.device("cpu"), before=torch.tensor([[1]]))
    assert going_on.tolist() == [[2, 3, 0, 1, 2, 2, 0, 1]]


@pytest.mark.parametrize("backend", ["reference", "blockwise", "auto"])
@pytest.mark.parametrize("name", POSITIONS)
def test_in_one_pass(name, backend):
    position = POSITIONS[name]().double()
    actual = attend(*tensors(), position=position, causal=True, key_mask=REAL, backend=backend)
    torch.testing.assert_close(real_only(actual), alone(position))


@pytest.mark.parametrize("chunks", [[10], [4, 6], [5, 1, 1, 1, 1, 1], [1] * 10], ids=str)
@pytest.mark.parametrize("name", POSITIONS)
def test_in_chunks(name, chunks):
    position, cache = POSITIONS[name]().double(), KVCache()
    pieces = zip(*(x.split(chunks, 2) for x in tensors()), REAL.split(chunks, 1), strict=True)
    outs = [attend(q, k, v, position=position, causal=True, key_mask=real, cache=cache) for q, k, v, real in pieces]
    torch.testing.assert_close(real_only(torch.cat(outs, 2)), alone(position))


@pytest.mark.parametrize("names", [["rotation"], ["rotation", "bias", "length of the query"]], ids=" + ".join)
def test_a_right_padded_prompt_compiled_then_eager_steps(names):
    """The prompt is compiled; that it was padded on the right must not be forgotten by the steps after it."""
    parts = [POSITIONS[name]() for name in names]
    position, cache = sum(parts[1:], parts[0]).double(), KVCache()
    q, k, v = tensors()
    real = torch.arange(4) < torch.tensor([[4], [1], [2], [3], [4], [2]])

    def step(q, k, v, real):
        return attend(q, k, v, position=position, causal=True, key_mask=real, cache=cache)

    with torch.no_grad():
        first = torch.compile(step, backend="eager")(*(x[:, :, :4] for x in (q, k, v)), real)
        second = torch.compile(step, backend="eager")(*(x[:, :, 4:5] for x in (q, k, v)), None)
        rest = [step(*(x[:, :, i : i + 1] for x in (q, k, v)), None) for i in range(5, LENGTH)]
    actual = torch.cat([first, second, *rest], 2)
    for b in range(len(real)):
        kept = torch.cat([real[b], torch.ones(LENGTH - 4, dtype=torch.bool)])
        wanted = attend(*(x[b : b + 1][:, :, kept] for x in (q, k, v)), position=position, causal=True)
        torch.testing.assert_close(actual[b : b + 1][:, :, kept], wanted)


def test_in_packed_documents():
    segment_ids = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2]).expand(len(REAL), -1)
    position = POSITIONS["both"]().double()
    actual = attend(*tensors(), position=position, causal=True, key_mask=REAL, segment_ids=segment_ids)
    torch.testing.assert_close(real_only(actual), alone(position, segment_ids))
    for chunks in ([3, 4, 3], [1] * 10, [6, 1, 3]):
        cache = KVCache()
        pieces = [x.split(chunks, 2) for x in tensors()]
        masks = zip(*pieces, REAL.split(chunks, 1), segment_ids.split(chunks, 1), strict=True)
        outs = [
            attend(q, k, v, position=position, causal=True, key_mask=real, segment_ids=docs, cache=cache)
            for q, k, v, real, docs in masks
        ]
        torch.testing.assert_close(real_only(torch.cat(outs, 2)), alone(position, segment_ids))


def test_without_gaps_the_fast_way_stays_open():
    q, k, v = tensors(2)
    for real in (torch.arange(LENGTH) >= torch.tensor([[0], [3]]), torch.arange(LENGTH) < torch.tensor([[9], [4]])):
        explanation = whence.explain(q, k, v, position=whence.Epar(H), causal=True, key_mask=real)
        assert "tiles read a table" in explanation.why
    explanation = whence.explain(q, k, v, position=whence.Epar(H), causal=True, key_mask=REAL[2:4])
    assert "not one consecutive run" in explanation.why


def test_a_gap_inside_a_compiled_call_is_refused_when_it_runs():
    q, k, v = tensors()
    position = whence.Alibi(H).double()

    def call(q, k, v, real):
        return attend(q, k, v, position=position, causal=True, key_mask=real)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    whole = torch.arange(LENGTH) >= torch.arange(len(REAL))[:, None]
    torch.testing.assert_close(compiled(q, k, v, whole), call(q, k, v, whole))
    with pytest.raises(RuntimeError, match="pass q_positions and k_positions too"):
        compiled(q, k, v, REAL)


def test_padding_after_a_real_token_in_a_compiled_sliding_cache_is_refused_when_it_runs():
    q, k, v = (x[:1, :, :3] for x in tensors())

    def call(real):
        return attend(q, k, v, causal=True, window=2, key_mask=real, cache=KVCache(window=2))

    compiled = torch.compile(call, backend="aot_eager")
    assert compiled(torch.tensor([[False, True, True]])).isfinite().all()
    with pytest.raises((RuntimeError, whence.WhenceError), match="pad on the left, or use KVCache"):
        compiled(torch.tensor([[True, True, False]]))


@pytest.mark.parametrize("rollback", [0, 3])
def test_a_sliding_cache_of_one_token(rollback):
    q, k, v = tensors(2)
    cache = KVCache(window=1, rollback=rollback)
    position = whence.Rotary()
    outs = [
        attend(*(x[:, :, i : i + 1] for x in (q, k, v)), position=position, causal=True, window=1, cache=cache)
        for i in range(4)
    ]
    if rollback:
        cache.crop(2)
        outs = outs[:2] + [
            attend(*(x[:, :, i : i + 1] for x in (q, k, v)), position=position, causal=True, window=1, cache=cache)
            for i in range(2, 4)
        ]
    assert cache.seq_length == 4
    torch.testing.assert_close(torch.cat(outs, 2), v[:, :, :4])
