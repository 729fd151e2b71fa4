"""Small transformers around any Position: an encoder that classifies, a decoder that predicts the next token, and
attention that adapts to task and content. Beside them the LSTM pointer-generator, whose attention is additive."""

from whence.models.adapters import Adapter, ContentAware, Fused, PerRow, Reading, TaskAware
from whence.models.adaptive import AdaptiveAttention, AdaptiveModel
from whence.models.build import build
from whence.models.caches import Caches
from whence.models.decoder import Decoder
from whence.models.encoder import Encoder
from whence.models.maps import attention_maps
from whence.models.parameters import ParameterTable, Part, parameter_table
from whence.models.placing import PerLayer
from whence.models.pointer_generator import PointerGenerator, PointerGeneratorSpec
from whence.models.position_aware import position_aware
from whence.models.spec import ModelSpec

__all__ = [
    "Adapter", "AdaptiveAttention", "AdaptiveModel", "Caches", "ContentAware", "Decoder", "Encoder", "Fused",
    "ModelSpec", "ParameterTable", "Part", "PerLayer", "PerRow", "PointerGenerator", "PointerGeneratorSpec", "Reading",
    "TaskAware", "attention_maps", "build", "parameter_table", "position_aware",
]  # fmt: skip
