"""Edits of attention: each hook does what it says, alone and together, and the engine itself changes nothing."""

import sys
import threading
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "mend"))
import cure_checks as checks

from whence import Rotary, WhenceError, hf, mend
from whence.hf.requests import REQUEST


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
@pytest.mark.parametrize("family", checks.ALL_FAMILIES)
def test_edits_follow_caches_padding_and_beams(family, name):
    cure, identity = Applied(EDITS[name]()), Applied(IDENTITIES[name]())
    if family == "gpt2" and name == "positions":
        assert "does not rotate" in refusal(cure, family)
    else:
        checks.check_cure(cure, family, identity=identity, beams=True)


def test_threads_take_turns_and_have_their_own_requests():
    """As in a server: each thread states the documents of its prompt. A thread that streams uses those of its block."""
    model, ids = checks.model_of("llama"), checks.tokens(2, checks.LENGTH)
    prompts, spans, texts = (ids[:1, :12], ids[1:]), ([[(1, 4), (4, 9)]], [checks.DOCUMENTS]), {}

    def answer(name, index, **options):
        texts[name] = model.generate(prompts[index], **checks.GREEDY, **options)

    def request_and_answer(name, index):
        with hf.request(model, documents=spans[index]):
            answer(name, index)

    def start_other(tokens, scores):
        if not other.ident:
            other.start()
            other.join(0.1)
            assert other.is_alive()  # it waits
        return scores

    with mend.ParallelWindows().apply(model), hf.intervene(model, ScaledInput()):
        for index in (0, 1):
            request_and_answer(f"alone {index}", index)
        other = threading.Thread(target=request_and_answer, args=("other", 1))
        with hf.request(model, documents=spans[0]):
            answer("first", 0, logits_processor=[start_other])
            other.join()
            streaming = threading.Thread(target=answer, args=("streamed", 0))
            streaming.start()
            streaming.join()
    assert torch.equal(texts["first"], texts["alone 0"]) and torch.equal(texts["streamed"], texts["alone 0"])
    assert torch.equal(texts["other"], texts["alone 1"]) and REQUEST not in model.__dict__


@pytest.mark.parametrize("documents", [[(0, 5), (5, 10)], [], [[(0, 5, 6)]], "x", 3, [[(0.5, 2)]]], ids=str)
def test_documents_are_spans_for_each_prompt(documents):
    message = (
        r"^hf\.request\(documents=\.\.\.\) got .* for each prompt of the batch; pass \[\[\(start, end\), \.\.\.\]\]"
    )
    with pytest.raises(WhenceError, match=message), hf.request(torch.nn.Linear(1, 1), documents=documents):
        pass


@pytest.mark.parametrize("ends", [[], "x", 3, [2.5]], ids=str)
def test_prompt_ends_are_whole_numbers(ends):
    message = r"^hf\.request\(prompt_ends=\.\.\.\) got .* whole numbers"
    with pytest.raises(WhenceError, match=message), hf.request(torch.nn.Linear(1, 1), prompt_ends=ends):
        pass


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
