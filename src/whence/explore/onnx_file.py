"""An attention layer with a mechanism as an ONNX file."""

from __future__ import annotations

from pathlib import Path

import torch

from whence.attention.module import Attention
from whence.errors import require_package
from whence.explore.mechanism_view import build
from whence.position.expression import ModelDims

#: the exported layer takes sequences of up to this many tokens, or of the context if that is longer
MAX_LENGTH = 512


def export_onnx(text: str, dims: ModelDims, folder: Path) -> Path:
    """Write an attention layer with the mechanism and random weights, for any batch and length.

    The input has shape ``[batch, length, embed_dim]``, and so has the output.
    """
    require_package("onnxscript", "The export to ONNX", "explore")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        layer = Attention(dims.embed_dim, dims.heads, build(text, dims), causal=True).eval().requires_grad_(False)
        shapes = (
            {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", min=2, max=max(MAX_LENGTH, dims.context))},
        )
        program = torch.export.export(layer, (torch.randn(2, 6, dims.embed_dim),), dynamic_shapes=shapes)
        path = folder / f"{'-'.join(type(part).__name__ for part in layer.position.parts).lower()}.onnx"
        exported = torch.onnx.export(program, dynamo=True, optimize=False, verbose=False)
        assert exported is not None  # only an export to a file returns None
        exported.save(str(path))
    return path
