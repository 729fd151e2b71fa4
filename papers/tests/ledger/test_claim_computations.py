"""The computations of mechanisms, counts and pointers against another way; every computation of the ledger has one."""

import cmath
import itertools
import math
import random
import re
from pathlib import Path

import pytest
import torch
from witnesses import close, softmax, witness

from whence_papers.ledger.computations import COMPUTATIONS, spline


def test_parameters_by_hand_and_by_torch():
    spec = {
        "kind": "encoder",
        "vocab_size": 50,
        "num_classes": 3,
        "embed_dim": 16,
        "heads": 2,
        "layers": 2,
        "ffn_dim": 20,
    }
    figures = witness("model_parameters")(spec)
    layer = 4 * (16 * 16 + 16) + (16 * 20 + 20) + (20 * 16 + 16) + 2 * 32
    assert figures["layers"] == 2 * layer == 2 * figures["layers_layer_0"]
    assert figures["total"] == 50 * 16 + 2 * layer + (16 * 20 + 20) + (20 * 3 + 3)
    by_torch = torch.nn.TransformerEncoderLayer(16, 2, 20)
    assert sum(p.numel() for p in by_torch.parameters()) == layer
    assert witness("position_parameters")(spec, "sinusoidal", "alibi") == {
        "more_parameters": 0,
        "learned_by_position": 0,
    }
    wide = {
        "kind": "decoder",
        "vocab_size": 10,
        "embed_dim": 768,
        "heads": 12,
        "layers": 12,
        "ffn_dim": 3072,
        "tie_embeddings": True,
    }
    layers = 12 * sum(p.numel() for p in torch.nn.TransformerEncoderLayer(768, 12, 3072, device="meta").parameters())
    figures = witness("vocabulary_for")(110e6, wide)
    assert figures["layers"] == layers and figures["vocabulary"] == pytest.approx((110e6 - layers - 2 * 768) / 768)
    assert witness("additive_attention")(512, 512, 256)["total"] == 512 * 512 + 512 * 256 + 512 + 512 == 394240
    figures = witness("pointer_attention")(64, 150)
    assert (figures["total_as_printed"], figures["total_of_code"]) == (8342, 8470)


class Counted(float):
    """A number that counts its multiplications."""

    made = 0

    def __mul__(self, other):
        Counted.made += 1
        return Counted(float(self) * float(other))

    def __add__(self, other):
        return Counted(float(self) + float(other))

    __radd__ = __add__


def test_multiplications_by_counting_them():
    keys, embed_dim = 10, 8

    def times(rows, columns):  # two matrices as lists of rows and of columns
        return [[sum(Counted(a) * b for a, b in zip(row, column, strict=True)) for column in columns] for row in rows]

    e, s, square = [[1.0] * embed_dim] * keys, [[1.0] * embed_dim], [[1.0] * embed_dim] * embed_dim
    counts = []
    Counted.made = 0
    projected, query = times(e, square), times(s, square)[0]
    times([[math.tanh(a + b) for a, b in zip(row, query, strict=True)] for row in projected], [[1.0] * embed_dim])
    counts.append(Counted.made / keys)
    Counted.made = 0
    times(times(s, square), times(e, square))
    counts.append(Counted.made / keys)
    figures = witness("multiplications")(embed_dim, embed_dim, embed_dim, embed_dim, keys)
    close((figures["additive"], figures["pointer"]), counts)
    both = witness("equal_widths")(embed_dim, 5, keys)
    close(both["additive_cost_over_pointer"], counts[0] / counts[1])
    assert both["more_numbers_of_additive"] == (2 * 64 + 16) - (2 * 64 + 5)


def test_pointers_by_loops():
    scores, places = [-0.28, -0.17, -0.02, 0.04, 0.28], [101, 205, 150, 312, 150]
    weights = softmax(scores)
    figures = witness("softmax_example")(scores, [0.12, 0.14, 0.16, 0.17, 0.41])
    close(figures["weights"], weights)
    close(figures["largest_error"], 0.41 - weights[4])
    close(witness("scattered_scores")(places, scores, 150)["of_place"], weights[2] + weights[4])
    figures = witness("scattered")(places, [0.1, 0.15, 0.2, 0.25, 0.3], 150)
    close((figures["of_place"], figures["sum"], figures["largest_place"]), (0.5, 1.0, 150))
    figures = witness("scaled_scores")([0.15, 0.65], 64, [-0.3, 0.2], [0.019, 0.081], [-0.28, 0.28])
    close((figures["scaled_error"], figures["final_error"]), (0.00025, 0.00125))
    content, bias = [0.0, 0.1, 0.2], [0.3, 0.2, 0.1]
    figures = witness("reasons")([1, 2, 1], content, bias, 1)
    whole = softmax([a + b for a, b in zip(content, bias, strict=True)])
    close(figures["by_repetition"], whole[0] + whole[2] - max(whole[0], whole[2]))
    close(figures["by_bias"], whole[0] + whole[2] - softmax(content)[0] - softmax(content)[2])
    close(figures["by_content"], whole[0] + whole[2] - softmax(bias)[0] - softmax(bias)[2])


