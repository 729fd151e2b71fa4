"""The EPAR source's GLUE: an encoder with the positions of its protocol, with each task's own metric.

The source fine-tunes a pretrained model and reports the accuracy. Here an encoder is trained from scratch, so its scores are below;
the comparison of positions is the same.

``scale`` is "small" (generated paraphrases, a smoke test, seconds), "cpu" (a part of the training data), "gpu" (all of it; minutes on
one large accelerator with parallel runs) or "source" (the same at the size of the source). ``subset`` is a task of GLUE (sst2, cola,
mrpc, qqp, stsb, mnli, qnli, rte, wnli), read from the folder of WHENCE_DATA or from the folder ``data``.
"""

from typing import Any

from whence.lab.study import Study
from whence_papers.epar.task_studies import SIZES, build_task_study, size_for

#: task and settings by scale
SCALES: dict[str, tuple[str, dict[str, Any]]] = {
    "small": ("paraphrases", {"pairs": 100, "test_pairs": 20}),
    "cpu": ("glue", {"context": 48, "words": 8000, "items": 20_000}),
    "gpu": ("glue", {"context": 64, "words": 12_000}),
    "source": ("glue", {"context": 128, "words": 32_000}),
}
#: training items of the tasks, as published
ITEMS = {
    "sst2": 67_349, "cola": 8551, "mrpc": 3668, "qqp": 363_846, "stsb": 5749, "mnli": 392_702, "qnli": 104_743, "rte": 2490,
    "wnli": 635,
}  # fmt: skip


def studies(scale: str = "cpu", subset: str | None = None, data: str | None = None) -> list[Study]:
    task, settings = SCALES[scale]
    if task != "glue" and (subset or data):
        task, settings = "glue", {"context": 32, "items": 200, "test_items": 50}
    if task == "glue":
        settings = settings | {"subset": subset or "sst2"} | ({"path": data} if data else {})
    name = settings.get("subset", task)
    size = SIZES[scale]
    if scale == "gpu":  # four passes, or fewer over the two tasks that are far larger
        items = ITEMS.get(name, 10_000)
        size = size_for("gpu", items, 4 if items < 100_000 else 1, batch_size=128)
    return [
        build_task_study(
            name=f"glue-{scale}-{name}",
            question=f"Does an encoder with EPAR do better on {name} than with the positions its source compares it with?",
            task=task,
            task_settings=settings,
            size=size,
            about=size.describe("texts"),
            split="dev" if task == "glue" else "test",
        )
    ]
