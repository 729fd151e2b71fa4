"""Small transformers with any Position: an encoder that classifies, a decoder that predicts the next token, an
encoder-decoder that does so from a source, and an autoencoder without positions."""

from whence.models.assign_positions import PerLayer
from whence.models.build import build
from whence.models.caches import Caches
from whence.models.decoder import Decoder
from whence.models.encoder import Encoder
from whence.models.encoder_decoder import EncodedSource, EncoderDecoder, build_encoder_decoder
from whence.models.inspection import ParameterTable, Part, attention_maps, parameter_table
from whence.models.presets import PRESETS, qwen3_20m, qwen3_134m
from whence.models.spec import ModelSpec
from whence.models.spline import SplineAutoencoder
from whence.torch_modes import eval_mode

__all__ = [
    "PRESETS", "Caches", "Decoder", "EncodedSource", "Encoder", "EncoderDecoder", "ModelSpec", "ParameterTable", "Part",
    "PerLayer", "SplineAutoencoder", "attention_maps", "build", "build_encoder_decoder", "eval_mode", "parameter_table",
    "qwen3_20m", "qwen3_134m",
]  # fmt: skip
