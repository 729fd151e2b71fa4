"""Attention with any Position: one function, several backends held to one reference."""

from whence.attention.attend import Explanation, attend, explain
from whence.attention.cache import KVCache
from whence.attention.module import Attention, inner

__all__ = ["Attention", "Explanation", "KVCache", "attend", "explain", "inner"]
