"""Mistakes of a first hour: swapped axes, float masks, Python control flow, classes instead of instances."""

import math

import pytest
import torch

import whence
from whence.errors import WhenceError

Q = torch.randn(2, 4, 16, 8)
SWAPPED = Q.transpose(1, 2)


@pytest.mark.parametrize(
    "value, remedy",
    [(torch.ones(2, 16), r"key_mask\.bool\(\).*key_mask == 0"), (torch.ones(2, 16).long(), r"key_mask\.bool\(\)")],
)
def test_a_numeric_key_mask_is_converted_by_the_user(value, remedy):
    with pytest.raises(WhenceError, match=rf"key_mask.*\[2, 16\] of {value.dtype}.*{remedy}"):
        whence.attend(Q, Q, Q, key_mask=value)


def test_a_mask_over_pairs_is_no_key_mask():
    with pytest.raises(WhenceError, match=r"key_mask.*\[2, 1, 1, 16\].*attn_mask"):
        whence.attend(Q, Q, Q, key_mask=torch.ones(2, 1, 1, 16, dtype=torch.bool))


@pytest.mark.parametrize(
    "call, text",
    [
        (
            lambda: whence.attend(SWAPPED, SWAPPED, SWAPPED, position=whence.Alibi(4), causal=True),
            r"Alibi.*4 heads with 16.*k\.transpose",
        ),
        (
            lambda: whence.attend(SWAPPED, SWAPPED, SWAPPED, key_mask=torch.ones(2, 16, dtype=torch.bool)),
            r"key_mask.*\[2, 16\].*k\.transpose",
        ),
        (
            lambda: whence.attend(SWAPPED, SWAPPED, SWAPPED, attn_mask=torch.ones(16, 16)),
            r"attn_mask.*\[16, 16\].*k\.transpose",
        ),
        (
            lambda: whence.attend(SWAPPED, Q, Q, causal=True),
            r"attend\(q, k\).*4 queries for 16 keys.*q\.transpose\(1, 2\)\.$",
        ),
        (
            lambda: whence.attend(Q[:, :, :7].transpose(1, 2), SWAPPED, SWAPPED),
            r"attend\(q\).*7 heads for 16.*v\.transpose",
        ),
        (lambda: whence.attend(Q, Q, SWAPPED), r"attend\(v\).*16 heads with 4.*v\.transpose"),
    ],
)
def test_swapped_heads_and_length_are_recognized(call, text):
    with pytest.raises(WhenceError, match=text):
        call()


def test_other_mismatches_do_not_speak_of_axes():
    with pytest.raises(WhenceError, match=r"5 heads.*build it with heads=4"):
        whence.attend(Q, Q, Q, position=whence.Alibi(5), causal=True)


def if_statement(score, b, h, q_idx, kv_idx):
    if q_idx >= kv_idx:
        return score
    return score - 1


class IfHook(whence.Position):
    def bias(self, distance, length):
        return distance * 0 if distance > 3 else -distance


class IfContent(whence.Position):
    def content_bias(self, rows):
        return rows.scores if rows.distance > 1 else -rows.scores


@pytest.mark.parametrize(
    "arguments, subject",
    [
        ({"position": whence.from_score_mod(if_statement)}, "from_score_mod"),
        ({"position": whence.from_score_mod(lambda s, b, h, i, j: s * math.exp(i - j))}, "from_score_mod"),
        ({"mask_fn": lambda b, h, i, j: i >= j and i - j < 3}, "mask_fn"),
        ({"position": IfHook()}, r"IfHook\.bias"),
        ({"position": IfContent()}, r"IfContent\.content_bias"),
    ],
)
def test_python_control_flow_names_torch_where_and_the_line(arguments, subject):
    with pytest.raises(WhenceError, match=rf"{subject}.*line \d+ of .*test_first_mistakes\.py.*torch\.where"):
        whence.attend(Q, Q, Q, **arguments)


