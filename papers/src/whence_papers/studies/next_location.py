"""Next-location prediction: the pointer-generator transformer and its LSTM predecessor on GeoLife.

Arms: the pointer with each of five positions, and the source's ablations (no pointer, no gate, no position-from-end). The
fourth ablation, no bias, is the arm "no position". One arm has neither the bias nor the embedding, because each can
replace the other. The source reports 51.43 % Acc@1 of one run (51.49 without the bias, 49.34 without position-from-end,
27.41 without the pointer). 22.8 % of its test answers are places that do not occur in training, counted as one place; the
report counts with and without them. The feature "days ago" is relative to the day of the target visit, as in the source.

The second study compares the transformer with its predecessor, the LSTM pointer-generator with additive attention, under
the transformer's budget. Coverage does not apply, because a next place is one step.
"""

from whence.lab.arms import Arm
from whence.lab.study import Budget, Decision, Study

SEEDS = (0, 1, 2, 3, 4)
MODEL = {"embed_dim": 64, "heads": 4, "layers": 1, "ffn_dim": 128, "dropout": 0.3}
WITHOUT_FROM_END = {"reads": ["user", "time", "weekday", "duration", "ago"]}
RECENCY = "Recency(max_length=64)"
ARMS = (
    Arm("Recency", RECENCY),
    Arm("no position", "NoPosition()"),
    Arm("ALiBi, learned slope", "Alibi(slope=[0.0625], learnable=True)"),
    Arm("EPAR", "Epar(learnable=True)"),
    Arm("power prior", "PowerPrior(alpha=0.1)"),
    Arm("additive", "NoPosition()", {"pointer": "additive"}),
    Arm("no pointer", "NoPosition()", {"answers": "generate"}),
    Arm("no gate", RECENCY, {"answers": "halves"}),
    Arm("no position-from-end", RECENCY, WITHOUT_FROM_END),
    Arm("neither", "NoPosition()", WITHOUT_FROM_END),
)
PREDECESSOR = "LSTM pointer-generator"
MODELS = (
    Arm(PREDECESSOR, "NoPosition()", {"body": "lstm", "pointer": "additive", "ffn_dim": 64}),
    Arm("Recency", RECENCY),
)
BUDGET = Budget(
    epochs=8, batch_size=128, lr=2e-3, weight_decay=0.015, warmup_steps=58, schedule="cosine", evaluate_every=1, patience=3
)  # fmt: skip


def studies() -> list[Study]:
    return [
        Study(
            name="next-location",
            question="Which position helps a pointer to say where someone goes next?",
            about="GeoLife stays, seven days of history. Each run keeps the weights that did best on the validation days.",
            task="whence_papers.pointer.next_location.task:NextPlaceTask",
            task_settings={"data": "geolife"},
            model=MODEL,
            arms=ARMS,
            seeds=SEEDS,
            budget=BUDGET,
            decision=Decision(baseline="Recency"),
        ),
        Study(
            name="next-place-models",
            question="Does the pointer-generator transformer say better where someone goes next than its LSTM predecessor?",
            about="The same stays, budget and seeds. The settings were chosen for the transformer alone.",
            task="whence_papers.pointer.next_location.task:NextPlaceTask",
            task_settings={"data": "geolife"},
            model=MODEL,
            arms=MODELS,
            seeds=SEEDS,
            budget=BUDGET,
            decision=Decision(baseline=PREDECESSOR),
        ),
    ]
