"""With a padding mask an encoder's answer is that of the text alone; without one, padding counts like any token."""

import pytest
import torch
import torch.nn.functional as F
from small_models import HEAD_WIDTH, HEADS, WIDTH, assert_same, encoder, tokens

from whence import Epar, Kerple, Learned, NoPosition, Rotary, Shaw, Sinusoidal, WhenceError

POSITIONS = {
    "NoPosition": NoPosition(),
    "Sinusoidal": Sinusoidal(WIDTH),
    "Learned": Learned(WIDTH, 32),
    "Rotary": Rotary(),
    "Shaw": Shaw(HEAD_WIDTH, clip=4, std=0.5),
    "Kerple": Kerple(HEADS),
    "Epar": Epar(HEADS, learnable=True, length="sequence"),
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", POSITIONS)
def test_padding_changes_nothing_when_it_is_masked(name, side):
    model = encoder(POSITIONS[name]).eval()
    text = tokens(batch=2, length=5)
    filler = tokens(batch=2, length=4, seed=7)
    padded = torch.cat([filler, text] if side == "left" else [text, filler], 1)
    real = torch.ones(2, 9, dtype=torch.bool)
    real[:, slice(0, 4) if side == "left" else slice(5, 9)] = False
    assert_same(model(padded, real), model(text))
    assert not torch.allclose(model(padded), model(text))


def test_logits_of_every_token():
    model = encoder(Sinusoidal(WIDTH)).eval()
    each = model(tokens(), pool=False)
    assert each.shape == (*tokens().shape, model.spec.num_classes)
    assert_same(each[:, 3], model.classifier(model.body(tokens())[:, 3]))


def test_without_a_mask_every_token_counts():
    model = encoder(Sinusoidal(WIDTH)).eval()
    x = model.body(tokens())
    assert_same(model(tokens()), model.classifier(x.mean(1)))
    assert_same(model(tokens(), torch.ones(2, 9, dtype=torch.bool)), model(tokens()))


def test_it_is_bidirectional():
    model = encoder().eval()
    text = tokens(batch=1)
    other = text.clone()
    other[0, -1] = (other[0, -1] + 1) % 13
    assert not torch.allclose(model.body(text)[0, 0], model.body(other)[0, 0])


def test_a_row_of_padding_alone_is_finite():
    real = torch.ones(2, 9, dtype=torch.bool)
    real[1] = False
    model = encoder(Rotary())
    scores = model(tokens(), real)
    F.cross_entropy(scores, torch.tensor([0, 1])).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    assert_same(scores[1], model.classifier(torch.zeros(1, WIDTH, dtype=torch.float64))[0])


def test_a_mask_of_another_dtype_raises():
    with pytest.raises(WhenceError, match=r"key_mask.*float32.*mask\.bool"):
        encoder()(tokens(), torch.ones(2, 9))
