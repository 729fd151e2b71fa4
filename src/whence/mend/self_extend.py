"""SelfExtend: exact distances near the query, floored ones far from it (Jin et al. 2024, arXiv 2401.01325).

Distances beyond the trained length are unknown to a rotary model. With a window w and groups of g tokens, the query at i
and the key at j are rotated as if their distance were

    i - j                            if i - j < w
    i // g + w - w / g - j // g      otherwise

so that a model of trained length L reaches ``(L - w) g + w`` tokens. w must be a multiple of g; then the second line
continues the first. Inside the trained length the cure shortens distances, which favors tokens far back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from whence.hf.edits import AttentionEdit, EditedCall
from whence.mend.cure import Cure, context_length
from whence.mend.size_search import choose_by_loss, reference_length
from whence.position.log_temperature import query_factor
from whence.position.regions import Region
from whence.position.self_extend_rotary import require_groups, self_extend_regions
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks.task import Prompt
from whence.validation import require_flag, require_integer


class SelfExtend(Cure):
    """Floor the distances beyond a window to multiples of a group size.

    Args:
        group: tokens of a group. 1 changes nothing.
        window: distances below it stay exact; a multiple of ``group``. By default a quarter of the model's context;
            ``search`` tries an eighth, a quarter and half of the longest prompt.
        temperature: multiply the query at i by ``max(1, ln(i+1) / ln trained)``.
        trained: the trained length; the model's context by default. Only ``temperature`` needs it.
    """

    name = "self-extend"
    title = "SelfExtend"
    paper = "Jin et al. 2024, arXiv 2401.01325"

    def __init__(
        self, group: int = 4, window: int | None = None, temperature: bool = False, trained: int | None = None
    ) -> None:
        require_groups("SelfExtend", group, window)
        require_flag("SelfExtend", "temperature", temperature)
        if trained is not None:
            require_integer("SelfExtend", "trained", trained, low=2, remedy="pass the trained length")
        self.group, self.window, self.temperature, self.trained = group, window, temperature, trained

    def identity(self) -> SelfExtend:
        return SelfExtend(1, self.window, False, self.trained)

    def search(self, lm: ProbedModel, prompts: Sequence[Prompt]) -> SelfExtend:
        """The window with the least loss of the answers, if none was given."""
        if self.window is not None:
            return self
        length = reference_length(lm, prompts)
        windows = dict.fromkeys(max(1, length // part // self.group) * self.group for part in (4, 8, 2))
        candidates = [SelfExtend(self.group, window, self.temperature, self.trained) for window in windows]
        return choose_by_loss(lm, prompts, candidates)

    def edits(self, model: Any) -> AttentionEdit:
        trained = self.trained or context_length(model)
        window = self.window or max(1, trained // 4 // self.group) * self.group
        return SelfExtendEdit(self.group, window, trained if self.temperature else None)


class SelfExtendEdit(AttentionEdit):
    unrotated = True

    def __init__(self, group: int, window: int, trained: int | None) -> None:
        self.group, self.window, self.trained = group, window, trained

    def regions(self, call: EditedCall, rows: Tensor) -> tuple[Region, Region]:
        own = call.own_positions(rows)
        i, j = own.q_positions, own.k_positions
        factor = 1.0 if self.trained is None else query_factor(i[..., None].float(), self.trained)
        return self_extend_regions(i, j, self.group, self.window, factor)
