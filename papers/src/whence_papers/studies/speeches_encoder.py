"""Classification of the speaker: the encoder of the speeches assignment, part 1, as described and with a padding mask.

Four layers of two heads, embed_dim 64, sinusoidal position, mean pooling over all 32 positions, Adam at 1e-3 for 15 epochs.
The source averages over padding too; the second study masks it. It reports 84.93 % on 750 sentences, of one run.
"""

from whence.lab.arms import parse_arm
from whence.lab.study import Budget, Decision, Study

SEEDS = (0, 1, 2, 3, 4)
MODEL = {"embed_dim": 64, "heads": 2, "layers": 4, "ffn_dim": 100, "dropout": 0.1}
BUDGET = Budget(
    epochs=15, batch_size=16, lr=1e-3, optimizer="Adam", weight_decay=0.0, max_grad_norm=None, evaluate_every=1
)


def studies() -> list[Study]:
    return [
        Study(
            name=f"speeches-encoder-{mask}",
            question="Which president said this sentence?",
            about=f"Padding mask: {mask}. The source has none.",
            task="speeches_classify",
            task_settings={"mask_padding": mask},
            model=MODEL,
            arms=(parse_arm("sinusoidal"),),
            seeds=SEEDS,
            budget=BUDGET,
            decision=Decision(baseline="sinusoidal"),
        )
        for mask in ("none", "keys")
    ]
