"""Measurements in a pretrained model: planted tables are recovered, and a tiny random model goes through all of them."""

import pytest
import torch

from whence.probe.probed_model import tiny_random_model
from whence.probe.tasks.task import Item, ProbeTask
from whence_papers.ledger import MissingEvidence, pretrained_models
from whence_papers.ledger.evidence import KNOWN_NAMES
from whence_papers.ledger.pretrained_models import PRETRAINED


def colors(count=2):
    others = ("Stone is grey and cold.", "Grass is green and wet.", "Snow is white.")
    items = [
        Item(f"thing {n}", f"Thing {n} is red.", others, ("red",), ("grey", "green", "white")) for n in range(count)
    ]
    return ProbeTask(name="colors", about="Colors.", head="Read.\n", joint="\n", tail="\n\nWhat color is {question}?",
                     lead=" ", label="{number}: ", metric="value", paired=True, items=tuple(items))  # fmt: skip


def planted(interaction, noise, orders=3, questions=40, count=6):
    """Tables of document plus position, with an interaction and noise of these standard deviations."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    table = normal(questions, 1, count, 1) + normal(questions, 1, 1, count) + interaction * normal(questions, 1, count, count)  # fmt: skip
    return table + noise * normal(questions, orders, count, count)


@pytest.mark.parametrize("noise", [0.0, 1.5])
def test_planted_parts_are_recovered_also_under_noise(noise):
    figures = pretrained_models.split_variance(planted(0.0, noise))
    assert figures["explained"] == pytest.approx(1, abs=0.05)
    figures = pretrained_models.split_variance(planted(1.0, noise))
    # 36 cells: document and position have 5 degrees of freedom with variance 6 + 1, the interaction 25 with variance 1
    expected = 2 * 5 * 7 / (2 * 5 * 7 + 25)
    assert figures["explained"] == pytest.approx(expected, abs=0.06)
    assert figures["document_share"] + figures["position_share"] == pytest.approx(figures["explained"])


def test_scales():
    scales = [2.0, 1.0, 0.0, -2.0]
    shares = torch.tensor([[0.8, 0.6, 0.5, 0.3], [0.9, 0.7, 0.55, 0.4]], dtype=torch.float64)
    figures = pretrained_models.describe_scales(shares, scales)
    assert figures["first_half_above_1"] == pytest.approx(0.2) == figures["first_half_above_1_low"]
    assert figures["first_half_below_minus_1"] == pytest.approx(-0.3)
    assert figures["imbalance_between"] == pytest.approx(-0.125) and figures["imbalance_between_high"] > -0.125
    assert figures["first_half"][0] == pytest.approx(0.85)


@pytest.fixture(scope="module")
def lm():
    return tiny_random_model()


def test_arranged_documents(lm):
    prompt = pretrained_models.build_prompts(lm, colors())[1]
    tokens, spans = prompt.arrange([2, 0, 3, 1])
    text = lm.tokenizer.decode(tokens)
    assert text.startswith("Read.\nGrass") and text.endswith("\nWhat color is thing 1?") and "1:" not in text
    assert lm.tokenizer.decode(tokens[slice(*spans[1])]) == "Thing 1 is red.\n"
    orders = pretrained_models.draw_orders(3, 6, 0)
    assert orders[0] == [0, 1, 2] and len({tuple(order) for order in orders}) == 6


def test_attention_of_every_document_at_every_position(lm):
    prompt = pretrained_models.build_prompts(lm, colors())[0]
    table = pretrained_models.document_attention(lm, prompt, 1, seed=5)
    assert table.shape == (1, 4, 4) and bool((table > 0).all())
    figures = pretrained_models.attention_additivity(lm, colors(), orders=2, seed=0)
    assert len(figures["explained_by_question"]) == 2 and "interaction" in figures["words"]


def test_pine_does_not_see_the_order(lm):
    figures = pretrained_models.permuted_documents(lm, colors(), orders=3, seed=0)
    assert figures["largest_change_with_pine"] < 1e-5 < figures["largest_change_with_own_positions"]
    assert figures["largest_change_with_parallel_windows"] < 1e-5 < figures["largest_change_untouched"]


def test_a_scaled_channel(lm, monkeypatch):
    monkeypatch.setattr(pretrained_models.ScaleChannel, "find_channels", lambda self, lm: [3])
    figures = pretrained_models.scaled_channel(lm, colors(), [2.0, 1.0, 0.0, -2.0], texts=1, tokens=8, seed=0)
    assert figures["channel"] == 3 and len(figures["slots"]) == 4 == len(figures["slots"][0])
    assert figures["first_half_above_1"] != 0
    monkeypatch.setattr(pretrained_models.ScaleChannel, "find_channels", lambda self, lm: [])
    with pytest.raises(MissingEvidence, match="monotone"):
        pretrained_models.scaled_channel(lm, colors(), [2.0, 1.0, 0.0, -2.0], texts=1, tokens=8, seed=0)


def test_a_model_that_is_not_there_is_waited_for(tmp_path):
    assert set(PRETRAINED) <= set(KNOWN_NAMES["compute"])
    with pytest.raises(MissingEvidence, match="nowhere"):
        PRETRAINED["attention_additivity"](str(tmp_path / "nowhere"), 4, 40, 2, orders=2, seed=0)
