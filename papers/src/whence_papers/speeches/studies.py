"""What the studies of the speeches assignment share: its model, seeds and optimizer, and the two kinds of study."""

from __future__ import annotations

from typing import Any

from whence.lab.arms import Arm
from whence.lab.study import Budget, Decision, Study

SEEDS = (0, 1, 2, 3, 4)
MODEL: dict[str, Any] = {"embed_dim": 64, "heads": 2, "layers": 4, "ffn_dim": 100, "dropout": 0.1}
#: budget of parts 1 and 2, without its length
ADAM: dict[str, Any] = {
    "batch_size": 16, "lr": 1e-3, "optimizer": "Adam", "weight_decay": 0.0, "max_grad_norm": None,
}  # fmt: skip


def build_encoder_study(
    name: str, question: str, mask: str, arms: tuple[Arm, ...], budget: Budget, training_scores: bool = False
) -> Study:
    """Classify the speaker; ``mask`` is "none", as in the source, or "keys"."""
    return Study(
        name=name,
        question=question,
        about=f"Padding mask: {mask}. The source has none.",
        task="speeches_classify",
        task_settings={"mask_padding": mask} | ({"training_scores": True} if training_scores else {}),
        model=MODEL,
        arms=arms,
        seeds=SEEDS,
        budget=budget,
        decision=Decision(baseline="sinusoidal"),
    )


def build_decoder_study(
    name: str, question: str, arms: tuple[Arm, ...], budget: Budget, training_scores: bool = False
) -> Study:
    """Predict the next word of each president."""
    return Study(
        name=name,
        question=question,
        task="speeches_lm",
        task_settings={"training_scores": True} if training_scores else {},
        model=MODEL,
        arms=arms,
        seeds=SEEDS,
        budget=budget,
        decision=Decision(baseline="sinusoidal", split="obama"),
    )
