"""The worked examples of the documents that compare additive with pointer attention, computed again.

Their scores are given, and their weights are not the softmax of these: the tests pin what is printed, what is right, and
that ours is what is right. A history: Home, Coffee, Office, Restaurant, Office.
"""

import math

import pytest
import torch

from whence import Recency
from whence.attention.additive import masked_log_softmax
from whence.attention.pointer import PointerAttention, scatter_to_vocabulary

HOME, COFFEE, OFFICE, RESTAURANT = 101, 205, 150, 312
HISTORY = torch.tensor([[HOME, COFFEE, OFFICE, RESTAURANT, OFFICE]])
ADDITIVE = [-0.5, -0.3, 0.8, 0.2, 1.2]
PRODUCTS = [0.15, 0.22, 0.65, 0.35, 0.65]
BIASES = [-0.3, -0.2, -0.1, 0.0, 0.2]  # by place; from the end, 5 to 1
PRINTED_FINAL = [-0.28, -0.17, -0.02, 0.04, 0.28]


def softmax(scores):
    powers = [math.exp(s) for s in scores]
    return [p / sum(powers) for p in powers]


def rounded(weights, digits=3):
    return [round(w.item() if isinstance(w, torch.Tensor) else w, digits) for w in weights]


def test_additive_weights():
    right = [0.075, 0.091, 0.274, 0.151, 0.409]
    assert rounded(softmax(ADDITIVE)) == right
    assert rounded(masked_log_softmax(torch.tensor([ADDITIVE]), None).exp()[0]) == right
    printed = [0.08, 0.10, 0.30, 0.15, 0.37]
    assert max(abs(p - r) for p, r in zip(printed, right, strict=True)) > 0.03
    assert rounded([sum(printed)], 6) == [1.0]  # it is a distribution, of other scores


def test_final_scores_are_products_over_8_plus_biases():
    for product, bias, final in zip(PRODUCTS, BIASES, PRINTED_FINAL, strict=True):
        assert abs(product / 8 + bias - final) < 0.006  # as printed, to two digits


def example_pointer():
    """A pointer of width 64 whose products are the document's, and whose table holds its biases."""
    pointer = PointerAttention(64, Recency(150), bias=False).double()
    items = torch.zeros(1, 5, 64, dtype=torch.float64)
    items[0, :, 0] = torch.tensor(PRODUCTS)
    items[0, :, 1] = 1.0  # the query reads this column, the keys the first
    with torch.no_grad():
        pointer.queries.weight.zero_()[0, 1] = 1.0
        pointer.keys.weight.zero_()[0, 0] = 1.0
        pointer.position.table[1:6] = torch.tensor(BIASES[::-1])
    return pointer, items


def test_pointer_weights_and_the_office():
    """The document: .12 .14 .16 .17 .41, Office .57. The softmax of its own scores: Office .466."""
    pointer, items = example_pointer()
    log_weights = pointer(items)
    want = softmax([p / 8 + b for p, b in zip(PRODUCTS, BIASES, strict=True)])
    assert rounded(want) == [0.153, 0.170, 0.198, 0.211, 0.268]
    for one, other in zip(want, softmax(PRINTED_FINAL), strict=True):
        assert abs(one - other) < 0.001  # the scores' printed digits are not what parts the weights
    torch.testing.assert_close(log_weights.exp()[0].tolist(), want, rtol=1e-6, atol=1e-7)
    copied = scatter_to_vocabulary(log_weights, HISTORY, 400).exp()[0]
    assert copied[OFFICE].item() == pytest.approx(want[2] + want[4]) and rounded([copied[OFFICE]]) == [0.466]
    for place, item in enumerate((HOME, COFFEE)):
        assert copied[item].item() == pytest.approx(want[place])
    assert copied[RESTAURANT].item() == pytest.approx(want[3])
    assert (copied > 0).sum() == 4 and copied.sum().item() == pytest.approx(1)
    assert abs(0.57 - copied[OFFICE].item()) > 0.1  # what is printed


def test_padding_before_or_behind_changes_nothing():
    pointer, items = example_pointer()
    want = pointer(items)[0]
    noise = torch.randn(1, 3, 64, dtype=torch.float64)
    behind = torch.tensor([[True] * 5 + [False] * 3])
    torch.testing.assert_close(pointer(torch.cat([items, noise], 1), key_mask=behind)[0, :5], want)
    torch.testing.assert_close(pointer(torch.cat([noise, items], 1), key_mask=behind.flip(1))[0, 3:], want)
