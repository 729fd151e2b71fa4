"""Small transformers with any Position: an encoder that classifies a decoder that predicts the next token, and an
autoencoder without positions."""

from whence.models.assign_positions import PerLayer
from whence.models.build import build
from whence.models.caches import Caches
from whence.models.decoder import Decoder
from whence.models.encoder import Encoder
from whence.models.inspection import ParameterTable, Part, attention_maps, parameter_table
from whence.models.spec import ModelSpec
from whence.models.spline import SplineAutoencoder
from whence.torch_modes import eval_mode

__all__ = [
    "Caches", "Decoder", "Encoder", "ModelSpec", "ParameterTable", "Part", "PerLayer", "SplineAutoencoder",
    "attention_maps", "build", "eval_mode", "parameter_table",
]  # fmt: skip
