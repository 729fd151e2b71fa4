"""Rows, geometry, positional vectors and channels, each against something planted or worked out another way."""

import itertools

import numpy as np
import pytest
import torch

from whence.errors import WhenceError
from whence.probe import analyses
from whence.probe.arrays import attention_rows, channels, geometry, growth
from whence.probe.plan import Plan, TaskSpec
from whence.probe.probed_model import tiny_random_model

F64 = {"dtype": torch.float64}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **F64)


def test_regions_are_a_whole_row():
    weights = normal(2, 3, 50).softmax(-1)
    parts = attention_rows.regions(weights)
    assert torch.allclose(sum(parts.values()), torch.ones(2, 3, **F64))
    planted = torch.zeros(1, 1, 41)
    planted[..., 0], planted[..., 3], planted[..., 40] = 0.5, 0.2, 0.3
    actual = {name: round(float(value), 6) for name, value in attention_rows.regions(planted).items()}
    assert actual == {"sink": 0.5, "primacy": 0.2, "middle": 0.0, "recency": 0.3}


def test_without_positions_attention_by_distance_is_the_masks_alone():
    lm = tiny_random_model(layers=2)
    plan = Plan("quick", (TaskSpec("needle", 2, 2, {"pieces": 2, "words": 5}),), texts=2, tokens=32)
    actual = analyses.by_distance(lm, plan)
    with torch.no_grad():  # a model whose rotation turns nothing looks the same with its positions as without
        lm.model.model.rotary_emb.inv_freq.zero_()
    still = analyses.by_distance(lm, plan)
    for one, other in ((actual["one_position"], still["attention"]), (still["one_position"], still["attention"])):
        assert torch.allclose(torch.tensor(one), torch.tensor(other), atol=1e-4)
    assert not torch.allclose(torch.tensor(actual["attention"]), torch.tensor(actual["one_position"]), atol=1e-4)


def test_attention_by_distance_finds_a_planted_decay():
    distance = torch.arange(63, -1, -1, **F64)
    planted = (-distance / 8).exp()
    planted[0] = 99  # the sink is no distance
    ranges, means = attention_rows.by_distance(planted.reshape(1, 1, -1))
    assert ranges[:4] == [(0, 1), (1, 2), (2, 4), (4, 8)] and ranges[-1][1] == 63
    expected = [np.exp(-np.arange(near, far) / 8).mean() for near, far in ranges]
    assert means.flatten().tolist() == pytest.approx(expected)


def test_gold_and_profile_are_taken_apart():
    bias = torch.tensor([0.5, 0.2, 0.1, 0.4], **F64)
    places = [0, 2, 3]
    attention = bias.repeat(3, 2, 5, 1)
    for index, place in enumerate(places):
        attention[index, ..., place] += 0.3
    gold, profile = attention_rows.gold_and_profile(attention, places)
    assert torch.allclose(profile, bias.expand(2, 5, 4))
    assert torch.allclose(gold, bias[places].expand(2, 5, 3) + 0.3)
    shares = attention_rows.position_or_content(attention, places)
    assert torch.allclose(shares["relevance"], torch.full((2, 5), 0.3, **F64))
    assert float(shares["rest"].max()) < 1e-12 and float(shares["content"].min()) > 0.05
    assert torch.allclose(shares["position"] + shares["content"] + shares["rest"], torch.ones(2, 5, **F64))


def test_decomposition_is_whole_orthogonal_and_finds_what_was_planted():
    contexts, tokens, width = 7, 40, 12
    curve = torch.cos(torch.linspace(0, torch.pi, tokens, **F64))[:, None] * normal(width)
    states = 3 + curve + 0.1 * normal(contexts, 1, width, seed=1) + 0.05 * normal(contexts, tokens, width, seed=2)
    parts = geometry.decompose(states)
    assert torch.allclose(parts.mean + parts.position + parts.context[:, None] + parts.residual, states)
    for margin in (parts.position.mean(0), parts.context.mean(0), parts.residual.mean(0), parts.residual.mean(1)):
        assert float(margin.abs().max()) < 1e-12
    total = float((states - parts.mean).square().sum())
    squares = contexts * parts.position.square().sum() + tokens * parts.context.square().sum()
    assert float(squares + parts.residual.square().sum()) == pytest.approx(total)
    assert sum(parts.shares.values()) == pytest.approx(1) and parts.shares["position"] > 0.9
    values = geometry.spectrum(parts.position)
    assert geometry.stable_rank(values) == pytest.approx(1, abs=0.02) and geometry.rank(values) == 1
    energy = geometry.frequencies(parts.position)
    assert float(energy.sum()) == pytest.approx(1) and int(energy.argmax()) == 1 and float(energy[:4].sum()) > 0.98


