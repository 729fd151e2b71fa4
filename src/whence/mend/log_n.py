"""Log-n temperature: queries of long contexts attend more sharply, by a factor that grows with the logarithm of position.

More keys flatten a softmax. Several models multiply a query by a slowly growing function of its position i, counted from
0: Llama 4 by ``1 + 0.1 ln(1 + floor((i+1) / 8192))``, Ministral 3 by ``1 + 0.1 ln(1 + floor(i / 16384))``, Inkling by
``1 + 0.1 ln(max(1, (i+1) / n0))``. Here the factor is ``max(1, ln(i+1) / ln(trained))`` (Su 2021; Chiang and Cholak 2022,
arXiv 2202.12172), or one of these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.hf.edits import AttentionEdit, EditedCall
from whence.mend.cure import Cure, context_length
from whence.validation import require_choice, require_integer, require_number

FORMS = ("log", "llama4", "ministral3", "inkling")


class LogN(Cure):
    """Multiply the scores of a query by a factor that grows with its position.

    Args:
        trained: the length up to which nothing changes; by default each form's published number, and for ``"log"`` the
            model's context.
        form: ``"log"``, ``"llama4"``, ``"ministral3"`` or ``"inkling"``.
        strength: 0 changes nothing, 1 is the published factor.
    """

    name = "log-n"
    title = "Log-n temperature"
    paper = "Chiang and Cholak 2022, arXiv 2202.12172"

    def __init__(self, trained: int | None = None, form: str = "log", strength: float = 1.0) -> None:
        require_choice("LogN", "form", form, FORMS)
        if trained is not None:
            require_integer("LogN", "trained", trained, low=2, remedy="pass the trained length")
        require_number("LogN", "strength", strength, low=0, remedy="pass 1 for the published factor")
        self.trained, self.form, self.strength = trained, form, float(strength)

    def identity(self) -> LogN:
        return LogN(self.trained, self.form, 0.0)

    def edits(self, model: Any) -> AttentionEdit:
        published = {"llama4": 8192, "ministral3": 16384, "inkling": 8192}
        return LogNEdit(self.trained or published.get(self.form, context_length(model)), self.form, self.strength)


class LogNEdit(AttentionEdit):
    def __init__(self, trained: int, form: str, strength: float) -> None:
        self.trained, self.form, self.strength = trained, form, strength

    def change_scores(self, call: EditedCall, rows: Tensor, scores: Tensor) -> Tensor:
        position = call.q_positions[:, None, rows, None].clamp(min=0)
        factor = query_factor(position.to(scores.dtype), self.trained, self.form)
        return scores * (1 + self.strength * (factor - 1))


def query_factor(position: Tensor, trained: int, form: str = "log") -> Tensor:
    """The factor of queries at these positions, counted from 0.

    >>> query_factor(torch.tensor([8190.0, 8191.0, 131071.0]), 8192, "llama4")
    tensor([1.0000, 1.0693, 1.2833])
    """
    if form == "log":
        return ((position + 1).log() / torch.tensor(float(trained)).log()).clamp(min=1)
    if form == "inkling":
        return 1 + 0.1 * ((position + 1) / trained).clamp(min=1).log()
    count = position + 1 if form == "llama4" else position
    return 1 + 0.1 * (1 + torch.floor(count / trained)).log()
