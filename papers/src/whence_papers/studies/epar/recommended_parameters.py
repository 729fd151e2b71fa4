"""Do EPAR's parameters have the effects that its source recommends them for: a floor for far evidence, a smaller alpha in noise?

Floor: both forms with the published defaults retrieve a symbol from the farthest quarter. They are trained on 64 positions,
where both can learn it, and also evaluated on four times as many, where the basic factor has nearly vanished and the floor has
not. Noise: three values of alpha on weighted votes of which 30 % are wrong. Tasks, model and seeds are those of the study
``when_it_helps``. The parameters are fixed, as in the source.
"""

from typing import Any

from whence.lab.arms import Arm
from whence.lab.study import Budget, Decision, Study

SEEDS = (0, 1, 2, 3, 4, 5, 6)
MODEL = {"embed_dim": 32, "heads": 2, "layers": 2, "ffn_dim": 64, "dropout": 0.0}
FAR = {"count": 64, "symbols": 4, "kind": "anywhere", "band": "far", "longest": 4, "items": 256}
NOISY = {
    "length": 64, "votes": 15, "run": 2, "questions": 8, "structure": "near", "order": "fixed", "noise": 0.3,
    "longest": 1, "items": 256,
}  # fmt: skip
FORMS = (Arm("EPAR, basic", 'Epar(form="basic")'), Arm("EPAR, enhanced", "Epar()"))
ALPHAS = tuple(Arm(f"alpha {alpha}", f"Epar(alpha={alpha})") for alpha in (1.0, 0.5, 0.25))
COMPARISONS = len(FORMS) - 1 + len(ALPHAS) - 1  # in both studies together


def studies() -> list[Study]:
    return [
        _study("floor", "Does the floor keep far evidence?", "places", FAR, FORMS, (120, 16, 3e-3), "4x"),
        _study("noise", "Is a smaller alpha better in noise?", "votes", NOISY, ALPHAS, (150, 8, 5e-3), "test"),
    ]


def _study(
    name: str,
    question: str,
    task: str,
    settings: dict[str, Any],
    arms: tuple[Arm, ...],
    trained: tuple[int, int, float],
    split: str,
) -> Study:
    steps, batch_size, lr = trained
    return Study(
        name=f"epar-numbers-{name}",
        question=question,
        task=task,
        task_settings=settings,
        model=MODEL,
        arms=arms,
        seeds=SEEDS,
        budget=Budget(
            steps=steps,
            batch_size=batch_size,
            lr=lr,
            warmup_steps=steps // 10,
            schedule="cosine",
            evaluate_every=steps // 2,
        ),
        decision=Decision(split=split, baseline=arms[0].name, comparisons=COMPARISONS),
    )
