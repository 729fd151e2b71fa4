"""Growth of positional channels and troughs of rotary position: the rules on made-up numbers, the parts on a tiny model."""

import pytest
import torch

from whence.probe.probed_model import tiny_random_model
from whence_papers.ledger import MissingEvidence
from whence_papers.ledger.pretrained_models import PRETRAINED
from whence_papers.survey import figures, growth, trough


@pytest.fixture(scope="module")
def lm():
    return tiny_random_model()


def make_arm(first, second, held_out=0.95):
    layers = [{"share": 0.0, "monotone": 12, "by_chance": 3, "held_out": held_out} for _ in first]
    return {"hidden_size": 32, "layers": layers, "selected": [{"share": first}, {"share": second}]}


def test_growth_needs_both_halves_of_the_texts():
    up, down = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.0, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    both = growth.describe_growth(make_arm(up, up))
    assert both["late_minus_early_low"] == pytest.approx(0.4) and both["layer_correlation_low"] == 1
    assert both["first_layer_times_shuffled"] == 4 and both["first_layer_correlation"] == 0.95
    one = growth.describe_growth(make_arm(up, down))
    assert one["late_minus_early_low"] == pytest.approx(-0.4) and one["late_minus_early_high"] == pytest.approx(0.4)
    assert one["layer_correlation_low"] == -1 and one["layer_correlation_high"] == 1
    none = growth.describe_growth(make_arm([0.0] * 4, [0.0] * 4, None) | {"selected": [{"share": []}] * 2})
    assert none["layer_correlation_low"] == 0 == none["first_layer_correlation"]


def test_growth_of_a_tiny_model_with_and_without_an_encoding(lm):
    found = growth.channel_growth(lm, texts=4, tokens=48, seed=0)
    assert set(found["measured"]) == {"quick", "tiny random model"}
    arms = found["measured"]["quick"]["arms"]
    assert list(arms) == ["own positions", "one position for all tokens"]
    assert arms["own positions"]["layers"][0] == arms["one position for all tokens"]["layers"][0]  # the embedding
    assert arms["own positions"]["layers"][2] != arms["one position for all tokens"]["layers"][2]
    assert "no encoding: " in found["words"]


def test_the_fact_stands_at_its_distance(lm):
    far = 320
    fact = trough.build_facts(lm, 2, far, seed=0)[1]
    lengths = set()
    for distance in (180, 181, 319):
        tokens, answer = trough.place_fact(fact, distance)
        assert len(tokens) - 1 - answer == distance and tokens[answer] == fact["choices"][fact["gold"]]
        lengths.add(len(tokens))
    assert len(lengths) == 1  # of one length, so only the distance changes
    with pytest.raises(MissingEvidence, match="room"):
        trough.place_fact(fact, 20)


def test_a_planted_oscillation_is_found_and_a_trend_is_not(lm, monkeypatch):
    distances = torch.arange(180, 260)
    wave = trough.rotary_wave(trough.model_angles(lm), distances)
    noise = torch.randn(4, 80, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def follow(wanted):
        rows = iter(noise)

        def measure(lm, fact, at):
            curve = wanted + 0.02 * next(rows) + 3 * at.double().log()
            return {"score": curve, "attention": curve, "answer": -curve, "correct": torch.ones(80)}

        monkeypatch.setattr(trough, "measure_distances", measure)
        return trough.rotary_trough(lm, items=4, near=180, far=260, seed=0)

    found = follow(wave)
    assert found["score_correlation_low"] > 0.5 and found["answer_correlation_high"] < -0.5
    assert "troughs" in found["words"]
    assert abs(follow(torch.zeros(80))["score_correlation"]) < 0.3


def test_a_trough_is_measured_in_a_tiny_model(lm):
    found = trough.rotary_trough(lm, items=2, near=180, far=196, seed=0)
    assert len(found["wave"]) == 16 == len(found["curves"]["score"])
    assert max(found["curves"]["answer"]) < 0 and -1 <= found["score_correlation"] <= 1
    lm.model.model.rotary_emb.inv_freq, kept = None, lm.model.model.rotary_emb.inv_freq
    with pytest.raises(MissingEvidence, match="rotary"):
        trough.model_angles(lm)
    lm.model.model.rotary_emb.inv_freq = kept


def test_a_model_that_is_not_there_is_waited_for(tmp_path):
    for name in ("channel_growth", "rotary_trough"):
        with pytest.raises(MissingEvidence, match="nowhere"):
            PRETRAINED[name](str(tmp_path / "nowhere"))


def test_the_figures_come_from_the_numbers(lm):
    measured = growth.channel_growth(lm, texts=4, tokens=48, seed=0)
    drawn = figures.growth_figure(measured)
    titles = [axes.get_title(loc="left") for axes in drawn.axes]
    assert titles[0].endswith("quick: variance due to position") and "tiny random model" in titles[-1]
    numbers = {"distances": [3, 5], "wave": [0.5, 0.25], "curves": {"score": [1.0, 2.0], "answer": [3.0, 4.0]}}
    numbers |= {f"{name}_correlation{end}": 0.1 for name in ("score", "answer") for end in ("", "_low", "_high")}
    lines = [axes.get_lines()[0].get_xydata().tolist() for axes in figures.trough_figure(numbers).axes]
    assert lines == [[[3, 0.5], [4, 0.25]], [[3, 1.0], [4, 2.0]], [[3, 3.0], [4, 4.0]]]
