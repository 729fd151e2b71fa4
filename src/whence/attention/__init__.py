"""Attention with any Position: one function, several backends held to one reference.

Beside it stand the two attentions of pointer-generators: ``additive`` with coverage and the dot-product ``pointer``.
"""

from whence.attention.additive import AdditiveAttention, CoverageAttention
from whence.attention.attend import Explanation, attend, explain
from whence.attention.cache import KVCache
from whence.attention.module import Attention, without_embedding
from whence.attention.pointer import PointerAttention

__all__ = [
    "AdditiveAttention", "Attention", "CoverageAttention", "Explanation", "KVCache", "PointerAttention", "attend",
    "explain", "without_embedding",
]  # fmt: skip
