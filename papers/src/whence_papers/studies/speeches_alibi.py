"""Sinusoidal position against ALiBi: part 3 of the speeches assignment, as described and with a padding mask.

AdamW at 1e-4, weight decay 0.1, 100 epochs, ALiBi with slopes times 1.1. The source reports 85.20 % and 87.60 %, one run
of each on 750 sentences: a difference of 18 sentences, which is not significant with one run each.
The scales 0.5, 1 and 2 whose maps the source draws are arms of ``speeches_all``. Training accuracy is computed from the
weights afterwards, for the ledger of claims.
"""

from whence.lab.arms import Arm, parse_arm
from whence.lab.study import Budget, Decision, Study

SEEDS = (0, 1, 2, 3, 4)
MODEL = {"embed_dim": 64, "heads": 2, "layers": 4, "ffn_dim": 100, "dropout": 0.1}
BUDGET = Budget(
    epochs=100, batch_size=16, lr=1e-4, optimizer="AdamW", weight_decay=0.1, max_grad_norm=None, evaluate_every=10
)


def studies() -> list[Study]:
    return [
        Study(
            name=f"speeches-alibi-{mask}",
            question="Does ALiBi tell the presidents apart better than sinusoidal position?",
            about=f"Padding mask: {mask}. The source has none.",
            task="speeches_classify",
            task_settings={"mask_padding": mask},
            model=MODEL,
            arms=(parse_arm("sinusoidal"), Arm("ALiBi, 1.1", "Alibi(scale=1.1)")),
            seeds=SEEDS,
            budget=BUDGET,
            decision=Decision(baseline="sinusoidal"),
        )
        for mask in ("none", "keys")
    ]
