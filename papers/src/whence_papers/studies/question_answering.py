"""The EPAR source's question answering: SQuAD 2.0 with exact match and F1, in the published and in shuffled order.

The source fine-tunes a pretrained model and reports F1 on SQuAD 2.0; it says that F1 falls by 2.5 % where the order is shuffled.
Here an encoder is trained from scratch, so its F1 is far below; the comparison of positions is the same. Two studies: trained and
scored on contexts as they are, and on contexts with shuffled sentences. Each also scores the other order.

``scale`` is "small" (generated passages, a smoke test, seconds), "cpu" (a part of SQuAD 2.0's development set, about an hour on two
cores, and generated passages of three facts, about another hour for each order), "gpu" (the answerable questions of the development set, split by article, with cloze questions about the training contexts,
because from its 4,702 training questions a model learns only to abstain; and generated passages of six facts) or "source" (the training set, at the
size of the source). A quarter of the questions about generated passages have no answer. ``data`` names other questions in the format of SQuAD: a file, or a folder with train, dev and test.
"""

from typing import Any

from whence.lab.study import Study
from whence_papers.epar.task_studies import SIZES, build_task_study, size_for

#: tasks and settings by scale
SCALES: dict[str, dict[str, dict[str, Any]]] = {
    "small": {"questions": {"passages": 40, "test_passages": 10, "facts": 2, "context": 40}},
    "cpu": {
        "squad": {"train_part": "dev", "context": 160, "words": 8000, "test_questions": 300},
        "questions": {"passages": 10_000, "test_passages": 300, "facts": 3, "context": 48},
    },
    "gpu": {
        "squad": {"train_part": "dev", "context": 256, "words": 10_000, "cloze": 20_000, "unanswerable": False},
        "questions": {"passages": 20_000, "test_passages": 300, "facts": 6, "context": 96},
    },
    "source": {"squad": {"context": 384, "words": 32_000}},
}
#: sizes that differ from those of their scale. On an accelerator: two epochs of about 2,400 questions and 20,000 cloze questions;
#: generated questions are learned with a lower learning rate and more steps, and not at all with those of SQuAD. On two cores:
#: the small model learns generated questions with a higher rate
CHOSEN_SIZES = {
    "cpu": {"questions": size_for("cpu", 20_000, 3.2, lr=2e-3, dropout=0.0)},
    "gpu": {
        "squad": size_for("gpu", 22_400, 2, batch_size=32, lr=1e-3),
        "questions": size_for("gpu", 40_000, 6.4, batch_size=64, lr=3e-4, dropout=0.0),
    },
}
#: settings of the size for another data set
OWN = {
    "small": {"context": 160, "questions": 100, "test_questions": 20},
    "cpu": {"context": 160, "test_questions": 300},
}


def studies(scale: str = "cpu", data: str | None = None) -> list[Study]:
    chosen = SCALES[scale]
    if data:
        chosen = {"squad": {"path": data} | OWN.get(scale, {"context": 384, "words": 32_000})}
    sizes = {task: SIZES[scale] if data else CHOSEN_SIZES.get(scale, {}).get(task, SIZES[scale]) for task in chosen}
    return [
        build_task_study(
            name=f"question-answering-{scale}-{task}-{order}",
            question=f"Does an encoder with EPAR answer questions about {text} better than with the positions its source compares "
            "it with?",
            task=task,
            task_settings=settings | {"order": order},
            size=sizes[task],
            about=sizes[task].describe("questions"),
            split=split,
            metric="token_f1",
        )
        for task, settings in chosen.items()
        for order, split, text in (
            ("original", "test", "passages"),
            ("shuffled", "shuffled", "passages with shuffled sentences"),
        )
    ]  # fmt: skip
