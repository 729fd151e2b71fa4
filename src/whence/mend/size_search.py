"""The search of cures whose sizes are numbers of tokens: sizes in proportion to the prompts, the least loss of the answers.

The published sizes are parts of the trained length. They change nothing in shorter texts, so a search on shorter prompts
tries the same parts of their length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from whence.mend.answer_loss import answer_losses
from whence.mend.cure import Cure, context_length
from whence.mend.scale_channel import spread_prompts
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks.task import Prompt

SAMPLES = 32  # prompts that the search uses

Searched = TypeVar("Searched", bound=Cure)


def reference_length(lm: ProbedModel, prompts: Sequence[Prompt]) -> int:
    """The tokens of the longest prompt, at most the trained length of the model."""
    lengths = map(len, lm.all_tokens([prompt.text for prompt in prompts]))
    return min(max(lengths, default=0) or context_length(lm.model), context_length(lm.model))


def choose_by_loss(lm: ProbedModel, prompts: Sequence[Prompt], candidates: Sequence[Searched]) -> Searched:
    """The cure with which the answers have the least mean cross-entropy; the first of equal ones."""
    chosen, losses = spread_prompts(prompts, SAMPLES), []
    for cure in candidates:
        with cure.apply(lm.model):
            losses.append(float(answer_losses(lm, chosen).mean()))
    return candidates[min(range(len(losses)), key=losses.__getitem__)]
