"""Edits of attention: each hook does what it says, alone and together, and the engine itself changes nothing."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "mend"))
import cure_checks as checks

from whence import Rotary, WhenceError, hf


class Applied:
    """An edit as an intervention, as the checks take it."""

    def __init__(self, edit, **options):
        self.edit, self.options = edit, options

    def apply(self, model):
        return hf.intervene(model, self.edit, **self.options)


class Unrotated(hf.AttentionEdit):
    """The model's own positions, by whence's rotation."""

    unrotated = True


class AnsweringRows(hf.AttentionEdit):
    """Uniform weights over what answering rows see."""

    def affected_rows(self, call):
        return call.answering_rows()

    def change_weights(self, call, rows, weights):
        return (weights > 0) / (weights > 0).sum(-1, keepdim=True)


class HalfDistance(hf.AttentionEdit):
    """All distances halved."""

    unrotated = True

    def regions(self, call, rows):
        own = call.own_positions(rows)
        return (hf.Region(own.q_positions / 2, own.k_positions / 2),)


class ScaledInput(hf.AttentionEdit):
    """One channel of the input times a number, for answering rows."""

    def affected_rows(self, call):
        return call.answering_rows()

    def change_input(self, x):
        other = x.clone()
        other[..., 3] *= -2
        return other


EDITS = {"weights": AnsweringRows, "positions": HalfDistance, "input": ScaledInput}


IDENTITIES = {"weights": hf.AttentionEdit, "positions": Unrotated, "input": hf.AttentionEdit}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("family", checks.FAMILIES)
def test_edits_follow_caches_padding_and_beams(family, name):
    cure, identity = Applied(EDITS[name]()), Applied(IDENTITIES[name]())
    if family == "gpt2" and name == "positions":
        assert "does not rotate" in refusal(cure, family)
    else:
        checks.check_cure(cure, family, identity=identity, beams=True)


def refusal(cure, family):
    with pytest.raises(WhenceError) as error, cure.apply(checks.model_of(family)):
        pass
    return str(error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_rotation_that_differs_from_the_config_is_refused(dtype, monkeypatch):
    own = Rotary.frequencies

    def off_by(share):
        monkeypatch.setattr(Rotary, "frequencies", lambda *a, **k: own(*a, **k) * (1 + share))

    model = checks.model_of("llama")
    for parameter in model.parameters():  # model.to(bfloat16) would round the frequencies as well
        parameter.data = parameter.data.to(dtype)
    off_by(1e-7)  # rounding, as between a CPU and a GPU
    with hf.intervene(model, Unrotated()):
        pass
    off_by(1e-2)
    with pytest.raises(WhenceError, match="do not rotate as their config says"), hf.intervene(model, Unrotated()):
        pass
