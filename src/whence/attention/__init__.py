"""Attention with any Position: one function, several backends with one specification.

``attend`` is the function, ``Attention`` the layer, ``KVCache`` the cache. ``additive`` and ``pointer`` hold the two
attentions of pointer-generator networks.
"""

from whence.attention.additive import AdditiveAttention, CoverageAttention
from whence.attention.attend import Explanation, attend, explain
from whence.attention.backends import Backend, register_backend
from whence.attention.cache import KVCache
from whence.attention.module import Attention, ProjectedMemory, without_embedding
from whence.attention.pointer import PointerAttention

__all__ = [
    "AdditiveAttention", "Attention", "Backend", "CoverageAttention", "Explanation", "KVCache", "PointerAttention",
    "ProjectedMemory", "attend", "explain", "register_backend", "without_embedding",
]  # fmt: skip
