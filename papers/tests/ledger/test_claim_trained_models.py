"""What trained weights say: measured again from a tiny study, and compared when it is read."""

import pytest
import torch
from made_up_records import ARMS, write_records

from whence.lab import checkpoints, tasks
from whence.lab.data.tokenizers import WordTokenizer
from whence.lab.study import Budget, Decision, Study
from whence.lab.study_folder import weights_path
from whence.lab.study_task import build_model
from whence.lab.tasks.classification import Classification, Items
from whence_papers.ledger import LedgerFolders, MissingEvidence
from whence_papers.ledger.trained_models import COMPARISONS, MEASUREMENTS


class Tiny(Classification):
    """Forty short texts of three kinds, most of them padded."""

    name = "tiny"

    def __init__(self):
        drawn = torch.Generator().manual_seed(0)
        texts = [torch.randint(2, 9, (2 + n % 5,), generator=drawn).tolist() for n in range(40)]
        items = Items.from_texts(texts, [n % 3 for n in range(40)], 6)
        super().__init__(items, {"test": items}, WordTokenizer(list("abcdefg")), 3, "none", {})


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A study with weights of three seeds, as the runner leaves them, on a tiny task in the place of the speeches."""
    spec = Study(
        name="tiny", question="made up", task="speeches_classify", arms=ARMS, seeds=(0, 1, 2), budget=Budget(steps=1),
        decision=Decision(baseline="sinusoidal"), model={"embed_dim": 16, "heads": 2, "layers": 2, "ffn_dim": 16},
    )  # fmt: skip
    folder = write_records(tmp_path, spec, {arm.name: [0.5] * 3 for arm in ARMS})
    task = Tiny()
    monkeypatch.setattr(tasks, "load", lambda name, **settings: task)
    for run in spec.runs():
        checkpoints.save_weights(weights_path(run, folder), build_model(run, task))
    return LedgerFolders(results=tmp_path), spec, folder, task


def test_what_trained_weights_say(trained):
    folders, spec, folder, task = trained
    judgement = MEASUREMENTS["training_scores"](folders, "tiny", "sinusoidal", "accuracy", "test")
    model = build_model(spec.runs()[0], task).eval()
    right = total = 0
    for batch in task.epoch(16, torch.Generator().manual_seed(3)):  # another order, one batch after the other
        with torch.no_grad():
            right += int((model(batch.tokens, key_mask=batch.key_mask).argmax(-1) == batch.targets).sum())
        total += len(batch.targets)
    assert judgement["training"][0] == pytest.approx(100 * right / total) and len(judgement["training_minus_test"]) == 3
    judgement = MEASUREMENTS["attention_reach"](folders, "tiny", "ALiBi, 1.1", "sinusoidal")
    assert len(judgement["tokens_away"]) == len(judgement["tokens_away_of_baseline"]) == 3
    judgement = MEASUREMENTS["deeper_looks_farther"](folders, "tiny", "sinusoidal", 1, 2)
    assert len(judgement["upper_layer"]) == 3
    weights_path(spec.runs()[0], folder).unlink()
    with pytest.raises(MissingEvidence, match="the weights of 1 of 3 seeds of tiny, sinusoidal"):
        MEASUREMENTS["training_scores"](folders, "tiny", "sinusoidal", "accuracy", "test")


def test_measured_values_are_compared_when_they_are_read():
    far, near = [7.2, 7.1, 7.3, 7.2, 7.0], [6.3, 6.25, 6.3, 6.3, 6.1]
    figures = {"tokens_away": near, "tokens_away_of_baseline": far}
    assert COMPARISONS["attention_reach"](figures, study="s", arm="a", baseline="b")["direction"] == 1
    assert COMPARISONS["attention_reach"](figures, study="s", arm="a", baseline="b")["gain"] == pytest.approx(0.91)
    figures = {"tokens_away": far, "tokens_away_of_baseline": near}
    assert COMPARISONS["attention_reach"](figures, study="s", arm="a", baseline="b")["direction"] == -1
    layers = {"lower_layer": near, "upper_layer": far}
    assert COMPARISONS["deeper_looks_farther"](layers, study="s", lower=3, upper=4)["direction"] == 1
    assert COMPARISONS["deeper_looks_farther"](layers | {"upper_layer": near}, study="s")["direction"] == 0


def test_attention_to_padding_by_hand(trained, monkeypatch):
    folders, _, _, task = trained
    from whence_papers.ledger import trained_models as module

    batch = task.evaluation("test")[0].tokens[:64]
    spread = torch.full((2, len(batch), 2, batch.shape[1], batch.shape[1]), 1 / batch.shape[1])
    monkeypatch.setattr(module, "attention_maps", lambda model, tokens: spread)
    judgement = MEASUREMENTS["padding_attention"](folders, "tiny", "sinusoidal")
    assert judgement["attention_over_uniform"] == pytest.approx([1.0] * 3)  # blind attention gives padding its share
    assert (
        judgement["padding_share"] == pytest.approx(float((batch == 0).float().mean()))
        and judgement["padding_share"] > 0.2
    )
    real = (batch != 0).float()[:, None, :]
    seeing = spread[0, :, 0] * real
    monkeypatch.setattr(module, "attention_maps", lambda model, tokens: (seeing / seeing.sum(-1, True))[None, :, None])
    assert MEASUREMENTS["padding_attention"](folders, "tiny", "sinusoidal")["attention_over_uniform"] == [0.0] * 3
