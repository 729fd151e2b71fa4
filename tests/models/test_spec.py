"""A spec is plain data and validates its settings."""

import json
from dataclasses import FrozenInstanceError, asdict

import pytest

from whence import WhenceError
from whence.models import ModelSpec


def test_it_round_trips_through_json():
    spec = ModelSpec("encoder", 50, num_classes=3, num_kv_heads=1, norm="post", activation="gelu", init="scaled")
    assert ModelSpec(**json.loads(json.dumps(asdict(spec)))) == spec


def test_it_is_frozen():
    with pytest.raises(FrozenInstanceError):
        ModelSpec("decoder", 50).embed_dim = 8


def test_a_decoder_has_a_final_norm_and_an_encoder_has_none_by_default():
    assert ModelSpec("decoder", 5).has_final_norm and not ModelSpec("encoder", 5, num_classes=2).has_final_norm
    assert not ModelSpec("decoder", 5, final_norm=False).has_final_norm
    assert ModelSpec("encoder", 5, num_classes=2, final_norm=True).has_final_norm


def test_a_head_dimension_of_its_own_needs_no_divisor():
    assert ModelSpec("decoder", 5, embed_dim=64, heads=4).effective_head_dim == 16
    assert ModelSpec("decoder", 5, embed_dim=64, heads=3, head_dim=24).effective_head_dim == 24


INVALID = [
    ({"kind": "seq2seq"}, "kind", "'seq2seq'", "encoder, decoder"),
    ({"norm": "rms"}, "norm", "'rms'", "pre, post"),
    ({"norm_type": "batch"}, "norm_type", "'batch'", "layer, rms"),
    ({"activation": "swish"}, "activation", "'swish'", "relu, gelu, silu"),
    ({"init": "zeros"}, "init", "'zeros'", "torch, scaled"),
    ({"vocab_size": 0}, "vocab_size", "0", "positive integer for vocab_size"),
    ({"layers": True}, "layers", "True", "positive integer for layers"),
    ({"ffn_dim": 1.5}, "ffn_dim", "1.5", "positive integer for ffn_dim"),
    ({"heads": None}, "heads", "None", "positive integer for heads"),
    ({"heads": 3}, "embed_dim=..., heads", "64 and 3", "divisor for heads"),
    ({"heads": 4, "num_kv_heads": 3}, "num_kv_heads", "3 for 4 heads", "divisor for num_kv_heads"),
    ({"head_dim": 0}, "head_dim", "0", "positive integer for head_dim"),
    ({"norm_eps": 0}, "norm_eps", "0", "1e-6"),
    ({"norm_eps": "1e-6"}, "norm_eps", "'1e-6'", "1e-6"),
    ({"qk_norm": "rms"}, "qk_norm", "'rms'", "qk_norm=True or False"),
    ({"gated_ffn": 1}, "gated_ffn", "1", "gated_ffn=True or False"),
    ({"dropout": 1}, "dropout", "1", "dropout=0.0"),
    ({"dropout": "0.1"}, "dropout", "'0.1'", "dropout=0.0"),
    ({"dropout": float("nan")}, "dropout", "nan", "dropout=0.0"),
    ({"bias": 1}, "bias", "1", "bias=True or False"),
    ({"tie_embeddings": None}, "tie_embeddings", "None", "tie_embeddings=True or False"),
    ({"final_norm": "yes"}, "final_norm", "'yes'", "final_norm=True or False"),
    ({"kind": "encoder"}, "kind='encoder'", "no num_classes", "pass num_classes=2"),
    ({"num_classes": 3}, "kind='decoder'", "num_classes=3", "omit num_classes"),
    (
        {"kind": "encoder", "num_classes": 3, "tie_embeddings": True},
        "kind='encoder'",
        "tie_embeddings=True",
        "omit tie_embeddings",
    ),
]


@pytest.mark.parametrize(("settings", "argument", "value", "remedy"), INVALID)
def test_invalid_settings_raise(settings, argument, value, remedy):
    with pytest.raises(WhenceError) as error:
        ModelSpec(**{"kind": "decoder", "vocab_size": 5} | settings)
    text = str(error.value)
    assert text.startswith(f"ModelSpec({argument}") and f"got {value}, but" in text and remedy in text