def test_position_beyond_chance_is_zero_in_noise():
    actual = [geometry.decompose(normal(5, 30, 8, seed=seed)) for seed in range(20)]
    assert abs(sum(parts.position_beyond_chance for parts in actual) / 20) < 0.01
    assert min(parts.shares["position"] for parts in actual) > 0.15  # which the plain share does not know


def test_scores_are_the_sum_of_their_parts():
    states, q, k = normal(3, 10, 8), normal(4, 8, seed=1), normal(4, 8, seed=2)
    split = geometry.score_parts(geometry.decompose(states), q, k)
    direct = torch.einsum("ctd,csd->cts", states @ q.T, states @ k.T) / 2
    assert torch.allclose(sum(split.values()), direct)
    assert sum(geometry.score_shares(split).values()) == pytest.approx(1)


def test_outlier_channels_are_named():
    states = normal(4, 20, 10)
    states[..., 3] *= 100
    kept, out = geometry.without_outliers(states)
    assert out == [3] and kept.shape[-1] == 9
    assert 0 <= geometry.incoherence(geometry.decompose(states))["mean"] <= 1


def test_positional_vectors_have_no_rest():
    states = normal(4, 2, 16, 6) + torch.linspace(0, 1, 16, **F64)[:, None]
    actual = geometry.positional_vectors(states)
    assert float(actual.content.mean(0).abs().max()) < 1e-12 and float(actual.moving.mean(1).abs().max()) < 1e-12
    assert torch.allclose(actual.base + actual.moving + actual.content, states)
    assert torch.allclose(geometry.remove_part(states, actual, "content"), actual.vector.expand_as(states))
    one = states[:, 0]
    assert torch.allclose(geometry.replace_positional_vectors(one, actual.vector[0]), one)
    moved = geometry.replace_positional_vectors(one, actual.vector[0], ratio=2.0)
    assert torch.equal(moved[:, :4], one[:, :4])
    expected = one[:, 9] - actual.vector[0, 9] + (actual.vector[0, 4] + actual.vector[0, 5]) / 2
    assert torch.allclose(moved[:, 9], expected)
    circle = torch.stack([torch.arange(8, **F64).cos(), torch.arange(8, **F64).sin()], -1).repeat(2, 1)
    assert torch.allclose(geometry.nearest_inside(circle, 8), torch.ones(8, **F64))


@pytest.mark.parametrize("fit", channels.FITS)
def test_each_fit_detects_a_planted_channel(fit):
    tokens, width = 300, 12
    means = 0.3 * normal(8, tokens, width)
    means[..., 5] += torch.linspace(0, 1, tokens, **F64).sqrt() * 40
    means[..., 7] -= torch.linspace(0, 1, tokens, **F64) * 40
    means[..., 2] += torch.sin(torch.linspace(0, 9, tokens, **F64)) * 40  # smooth, but turns
    actual = {one.channel: one for one in channels.positional_channels(means, fit, most=None)}
    assert actual[5].direction == 1 and actual[7].direction == -1 and 2 not in actual
    assert {one.channel for one in channels.positional_channels(means, fit, most=2)} == {5, 7}
    means[4:, :, 7] = means[
        4:, :, 2
    ]  # monotone in two of the four examined layers, and not in more than a quarter of all eight
    for fewest, expected in ((None, {5, 7}), (2, {5})):
        found = {one.channel for one in channels.positional_channels(means, fit, most=None, min_layers=fewest)}
        assert found & {5, 7} == expected


def test_a_straight_line_through_noise_passes_by_chance_and_the_count_says_so():
    means = normal(8, 200, 40)
    assert channels.by_chance(means, "segmented") > 10 and channels.by_chance(means, "window") == 0


def test_a_flat_curve_has_no_direction():
    assert channels.direction(torch.zeros(64, 3), "cubic").tolist() == [0, 0, 0]
    assert float(channels.roughness(torch.linspace(0, 1, 64, **F64)[:, None])) < 1e-20


