"""Next-location prediction: the pointer-generator transformer and its LSTM predecessor on GeoLife.

The first study has the two forms of the question. In the source the model knows the day of the next visit, because the feature
"days ago" is relative to it. A prediction does not know it. The arm "day known" is the source's form and "day unknown" the
one that ``whence predict`` can deliver. Both are scored as trained (split test) and as delivered (split delivered), and
the second decides. ``whence run next_location --visits my.csv`` trains these two arms on other visits.

The second study has the arms of the source: the pointer with each of five positions, and its ablations (no pointer, no gate,
no position-from-end). The fourth ablation, no bias, is the arm "no position". One arm has neither the bias nor the embedding,
because each can replace the other. The source reports 51.43 % Acc@1 of one run (51.49 without the bias, 49.34 without
position-from-end, 27.41 without the pointer). 22.8 % of its test answers are places that do not occur in training, counted as
one place; the report counts with and without them. All arms know the day of the next visit, as in the source.

The third study compares the transformer with its predecessor, the LSTM pointer-generator with additive attention, under
the transformer's budget. Coverage does not apply, because a next place is one step.

The fourth study has the model with one layer, as above, and with two, as the full model of the source's repository has. The
repository reports 53.97 % Acc@1 with two layers and 51.06 with one.

``whence run next_location --data foursquare`` trains both forms on Foursquare check-ins, on which no setting was chosen. The
model and the budget are those of GeoLife, except for the epochs: 3 there are 2.5 times as many steps as 8 on GeoLife. A run
takes minutes on a CPU.
"""

from dataclasses import replace
from pathlib import Path

from whence.errors import usage_error
from whence.lab.arms import Arm
from whence.lab.data.tables import hash_data
from whence.lab.study import Budget, Decision, Study
from whence_papers.pointer.next_location.visits import read_visits

TASK = "whence_papers.pointer.next_location.task:NextPlaceTask"
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
LAYERS = (Arm("one layer", RECENCY), Arm("two layers", RECENCY, {"layers": 2}))
BUDGET = Budget(
    epochs=8, batch_size=128, lr=2e-3, weight_decay=0.015, warmup_steps=58, schedule="cosine", evaluate_every=1, patience=3
)  # fmt: skip


DATA = ("geolife", "foursquare")


def studies(visits: str | None = None, data: str | None = None) -> list[Study]:
    """The four studies on GeoLife, or the first one on other visits: a CSV file or Foursquare check-ins."""
    if data is not None and visits is not None:
        raise usage_error("--data", f"{data} with --visits {visits}", "both name the visits", "leave one out")
    if data is not None and data not in DATA:
        raise usage_error("--data", repr(data), f"it is {' or '.join(DATA)}", "pass one of them, or --visits my.csv")
    if data == "foursquare":
        budget = replace(BUDGET, epochs=3)
        return [_forms({"data": data}, False, "next-location-forms-foursquare", budget)]
    if visits is not None:
        with_duration = any(visit.duration for visit in read_visits(Path(visits), "--visits"))
        return [_forms({"data": visits, "sha256": hash_data(Path(visits))}, with_duration)]
    return [
        _forms({"data": "geolife"}, with_duration=True),
        _ablation(
            "next-location",
            "Which position helps a pointer to say where someone goes next?",
            "GeoLife stays, seven days of history, the day of the next visit known. Each run keeps the weights that did "
            "best on the validation days.",
            ARMS,
        ),
        _ablation(
            "next-place-models",
            "Does the pointer-generator transformer say better where someone goes next than its LSTM predecessor?",
            "The same stays, budget and seeds, the day of the next visit known. The settings were chosen for the "
            "transformer alone.",
            MODELS,
        ),
        _ablation(
            "next-location-layers",
            "Does a second layer help to say where someone goes next?",
            "The same stays, budget and seeds, the day of the next visit known. The settings were chosen for one layer.",
            LAYERS,
        ),
    ]


def _ablation(name: str, question: str, about: str, arms: tuple[Arm, ...]) -> Study:
    """Arms on GeoLife in the source's form, against the first of them."""
    return Study(
        name=name, question=question, about=about, task=TASK, task_settings={"data": "geolife"}, model=MODEL, arms=arms,
        seeds=SEEDS, budget=BUDGET, decision=Decision(baseline=arms[0].name),
    )  # fmt: skip


def _forms(
    data: dict[str, str], with_duration: bool, name: str = "next-location-forms", budget: Budget = BUDGET
) -> Study:
    """Both forms of the question on the same visits."""
    others = ["user", "time", "weekday", *(["duration"] if with_duration else []), "from_end"]
    return Study(
        name=name,
        question="Where does someone go next, if the day of the next visit is not known?",
        about="Seven days of history before the last visit. Test: each arm as trained. Delivered: without the day of the next "
        "visit, as whence predict has it. Each run keeps the weights that did best on the validation days.",
        task=TASK,
        task_settings=data | {"window": "last"},
        model=MODEL,
        arms=(
            Arm("day known", RECENCY, {"reads": [*others, "ago"]}),
            Arm("day unknown", RECENCY, {"reads": [*others, "before_last"]}),
        ),
        seeds=SEEDS,
        budget=budget,
        decision=Decision(baseline="day known", split="delivered"),
    )
