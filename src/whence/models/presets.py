"""Model sizes by name: settings of ``ModelSpec`` in the shape of Qwen3 (Yang et al. 2025, arXiv 2505.09388).

The shape: RMSNorm before each sublayer, SwiGLU, RMSNorm of queries and keys, half as many key-value heads as query heads,
tied embeddings, no biases, no dropout. A preset has neither a vocabulary nor a Position. Qwen3 itself rotates by
``Rotary(base=1_000_000)``.

>>> from whence.models import build, parameter_table
>>> parameter_table(build(qwen3_20m())).total
20454784
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from whence.models.spec import ModelSpec

_QWEN3: dict[str, Any] = {
    "norm": "pre", "norm_type": "rms", "norm_eps": 1e-6, "qk_norm": True, "activation": "silu", "gated_ffn": True,
    "bias": False, "tie_embeddings": True, "final_norm": True, "dropout": 0.0, "init": "scaled",
}  # fmt: skip

#: settings by name, for ``ModelSpec("decoder", vocab_size, **PRESETS[name])`` and the lab's setting ``preset``
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "qwen3-134m": {
        "embed_dim": 512, "heads": 8, "num_kv_heads": 4, "head_dim": 64, "layers": 18, "ffn_dim": 1536, **_QWEN3,
    },
    "qwen3-20m": {
        "embed_dim": 384, "heads": 6, "num_kv_heads": 3, "head_dim": 64, "layers": 8, "ffn_dim": 1152, **_QWEN3,
    },
})  # fmt: skip

#: tokens of Qwen3's embedding, which is padded to a multiple of 128
QWEN3_VOCABULARY = 151_936


def qwen3_134m(vocab_size: int = QWEN3_VOCABULARY) -> ModelSpec:
    """A Qwen3-style decoder of 134,435,584 parameters.

    The paper on the learnable power-law prior (see ``PowerPrior``) trains a Qwen-style model of 134M parameters and
    prints neither width, depth nor vocabulary, so many models fit. This one keeps the vocabulary of Qwen3, its tied
    embeddings, and every proportion of Qwen3-0.6B at half its width: 512 dimensions, 8 query and 4 key-value heads, 1536 hidden
    units. The depth of 18 layers is the one that gives 134M. The heads have 64 dimensions; with 128, as in Qwen3-0.6B, no
    depth gives 134M.

    Embedding 151,936 x 512 = 77,791,232; 18 layers of 3,146,880 = 56,643,840; final norm 512. A smaller vocabulary makes
    a smaller model.
    """
    return ModelSpec("decoder", vocab_size, **PRESETS["qwen3-134m"])


def qwen3_20m(vocab_size: int = 16_384) -> ModelSpec:
    """A decoder of the same shape with 20,454,784 parameters, for comparisons with several seeds.

    Embedding 16,384 x 384 = 6,291,456; 8 layers of 1,770,368 = 14,162,944; final norm 384.
    """
    return ModelSpec("decoder", vocab_size, **PRESETS["qwen3-20m"])
