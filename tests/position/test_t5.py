"""T5's buckets against transformers, and its bias against a loop."""

from __future__ import annotations

import io

import pytest
import torch

from whence.errors import WhenceError
from whence.position.t5 import T5Bias, bucket

FORMS = ["causal", "bidirectional"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("buckets", [4, 6, 8, 12, 32, 64, 128])
@pytest.mark.parametrize("max_distance", [65, 128, 256, 1000])
def test_buckets_are_transformers_buckets(form: str, buckets: int, max_distance: int) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-600, 601)
    want = t5.T5Attention._relative_position_bucket(
        -distance, bidirectional=form == "bidirectional", num_buckets=buckets, max_distance=max_distance
    )
    for given in (distance, distance.float(), distance.double()):
        assert torch.equal(bucket(given, form, buckets, max_distance), want)


def test_a_few_buckets_by_hand() -> None:
    # 32 buckets, causal: 0..15 alone, then 16 logarithmic ones up to 128; the future shares bucket 0
    assert bucket(torch.tensor([-5, 0, 1, 15, 16, 17, 18, 19, 127, 128, 9999])).tolist() == [
        0,
        0,
        1,
        15,
        16,
        16,
        16,
        17,
        31,
        31,
        31,
    ]
    # both sides: 16 buckets each, 8 alone; log(16/8)/log(128/8)*8 is exactly 2, so 16 starts bucket 8 + 2
    assert bucket(torch.tensor([0, 7, 8, 15, 16, 32, 64, 128]), "bidirectional").tolist() == [
        0,
        7,
        8,
        9,
        10,
        12,
        14,
        15,
    ]
    assert bucket(torch.tensor([-1, -7, -16, -128]), "bidirectional").tolist() == [17, 23, 26, 31]


@pytest.mark.parametrize("form", FORMS)
def test_bias_is_the_buckets_row_for_each_head(form: str) -> None:
    t5 = T5Bias(3, form=form, std=1.0).to(torch.float64)
    distance = torch.arange(-50.0, 200.0)
    got = t5.bias(distance, None)
    assert got.shape == (3, 250)
    assert got.dtype == torch.float64
    result = bucket(distance, form)
    for n in range(250):
        for h in range(3):
            assert got[h, n] == t5.table[result[n], h]


@pytest.mark.parametrize("form", FORMS)
def test_t5_attention_in_transformers_adds_the_same_bias(form: str) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = t5.T5Config(d_model=8, d_kv=4, num_heads=2, is_decoder=form == "causal")
    theirs = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = T5Bias(2, form=form)
    ours.load_state_dict({"table": theirs.relative_attention_bias.weight})
    want = theirs.compute_bias(40, 40)[0]
    distance = torch.arange(40)[:, None] - torch.arange(40)[None]
    got = ours.bias(distance.float().flatten(), None).reshape(2, 40, 40)
    assert torch.equal(got, want)


def test_forms_repr_and_round_trip() -> None:
    causal, both = T5Bias(2), T5Bias(2, form="bidirectional")
    assert causal.causal_only
    assert not both.causal_only
    assert causal.effects == {"bias"}
    assert causal.relative
    assert repr(causal) == "T5Bias(heads=2, form='causal', buckets=32, max_distance=128, learnable)"
    both.load_state_dict(causal.state_dict())
    assert torch.equal(both.table, causal.table)


def test_only_the_buckets_met_learn() -> None:
    t5 = T5Bias(2)
    t5.bias(torch.tensor([0.0, 2.0, 2.0]), None).sum().backward()
    assert t5.table.grad[:4, 0].tolist() == [1.0, 0.0, 2.0, 0.0]


class Model(torch.nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.position = T5Bias(3, form=form)

    def forward(self, distance: torch.Tensor) -> torch.Tensor:
        return self.position.bias(distance, None)


@pytest.mark.parametrize("form", FORMS)
def test_it_exports_and_runs_as_onnx(form: str) -> None:
    model, distance = Model(form).eval(), torch.arange(-300.0, 300.0)
    shapes = ({0: torch.export.Dim("n", min=2)},)
    program = torch.export.export(model, (torch.arange(-9.0, 9.0),), dynamic_shapes=shapes)
    assert torch.equal(program.module()(distance), model(distance))
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    file = io.BytesIO()
    torch.onnx.export(program, f=None, dynamo=True, verbose=False).save(file)
    session = ort.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {session.get_inputs()[0].name: distance.numpy()})
    assert torch.equal(torch.from_numpy(got), model(distance).detach())


def test_errors() -> None:
    with pytest.raises(
        WhenceError,
        match=r"^T5Bias\(form=\.\.\.\) got 'symmetric', but .*; choose one of them\.$",
    ):
        T5Bias(2, form="symmetric")
    with pytest.raises(WhenceError, match=r"^T5Bias\(form=\.\.\.\) got 'both'"):
        bucket(torch.arange(3), "both")
    with pytest.raises(
        WhenceError,
        match=r"^T5Bias\(buckets=\.\.\.\) got 1, but .*; use 32, as published\.$",
    ):
        T5Bias(2, buckets=1)
    with pytest.raises(
        WhenceError,
        match=r"^T5Bias\(buckets=\.\.\.\) got 33, but .*; use 32, as published\.$",
    ):
        T5Bias(2, form="bidirectional", buckets=33)
    with pytest.raises(
        WhenceError,
        match=r"^T5Bias\(max_distance=\.\.\.\) got 16, but .*; use 128, as published, or fewer buckets\.$",
    ):
        T5Bias(2, max_distance=16)


def test_fractional_distances_take_the_bucket_of_the_nearest_whole_one() -> None:
    position = T5Bias(2, form="bidirectional", buckets=8, max_distance=16, std=1.0)
    whole = torch.tensor([-9.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 9.0])
    for shift in (-0.4, 0.4):
        # a distance on the other side of 0 has buckets of its own, so 0 itself moves to one side only
        moved = torch.where(whole == 0, abs(shift), whole + shift)
        assert torch.equal(position.bias(moved, None), position.bias(whole, None))
