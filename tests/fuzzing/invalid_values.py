"""Values that no argument is meant to have, and a rule, apart from the package's own, for which of them one may have."""

import math
import warnings
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from whence import Alibi, Epar, KVCache, Position, Rotary, Sinusoidal
from whence.attention.additive import Memory
from whence.position.rotary_scaling import Scaling

OPERAND = "operand"  # stands for an argument that has no name


def nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls nested tensors a prototype
        return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])


def jagged():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)


def quantized(*shape):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(shape), 0.1, 0, torch.quint8)


SCALARS = [
    lambda: None, lambda: True, lambda: False, lambda: "x", lambda: "", lambda: "auto", lambda: "sdpa", lambda: "triton", lambda: b"x",
    lambda: -1, lambda: 0, lambda: 1, lambda: 2, lambda: 3, lambda: 7, lambda: 1000, lambda: 2**31, lambda: 2**62,
    lambda: 2**70, lambda: -(2**70), lambda: 10**5000,
    lambda: -1.0, lambda: -0.0, lambda: 0.0, lambda: 0.5, lambda: 1.0, lambda: 2.5, lambda: 1e-308, lambda: 1e-320,
    lambda: 1e30, lambda: -1e30, lambda: 1e308, lambda: -1e308, lambda: 1e-12, lambda: 1e7, lambda: 9e9, lambda: -9e9, lambda: 1e12,
    lambda: math.nan, lambda: math.inf, lambda: -math.inf, lambda: 1j, lambda: Fraction(1, 2),
    lambda: np.int64(2), lambda: np.float32(0.5), lambda: np.float64(0.5), lambda: np.bool_(True), lambda: np.ones(2),
]  # fmt: skip
#: functions of batch, head, q_position and k_position: some valid, others with results of a wrong type, dtype or shape
MASK_FUNCTIONS = [
    lambda b, h, i, j: j <= i, lambda b, h, i, j: b >= 0, lambda b, h, i, j: True, lambda b, h, i, j: None,
    lambda b, h, i, j: i - j, lambda b, h, i, j: (j <= i).to_sparse(), lambda b, h, i, j: (j <= i)[None],
    lambda b, h, i, j: torch.ones(7, dtype=torch.bool), lambda *arguments: arguments[3] > 1,
]  # fmt: skip
OBJECTS = [
    lambda: [], lambda: [1.0], lambda: [1.0, 2.0], lambda: (1.0, math.nan), lambda: [[1.0], [2.0]], lambda: ["x", "y"],
    lambda: [True, False], lambda: (0.25, 0.5), lambda: {}, lambda: {"x": 1}, lambda: {1, 2}, lambda: lambda x: x,
    lambda: object(), lambda: int, lambda: Ellipsis, lambda: range(2), lambda: slice(2), lambda: torch.float32,
    lambda: Alibi, lambda: Alibi(2), lambda: Epar(3), lambda: Sinusoidal(16), lambda: Rotary(), lambda: KVCache(),
    lambda: KVCache, lambda: torch.nn.Linear(2, 2), lambda: Unshowable(), *(lambda f=f: f for f in MASK_FUNCTIONS),
]  # fmt: skip


class Unshowable:
    def __repr__(self):
        raise RuntimeError("no repr")


def tensors(*shape):
    """Odd tensors; where a shape is given, most have it, so that something else must be noticed."""
    ones = torch.ones(shape or (2,))
    whole = torch.arange(ones.numel()).reshape(ones.shape)
    return [
        lambda: torch.tensor(1.0), lambda: torch.tensor(True), lambda: torch.tensor(2), lambda: torch.empty(0),
        lambda: ones, lambda: ones.double(), lambda: ones.half(), lambda: ones.bool(), lambda: ~ones.bool(),
        lambda: ones.to(torch.complex64), lambda: ones.to(torch.float8_e4m3fn), lambda: whole, lambda: -whole - 1,
        lambda: whole.to(torch.uint8), lambda: whole.to(torch.int8), lambda: whole.to(torch.int16),
        lambda: whole.to(torch.uint16), lambda: whole.to(torch.uint32), lambda: whole.to(torch.uint64),
        lambda: whole + 2**62, lambda: whole * 2**40, lambda: whole * 1e300, lambda: ones * math.nan,
        lambda: ones * math.inf, lambda: ones[None], lambda: ones[:0], lambda: ones[..., :-1], lambda: ones.to("meta"),
        lambda: whole.to("meta"), lambda: ones.bool().to("meta"), lambda: ones.to_sparse(),
        lambda: whole.to_sparse(), lambda: ones.bool().to_sparse(), lambda: torch.eye(3).to_sparse_csr(),
        lambda: ones.to_mkldnn(), nested, jagged, lambda: quantized(*shape), lambda: ones.numpy(), lambda: ones.tolist(),
    ]  # fmt: skip


def is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value):
    return is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def may_be(kind, value):
    """Whether an argument of this kind may have a value of this type; bounds and shapes are not looked at."""
    if kind.endswith("?"):
        return value is None or may_be(kind[:-1], value)
    plain = isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_nested or value.is_quantized)
    return {
        "flag": lambda: isinstance(value, bool),
        "integer": lambda: is_integer(value),
        "number": lambda: is_number(value),
        "numbers": lambda: (
            is_number(value)
            or (isinstance(value, list | tuple | range) and all(map(is_number, value)))
            or (plain and not value.is_meta and not value.is_complex() and value.dtype != torch.bool)
        ),
        "tuple": lambda: isinstance(value, list | tuple | range) and all(map(is_number, value)),
        "string": lambda: isinstance(value, str),
        "tensor": lambda: plain and not value.is_complex() and not value.is_meta,
        "pair mask": lambda: (
            plain and not value.is_meta and (value.dtype == torch.bool or value.dtype.is_floating_point)
        ),
        "function": lambda: callable(value),
        "mask": lambda: plain and value.dtype == torch.bool and not value.is_meta,
        "whole": lambda: plain and not value.is_meta and not (value.is_floating_point() or value.is_complex()),
        "position": lambda: isinstance(value, Position),
        "cache": lambda: isinstance(value, KVCache),
        "scaling": lambda: isinstance(value, Scaling),
        "memory": lambda: isinstance(value, Memory),
    }[kind]()
