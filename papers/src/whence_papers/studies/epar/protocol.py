"""The EPAR source's language-modeling protocol at a scale that fits the machine: its baselines, seeds and correction.

The source trains about 110 million parameters (12 layers, embed_dim 768, 12 heads) with seeds 42 to 46, against rotary, ALiBi,
Shaw and Transformer-XL, with Bonferroni's correction at 0.01. ``scale`` is "small" (Python's help topics, which need no files; a
few minutes on two cores), "cpu" (half an hour on two cores), "gpu" (twenty minutes on one large accelerator, with parallel runs) or
"source" (the size of the source, days; with words, because bytes need no large embedding). All arms have the same budget. Help
topics and books are tokenized as bytes, WikiText-2 as words. The training split of WikiText-2 is not available everywhere, so its
validation split is used for training.
"""

from dataclasses import dataclass
from typing import Any

from whence.lab.arms import Arm, parse_arm
from whence.lab.study import Budget, Decision, Study

SEEDS = (42, 43, 44, 45, 46)
ARMS = (
    parse_arm("rotary"),
    parse_arm("none"),
    parse_arm("alibi"),
    parse_arm("shaw"),
    parse_arm("xl"),
    Arm("EPAR, basic", 'Epar(form="basic")'),
    Arm("EPAR, enhanced", "Epar()"),
)
#: the source adds position vectors to the input of its models as well
WITH_VECTORS = (Arm("Learned + EPAR", "Learned() + Epar()"), Arm("Sinusoidal + EPAR", "Sinusoidal() + Epar()"))
BYTES = 256


@dataclass(frozen=True)
class StudySize:
    """The size of the model and of the training on each text."""

    embed_dim: int
    heads: int
    layers: int
    context: int
    batch_size: int
    lr: float
    precision: str
    characters: int | None  # of the books; None for all
    words: int  # vocabulary size of WikiText
    steps: dict[str, int]  # by text; each has a study of its own
    dropout: dict[str, float]  # by text; the words are repeated several times
    blocks: int  # evaluated at every length

    @property
    def ffn_dim(self) -> int:
        return 4 * self.embed_dim

    def vocab_size(self, text: str) -> int:
        return self.words if text == "wikitext2" else BYTES

    def parameters(self, text: str) -> int:
        """Parameters of the model without position: projections, feed-forward and norms of each layer, embedding, output."""
        embed_dim, ffn_dim, vocab_size = self.embed_dim, self.ffn_dim, self.vocab_size(text)
        layer = 4 * (embed_dim * embed_dim + embed_dim) + 2 * embed_dim * ffn_dim + ffn_dim + embed_dim + 4 * embed_dim
        return self.layers * layer + vocab_size * embed_dim + (vocab_size * embed_dim + vocab_size) + 2 * embed_dim

    def tokens(self, text: str) -> int:
        return self.steps[text] * self.batch_size * self.context

    def settings(self, text: str) -> dict[str, Any]:
        """The settings of the text's task."""
        read: dict[str, dict[str, Any]] = {
            "books": {"characters": self.characters},
            "wikitext2": {"train_part": "valid", "words": self.words},
        }
        return {"context": self.context, "blocks": self.blocks, **read.get(text, {})}


SCALES = {
    "small": StudySize(
        embed_dim=32, heads=2, layers=2, context=32, batch_size=16, lr=3e-3, precision="no", characters=None, words=0,
        steps={"topics": 200}, dropout={"topics": 0.0}, blocks=32,
    ),
    "cpu": StudySize(
        embed_dim=64, heads=4, layers=2, context=64, batch_size=16, lr=2e-3, precision="no", characters=2_000_000, words=2048,
        steps={"books": 400, "wikitext2": 300}, dropout={"books": 0.0, "wikitext2": 0.0}, blocks=64,
    ),
    "gpu": StudySize(
        embed_dim=384, heads=6, layers=6, context=256, batch_size=32, lr=1e-3, precision="bf16", characters=20_000_000,
        words=10_000, steps={"books": 600, "wikitext2": 250}, dropout={"books": 0.0, "wikitext2": 0.2}, blocks=128,
    ),
    "source": StudySize(
        embed_dim=768, heads=12, layers=12, context=1024, batch_size=32, lr=3e-4, precision="bf16", characters=None,
        words=16_000, steps={"books": 50_000, "wikitext2": 1000}, dropout={"books": 0.1, "wikitext2": 0.1}, blocks=128,
    ),
}  # fmt: skip


def studies(scale: str = "cpu") -> list[Study]:
    return [_study(scale, SCALES[scale], text) for text in SCALES[scale].steps]


def _study(name: str, size: StudySize, text: str) -> Study:
    steps = size.steps[text]
    return Study(
        name=f"epar-protocol-{name}-{text}",
        question="Does EPAR predict text better than the positions its source compares it with?",
        task=text,
        task_settings=size.settings(text),
        model={
            "embed_dim": size.embed_dim, "heads": size.heads, "layers": size.layers, "ffn_dim": size.ffn_dim,
            "dropout": size.dropout[text],
        },
        arms=ARMS,
        seeds=SEEDS,
        budget=Budget(
            steps=steps, batch_size=size.batch_size, lr=size.lr, warmup_steps=steps // 10, schedule="cosine",
            mixed_precision=size.precision, evaluate_every=steps // 2,
        ),
        decision=Decision(baseline="rotary", alpha=0.01),
        about=f"{size.parameters(text):,} parameters beside those of position ({size.layers} layers, {size.embed_dim} wide, "
        f"{size.heads} heads), trained on {size.tokens(text):,} {'words' if text == 'wikitext2' else 'bytes'} "
        f"({steps} steps of {size.batch_size} x {size.context}). The source has about 110 million parameters.",
    )  # fmt: skip
