"""The learnable prior in a Qwen-style model: with rotary position and without, from the start of its source and from a wider one.

The source proposes phi(d) = -|alpha d|^beta with alpha = beta = 1 at the start, and trains neither. It names a Qwen-style model of
134M parameters, 640 steps of 4.2M tokens of FineWeb, and a validation loss of 4.93. Here every head has its own alpha and beta. The
wider start is alpha = 0.1. Weight decay acts on matrices alone, so it never pulls alpha and beta.

There are two studies. ``prior-SCALE`` has every arm with paired seeds, for the verdict; ``prior-SCALE-134m`` has the two main arms once
in the preset of 134M parameters. At the scale "small" the second is ``prior-small-main``, whose model is as small as that of the first.
Both are scored at 1 to 16 times the trained length on the same tokens.

``scale`` is "small" (a smoke test on Python's help topics, seconds, no data), "cpu" (books, small models, some hours on two cores), "gpu"
(books, the presets qwen3-20m and qwen3-134m, about half an hour on one large accelerator) or "source" (FineWeb at the size of the
source, days). Books are read from the folder of WHENCE_DATA and FineWeb is streamed; both are tokenised once into ``tokens/``.
``--tokens FOLDER`` trains on a folder of ``whence tokenize`` instead. ``python -m whence_papers.prior results`` draws the figure.
"""

from dataclasses import dataclass, field
from typing import Any

from whence.lab.arms import Arm
from whence.lab.study import Budget, Decision, Study
from whence.models.presets import PRESETS, QWEN3_VOCABULARY

#: the position of Qwen3
ROTARY = "Rotary(base=1000000)"
PRINTED, WIDE = "PowerPrior(alpha=1.0, beta=1.0)", "PowerPrior(alpha=0.1, beta=1.0)"
MAIN = (Arm("rotary", ROTARY), Arm("rotary + prior", f"{ROTARY} + {PRINTED}"))
ARMS = (
    *MAIN,
    Arm("rotary + wide prior", f"{ROTARY} + {WIDE}"),
    Arm("prior", PRINTED),
    Arm("wide prior", WIDE),
    Arm("none", "none"),
    Arm("ALiBi", "Alibi()"),
    Arm("EPAR", "Epar()"),
)
LENGTHS = (1, 2, 4, 8, 16)
TASK = "whence_papers.prior.task:PretrainingText"


@dataclass(frozen=True)
class StudySize:
    """The size of a model and its training."""

    model: dict[str, Any]
    steps: int
    batch_size: int  # inputs of a step
    lr: float
    seeds: tuple[int, ...]
    grad_accum_steps: int = 1


@dataclass(frozen=True)
class Scale:
    """The text, and the sizes of the two studies."""

    source: str
    vocab_size: int
    context: int
    blocks: int
    seeds: StudySize  # every arm, several seeds
    large: StudySize | None = None  # the main arms, once
    on_gpu: bool = True
    evaluations: int = field(default=20)


def shrink(**sizes: Any) -> dict[str, Any]:
    """The shape of Qwen3 with other sizes."""
    return dict(PRESETS["qwen3-20m"]) | sizes


SMALLEST = shrink(embed_dim=16, heads=2, num_kv_heads=1, head_dim=8, layers=2, ffn_dim=32)
LARGE = dict(PRESETS["qwen3-134m"]) | {"vocab_size": QWEN3_VOCABULARY}
SCALES = {
    "small": Scale(
        "topics", 512, 16, 4, StudySize(SMALLEST, 4, 4, 1e-2, (0, 1)), StudySize(SMALLEST, 4, 4, 1e-2, (0,)), on_gpu=False,
        evaluations=2,
    ),
    "cpu": Scale(
        "books", 4096, 128, 64,
        StudySize(
            shrink(embed_dim=96, heads=4, num_kv_heads=2, head_dim=24, layers=3, ffn_dim=288), 500, 16, 3e-3, (0, 1, 2, 3, 4)
        ),
        on_gpu=False,
    ),
    "gpu": Scale(
        "books", 16_384, 512, 128,
        StudySize(dict(PRESETS["qwen3-20m"]), 400, 64, 2e-3, (0, 1, 2, 3, 4)),
        StudySize(LARGE, 3200, 64, 1e-3, (0,), grad_accum_steps=2),
    ),
    "source": Scale(
        "fineweb", QWEN3_VOCABULARY, 2048, 256,
        StudySize(dict(PRESETS["qwen3-20m"]), 5000, 128, 2e-3, (0, 1, 2, 3, 4), grad_accum_steps=8),
        StudySize(LARGE, 640, 2048, 2e-3, (0,), grad_accum_steps=128),
    ),
}  # fmt: skip


def studies(scale: str = "cpu", tokens: str = "") -> list[Study]:
    chosen = SCALES[scale]
    found = [
        build_study(
            f"prior-{scale}",
            "Does the learnable prior improve a Qwen-style language model, with rotary position and without?",
            ARMS, chosen.seeds, chosen, tokens,
        )
    ]  # fmt: skip
    if chosen.large is not None:
        full_size = chosen.large.model == LARGE
        found.append(
            build_study(
                f"prior-{scale}-{'134m' if full_size else 'main'}",
                "How does a model with the prior beside rotary position train"
                + (" at the size of its source?" if full_size else "?"),
                MAIN, chosen.large, chosen, tokens,
            )
        )  # fmt: skip
    return found


def build_study(
    name: str, question: str, arms: tuple[Arm, ...], size: StudySize, scale: Scale, tokens: str = ""
) -> Study:
    total = size.steps * size.batch_size * scale.context
    return Study(
        name=name,
        question=question,
        task=TASK,
        task_settings={
            "source": scale.source, "vocab_size": scale.vocab_size, "context": scale.context, "blocks": scale.blocks,
            "lengths": list(LENGTHS),
        } | ({"folder": tokens} if tokens else {}),
        model=size.model,
        arms=arms,
        seeds=size.seeds,
        budget=Budget(
            steps=size.steps, batch_size=size.batch_size, grad_accum_steps=size.grad_accum_steps, lr=size.lr,
            warmup_steps=max(1, size.steps // 20), schedule="cosine", min_lr_ratio=0.1, weight_decay=0.1, adam_beta2=0.95,
            decay_matrices_only=True, mixed_precision="bf16" if scale.on_gpu else "no", compile=scale.on_gpu,
            evaluate_every=max(1, size.steps // scale.evaluations),
        ),
        decision=Decision(baseline="rotary"),
        about=f"{size.model['layers']} layers, {size.model['embed_dim']} wide, {size.model['heads']} heads; {size.steps:,} steps of "
        f"{size.batch_size * scale.context:,} tokens, {total:,} in all, of {tokens or scale.source} in byte-level BPE. "
        "Every head has its own alpha and beta. The source trains no model with the prior.",
    )  # fmt: skip