def test_masks_indices_and_lines():
    assert witness("masking")(6, 4, 5, 0)["largest_difference"] < 1e-12
    visible = softmax([1.0, 2.0, 3.0])[:2]
    close([k / sum(visible) for k in visible], softmax([1.0, 2.0]))
    figures = witness("from_the_end")(5, 8, 150)
    indices = [min(max(5 - position, 0), 149) for position in range(8)]
    assert (figures["index_of_first_visit"], figures["index_of_last_visit"]) == (indices[0], indices[4]) == (5, 1)
    assert figures["index_of_padding"] == max(indices[5:]) == 0 and figures["visits_with_index_zero"] == 0
    figures = witness("linearity")(8, 0)
    assert figures["dot_product_off"] < 1e-12 and figures["additive_off"] > 0.01
    assert abs(math.tanh(1.0) - (math.tanh(0.0) + math.tanh(2.0)) / 2) > 0.2  # the reason


def test_a_convolution_of_one_place_is_a_product(monkeypatch):
    assert witness("pointwise_convolution")(4, 5, 0)["largest_difference"] < 1e-12
    turned = torch.conv2d
    monkeypatch.setattr(torch, "conv2d", lambda x, w: turned(x, w.transpose(0, 1)))
    assert witness("pointwise_convolution")(4, 5, 0)["largest_difference"] > 0.1


def test_prior():
    figures = witness("prior_start")(1.0, 1.0, 256, 3)
    close(figures["share_of_nearest"], (1 - math.exp(-3)) / (1 - math.exp(-256)))  # a geometric series
    assert figures["difference_from_alibi"] == 0
    figures = witness("prior_gradients")(1.0, [0.5, 1.0, 2.0], 4)
    assert figures["not_finite_of_ours"] == 0 and figures["not_finite_by_logarithm"] > 0
    figures = witness("prior_built")(16, 2, 5, 0)
    assert figures["largest_difference"] < 1e-12 and figures["parameters_with_gradient"] == 2


def test_rotary_with_complex_numbers():
    draw_inputs = random.Random(0)
    pairs = [
        (
            complex(draw_inputs.gauss(0, 1), draw_inputs.gauss(0, 1)),
            complex(draw_inputs.gauss(0, 1), draw_inputs.gauss(0, 1)),
        )
        for _ in range(4)
    ]
    angles = [10000 ** (-2 * k / 8) for k in range(4)]

    def score(i, j, conjugate):
        total = 0
        for (q, k), angle in zip(pairs, angles, strict=True):
            first, second = q * cmath.exp(1j * i * angle), k * cmath.exp(1j * j * angle)
            total += ((first.conjugate() if conjugate else first) * second).real
        return total

    assert abs(score(9, 2, True) - score(109, 102, True)) < 1e-12 < abs(score(9, 2, False) - score(109, 102, False))
    figures = witness("relative_scores")(64, 100, 0)
    assert (
        figures["change_of_score"] < 1e-9
        and figures["change_with_conjugate"] < 1e-9
        and figures["change_as_printed"] > 0.1
    )
    figures = witness("first_angle")(64, 10000.0)
    close((figures["own"], figures["printed"]), (1.0, math.exp(-2 / 64 * math.log(10000))), 1e-6)
    curve = [sum(math.cos(d * 10000 ** (-2 * k / 8)) for k in range(4)) / 4 for d in range(50)]
    figures = witness("waves")(8, 50)
    assert figures["rises"] == sum(b > a for a, b in itertools.pairwise(curve))
    close(figures["near_minus_far"], sum(curve[:5]) / 5 - sum(curve[-5:]) / 5)
    assert witness("scaled_positions")(16, 1.5, 0)["largest_difference"] < 1e-12


