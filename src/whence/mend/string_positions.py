"""STRING, shifted rotary positions: far keys use the well-trained small distances again (An et al. 2024, arXiv 2410.18745).

Large distances are rare in training, so a model knows them less well. With a shift S and a window W, the query at i and the
key at j are rotated as if their distance were

    i - j              if i - j < S
    i - j - S + W      otherwise

The published S is 0.33 of the trained length (0.25 to 0.4), and W is 128 (up to 512). W = S changes nothing.

The published code counts the key at distance S twice while it reads a prompt, as if at S and as if at W, and once while it
decodes. Here it counts once, unless ``compat="official"`` asks for the published code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.hf.edits import AttentionEdit, EditedCall, multiply
from whence.hf.rotary_config import rotate_at
from whence.mend.cure import Cure, context_length
from whence.mend.size_search import choose_by_loss, reference_length
from whence.position.regions import Region
from whence.position.string_rotary import require_order, string_regions
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks.task import Prompt
from whence.validation import require_choice, require_flag, require_integer

FACTOR = (1 + 0.1 * math.log(2)) ** 2  # 1.1434


class StringPositions(Cure):
    """Shift the distances from ``shift`` on down to ``window`` and above.

    Args:
        shift: S, the first distance that is shifted; 0.33 of the model's context by default. ``search`` tries 0.25, 0.33
            and 0.4 of the longest prompt, with a window of at most half of it.
        window: W, the distance that S becomes; at most ``shift``. By default 128, or ``shift`` if that is less.
        temperature: multiply all scores by ``(1 + 0.1 ln 2)**2``, about 1.1434, as the published code does at any length.
        compat: ``"official"`` counts the key at distance S twice in rows of the prompt, as the published code does.
    """

    name = "string"
    title = "STRING"
    paper = "An et al. 2024, arXiv 2410.18745"

    def __init__(
        self, shift: int | None = None, window: int | None = None, temperature: bool = True, compat: str = "paper"
    ) -> None:
        for name, value in (("shift", shift), ("window", window)):
            if value is not None:
                require_integer("StringPositions", name, value, remedy="pass a number of tokens")
        require_flag("StringPositions", "temperature", temperature)
        if shift is not None and window is not None:
            require_order("StringPositions", shift, window)
        require_choice("StringPositions", "compat", compat, ("paper", "official"))
        self.shift, self.window, self.temperature, self.compat = shift, window, temperature, compat

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments; ``compat`` only if it is not the default, which earlier records do not name."""
        return {name: value for name, value in super().settings().items() if (name, value) != ("compat", "paper")}

    def identity(self) -> StringPositions:
        shift = self.shift or 1
        return StringPositions(shift, shift, False)

    def search(self, lm: ProbedModel, prompts: Sequence[Prompt]) -> StringPositions:
        """The shift with the least loss of the answers, if none was given."""
        if self.shift is not None:
            return self
        length = reference_length(lm, prompts)
        shifts = dict.fromkeys(max(2, int(part * length)) for part in (0.33, 0.25, 0.4))
        window = 128 if self.window is None else self.window
        candidates = [
            StringPositions(shift, min(window, shift // 2), self.temperature, self.compat) for shift in shifts
        ]
        return choose_by_loss(lm, prompts, candidates)

    def edits(self, model: Any) -> AttentionEdit:
        shift = self.shift or max(1, int(0.33 * context_length(model)))
        window = min(128, shift) if self.window is None else self.window
        require_order("StringPositions", shift, window)
        kind = TwiceAtTheShift if self.compat == "official" else StringEdit
        return kind(shift, window, FACTOR if self.temperature else 1.0)


class StringEdit(AttentionEdit):
    unrotated = True

    def __init__(self, shift: int, window: int, factor: float) -> None:
        self.shift, self.window, self.factor = shift, window, factor

    def regions(self, call: EditedCall, rows: Tensor) -> tuple[Region, Region]:
        own = call.own_positions(rows)
        return string_regions(own.q_positions, own.k_positions, self.shift, self.window, self.factor)


class TwiceAtTheShift(StringEdit):
    """The published code: in rows of the prompt the key at distance S has the sum of the weights at S and at W."""

    def change_scores(self, call: EditedCall, rows: Tensor, scores: Tensor) -> Tensor:
        assert call.rotary is not None
        own = call.own_positions(rows)
        distance = own.q_positions[..., None] - own.k_positions[..., None, :]
        reads = (call.q_positions < call.prompt_ends)[:, None, rows, None]
        near = multiply(
            rotate_at(call.rotary, call.q[:, :, rows], own.q_positions), rotate_at(call.rotary, call.k, own.k_positions)
        )
        near = near * self.factor * call.scale
        if call.softcap is not None:
            near = call.softcap * torch.tanh(near / call.softcap)
        return torch.where((distance == self.shift) & reads, torch.logaddexp(scores, near), scores)
