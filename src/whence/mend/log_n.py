"""Log-n temperature: queries of long contexts attend more sharply, by a factor that grows with the logarithm of position.

More keys flatten a softmax. The factor is by default ``max(1, ln(i+1) / ln(trained))`` for the query at position i (Su
2021; Chiang and Cholak 2022, arXiv 2202.12172). The forms of Llama 4, Ministral 3 and Inkling are in
``whence.position.log_temperature``, which is the same as a mechanism of a layer.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from whence.hf.edits import AttentionEdit, EditedCall
from whence.mend.cure import Cure, context_length
from whence.position.log_temperature import PUBLISHED_LENGTHS, query_factor
from whence.validation import require_choice, require_integer, require_number


class LogN(Cure):
    """Multiply the scores of a query by a factor that grows with its position.

    Args:
        trained: the length up to which nothing changes; by default each form's published number, and the model's context
            for ``"log"`` and ``"inkling"``, which have none.
        form: ``"log"``, ``"llama4"``, ``"ministral3"`` or ``"inkling"``.
        strength: 0 changes nothing, 1 is the published factor.
    """

    name = "log-n"
    title = "Log-n temperature"
    paper = "Chiang and Cholak 2022, arXiv 2202.12172"

    def __init__(self, trained: int | None = None, form: str = "log", strength: float = 1.0) -> None:
        require_choice("LogN", "form", form, tuple(PUBLISHED_LENGTHS))
        if trained is not None:
            require_integer("LogN", "trained", trained, low=2, remedy="pass the trained length")
        require_number("LogN", "strength", strength, low=0, remedy="pass 1 for the published factor")
        self.trained, self.form, self.strength = trained, form, float(strength)

    def identity(self) -> LogN:
        return LogN(self.trained, self.form, 0.0)

    def edits(self, model: Any) -> AttentionEdit:
        trained = self.trained or PUBLISHED_LENGTHS[self.form] or context_length(model)
        return LogNEdit(trained, self.form, self.strength)


class LogNEdit(AttentionEdit):
    def __init__(self, trained: int, form: str, strength: float) -> None:
        self.trained, self.form, self.strength = trained, form, strength

    def change_scores(self, call: EditedCall, rows: Tensor, scores: Tensor) -> Tensor:
        position = call.q_positions[:, None, rows, None].clamp(min=0)
        factor = query_factor(position.to(scores.dtype), self.trained, self.form)
        return scores * (1 + self.strength * (factor - 1))