class OwnWeights(whence.Position):
    """One hook of its own, by name, with a layer that ``.half()`` converts."""

    def __init__(self):
        super().__init__()
        self.mix, self.step = torch.nn.Linear(8, 8), torch.nn.Linear(1, 1)


class OwnRotation(OwnWeights):
    def rotate(self, q, k, q_positions, k_positions):
        return self.mix(q), self.mix(k)


class OwnContent(OwnWeights):
    def content_bias(self, rows):
        return self.mix(rows.q) @ rows.k.mT


class OwnBias(OwnWeights):
    def bias(self, distance, length):
        return self.step(distance[:, None])[:, 0]


@pytest.mark.parametrize("mechanism", [OwnRotation, OwnContent, OwnBias])
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_parameters_in_another_dtype_name_the_line_and_the_conversion(mechanism, backend):
    subject = (
        rf"{mechanism.__name__}\.\w+ got tensors of different dtypes, in line \d+ of .*test_first_mistakes\.py.*\.to\("
    )
    with pytest.raises(WhenceError, match=subject):
        whence.attend(Q, Q, Q, position=mechanism().half(), backend=backend)


class TableOfPositions(OwnWeights):
    def rotate(self, q, k, q_positions, k_positions):
        return q + q_positions[:, None, :, None] @ self.step.weight, k


class AttendsInside(OwnWeights):
    def content_bias(self, rows):
        return whence.attend(rows.q, rows.k, rows.k.half())


def test_integer_positions_are_converted_and_not_the_parameters():
    with pytest.raises(WhenceError, match=r"TableOfPositions\.rotate got .*positions\.to\(parameter\.dtype\)"):
        whence.attend(Q, Q, Q, position=TableOfPositions())


def test_an_error_of_whence_inside_a_hook_is_passed_on():
    with pytest.raises(WhenceError, match=r"^attend\("):
        whence.attend(Q, Q, Q, position=AttendsInside())


def test_other_errors_of_a_function_are_passed_on():
    def broken(batch, head, q_position, k_position):
        raise ValueError("my own")

    with pytest.raises(ValueError, match=r"^my own$"):
        whence.attend(Q, Q, Q, mask_fn=broken)


@pytest.mark.parametrize(
    "call",
    [
        lambda p: whence.attend(Q, Q, Q, position=p),
        lambda p: whence.Attention(32, 4, p),
        lambda p: whence.check(p),
        lambda p: whence.without_embedding(p),
    ],
)
def test_a_class_instead_of_an_instance(call):
    with pytest.raises(WhenceError, match=r"position.*the class Alibi.*Alibi\(heads=\.\.\.\)"):
        call(whence.Alibi)
    with pytest.raises(WhenceError, match=r"position.*'alibi'.*whence\.Rotary\(\)"):
        call("alibi")


def test_a_score_mod_instead_of_a_position():
    with pytest.raises(WhenceError, match=r"position.*if_statement.*from_score_mod"):
        whence.attend(Q, Q, Q, position=if_statement)


class NoInit(whence.Position):
    def __init__(self):
        pass


class ParameterFirst(whence.Position):
    def __init__(self):
        self.weight = torch.nn.Parameter(torch.ones(1))


def test_a_missing_super_init_is_named():
    remedy = r"begin {0}\.__init__ with super\(\)\.__init__\(\)"
    for use in (lambda p: whence.attend(Q, Q, Q, position=p), whence.check, lambda p: p + whence.Alibi(4)):
        with pytest.raises(WhenceError, match=remedy.format("NoInit")):
            use(NoInit())
    with pytest.raises(WhenceError, match=remedy.format("ParameterFirst")):
        ParameterFirst()
    assert "super().__init__()" in repr(NoInit())


def test_a_hook_cannot_be_assigned_to_an_instance():
    with pytest.raises(WhenceError, match=r"Alibi\.bias.*subclass"):
        whence.Alibi(4).bias = lambda distance, length: distance
