"""Log-n temperature: queries of long contexts attend more sharply, by a factor that grows with the logarithm of position.

More keys flatten a softmax. The factor is by default ``max(1, ln(i+1) / ln(trained))`` for the query at position i (Su
2021; Chiang and Cholak 2022, arXiv 2202.12172). The forms of Llama 4, Ministral 3 and Inkling are in
``whence.position.log_temperature``, which is the same as a mechanism of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from whence.hf.edits import AttentionEdit, EditedCall
from whence.mend.cure import Cure, context_length
from whence.mend.size_search import choose_by_loss
from whence.position.log_temperature import PUBLISHED_LENGTHS, query_factor
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks.task import Prompt
from whence.validation import require_choice, require_integer, require_number


class LogN(Cure):
    """Multiply the scores of a query by a factor that grows with its position.

    Args:
        trained: the length up to which nothing changes; by default each form's published number, and the model's context
            for ``"log"`` and ``"inkling"``, which have none. ``search`` tries a half, a quarter and an eighth of the longest
            prompt.
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

    def search(self, lm: ProbedModel, prompts: Sequence[Prompt]) -> LogN:
        """The trained length with the least loss of the answers, if none was given and no prompt exceeds the default.

        In prompts within the trained length the published factor is 1, so the cure would change nothing.
        """
        longest = max(map(len, lm.all_tokens([prompt.text for prompt in prompts])), default=0)
        if self.trained is not None or not 0 < longest <= self._default_length(lm.model):
            return self
        lengths = dict.fromkeys(max(2, longest // part) for part in (2, 4, 8))
        return choose_by_loss(lm, prompts, [type(self)(one, self.form, self.strength) for one in lengths])

    def _default_length(self, model: Any) -> int:
        return PUBLISHED_LENGTHS[self.form] or context_length(model)

    def edits(self, model: Any) -> AttentionEdit:
        return LogNEdit(self.trained or self._default_length(model), self.form, self.strength)


class LogNEdit(AttentionEdit):
    def __init__(self, trained: int, form: str, strength: float) -> None:
        self.trained, self.form, self.strength = trained, form, strength

    def change_scores(self, call: EditedCall, rows: Tensor, scores: Tensor) -> Tensor:
        position = call.q_positions[:, None, rows, None].clamp(min=0)
        factor = query_factor(position.to(scores.dtype), self.trained, self.form)
        return scores * (1 + self.strength * (factor - 1))
