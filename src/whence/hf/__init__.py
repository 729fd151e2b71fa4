"""Pretrained models of Hugging Face transformers: load one, put a Position into it, look inside."""

from whence.hf.capture import capture
from whence.hf.load import Loaded, load
from whence.hf.states import Hidden, Turned
from whence.hf.watchers import ByDistance, ByKey, BySegment, LastRow, Rows

__all__ = ["ByDistance", "ByKey", "BySegment", "Hidden", "LastRow", "Loaded", "Rows", "Turned", "capture", "load"]
