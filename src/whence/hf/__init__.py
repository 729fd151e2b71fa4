"""Pretrained models of Hugging Face transformers: load one, put a Position into it, look inside."""

from whence.hf.attach import Attachment, attach, attached
from whence.hf.capture import attention_layers, capture, capture_unavailable
from whence.hf.load import Loaded, load
from whence.hf.logits import Logits
from whence.hf.reductions import ByDistance, ByKey
from whence.hf.saved import read_positions
from whence.hf.states import Hidden, Turned
from whence.hf.watchers import BySegment, LastRow, Rows

__all__ = [
    "Attachment", "ByDistance", "ByKey", "BySegment", "Hidden", "LastRow", "Loaded", "Logits", "Rows", "Turned", "attach",
    "attached", "attention_layers", "capture", "capture_unavailable", "load", "read_positions",
]  # fmt: skip
