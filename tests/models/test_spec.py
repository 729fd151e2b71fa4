"""A spec is plain data, and it refuses what no model can be built from."""

import json
from dataclasses import FrozenInstanceError, asdict

import pytest

from whence import WhenceError
from whence.models import ModelSpec


def test_it_goes_through_json_and_comes_back():
    spec = ModelSpec("encoder", 50, num_classes=3, num_kv_heads=1, norm="post", activation="gelu", initial="scaled")
    assert ModelSpec(**json.loads(json.dumps(asdict(spec)))) == spec


def test_it_does_not_change():
    with pytest.raises(FrozenInstanceError):
        ModelSpec("decoder", 50).embed_dim = 8


def test_a_decoder_ends_in_a_norm_and_an_encoder_does_not_unless_told():
    assert ModelSpec("decoder", 5).ends_in_norm and not ModelSpec("encoder", 5, num_classes=2).ends_in_norm
    assert not ModelSpec("decoder", 5, final_norm=False).ends_in_norm
    assert ModelSpec("encoder", 5, num_classes=2, final_norm=True).ends_in_norm


REFUSED = {
    "ModelSpec(kind=...) got 'seq2seq', but kind is one of encoder, decoder; choose one of them.": {"kind": "seq2seq"},
    "ModelSpec(norm=...) got 'rms', but norm is one of pre, post; choose one of them.": {"norm": "rms"},
    "ModelSpec(activation=...) got 'silu', but activation is one of relu, gelu; choose one of them.": {"activation": "silu"},
    "ModelSpec(initial=...) got 'zeros', but initial is one of torch, scaled; choose one of them.": {"initial": "zeros"},
    "ModelSpec(vocab_size=...) got 0, but vocabulary is a whole number of at least 1; give such a number.": {"vocab_size": 0},
    "ModelSpec(layers=...) got True, but layers is a whole number of at least 1; give such a number.": {"layers": True},
    "ModelSpec(ffn_dim=...) got 1.5, but hidden is a whole number of at least 1; give such a number.": {"ffn_dim": 1.5},
    "ModelSpec(heads=...) got None, but heads is a whole number of at least 1; give such a number.": {"heads": None},
    "ModelSpec(embed_dim=..., heads=...) got 64 and 3, but heads divides width; choose a divisor.": {"heads": 3},
    "ModelSpec(num_kv_heads=...) got 3 for 4 heads, but num_kv_heads divides heads; choose a divisor.": {"heads": 4, "num_kv_heads": 3},
    "ModelSpec(dropout=...) got 1, but dropout is a number of at least 0 and below 1; give such a number.": {"dropout": 1},
    "ModelSpec(dropout=...) got '0.1', but dropout is a number of at least 0 and below 1; give such a number.": {"dropout": "0.1"},
    "ModelSpec(dropout=...) got nan, but dropout is a number of at least 0 and below 1; give such a number.": {"dropout": float("nan")},
    "ModelSpec(biases=...) got 1, but biases is True or False; choose one of them.": {"biases": 1},
    "ModelSpec(tied=...) got None, but tied is True or False; choose one of them.": {"tied": None},
    "ModelSpec(final_norm=...) got 'yes', but final_norm is True or False; choose one of them.": {"final_norm": "yes"},
    "ModelSpec(kind='encoder') got no classes, but an encoder ends in a classifier; pass classes=2 or more.": {"kind": "encoder"},
    "ModelSpec(kind='decoder') got classes=3, but a decoder predicts tokens; leave classes out, or choose kind='encoder'.": {"num_classes": 3},
    "ModelSpec(kind='encoder') got tied=True, but an encoder has no output over the vocabulary to tie; leave tied out, or choose kind='decoder'.": {"kind": "encoder", "num_classes": 3, "tied": True},
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_built_is_refused(text):
    with pytest.raises(WhenceError) as refused:
        ModelSpec(**{"kind": "decoder", "vocab_size": 5} | REFUSED[text])
    assert str(refused.value) == text
