"""Models small enough for many tests, in float64 so that equal means equal."""

import torch

from whence.models import ModelSpec, build

VOCABULARY, WIDTH, HEADS, HEAD_WIDTH = 13, 16, 2, 8


def decoder_spec(**about):
    return ModelSpec("decoder", VOCABULARY, **{"embed_dim": WIDTH, "heads": HEADS, "layers": 2, "ffn_dim": 12} | about)


def encoder_spec(**about):
    about = {"embed_dim": WIDTH, "heads": HEADS, "layers": 2, "ffn_dim": 12, "num_classes": 3} | about
    return ModelSpec("encoder", VOCABULARY, **about)


def decoder(position=None, **about):
    return build(decoder_spec(**about), position, seed=0).double()


def encoder(position=None, **about):
    return build(encoder_spec(**about), position, seed=0).double()


def tokens(batch=2, length=9, seed=0):
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def assert_same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
