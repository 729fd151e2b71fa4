"""Sinusoidal position against ALiBi: part 3 of the speeches assignment, as described and with a padding mask.

AdamW at 1e-4, weight decay 0.1, 100 epochs, ALiBi with slopes times 1.1. The source reports 85.20 % and 87.60 %, one run
of each on 750 sentences: a difference of 18 sentences, which is not significant with one run each.
The scales 0.5, 1 and 2 whose maps the source draws are arms of ``speeches_all``. Training accuracy is computed from the
weights afterwards, for the ledger of claims.
"""

from whence.lab.arms import Arm, parse_arm
from whence.lab.study import Budget, Study
from whence_papers.speeches.studies import build_encoder_study

ARMS = (parse_arm("sinusoidal"), Arm("ALiBi, 1.1", "Alibi(scale=1.1)"))
BUDGET = Budget(
    epochs=100, batch_size=16, lr=1e-4, optimizer="AdamW", weight_decay=0.1, max_grad_norm=None, evaluate_every=10
)
QUESTION = "Does ALiBi tell the presidents apart better than sinusoidal position?"


def studies() -> list[Study]:
    return [build_encoder_study(f"speeches-alibi-{mask}", QUESTION, mask, ARMS, BUDGET) for mask in ("none", "keys")]
