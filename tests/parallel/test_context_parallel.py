"""Context parallelism, in four processes and in a group of two of them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from whence import (
    Alibi,
    Dape,
    Epar,
    Rotary,
    ScalableSoftmax,
    Shaw,
    Sink,
    TransformerXL,
    WhenceError,
    attend,
    from_score_mod,
)
from whence.attention.fused.parameter_tables import parameter_tables
from whence.parallel import select_heads

PROGRAM = Path(__file__).parent / "context_parallel.py"


def test_attention_and_gradients_equal_one_process(tmp_path):
    command = [sys.executable, str(PROGRAM), str(tmp_path / "meeting")]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0 and "all equal" in process.stdout, process.stderr


POSITIONS = {
    "Alibi": lambda: Alibi(4, learnable=True),
    "Epar": lambda: Epar(4, alpha=[0.5, 1.0, 1.5, 2.0], learnable=True),
    "one for all heads": lambda: Epar(None, learnable=True),
    "sum": lambda: Rotary() + Epar(4, beta=[1.0, 2.0, 3.0, 4.0], learnable=True) + Sink(4) + Shaw(8, heads=4),
    "parameters of content hooks": lambda: TransformerXL(4, 8, std=1.0) + ScalableSoftmax(4, s=[0.1, 0.2, 0.3, 0.4]),
    "a score_mod": lambda: from_score_mod(lambda score, b, h, q_idx, kv_idx: score * (1 + h)),
}


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_selected_heads_equal_the_heads_of_the_whole(name, backend):
    torch.manual_seed(0)
    position = POSITIONS[name]().double()
    q, k, v = torch.randn(3, 2, 4, 12, 8, dtype=torch.float64)
    whole = attend(q, k, v, position=position, causal=True, backend="reference")
    for start, end in ((0, 1), (1, 3), (2, 4)):
        heads = slice(start, end)
        part = attend(
            q[:, heads],
            k[:, heads],
            v[:, heads],
            position=select_heads(position, start, end),
            causal=True,
            backend=backend,
        )
        torch.testing.assert_close(part, whole[:, heads], rtol=1e-10, atol=1e-10)
    assert {id(p) for p in select_heads(position, 0, 2).parameters()} == {id(p) for p in position.parameters()}


@pytest.mark.parametrize("name", ["Alibi", "Epar"])
def test_selected_heads_keep_what_fast_kernels_read(name):
    position, part = POSITIONS[name](), select_heads(POSITIONS[name](), 1, 3)
    distance = torch.arange(9.0)
    assert parameter_tables(part, distance, 2, 9) is not None or part.bias_slope() is not None
    whole, own = (x.parameter_gradients(distance, 9) for x in (position, part))
    if whole is not None:
        for table, rows in ((own.score_scale, whole.score_scale), (own.bias, whole.bias)):
            assert (table is None) == (rows is None)
            torch.testing.assert_close(table, None if rows is None else rows[1:3])
        for one, other in zip(own.gradients, whole.gradients, strict=True):
            torch.testing.assert_close(one.value, other.value[1:3])
    slope = position.bias_slope()
    if slope is not None:
        torch.testing.assert_close(part.bias_slope(), slope[1:3])
    assert part.decays == position.decays


def test_heads_that_cannot_be_selected_are_named():
    for arguments, words in (
        ((from_score_mod(lambda s, b, h, i, j: s), -1, 1), ("start", "-1")),
        ((from_score_mod(lambda s, b, h, i, j: s), "a", 1), ("start", "'a'")),
        ((from_score_mod(lambda s, b, h, i, j: s, heads=4), 2, 6), ("4 heads", "end=4")),
        ((Alibi(4), 2, 6), ("4 heads", "end=4")),
        ((Alibi(4), 2, 2), ("end", "2")),
        ((Dape(4), 0, 2), ("Dape", "all_gather")),
        ((torch.nn.Linear(1, 1), 0, 2), ("position", "Linear")),
    ):
        with pytest.raises(WhenceError) as caught:
            select_heads(*arguments)
        assert all(word in str(caught.value) for word in words)
    for start, end, words in ((-1, 2, "start.*-1"), (2, 2, "end.*2"), (3, 1, "end.*1")):
        for position in (Alibi(4), Alibi(4) + Dape(4)):
            with pytest.raises(WhenceError, match=words):
                position.select_heads(start, end)
