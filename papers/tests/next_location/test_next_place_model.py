"""The model: its answer is a distribution, padding does not matter, and each ablation takes away what it says."""

import dataclasses

import pytest
import torch

from whence import WhenceError
from whence.lab.arms import Arm
from whence_papers.pointer.next_location.model import READS, NextPlaceSpec, build_next_place, learned_shape

SPEC = NextPlaceSpec(places=12, users=3, days=7, context=9, embed_dim=16, heads=2, layers=1, ffn_dim=16)
RECENCY = Arm("r", "Recency(max_length=8)")
NONE = Arm("n", "NoPosition()")
LSTM = {"body": "lstm", "pointer": "additive", "ffn_dim": 8}


def history(lengths=(5, 3, 9), seed=0):
    drawn = torch.Generator().manual_seed(seed)
    some = lambda high: torch.randint(1, high, (len(lengths), max(lengths)), generator=drawn)  # noqa: E731
    key_mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens = some(12) * key_mask
    extras = {"time": some(97), "weekday": some(8), "duration": some(97), "ago": some(9)}
    extras = {name: column * key_mask for name, column in extras.items()}
    return tokens, key_mask, extras | {"user": torch.arange(len(lengths)) % 4}


def build_model(arm=RECENCY, seed=0, **changes):
    return build_next_place(dataclasses.replace(SPEC, **changes), arm, seed).eval()


def predict(model, inputs):
    tokens, key_mask, extras = inputs
    return model.predict(tokens, key_mask=key_mask, extras=extras)


WAYS = [
    (RECENCY, {}), (NONE, {}), (Arm("a", "Alibi(slope=[0.1], learnable=True)"), {}), (Arm("e", "Epar(learnable=True)"), {}),
    (Arm("p", "PowerPrior(alpha=0.1)"), {}), (NONE, {"pointer": "additive"}), (RECENCY, {"answers": "halves"}),
    (NONE, {"answers": "generate"}), (RECENCY, {"answers": "copy"}), (RECENCY, {"encoder": "Rotary()"}),
    (RECENCY, {"encoder": "Sinusoidal()"}), (RECENCY, {"layers": 0}), (RECENCY, {"reads": ()}), (NONE, LSTM),
    (NONE, LSTM | {"answers": "generate"}),
]  # fmt: skip


@pytest.mark.parametrize("arm, changes", WAYS)
def test_answers_are_distributions_whatever_the_padding(arm, changes):
    model, inputs = build_model(arm, **changes), history()
    answer = predict(model, inputs)
    assert torch.allclose(answer.log_p.exp().sum(1), torch.ones(3), atol=1e-5)
    tokens, _, extras = inputs
    for row, length in enumerate((5, 3, 9)):
        alone = (
            tokens[row : row + 1, :length], None,
            {name: x[row : row + 1] if name == "user" else x[row : row + 1, :length] for name, x in extras.items()},
        )  # fmt: skip
        assert torch.allclose(predict(model, alone).log_p[0], answer.log_p[row], atol=1e-5)


@pytest.mark.parametrize("arm, changes", WAYS)
def test_everything_that_is_there_learns(arm, changes):
    model, (tokens, key_mask, extras) = build_model(arm, **changes).train(), history(lengths=(5, 3, 9, 9))
    log_p = model(tokens, key_mask=key_mask, extras=extras)
    log_p.exp().gather(1, tokens[:, :1]).sum().backward()  # the first place stands in the history: it can be copied
    without = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not without
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())


def test_the_mixture_is_what_its_parts_say():
    inputs = history()
    tokens, key_mask, _ = inputs
    model = build_model()
    answer = predict(model, inputs)
    encoded = model.encode(*inputs)
    last = encoded[torch.arange(3), key_mask.sum(1) - 1]
    scores = model.generator(last)
    scores[:, 0] = -torch.inf  # padding is no place
    generated, share = scores.softmax(1), torch.sigmoid(model.gate(last))
    copied = torch.zeros(3, 12)
    weights = answer.log_weights.exp()
    for row in range(3):
        for place in range(tokens.shape[1]):
            copied[row, tokens[row, place]] += weights[row, place]
    whole = share[:, None] * generated + (1 - share[:, None]) * copied
    assert torch.allclose(answer.log_p.exp(), whole, atol=1e-6) and torch.allclose(answer.generated_share, share)
    # the pointer's weights in plain torch: scaled product, bias by position from the end, the last visit is 1
    with torch.no_grad():
        model.pointer.position.table.copy_(torch.arange(8.0) / 4)
    q, k = model.pointer.queries(last), model.pointer.keys(encoded)
    scores = (k @ q[:, :, None])[..., 0] / 16**0.5
    position_from_end = key_mask.sum(1, keepdim=True) - torch.arange(tokens.shape[1])
    scores = scores + (position_from_end.clamp(0, 7) / 4)
    expected = scores.masked_fill(~key_mask, -torch.inf).softmax(1)
    assert torch.allclose(predict(model, inputs).log_weights.exp(), expected, atol=1e-6)


