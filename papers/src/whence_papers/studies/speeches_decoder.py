"""Language modelling: the decoder of the speeches assignment, part 2.

The encoder's layers with a causal mask, sinusoidal position, Adam at 1e-3 for 500 steps of 16 blocks of 32 tokens. The source reports
perplexities of 371, 452 and 399 on the three presidents' test files, of one run.
Its blocks are cut from running text without padding, so a padding mask would change nothing.
"""

from whence.lab.arms import parse_arm
from whence.lab.study import Budget, Decision, Study

SEEDS = (0, 1, 2, 3, 4)
MODEL = {"embed_dim": 64, "heads": 2, "layers": 4, "ffn_dim": 100, "dropout": 0.1}
BUDGET = Budget(
    steps=500, batch_size=16, lr=1e-3, optimizer="Adam", weight_decay=0.0, max_grad_norm=None, evaluate_every=100
)


def studies() -> list[Study]:
    return [
        Study(
            name="speeches-decoder",
            question="How well does it predict the next word of each president?",
            task="speeches_lm",
            model=MODEL,
            arms=(parse_arm("sinusoidal"),),
            seeds=SEEDS,
            budget=BUDGET,
            decision=Decision(baseline="sinusoidal", split="obama"),
        )
    ]