def test_order_and_masks():
    figures = witness("order_without_position")(6, 8, 0)
    assert figures["change_both_ways"] < 1e-12 and figures["change_causal"] > 1e-3
    figures = witness("who_sees")(10)
    seen = [sum(key <= query for query in range(10)) for key in range(10)]
    assert (figures["see_first"], figures["see_middle"], figures["see_last"]) == (seen[0], seen[5], seen[9])
    figures = witness("no_look_ahead")(6, 0)
    assert figures["change_before"] == 0 and figures["change_at_the_end"] > 0
    figures = witness("stable_rows")(1, 8)
    rows = [(i + 1) / (i + 1 + sum(math.exp(-0.0625 * t) for t in range(i + 1, 8))) for i in range(8)]
    close((figures["first_sum"], figures["last_sum"]), (rows[0], rows[-1]))
    assert figures["falling_rows"] == sum(b < a for a, b in itertools.pairwise(rows)) == 0
    figures = witness("t5_numbers")(128, 32)
    published = {d if d < 16 else min(31, 16 + int(16 * math.log(d / 16) / math.log(8) + 1e-12)) for d in range(128)}
    assert figures["numbers"] == len(published) == figures["learned"]
    assert witness("additive_calibration")(5, 0)["largest_error_of_weights"] < 1e-15
    figures = witness("decomposition")(5, 4, 0)
    assert figures["largest_miss"] < 1e-14 and figures["largest_mean_of_rest"] < 1e-14


def test_slopes():
    weights = softmax([-0.1 * d for d in range(20)])
    figures = witness("slope_signs")(0.1, 20)
    close(figures["mean_distance_positive"], sum(w * d for d, w in enumerate(weights)))
    close(figures["mean_distance_negative"], sum(w * (19 - d) for d, w in enumerate(weights)))  # mirrored
    close(figures["mean_distance_without"], 9.5)
    figures = witness("scales")([0.5, 2.0], 2, 16)
    by_hand = [sum(w * d for d, w in enumerate(softmax([-2.0 * s * d for d in range(16)]))) for s in (1 / 16, 1 / 256)]
    close(figures["mean_distance_at_2"], sum(by_hand) / 2, 1e-6)
    assert figures["farther_at_larger_scale"] == 0
    assert witness("learned_slopes")(2) == {"learned_numbers": 0, "bend": 0.0}
    assert witness("sinusoids")(8, 5)["largest_difference"] < 1e-12


def test_counts_of_the_speeches(tmp_path, monkeypatch):
    (tmp_path / "speeches").mkdir()
    words = tmp_path / "nltk_data" / "tokenizers" / "punkt_tab" / "english"
    from whence_papers.speeches import data

    count = witness("speeches_counts")
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    from whence_papers.ledger import MissingEvidence

    with pytest.raises(MissingEvidence, match="speeches' files"):
        count(32)
    words.mkdir(parents=True)
    (tmp_path / "speeches" / "train_CLS.tsv").write_text("0\ta b c\n1\tb c\n")
    (tmp_path / "speeches" / "test_CLS.tsv").write_text("0\ta b c\n1\tsomething else\n")
    (tmp_path / "speeches" / "train_LM.txt").write_text("c d\n")
    monkeypatch.setattr(data, "load_tokenizer", lambda subject: data.NltkTokenizer(str.split, "none"))
    figures = count(4)
    assert figures["vocabulary"] == len({"0", "1", "a", "b", "c", "d"}) + 2
    assert (figures["training_items"], figures["test_items"], figures["test_items_in_training"]) == (2, 2, 1)
    assert figures["padding_percent"] == 100 * 3 / 8


def test_spline_autoencoders():
    figures = witness("spline_reconstruction")(2, 4, 8, [3, 4])
    assert figures["change_of_shuffled"] < 1e-5  # a set has no order
    arms = [figures[name] for name in ("without_order", "with_bias", "with_positions")]
    assert len({value for arm in arms for value in arm}) == 6 and all(0.5 < value < 3 for arm in arms for value in arm)
    close(figures["times_learned_error"], [a / b for a, b in zip(arms[0], arms[2], strict=True)])
    assert spline.draw_waves(3, 8, torch.Generator().manual_seed(0)).shape == (3, 8, 2)
    model = spline.train_autoencoder("with_positions", 3, 1, 4, 8)
    x = torch.randn(2, 8, 2)
    assert (model.encode(x.flip(1)) - model.encode(x)).abs().max() > 1e-4
    assert "position" not in " ".join(dict(spline.train_autoencoder("without_order", 3, 1, 4, 8).named_parameters()))


def test_the_prior_is_kerple_s_power_form_by_hand():
    figures = witness("prior_family")([0.5], [1.0, 2.0], 8)
    by_hand = max(abs((0.5 * d) ** b - 0.5**b * d**b) for b in (1.0, 2.0) for d in range(8))
    assert figures["relative_difference_from_kerple"] <= by_hand + 1e-15
    assert figures["relative_difference_from_alibi"] == 0


def test_every_computation_has_a_witness():
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_claim_*.py")]
    named = set(re.findall(r'witness\("(\w+)"\)', "".join(texts)))
    assert set(COMPUTATIONS) == named
