"""Arguments under PyTorch's names: one error that says what to pass, and no change of the signatures."""

import inspect

import pytest
import torch

import whence
from whence.attention.keywords import ATTEND, CONSTRUCTOR, FORWARD
from whence.errors import UnknownArgument

Q = torch.randn(2, 4, 6, 8)
MASK = torch.ones(2, 6, dtype=torch.bool)


@pytest.mark.parametrize(
    "keyword, value, remedy",
    [
        ("key_padding_mask", MASK, "key_mask=~key_padding_mask"),
        ("is_causal", True, "pass causal"),
        ("dropout_p", 0.1, "pass dropout"),
        ("enable_gqa", True, "leave it out"),
        ("need_weights", True, "return_weights=True"),
        ("attn_bias", torch.ones(6, 6), "attn_mask"),
        ("attention_mask", MASK, r"key_mask=attention_mask\.bool\(\)"),
        ("score_mod", len, r"whence\.from_score_mod"),
        ("caussal", True, r"did you mean causal=\.\.\.\?"),
        ("nonsense_xyz", 3, "remove it"),
    ],
)
@pytest.mark.parametrize("function", [whence.attend, whence.explain])
def test_attend_names_the_argument_to_pass_instead(function, keyword, value, remedy):
    got = "tensor" if isinstance(value, torch.Tensor) else "built-in" if value is len else str(value)
    with pytest.raises(UnknownArgument, match=rf"{function.__name__}\({keyword}=.*{got}.*{remedy}"):
        function(Q, Q, Q, **{keyword: value})


@pytest.mark.parametrize(
    "keyword, remedy",
    [
        ("key_padding_mask", "key_mask=~key_padding_mask"),
        ("is_causal", r"Attention\(\.\.\., causal=True\)"),
        ("need_weights", "return_weights=True"),
        ("position_ids", "positions"),
        ("score_mod", r"Attention\(\.\.\., position=whence\.from_score_mod\(score_mod\)\)"),
        ("attn_bias", "pass a float attn_mask, which is added to the logits\\.$"),
        ("bias", "pass a float attn_mask, which is added to the logits\\.$"),
    ],
)
def test_a_layer_names_the_argument_to_pass_instead(keyword, remedy):
    layer = whence.Attention(32, 4)
    with pytest.raises(UnknownArgument, match=rf"Attention\.forward\({keyword}=.*True.*{remedy}"):
        layer(torch.ones(2, 6, 32), **{keyword: True})


@pytest.mark.parametrize(
    "keyword, value, remedy",
    [("num_heads", 4, "heads"), ("batch_first", True, "batch, length"), ("is_causal", True, "causal")],
)
def test_the_constructor_names_the_argument_to_pass_instead(keyword, value, remedy):
    arguments = {"embed_dim": 32, "heads": 4} if keyword != "num_heads" else {"embed_dim": 32}
    with pytest.raises(UnknownArgument, match=rf"Attention\({keyword}=.*{value}.*{remedy}"):
        whence.Attention(**arguments, **{keyword: value})


def test_positional_masks_and_values_are_explained():
    with pytest.raises(UnknownArgument, match=r"attend\(.*4 positional.*at most 3.*attn_mask="):
        whence.attend(Q, Q, Q, None)
    x = torch.ones(2, 6, 32)
    with pytest.raises(UnknownArgument, match=r"Attention\.forward\(.*3 positional.*at most 2.*layer\(x, memory\)"):
        whence.Attention(32, 4)(x, x, x)


def test_the_error_is_also_a_type_error_as_without_the_hint():
    with pytest.raises(TypeError, match="is_causal"):
        whence.attend(Q, Q, Q, is_causal=True)


def test_signatures_are_those_of_the_functions():
    assert list(inspect.signature(whence.attend).parameters)[:4] == ["q", "k", "v", "position"]
    kinds = {p.kind for p in inspect.signature(whence.attend).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert list(inspect.signature(whence.Attention).parameters)[:3] == ["embed_dim", "heads", "position"]
    assert list(inspect.signature(whence.Attention.forward).parameters)[:3] == ["self", "x", "memory"]


@pytest.mark.parametrize(
    "hints, function", [(ATTEND, whence.attend), (FORWARD, whence.Attention.forward), (CONSTRUCTOR, whence.Attention)]
)
def test_no_hint_is_for_an_argument_that_exists(hints, function):
    assert not set(hints) & set(inspect.signature(function).parameters)


def test_compile_traces_the_check():
    function = torch.compile(lambda q: whence.attend(q, q, q, causal=True), fullgraph=True, backend="eager")
    assert torch.equal(function(Q), whence.attend(Q, Q, Q, causal=True))
    layer = whence.Attention(32, 4, causal=True)
    x = torch.randn(2, 6, 32)
    assert torch.equal(torch.compile(layer, fullgraph=True, backend="eager")(x), layer(x))