def test_segments_are_the_best_of_all_partitions(monkeypatch):
    points = 9
    monkeypatch.setattr(channels, "POINTS", points)
    curve = torch.tensor([0, 1, 2, 3, 3, 3.1, 1, 0.5, 0.4], **F64)[:, None] + 0.05 * normal(points, 3)
    instance = channels._fit_segments(curve)
    noise = (curve.diff(dim=0).square().mean(0) / 2).clamp_min(1e-12)
    price = channels.PENALTY * noise * np.log(points)
    for column in range(3):
        best = np.inf
        for cuts in itertools.chain.from_iterable(itertools.combinations(range(1, points), n) for n in range(points)):
            edges, cost = [0, *cuts, points], 0.0
            for a, b in itertools.pairwise(edges):
                x, y = np.arange(a, b), curve[a:b, column].numpy()
                line = np.polyval(np.polyfit(x, y, 1), x) if b - a > 1 else y
                cost += float(((y - line) ** 2).sum()) + float(price[column])
            best = min(best, cost)
        pieces = 1 + int(
            ((instance[1:-1, column] - (instance[:-2, column] + instance[2:, column]) / 2).abs() > 1e-9).sum()
        )
        missed = float((curve[:, column] - instance[:, column]).square().sum())
        assert missed <= best <= missed + pieces * float(price[column]) + 1e-9


def test_wrong_shapes_are_refused():
    for call, message in (
        (lambda: geometry.decompose(torch.ones(3, 4)), "two or more contexts"),
        (lambda: channels.fit_curves(torch.ones(64, 1), "spline"), "the fits are"),
        (lambda: channels.fit_curves(torch.ones(6, 1), "cubic"), "use longer texts"),
        (lambda: geometry.positional_vectors(torch.ones(1, 1, 2, 2)), "two or more samples"),
        (lambda: geometry.nearest_inside(torch.ones(4, 2), 4), "there are 4 positions"),
        (lambda: attention_rows.slot_means(torch.ones(1, 1, 4), [(2, 9)]), "there are 4 tokens"),
        (lambda: attention_rows.regions(torch.ones(1, 1, 2)), "two ends and a middle"),
        (lambda: attention_rows.gold_and_profile(torch.ones(1, 1, 1, 3), [0]), "measure at two or more places"),
    ):
        with pytest.raises(WhenceError, match=message):
            call()


@pytest.mark.parametrize("shape", [(300, 300), (200, 400), (400, 160)])
def test_the_noise_ends_where_it_is_known_to_end(shape):
    """White noise has a threshold in closed form (Gavish & Donoho 2014); its size need not be told."""
    ratio = min(shape) / max(shape)
    known = np.sqrt(2 * (ratio + 1) + 8 * ratio / ((ratio + 1) + np.sqrt(ratio**2 + 14 * ratio + 1)))
    left, right = (torch.linalg.qr(normal(side, 3, seed=side + 1))[0] for side in shape)
    signal = left * torch.tensor([9.0, 6.0, 4.0], **F64) @ right.T
    for size in (1.0, 50.0):
        values = geometry.spectrum(size * (signal + normal(*shape) / max(shape) ** 0.5))
        assert geometry.threshold(values, shape) == pytest.approx(size * known, rel=0.03)
        assert geometry.signal_rank(values, shape) == 3
    assert geometry.signal_rank(geometry.spectrum(normal(*shape)), shape) == 0


def test_the_rank_above_noise_of_small_and_empty_parts():
    assert geometry.signal_rank(torch.zeros(9, **F64), (9, 12)) == 0
    assert geometry.signal_rank(geometry.spectrum(normal(7, 5)), (7, 5)) <= 2
    with pytest.raises(WhenceError, match="more than twice as many"):
        geometry.threshold(torch.ones(6), (6, 6), most=3)


