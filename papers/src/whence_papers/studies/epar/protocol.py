"""The EPAR source's protocol at a scale that fits the machine: its baselines, its seeds, its correction.

The source trains about 110 million parameters (12 layers of 768, 12 heads), seeds 42 to 46, against rotary, ALiBi, Shaw
and Transformer-XL, with Bonferroni's correction at 0.01. ``scale`` is "cpu" (half an hour of two cores), "gpu" (twenty
minutes of one large accelerator, with runs side by side) or "source" (its own size, days; with words, for
bytes need no large embedding). The budget is the same for
all arms. Books are read as bytes, WikiText-2 in its own words; of that the training part is not to be had everywhere,
so its validation part is trained on.
"""

from dataclasses import dataclass
from typing import Any

from whence.lab.arms import Arm, arm
from whence.lab.study import Budget, Decision, Study

SEEDS = (42, 43, 44, 45, 46)
ARMS = (
    arm("rotary"),
    arm("none"),
    arm("alibi"),
    arm("shaw"),
    arm("xl"),
    Arm("EPAR, basic", 'Epar(form="basic")'),
    Arm("EPAR, enhanced", "Epar()"),
)
BYTES = 256


@dataclass(frozen=True)
class Scale:
    """A size: the model, the tokens of an input and of a step, and what of each text is read for how many steps."""

    width: int
    heads: int
    layers: int
    context: int
    batch: int
    rate: float
    precision: str
    characters: int | None  # of the books
    words: int  # of WikiText's vocabulary
    steps: dict[str, int]  # by text
    dropout: dict[str, float]  # by text: the words are read several times over
    blocks: int  # scored at every length

    @property
    def hidden(self) -> int:
        return 4 * self.width

    def vocabulary(self, text: str) -> int:
        return BYTES if text == "books" else self.words

    def parameters(self, text: str) -> int:
        """Of the model without position: projections, feed-forward and norms of each layer, embedding and output."""
        wide, high, many = self.width, self.hidden, self.vocabulary(text)
        layer = 4 * (wide * wide + wide) + 2 * wide * high + high + wide + 4 * wide
        return self.layers * layer + many * wide + (many * wide + many) + 2 * wide

    def tokens(self, text: str) -> int:
        return self.steps[text] * self.batch * self.context

    def settings(self, text: str) -> dict[str, Any]:
        """What the text's task is given."""
        read = {"characters": self.characters} if text == "books" else {"train_part": "valid", "words": self.words}
        return {"context": self.context, "blocks": self.blocks, **read}


SCALES = {
    "cpu": Scale(
        width=64, heads=4, layers=2, context=64, batch=16, rate=2e-3, precision="no", characters=2_000_000, words=2048,
        steps={"books": 400, "wikitext2": 300}, dropout={"books": 0.0, "wikitext2": 0.0}, blocks=64,
    ),
    "gpu": Scale(
        width=384, heads=6, layers=6, context=256, batch=32, rate=1e-3, precision="bf16", characters=20_000_000,
        words=10_000, steps={"books": 600, "wikitext2": 250}, dropout={"books": 0.0, "wikitext2": 0.2}, blocks=128,
    ),
    "source": Scale(
        width=768, heads=12, layers=12, context=1024, batch=32, rate=3e-4, precision="bf16", characters=None,
        words=16_000, steps={"books": 50_000, "wikitext2": 1000}, dropout={"books": 0.1, "wikitext2": 0.1}, blocks=128,
    ),
}  # fmt: skip


def studies(scale: str = "cpu") -> list[Study]:
    return [_study(scale, SCALES[scale], text) for text in ("books", "wikitext2")]


def _study(name: str, size: Scale, text: str) -> Study:
    steps = size.steps[text]
    return Study(
        name=f"epar-protocol-{name}-{text}",
        question="Does EPAR predict text better than the positions its source compares it with?",
        task=text,
        task_settings=size.settings(text),
        model={
            "embed_dim": size.width, "heads": size.heads, "layers": size.layers, "ffn_dim": size.hidden,
            "dropout": size.dropout[text],
        },
        arms=ARMS,
        seeds=SEEDS,
        budget=Budget(
            steps=steps, batch_size=size.batch, lr=size.rate, warmup_steps=steps // 10, schedule="cosine",
            mixed_precision=size.precision, evaluate_every=steps // 2,
        ),
        decision=Decision(baseline="rotary", alpha=0.01),
        about=f"{size.parameters(text):,} parameters beside those of position ({size.layers} layers, {size.width} wide, "
        f"{size.heads} heads), trained on {size.tokens(text):,} {'bytes' if text == 'books' else 'words'} "
        f"({steps} steps of {size.batch} x {size.context}). The source has about 110 million parameters.",
    )  # fmt: skip
