"""Classification of the speaker: the encoder of the speeches assignment, part 1, as described and with a padding mask.

Four layers of two heads, embed_dim 64, sinusoidal position, mean pooling over all 32 positions, Adam at 1e-3 for 15 epochs.
The source averages over padding too; the second study masks it. It reports 84.93 % on 750 sentences, of one run.
"""

from whence.lab.arms import parse_arm
from whence.lab.study import Budget, Study
from whence_papers.speeches.studies import ADAM, build_encoder_study

ARMS = (parse_arm("sinusoidal"),)
BUDGET = Budget(epochs=15, evaluate_every=1, **ADAM)
QUESTION = "Which president said this sentence?"


def studies() -> list[Study]:
    return [build_encoder_study(f"speeches-encoder-{mask}", QUESTION, mask, ARMS, BUDGET) for mask in ("none", "keys")]
