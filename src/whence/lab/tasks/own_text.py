"""Language modelling on any text, in the tokens of a pretrained model: what its fine-tuning learns from and is scored by.

task = OwnText(tokenizer, train=..., test=..., context=256)
train(whence.hf.Logits(model), task, Budget(steps=200, lr=1e-4), seed=0, state=Path("build/tuning.safetensors"))
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from whence.lab.data.folder import content_hash
from whence.lab.tasks.windows import LanguageModelling


class ModelTokens:
    """The tokens of a tokenizer of transformers, as units of a task."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.size = len(tokenizer)

    def encode(self, text: str) -> Tensor:
        # a whole corpus is longer than any context: windows of it are what a model sees
        return torch.tensor(
            self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=torch.int32
        )

    def decode(self, tokens: Iterable[int]) -> list[str]:
        names = (self.tokenizer.decode([token]) for token in tokens)
        return [name if name.isprintable() else repr(name)[1:-1] for name in names]


class OwnText(LanguageModelling):
    """Windows of a text to learn from, and blocks of another that are scored at every length."""

    name = "own_text"

    def __init__(self, tokenizer: Any, train: str, test: str, context: int = 256, blocks: int = 64) -> None:
        units = ModelTokens(tokenizer)
        settings = {"tokens": units.size, "data_hash": content_hash([train, test])}
        super().__init__(units.encode(train), units.encode(test), units, context, blocks, settings)
