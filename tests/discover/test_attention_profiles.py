"""Distance profiles of a model's attention: averages around knots, without the first key, named for every head."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from whence import hf, probe, records
from whence.discover import Curves
from whence.discover.attention_profiles import ProfileWithoutFirstKey, measure_profiles, name_profiles
from whence.errors import WhenceError
from whence.position.free_table import table_knots
from whence.report.discovery.profile_page import page

TOKENS = 64


@pytest.fixture(scope="module")
def model():
    return probe.load("quick").model


@pytest.fixture(scope="module")
def curves(model):
    generator = torch.Generator().manual_seed(0)
    return measure_profiles(model, [torch.randint(5, 50, (TOKENS,), generator=generator) for _ in range(2)])


def test_a_profile_is_the_mean_weight_around_a_knot_without_the_first_key(model):
    tokens = torch.arange(5, 5 + TOKENS)[None] % 40
    rows, own = hf.AttentionRows(range(TOKENS)), ProfileWithoutFirstKey()
    with torch.no_grad(), hf.capture(model, rows, own):
        model(input_ids=tokens)
    weights = rows[0][0].double()  # [heads, queries, keys]
    found = measure_profiles(model, [tokens[0], tokens[0]])
    level = found.values[0, 0] - found.values[0, 0, 0]
    knots = table_knots(16, 4, TOKENS // 2)
    wanted = []
    for index, knot in enumerate(knots):
        low = knot if index == 0 else (knots[index - 1] + knot + 1) // 2
        high = knot if index + 1 == len(knots) else (knot + knots[index + 1] - 1) // 2
        near = [weights[0, i, i - d] for d in range(low, max(low, high) + 1) for i in range(d + 1, TOKENS)]
        wanted.append(float(torch.stack(near).mean()))
    np.testing.assert_allclose(level, np.log(wanted) - np.log(wanted[0]), atol=1e-4)


def test_every_head_is_named(model, curves):
    heads = model.config.num_attention_heads
    assert curves.heads == heads * model.config.num_hidden_layers and curves.seeds == 2
    seen, curves = [], Curves(curves.distances, curves.values[:, : heads + 1])  # one head of the second layer
    named = name_profiles(curves, heads, on_head=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (curves.heads, curves.heads) and sum(named["families"].values()) == curves.heads
    assert [(one["layer"], one["head"]) for one in named["heads"][: heads + 1]][-1] == (1, 0)
    assert all(one["explained"] <= 1 and len(one["fitted"]) == len(named["fine"]) for one in named["heads"])
    json.dumps(named, allow_nan=False)


def test_few_or_short_texts_are_refused(model):
    with pytest.raises(WhenceError, match=r"1 texts of \[64\] tokens.*at least 2.*longer texts"):
        measure_profiles(model, [torch.zeros(64, dtype=torch.long)])


def test_the_committed_record_of_smollm2_has_a_page():
    record = records.read(Path(__file__).resolve().parents[2] / "benchmarks" / "records" / "smollm2_profiles.json")
    assert sum(record["families"].values()) == len(record["heads"]) == 270 and record["num_heads"] == 9
    text = page(record)
    assert "Bump in log distance" in text and "smollm2" in text and "src=" not in text