def test_the_predecessor_is_its_formulas():
    """Every row by itself and unpadded, in plain torch, from the weights by name."""
    inputs = history()
    tokens, key_mask, extras = inputs
    model = build_model(NONE, **LSTM)
    with torch.no_grad():
        model.start.copy_(torch.linspace(-1, 1, 16))
    answer = predict(model, inputs)
    decoder, vectors = model.decoder, model.embed_visits(tokens, key_mask, extras)
    for row, length in enumerate((5, 3, 9)):
        states, (ends_h, ends_c) = model.encoder.lstm(vectors[row, :length])
        h = model.encoder.reduce_h(ends_h.flatten()).relu()
        c = model.encoder.reduce_c(ends_c.flatten()).relu()
        x = decoder.merge(torch.cat([model.start, torch.zeros(16)]))
        h, c = decoder.cell(x, (h, c))
        state, attention = torch.cat([h, c]), decoder.attention
        hidden = torch.tanh(attention.encoder_proj(states) + attention.decoder_proj(state))
        weights = (hidden @ attention.score.weight[0]).softmax(0)
        context = weights @ states
        share = torch.sigmoid(decoder.gate(context, state, x))
        whole = share * decoder.out(decoder.hidden_proj(torch.cat([h, context]))).softmax(0)
        whole = whole.index_add(0, tokens[row, :length], (1 - share) * weights)
        copied = (1 - share) / (1 - whole[0])
        whole[0] = 0.0  # padding is no place
        assert torch.allclose(answer.log_p[row].exp(), whole / whole.sum(), atol=1e-6)
        assert torch.allclose(answer.log_weights[row, :length].exp(), weights, atol=1e-6)
        assert torch.allclose(1 - answer.generated_share[row], copied, atol=1e-6)


def test_ablations_take_away_what_they_say():
    inputs = history()
    halves, alone, copies = (
        build_model(answers="halves"),
        build_model(NONE, answers="generate"),
        build_model(answers="copy"),
    )
    assert predict(halves, inputs).generated_share.tolist() == [0.5] * 3 and not hasattr(halves, "gate")
    assert predict(alone, inputs).log_weights is None and not hasattr(alone, "pointer")
    visited = torch.zeros(3, 12).scatter(1, inputs[0], 1.0) > 0
    assert torch.isneginf(predict(copies, inputs).log_p[~visited]).all()
    without = build_model(reads=tuple(name for name in READS if name != "from_end"))
    assert "from_end" not in without.reads
    swapped = (inputs[0].flip(1), inputs[1].flip(1), {n: x if n == "user" else x.flip(1) for n, x in inputs[2].items()})
    bag = build_model(NONE, reads=("user",), answers="copy")
    rows = [2]  # without anything that tells order, the encoder sees a bag of visits: reversed, only the query moves
    same = torch.allclose(bag.encode(*inputs)[rows], bag.encode(*swapped)[rows].flip(1), atol=1e-5)
    assert same
    ordered = build_model(NONE, reads=("user", "from_end"), answers="copy")
    assert not torch.allclose(ordered.encode(*inputs)[rows], ordered.encode(*swapped)[rows].flip(1), atol=1e-3)


def test_arms_of_a_seed_share_their_start():
    one, other = build_model(RECENCY, seed=3), build_model(Arm("e", "Epar(learnable=True)"), seed=3)
    theirs = dict(other.named_parameters())
    shared = [name for name, _ in one.named_parameters() if "position" not in name]
    assert len(shared) > 20 and all(torch.equal(dict(one.named_parameters())[n], theirs[n]) for n in shared)
    assert not torch.equal(one.place.weight, build_model(RECENCY, seed=4).place.weight)


def test_the_learned_shape():
    model = build_model()
    with torch.no_grad():
        model.pointer.position.table.copy_(torch.arange(8.0))
    assert learned_shape(model, 3) == {"from_end": [1.0, 2.0, 3.0], "bias": [1.0, 2.0, 3.0]}
    assert learned_shape(build_model(NONE), 3) == {} == learned_shape(build_model(NONE, answers="generate"), 3)
    factor = learned_shape(build_model(Arm("e", "Epar(beta=2.0, context=4)")), 5)["score_scale"]
    assert factor[4] == pytest.approx((1 + 0.5 * 2.718281828**-2) / 1.5, abs=1e-5)


@pytest.mark.parametrize(
    "changes, arm, text",
    [
        ({"answers": "both"}, NONE, "answers.*both.*gate, halves, generate, copy"),
        ({"pointer": "cosine"}, NONE, "pointer.*cosine.*dot, additive"),
        ({"reads": ("user", "user")}, NONE, "once"),
        ({"reads": ("mood",)}, NONE, "reads.*mood.*user, time"),
        ({"pointer": "additive"}, RECENCY, "Recency.*dot-product pointer.*NoPosition"),
        ({"body": "gru"}, NONE, "body.*gru.*transformer, lstm"),
        ({"body": "lstm"}, NONE, "pointer='dot'.*pass pointer=\"additive\""),
        (LSTM | {"answers": "halves"}, NONE, "answers='halves'"),
        (LSTM | {"encoder": "Rotary()"}, NONE, r"encoder='Rotary\(\)'"),
        (LSTM, RECENCY, "Recency.*dot-product pointer.*NoPosition"),
        ({"answers": "generate"}, RECENCY, "Recency.*dot-product pointer.*NoPosition"),
    ],
)
def test_models_that_cannot_be(changes, arm, text):
    with pytest.raises(WhenceError, match=text):
        build_model(arm, **changes)
