"""Errors for arguments that PyTorch, FlexAttention or transformers have under another name.

``explain_keywords`` wraps a function without changing its signature. An unknown keyword then raises ``UnknownArgument``, which
says what to pass instead. The check is one set lookup for each keyword, and ``torch.compile`` traces it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import ParamSpec, TypeVar

from whence.errors import UnknownArgument, WhenceError, usage_error
from whence.validation import format_value

P = ParamSpec("P")
R = TypeVar("R")

_MASKS = {
    "key_padding_mask": "pass key_mask=~key_padding_mask, because key_mask is True where a key is attended to",
    "attention_mask": "pass key_mask=attention_mask.bool() for a 0/1 mask [batch, keys], or a mask [.., queries, keys] as attn_mask",
    "mask": "pass attn_mask=mask for a mask over pairs, or key_mask=mask for one over keys; True means attend in both",
    "attn_bias": "pass a float attn_mask, which is added to the logits, or a Position with a bias as position",
    "bias": "pass a float attn_mask, which is added to the logits, or a Position with a bias as position",
    "score_mod": "pass position=whence.from_score_mod(score_mod)",
    "mask_mod": "pass mask_fn=mask_mod; it receives positions instead of indices",
    "block_mask": "pass the function of the mask as mask_fn",
    "need_weights": "pass return_weights=True, which returns the output and the weights of every head",
    "output_attentions": "pass return_weights=True, which returns the output and the weights of every head",
    "average_attn_weights": "pass return_weights=True and average the weights with weights.mean(1)",
    "past_key_value": "pass a whence.KVCache as cache",
    "past_key_values": "pass a whence.KVCache as cache",
}
#: keywords of ``attend`` and ``explain``
ATTEND = _MASKS | {
    "is_causal": "pass causal instead",
    "dropout_p": "pass dropout instead",
    "enable_gqa": "leave it out: k and v may always have fewer heads than q",
    "query": "pass q",
    "key": "pass k",
    "value": "pass v",
    "position_ids": "pass q_positions and k_positions",
    "positions": "pass q_positions and k_positions",
}
#: keywords of a call of an ``Attention`` layer
FORWARD = _MASKS | {
    "is_causal": "build the layer with Attention(..., causal=True)",
    "causal": "build the layer with Attention(..., causal=True)",
    "dropout_p": "build the layer with Attention(..., dropout=...)",
    "position": "build the layer with Attention(..., position=...)",
    "score_mod": "build the layer with Attention(..., position=whence.from_score_mod(score_mod))",
    "attn_bias": "pass a float attn_mask, which is added to the logits",
    "bias": "pass a float attn_mask, which is added to the logits",
    "position_ids": "pass positions instead",
    "query": "pass x; the layer projects the queries, keys and values itself",
    "key": "pass memory; the layer projects the queries, keys and values itself",
    "value": "pass memory; the layer projects the queries, keys and values itself",
}
#: keywords of the constructor of ``Attention``
CONSTRUCTOR = {
    "num_heads": "pass heads instead",
    "n_heads": "pass heads instead",
    "nhead": "pass heads instead",
    "d_model": "pass embed_dim instead",
    "hidden_size": "pass embed_dim instead",
    "is_causal": "pass causal instead",
    "dropout_p": "pass dropout instead",
    "enable_gqa": "pass num_kv_heads instead",
    "num_key_value_heads": "pass num_kv_heads instead",
    "qk_norm": "pass norm='rms'",
    "batch_first": "leave it out: inputs are always [batch, length, embed_dim]",
}


def explain_keywords(
    name: str, hints: Mapping[str, str], positional: str, known: Collection[str] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Wrap a function so that an unknown keyword, or a positional argument too many, raises an error with a remedy.

    Args:
        name: begins the error text.
        hints: the remedy for each foreign keyword.
        positional: the remedy for positional arguments that must be keywords.
        known: the keywords of the function, where its own parameters do not list them.
    """

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        most = sum(parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
        method = int(next(iter(parameters)).name == "self")
        names = frozenset(known or (parameter.name for parameter in parameters))

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for keyword in kwargs:
                if keyword not in names:
                    raise _unknown_keyword(name, keyword, kwargs[keyword], names, hints)
            if len(args) > most:
                got, rule = f"{len(args) - method} positional arguments", f"it takes at most {most - method}"
                raise usage_error(f"{name}(...)", got, rule, positional, kind=UnknownArgument)
            return function(*args, **kwargs)

        return checked

    return wrap


def _unknown_keyword(
    name: str, keyword: str, value: object, names: frozenset[str], hints: Mapping[str, str]
) -> WhenceError:
    close = difflib.get_close_matches(keyword, sorted(names - {"self"}), n=1)
    remedy = hints.get(keyword) or (f"did you mean {close[0]}=...?" if close else "remove it")
    rule = f"there is no argument {keyword}"
    return usage_error(f"{name}({keyword}=...)", format_value(value), rule, remedy, kind=UnknownArgument)
