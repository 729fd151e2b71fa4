"""Models of Hugging Face transformers: load a pretrained one, attach a Position, record its attention and states; and the
decoder of whence.models as such a model."""

from typing import TYPE_CHECKING, Any

from whence.hf.attach import Attachment, attach
from whence.hf.capture import attention_layers, capture, capture_unavailable
from whence.hf.edits import AttentionEdit, EditedCall, Region
from whence.hf.expanded_rows import expand_rows
from whence.hf.intervene import intervene
from whence.hf.load import LoadedModel, LogitsModel, load
from whence.hf.recipe import apply_recipe
from whence.hf.recorders import (
    AttentionRows,
    DistanceProfile,
    HiddenStates,
    KeyProfile,
    LastRow,
    Recorder,
    RotatedQK,
    SegmentMass,
)
from whence.hf.requests import Request, request
from whence.hf.settings import attached_settings
from whence.hf.state_io import attach_saved, read_positions, save_positions

if TYPE_CHECKING:
    from whence.hf.causal_lm import WhenceConfig, WhenceForCausalLM


def __getattr__(name: str) -> Any:
    """Load the decoder's classes on first use: they are subclasses of transformers, which is an extra."""
    if name in ("WhenceConfig", "WhenceForCausalLM"):
        from whence.hf import causal_lm

        return getattr(causal_lm, name)
    raise AttributeError(f"module 'whence.hf' has no attribute {name!r}")


__all__ = [
    "Attachment", "AttentionEdit", "AttentionRows", "DistanceProfile", "EditedCall", "HiddenStates", "KeyProfile", "LastRow",
    "LoadedModel", "LogitsModel", "Recorder", "Region", "Request", "RotatedQK", "SegmentMass", "WhenceConfig", "WhenceForCausalLM", "apply_recipe", "attach",
    "attach_saved", "attached_settings", "attention_layers", "capture", "capture_unavailable", "expand_rows", "intervene",
    "load", "read_positions",
    "request", "save_positions",
]  # fmt: skip
