"""The EPAR source's language modelling with position vectors too: perplexity with the nine arms.

``epar/protocol`` has the seven arms without position vectors, at lengths beyond the trained one. Learned vectors end at the trained
length, so this study is scored there alone.

``scale`` is "small" (Python's help topics as bytes, a smoke test, seconds), "cpu" or "gpu" (bytes of books, whose own training part
trains; and WikiText-2, whose validation part trains, because its training part is not available everywhere) or "source" (WikiText-103,
whose training part trains, at the size of the source). ``data`` names other text: a file, or a folder with train and test.
"""

from typing import Any

from whence.lab.study import Study
from whence_papers.epar.task_studies import SIZES, build_task_study, size_for

#: tasks and settings by scale; the name of a study says which part trains
SCALES: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "small": {"topics": ("topics", {"context": 16, "blocks": 8})},
    "cpu": {
        "books": ("books", {"context": 64, "blocks": 128, "characters": 2_000_000}),
        "wikitext2-valid": ("wikitext2", {"context": 64, "blocks": 128, "train_part": "valid", "words": 4000}),
    },
    "gpu": {
        "books": ("books", {"context": 256, "blocks": 256, "characters": 20_000_000}),
        "wikitext2-valid": ("wikitext2", {"context": 128, "blocks": 512, "train_part": "valid", "words": 8000}),
    },
    "source": {"wikitext103": ("wikitext103", {"context": 1024, "blocks": 512, "words": 32_000})},
}
CONTEXTS = {"small": 16, "cpu": 64, "gpu": 256, "source": 1024}
#: sizes for one large accelerator: 0.8 epochs of 20 million bytes, and 12 epochs of 217,646 words, where dropout is needed
GPU = {
    "books": size_for("gpu", 20_000_000 // 256, 0.8, layers=3, batch_size=32, dropout=0.0, lr=1e-3),
    "wikitext2-valid": size_for("gpu", 217_646 // 128, 12, layers=3, batch_size=64, dropout=0.2, lr=1e-3),
}


def studies(scale: str = "cpu", data: str | None = None) -> list[Study]:
    texts = {"text": ("text_file", {"path": data, "context": CONTEXTS[scale]})} if data else SCALES[scale]
    sizes = {name: GPU.get(name, SIZES["gpu"]) if scale == "gpu" else SIZES[scale] for name in texts}
    return [
        build_task_study(
            name=f"language-modelling-{scale}-{name}",
            question="Does EPAR predict text better than the positions its source compares it with, also beside position vectors?",
            task=task,
            task_settings=settings | {"lengths": [1]},
            size=sizes[name],
            about=sizes[name].describe(f"windows of {settings['context']} tokens"),
        )
        for name, (task, settings) in texts.items()
    ]
