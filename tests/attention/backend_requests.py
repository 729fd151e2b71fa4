"""Small calls and the facts by which a backend is chosen."""

import torch

from whence import (
    explain,
)
from whence.attention.backends import BACKENDS, choose
from whence.attention.call import Request

H, D = 4, 8


def tokens(length=6, heads=H, **about):
    return torch.zeros(2, heads, length, D, **about)


def explain_call(position=None, length=6, causal=True, grad=True, **arguments):
    q = tokens(length)
    with torch.set_grad_enabled(grad):
        return explain(q, q, q, position=position, causal=causal, **arguments)


def request(*effects, **facts):
    """The facts of a small causal call in float32 on a CPU."""
    usual = {
        "return_weights": False, "learnable": False, "device": torch.device("cpu"), "dtype": torch.float32,
        "head_dim": D, "value_dim": D, "offset": 0, "bias_numbers": 10, "mask_numbers": 0, "pair_mask": None, "no_table": None, "no_content_table": None,
        "pair_form": None, "dropout": False, "grouped_heads": False,
        "compiling": False, "exporting": False, "transforming": False, "input_gradient": False, "no_score_mod": None,
    }  # fmt: skip
    facts = {"learnable_scores": facts.get("learnable", False), **facts}
    return Request(effects=frozenset(effects), **(usual | facts))


def chosen_name(request):
    return choose(request)[0].name


def reason_against(name, request):
    return BACKENDS[name].supports(request)
