"""The text on which the prior is trained: packed documents, tokenised when they are first needed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from whence.errors import usage_error
from whence.lab.data.prepare import PrepareSettings, prepare_tokens
from whence.lab.data.token_folder import MANIFEST, read_manifest
from whence.lab.tasks.packed_text import PackedText
from whence.models import Decoder
from whence.position.base import Position
from whence.position.power_prior import PowerPrior


class PretrainingText(PackedText):
    """Language modelling on a named source of ``whence tokenize``, with the learned parameters of the prior in the record.

    Args:
        source: a source of ``whence tokenize``, such as ``books``.
        vocab_size: largest vocabulary of its byte-level BPE.
        folder: a token folder to use instead; empty for ``tokens/SOURCE-VOCABULARY``, which is prepared if it is missing.
        context, blocks, mask_documents, lengths: as in ``PackedText``.
    """

    name = "pretraining_text"

    def __init__(
        self,
        source: str = "topics",
        vocab_size: int = 512,
        folder: str = "",
        context: int = 256,
        blocks: int = 128,
        mask_documents: bool = True,
        lengths: Sequence[int] | None = None,
    ) -> None:
        path = Path(folder) if folder else Path("tokens") / f"{source}-{vocab_size}"
        if not folder and not (path / MANIFEST).is_file():
            print(f"tokenise {source} into {path}, once", file=sys.stderr, flush=True)
            prepare_tokens([source], path, PrepareSettings(vocab_size=vocab_size))
        manifest = read_manifest(path)
        stored = [one["name"] for one in manifest["sources"]], manifest["settings"]["vocab_size"]
        if not folder and stored != ([source], vocab_size):
            got = f"{path} with {', '.join(stored[0])} and a vocabulary of {stored[1]}"
            rule = f"the study trains on {source} with a vocabulary of {vocab_size}"
            raise usage_error(f"task {self.name!r}", got, rule, f"delete {path}, or name a folder with --tokens")
        super().__init__(str(path), context, blocks, mask_documents, "", lengths)
        del self.settings["folder"]
        self.settings["sources"] = manifest["sources"]

    def notes(self, model: nn.Module) -> dict[str, Any]:
        """The parameters of the prior by layer and head, and the size of the model."""
        assert isinstance(model, Decoder)
        positions = [layer.attention.position for layer in model.body.stack()]
        priors = [find_prior(position) for position in positions]
        rows = [
            {"alpha": prior.alpha.detach().flatten().tolist(), "beta": prior.beta().detach().flatten().tolist()}
            for prior in priors
            if prior is not None
        ]
        return {"prior": rows, "parameters": sum(parameter.numel() for parameter in model.parameters())}


def find_prior(position: Position) -> PowerPrior | None:
    """The power prior of a position, alone or in a sum."""
    return next((part for part in position.modules() if isinstance(part, PowerPrior)), None)