def test_two_halves_tell_the_rank_of_position_from_noise():
    along = (torch.arange(64, **F64) + 0.5) * torch.pi / 64  # cosines along it are single frequencies

    def waves(*numbers):
        """As many directions as frequencies."""
        directions = torch.linalg.qr(normal(24, len(numbers), seed=5)).Q
        return torch.stack([(number * along).cos() for number in numbers]).T @ directions.T

    position = 4 * waves(1, 2)
    states = position + normal(16, 64, 24) * 2
    assert geometry.rank(geometry.spectrum(geometry.decompose(states).position)) > 4  # the noise of sixteen texts
    actual = geometry.in_both_halves(states, 4)
    assert actual["rank"] <= 3 and actual["low_frequencies"] == pytest.approx(1, abs=0.05)
    exact = geometry.in_both_halves(position.expand(4, 64, 24), 4)
    assert exact["rank"] == 2 and exact["low_frequencies"] == pytest.approx(1)
    spiked = states.clone()
    spiked[:, 30, 5] += 1e4  # one channel at one position: a flat spectrum of rank 1
    assert geometry.in_both_halves(spiked, 4)["rank"] == 1
    without = geometry.in_both_halves(geometry.without_outliers(spiked)[0], 4)
    assert without["low_frequencies"] == pytest.approx(actual["low_frequencies"], abs=0.1)
    high = geometry.in_both_halves(waves(20, 25, 30) + normal(4, 64, 24) * 0.01, 4)
    assert high["rank"] == 3 and abs(high["low_frequencies"]) < 0.01
    assert geometry.in_both_halves(torch.stack([position, -position]), 4) is None
    assert geometry.in_both_halves(position[None], 4) is None


def test_texts_without_position_have_none_in_both_halves():
    """Neighbouring tokens are alike in every text, which makes a smooth mean of few; only its place in the text is chance."""
    smooth = normal(40, 12, 70, 6, seed=3).unfold(2, 7, 1).mean(-1)
    actual = [geometry.in_both_halves(states, 4, seed=number) for number, states in enumerate(smooth)]
    assert sum(one is not None for one in actual) <= 6  # one in twenty is expected of forty


def plant_growth(texts, seed, layers=6, tokens=120, width=16):
    """States of noise in which channel 3 rises along the text, more in each layer, and whose size grows with depth."""
    rise = torch.linspace(-1, 1, tokens, **F64)
    for index in range(texts):
        states = normal(layers, tokens, width, seed=1000 * seed + index)
        for layer in range(layers):
            states[layer, :, 3] += layer * rise
            states[layer] *= 10**layer
        yield states


def test_the_share_of_each_channel_is_that_of_the_decomposition():
    states = list(plant_growth(5, 0))
    actual = growth.split_variance(states)
    later = torch.stack(states)[:, :, 12:]
    for layer, channel in ((0, 3), (4, 3), (4, 7)):
        parts = geometry.decompose(later[:, layer, :, channel, None])
        assert float(actual.shares[layer, channel]) == pytest.approx(parts.position_beyond_chance, abs=1e-9)
    constant = growth.split_variance([torch.ones(2, 40, 3), torch.ones(2, 40, 3)])
    assert constant.shares.tolist() == [[0.0] * 3] * 2
    with pytest.raises(WhenceError, match=r"1 texts.*pass more texts"):
        growth.split_variance([torch.ones(2, 40, 3)])


def test_growth_of_a_planted_channel_is_measured_by_layer():
    halves = [growth.split_variance(plant_growth(6, seed)) for seed in (1, 2)]
    actual = growth.measure_growth(halves)
    assert actual["strongest"]["channel"] == 3 and len(actual["layers"]) == 6
    shares = actual["strongest"]["share"]
    assert abs(shares[0]) < 0.1 and shares[5] > 0.8 and shares == sorted(shares)
    # a rise from -1 to 1 has variance 1/3, without its first tenth a little less, beside noise of variance 1
    assert shares[2] == pytest.approx(4 * 0.27 / (4 * 0.27 + 1), abs=0.06)
    assert all(3 in half["channels"] for half in actual["selected"])
    assert actual["strongest"]["rank_correlation"][5] == pytest.approx(1, abs=0.02)
    assert actual["layers"][5]["share"] > actual["layers"][1]["share"] > actual["layers"][0]["share"]
    assert list(actual["strongest"]["curves"]) == ["1", "2", "3", "4", "5"]
    silent = growth.split_variance([torch.zeros(3, 64, 4), torch.zeros(3, 64, 4)])
    nothing = growth.measure_growth([silent, silent])
    assert nothing["strongest"] is None and nothing["selected"][0] == {"channels": [], "share": []}
    assert {layer["monotone"] for layer in nothing["layers"]} == {0} and nothing["layers"][0]["held_out"] is None
