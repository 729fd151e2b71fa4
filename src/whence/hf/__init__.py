"""Pretrained models of Hugging Face transformers: load one, put a Position into it, look inside."""

from whence.hf.attach import Attachment, attach, attached
from whence.hf.capture import attention_layers, capture, capture_unavailable
from whence.hf.load import Loaded, load
from whence.hf.logits import Logits
from whence.hf.position_state import attached_settings
from whence.hf.recorders import BySegment, LastRow, Rows
from whence.hf.reductions import ByDistance, ByKey
from whence.hf.state_io import attach_saved, read_positions, save_positions
from whence.hf.states import Hidden, Turned

__all__ = [
    "Attachment", "ByDistance", "ByKey", "BySegment", "Hidden", "LastRow", "Loaded", "Logits", "Rows", "Turned", "attach",
    "attach_saved", "attached", "attached_settings", "attention_layers", "capture", "capture_unavailable", "load",
    "read_positions", "save_positions",
]  # fmt: skip
