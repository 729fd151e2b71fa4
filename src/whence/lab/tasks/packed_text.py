"""Language modelling on a token folder: documents packed into inputs of one length, with a segment id for each.

An input is a window of documents that follow one another. Tokens attend within their document only, positions begin at 0
in each, and the first token of a document is never predicted from the document before it. The starts of the windows depend on
the seed alone, so all arms of a seed see the same inputs.

The test part is scored as in ``language_modelling``: the same blocks at every length. A block and all its history are in one
document, so the longest evaluation needs documents that long. Shorter documents are not scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.errors import usage_error
from whence.lab.data.token_folder import TokenFolder, TokenPart, read_manifest
from whence.lab.tasks.base import IGNORE_INDEX, Batch, evaluation_batch_size
from whence.lab.tasks.baselines import BigramModel, token_baselines
from whence.lab.tasks.language_modelling import LanguageModelling, space_evenly

SEGMENTS = "segment_ids"


class PackedText(LanguageModelling):
    """Packed documents of a token folder; `whence compare --data tokens/` builds it.

    Args:
        path: a folder that `whence tokenize` wrote.
        context: tokens of a training input.
        blocks: number of scored test blocks, and of validation inputs.
        mask_documents: whether tokens attend within their document only; False packs documents without a mask.
        sha256: the identity that the folder must have, if it is not empty.
        lengths: lengths of the evaluation as multiples of the context; by default 1, 2, 4 and 8.
    """

    name = "packed_text"

    def __init__(
        self,
        path: str,
        context: int = 256,
        blocks: int = 128,
        mask_documents: bool = True,
        sha256: str = "",
        lengths: Sequence[int] | None = None,
    ) -> None:
        if not isinstance(mask_documents, bool):
            got, rule = f"mask_documents={mask_documents!r}", "it must be true or false"
            raise usage_error(f"task {self.name!r}", got, rule, "set one of them")
        if sha256 and read_manifest(Path(path))["identity"] != sha256:
            rule = "all runs of a study use the same tokens"
            got = f"{path}, which changed since the study was built"
            raise usage_error(
                "--data", got, rule, "restore the folder, or run the command again to build another study"
            )
        folder = TokenFolder(Path(path))
        parts = {name: part for name in folder.parts if (part := folder.part(name)) is not None}
        self.folder, self.parts, self.mask_documents = folder, parts, mask_documents
        validation = parts.get("validation")
        if validation is not None and len(validation.tokens) <= context:
            validation = None
        settings = {
            "folder": Path(path).name, "mask_documents": mask_documents, "vocab_size": folder.manifest["vocab_size"],
            "data_hash": folder.identity[:16],
        }  # fmt: skip
        super().__init__(
            parts["train"].tokens, parts["test"].tokens, folder.tokenizer, context, blocks, settings,
            None if validation is None else validation.tokens, lengths,
        )  # fmt: skip

    def hold_out_validation(self) -> None:
        """The last tenth of the training tokens becomes the validation part; a document may be cut in two."""
        super().hold_out_validation()
        assert self.validation_stream is not None
        offsets, cut = self.parts["train"].offsets, len(self.train)
        self.parts["train"] = TokenPart(self.train, offsets.clamp(max=cut).unique())
        self.parts["validation"] = TokenPart(self.validation_stream, (offsets - cut).clamp(min=0).unique())

    def choose_blocks(self, part: str, stream: Tensor, history: int, blocks: int) -> Tensor:
        """As in language modelling, but each test block is with its history in one document."""
        if part != "test":
            return super().choose_blocks(part, stream, history, blocks)
        offsets, least = self.parts[part].offsets, history + self.context + 1
        lengths = offsets.diff()
        long = (lengths >= least).nonzero()[:, 0]
        if not len(long):
            got = f"documents of at most {int(lengths.max()):,} tokens in the test part"
            multiple = least // self.context
            rule = f"the evaluation at {multiple}x a context of {self.context} needs a document of {least:,} tokens"
            remedy = "use smaller lengths, such as --lengths 1x, a smaller context, or longer documents"
            raise usage_error(f"task {self.name!r}", got, rule, remedy)
        ends = zip(offsets[long].tolist(), offsets[long + 1].tolist(), strict=True)
        starts = [torch.arange(start + history, end - self.context, self.context) for start, end in ends]
        return space_evenly(torch.cat(starts), blocks)

    def train_batch(self, size: int, generator: torch.Generator) -> Batch:
        starts = torch.randint(len(self.train) - self.context, (size,), generator=generator)
        return self.pack(self.parts["train"], starts)

    def epoch(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Every training document once, in random order, cut into adjacent inputs; the rest of the last one is left out."""
        part = self.parts["train"]
        lengths = part.offsets.diff()
        order = torch.randperm(len(lengths), generator=generator)
        shuffled = torch.cat([torch.zeros(1, dtype=torch.long), lengths[order].cumsum(0)])
        starts = torch.arange(0, min(int(shuffled[-1]), len(self.train)) - self.context, self.context)
        starts = starts[torch.randperm(len(starts), generator=generator)]
        shift = part.offsets[:-1][order] - shuffled[:-1]  # from the shuffled order to the stored one
        for chosen in starts.split(size):
            indices = chosen[:, None] + torch.arange(self.context + 1)
            document = torch.searchsorted(shuffled, indices, right=True) - 1
            yield self._batch(part.tokens[indices + shift[document]].long(), document)

    def evaluation(self, split: str) -> list[Batch]:
        if split != "validation" or self.validation_stream is None:
            return super().evaluation(split)
        part, starts = self.parts["validation"], self.validation_starts.split(evaluation_batch_size(self.context))
        return [self.pack(part, own) for own in starts]

    def pack(self, part: TokenPart, starts: Tensor) -> Batch:
        """The windows that begin at ``starts``, with segment ids."""
        indices = starts[:, None] + torch.arange(self.context + 1)
        return self._batch(part.tokens[indices].long(), part.document_of(indices))

    def _batch(self, pieces: Tensor, document: Tensor) -> Batch:
        """Windows of tokens with the document of each token, both ``[B, context + 1]``."""
        changes = document[:, 1:] != document[:, :-1]
        targets = pieces[:, 1:].masked_fill(changes, IGNORE_INDEX)
        segments = F.pad(changes[:, :-1].long().cumsum(1), (1, 0))
        return Batch(pieces[:, :-1], targets, extras={SEGMENTS: segments} if self.mask_documents else {})

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch.tokens, segment_ids=batch.extras.get(SEGMENTS))

    def baselines(self) -> dict[str, Any]:
        evaluations = {split: self.evaluation(split) for split in self.splits()}
        starts = torch.zeros(len(self.train), dtype=torch.bool)
        offsets = self.parts["train"].offsets[:-1]
        starts[offsets[offsets < len(starts)]] = True
        return token_baselines(BigramModel(self.train, self.vocab_size, starts), evaluations, self.unit)

    def describe_data(self) -> dict[str, Any]:
        documents = ", ".join(f"{facts['documents']:,} for {part}" for part, facts in self.folder.parts.items())
        return super().describe_data() | {
            "split": f"whole documents: {documents}",
            "tokens": f"tokens of a byte-level BPE; a vocabulary of {self.vocab_size:,}",
        }
