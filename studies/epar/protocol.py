"""The EPAR source's protocol at a scale that fits the machine: its baselines, its seeds, its correction.

The source trains about 110 million parameters (12 layers of 768, 12 heads), seeds 42 to 46, against rotary, ALiBi, Shaw
and Transformer-XL, with Bonferroni's correction at 0.01. ``scale`` is "cpu" (minutes on two cores), "gpu" (minutes on one
large accelerator) or "source" (its own size). Text is read as bytes or words, and the budget is the same for all arms.
"""

from typing import Any

from whence.lab.arms import Arm, arm
from whence.lab.study import Budget, Decision, Study

SEEDS = (42, 43, 44, 45, 46)
ARMS = (
    arm("rotary"),
    arm("none"),
    arm("alibi"),
    arm("shaw"),
    arm("xl"),
    Arm("EPAR, basic", 'Epar(form="basic")'),
    Arm("EPAR, enhanced", "Epar()"),
)
SCALES: dict[str, dict[str, Any]] = {
    "cpu": {
        "model": {"width": 64, "heads": 4, "layers": 2, "hidden": 128, "dropout": 0.0},
        "context": 64,
        "characters": 2_000_000,
        "budget": {"steps": 300, "batch": 16, "rate": 2e-3, "warmup": 30, "schedule": "cosine"},
    },
    "gpu": {
        "model": {"width": 384, "heads": 6, "layers": 6, "hidden": 1536, "dropout": 0.0},
        "context": 512,
        "characters": 40_000_000,
        "budget": {"steps": 1000, "batch": 32, "rate": 1e-3, "warmup": 100, "schedule": "cosine", "precision": "bf16"},
    },
    "source": {
        "model": {"width": 768, "heads": 12, "layers": 12, "hidden": 3072, "dropout": 0.1},
        "context": 1024,
        "characters": None,
        "budget": {"steps": 50_000, "batch": 32, "rate": 3e-4, "warmup": 1000, "schedule": "cosine", "precision": "bf16"},
    },
}  # fmt: skip


def studies(scale: str = "cpu") -> list[Study]:
    size = SCALES[scale]
    texts = {
        "books": {"context": size["context"], "characters": size["characters"]},
        "wikitext2": {
            "context": size["context"],
            "train_part": "valid",
        },  # its training part is not to be had everywhere
    }
    return [
        Study(
            name=f"epar-protocol-{scale}-{task}",
            question="Does EPAR predict text better than the positions its source compares it with?",
            task=task,
            task_settings=settings,
            model=size["model"],
            arms=ARMS,
            seeds=SEEDS,
            budget=Budget(**size["budget"]),
            decision=Decision(baseline="rotary", alpha=0.01),
        )
        for task, settings in texts.items()
    ]
