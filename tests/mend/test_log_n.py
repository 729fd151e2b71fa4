"""Log-n temperature: the published numbers, and the checks of every cure."""

import cure_checks as checks
import pytest
import torch

from whence import WhenceError
from whence.mend.answer_loss import answer_losses
from whence.mend.log_n import LogN, query_factor
from whence.probe import tiny_random_model
from whence.probe.tasks import build_task


def test_published_factors():
    def factor(form, trained, *positions):
        return [round(float(query_factor(torch.tensor(float(p)), trained, form)), 4) for p in positions]

    assert factor("llama4", 8192, 8190, 8191, 131071) == [1, 1.0693, 1.2833]
    assert factor("ministral3", 16384, 16383, 16384) == [1, 1.0693]
    assert factor("inkling", 8192, 16383, 131071) == [1.0693, 1.2773]
    assert factor("log", 1024, 1022, 1024**2 - 1) == [1, 2]


@pytest.mark.parametrize("family", checks.FAMILIES)
def test_every_check(family):
    checks.check_cure(LogN(trained=4), family, identity=LogN(trained=4, strength=0))


def test_the_search_takes_the_length_with_the_least_loss():
    lm = tiny_random_model()
    task = build_task("key-value", 2, pairs=3)
    prompts = [task.prompt(item, 0) for item in task.items]
    longest = max(len(lm.tokens(prompt.text)) for prompt in prompts)
    losses = {}
    for trained in (longest // 2, longest // 4, longest // 8):
        with LogN(trained, "inkling").apply(lm.model):
            losses[trained] = float(answer_losses(lm, prompts).mean())
    assert len(set(losses.values())) == 3
    assert (
        LogN(form="inkling").search(lm, prompts).settings() == LogN(min(losses, key=losses.get), "inkling").settings()
    )
    given = LogN(trained=7)
    assert given.search(lm, prompts) is given
    lm.model.config.max_position_embeddings = longest - 1  # the published setting changes such prompts
    assert LogN().search(lm, prompts).trained is None


def test_bad_settings():
    with pytest.raises(WhenceError, match="form"):
        LogN(form="cube")
    with pytest.raises(WhenceError, match="trained"):
        LogN(trained=1)
