"""Language modelling: the decoder of the speeches assignment, part 2.

The encoder's layers with a causal mask, sinusoidal position, Adam at 1e-3 for 500 steps of 16 blocks of 32 tokens. The source reports
perplexities of 371, 452 and 399 on the three presidents' test files, of one run.
Its blocks are cut from running text without padding, so a padding mask would change nothing.
"""

from whence.lab.arms import parse_arm
from whence.lab.study import Budget, Study
from whence_papers.speeches.studies import ADAM, build_decoder_study

BUDGET = Budget(steps=500, evaluate_every=100, **ADAM)
QUESTION = "How well does it predict the next word of each president?"


def studies() -> list[Study]:
    return [build_decoder_study("speeches-decoder", QUESTION, (parse_arm("sinusoidal"),), BUDGET)]
