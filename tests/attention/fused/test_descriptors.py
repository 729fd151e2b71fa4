"""Descriptors of a plan are those that Triton would build, without its checks and without keeping tensors."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

pytest.importorskip("triton")

from whence.attention.fused import descriptors


def test_the_same_descriptor_as_a_checked_one_for_every_form():
    made = descriptors.Descriptors(torch.device("cpu"))
    for shape, rows, columns in [((2, 3, 40, 64), 32, 64), ((1, 1, 5, 96), 16, 64), ((1, 1, 5, 96), 16, 32)]:
        for _ in range(2):
            x = torch.zeros(shape)
            by_token = torch.zeros(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)
            for tensor in (x, by_token):
                got, checked = made.describe(tensor, rows, columns), descriptors.build_descriptor(tensor, rows, columns)
                assert type(got) is type(checked)
                assert vars(got) | {"base": None} == vars(checked) | {"base": None}
                assert got.base is tensor


def test_no_tensor_is_kept_and_forms_are_bounded():
    made, x = descriptors.Descriptors(torch.device("cpu")), torch.zeros(1, 2, 16, 16)
    made.describe(x, 16, 16)
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None
    for length in range(2 * descriptors.MAX_FORMS):
        made.describe(torch.zeros(1, 1, length + 1, 16), 16, 16)
    assert len(made._forms) <= descriptors.MAX_FORMS
