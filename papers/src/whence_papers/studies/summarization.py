"""The EPAR source's summarization: an encoder-decoder with the positions of its protocol, scored with ROUGE.

The source reports ROUGE-L on papers of arXiv, whose texts are long. Here a model is trained from scratch, and without the papers on
the few published meetings of QMSum's validation part: its ROUGE-L is that of fluent openings, far below the source's. The
comparison of positions is the same.

``scale`` is "small" (generated reports, a smoke test, seconds), "cpu" (QMSum's validation part, split by meeting), "gpu" (the same, and
generated reports of eight sentences, because the 216 texts of QMSum teach openings alone) or "source" (arXiv at the size of the source). ``data`` names papers in the format of arXiv: a file, or a folder with train, val and
test. ``whence compare --data FILE --source-column ... --target-column ... --summaries 100 --metric rougeL`` takes any other table.
"""

from typing import Any

from whence.lab.study import Study
from whence_papers.epar.task_studies import SIZES, build_task_study, size_for

#: tasks and settings by scale
SCALES: dict[str, dict[str, dict[str, Any]]] = {
    "small": {"reports": {"reports": 40, "test_reports": 4, "sentences": 3, "context": 32, "summaries": 4}},
    "cpu": {"qmsum": {"train_part": "val", "context": 256, "target_context": 64, "words": 6000, "summaries": 20}},
    "gpu": {
        "qmsum": {"train_part": "val", "context": 512, "target_context": 96, "words": 8000, "summaries": 30},
        "reports": {"reports": 10_000, "test_reports": 500, "sentences": 8, "context": 64, "summaries": 500},
    },
    "source": {
        "arxiv": {"context": 4096, "target_context": 256, "words": 32_000, "summaries": 1000, "test_texts": 1000, "num_beams": 4}
    },
}  # fmt: skip
#: sizes for one large accelerator: 30 epochs of the 216 texts of QMSum, ten of the reports
GPU = {
    "qmsum": size_for("gpu", 216, 30, batch_size=16, dropout=0.2),
    "reports": size_for("gpu", 10_000, 10, batch_size=64, lr=1e-3),
}
#: settings of the papers of ``data``
OWN = {
    "small": {"context": 64, "target_context": 16, "texts": 100, "test_texts": 4, "summaries": 4},
    "cpu": {"context": 256, "target_context": 64, "test_texts": 50, "summaries": 50},
    "gpu": {"context": 1024, "target_context": 128, "test_texts": 200, "summaries": 200, "num_beams": 4},
}


def studies(scale: str = "cpu", data: str | None = None) -> list[Study]:
    chosen = SCALES[scale]
    if data:
        chosen = {"arxiv": {"path": data} | OWN.get(scale, SCALES["source"]["arxiv"])}
    sizes = {task: GPU[task] if scale == "gpu" and not data else SIZES[scale] for task in chosen}
    return [
        build_task_study(
            name=f"summarization-{scale}-{task}",
            question="Does an encoder-decoder with EPAR summarize better than with the positions its source compares it with?",
            task=task,
            task_settings=settings,
            size=sizes[task],
            about=f"In each stack {sizes[task].describe('texts')}",
            metric="rougeL",
        )
        for task, settings in chosen.items()
    ]
