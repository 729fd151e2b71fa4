"""The EPAR source's translation task: an encoder-decoder with the positions of its protocol, scored with BLEU.

The source reports BLEU on WMT'14 English-German against rotary, ALiBi, Shaw and Transformer-XL, with seeds 42 to 46 and
Bonferroni's correction at 0.01. It adds position vectors to the input of its models as well, so EPAR is also tried together with
learned and with sinusoidal vectors. A position acts in the self-attention of both stacks; cross-attention has none.

``scale`` is "small" (a smoke test, seconds), "cpu" (Multi30k, an hour or two on two cores), "gpu" (nine epochs of
Multi30k, minutes on one large accelerator with parallel runs) or "source" (WMT'14 at the size of the source, weeks). Multi30k and WMT'14 are
read from the folder of WHENCE_DATA; ``python -m whence.lab.data.downloads multi30k wmt14`` fetches them.
"""

from dataclasses import dataclass

from whence.lab.study import Budget, Decision, Study
from whence_papers.studies.epar.protocol import ARMS, SEEDS, WITH_VECTORS


@dataclass(frozen=True)
class StudySize:
    """The size of the data, the model and the training."""

    task: str
    pairs: int  # of training; 0 for all
    test_pairs: int  # of each other split, all of which are translated
    words: int
    context: int
    embed_dim: int
    heads: int
    layers: int  # of each stack
    dropout: float
    steps: int
    batch_size: int
    lr: float
    precision: str
    num_beams: int
    seeds: tuple[int, ...] = SEEDS


SCALES = {
    "small": StudySize(
        task="multi30k", pairs=200, test_pairs=4, words=200, context=12, embed_dim=16, heads=2, layers=1, dropout=0.0,
        steps=4, batch_size=8, lr=3e-3, precision="no", num_beams=1, seeds=SEEDS[:2],
    ),
    "cpu": StudySize(
        task="multi30k", pairs=0, test_pairs=200, words=4000, context=40, embed_dim=64, heads=4, layers=2, dropout=0.1,
        steps=800, batch_size=32, lr=2e-3, precision="no", num_beams=1,
    ),
    "gpu": StudySize(
        task="multi30k", pairs=0, test_pairs=1000, words=8000, context=48, embed_dim=256, heads=4, layers=2, dropout=0.2,
        steps=2000, batch_size=128, lr=1e-3, precision="bf16", num_beams=1,
    ),
    "source": StudySize(
        task="wmt14", pairs=0, test_pairs=3003, words=32_000, context=128, embed_dim=768, heads=12, layers=6, dropout=0.1,
        steps=100_000, batch_size=256, lr=3e-4, precision="bf16", num_beams=4,
    ),
}  # fmt: skip


def studies(scale: str = "cpu") -> list[Study]:
    size = SCALES[scale]
    pairs = f"the first {size.pairs:,}" if size.pairs else "all"
    return [
        Study(
            name=f"translation-{scale}-{size.task}",
            question="Does an encoder-decoder with EPAR translate better than with the positions its source compares it with?",
            task=size.task,
            task_settings={
                "architecture": "encoder-decoder", "context": size.context, "words": size.words, "pairs": size.pairs,
                "test_pairs": size.test_pairs, "translations": size.test_pairs, "num_beams": size.num_beams,
            },
            model={
                "embed_dim": size.embed_dim, "heads": size.heads, "layers": size.layers, "ffn_dim": 4 * size.embed_dim,
                "dropout": size.dropout,
            },
            arms=ARMS + WITH_VECTORS,
            seeds=size.seeds,
            budget=Budget(
                steps=size.steps, batch_size=size.batch_size, lr=size.lr, warmup_steps=size.steps // 10, schedule="cosine",
                mixed_precision=size.precision, evaluate_every=size.steps // 2,
            ),
            decision=Decision(baseline="rotary", alpha=0.01, metric="bleu"),
            about=f"{size.layers} layer{'' if size.layers == 1 else 's'} in each stack, {size.embed_dim} wide, {size.heads} heads; {size.steps:,} steps of "
            f"{size.batch_size} pairs, from {pairs} training pairs of {size.task}. BLEU and chrF by sacrebleu on "
            f"{size.test_pairs:,} translations with {size.num_beams} beam{'' if size.num_beams == 1 else 's'}. The source has about "
            "110 million parameters and WMT'14.",
        )
    ]  # fmt: skip
