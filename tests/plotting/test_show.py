"""``show`` plots every mechanism, plots its exact values, and changes nothing else."""

import sys

import pytest
import torch

from whence import Alibi, Cope, Epar, Learned, NoPosition, Position, Rotary, Shaw, Sink, Sinusoidal, T5Bias
from whence.errors import MissingExtra, WhenceError
from whence.position.alibi import slopes
from whence.position.catalogue import CATALOGUE
from whence.position.rotary import oscillation
from whence.position.rotary_scaling import LongRope

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from whence.plotting import show

LENGTH = 16


def panels(figure):
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def curves(axes):
    """The lines of the heads, without the guide lines, as x and y."""
    lines = [line for line in axes.lines if not line.get_label().startswith("_child")]
    return [(torch.tensor(line.get_xdata()), torch.tensor(line.get_ydata())) for line in lines]


def heatmap(axes):
    return torch.tensor(axes.images[0].get_array().filled(float("nan")))


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_plots_every_mechanism_and_changes_nothing(entry):
    torch.manual_seed(1)
    position = entry.make(2, 8)
    before = {name: value.clone() for name, value in position.state_dict().items()}
    wants = [p.requires_grad for p in position.parameters()]
    state = torch.get_rng_state()
    figure = show(position, length=LENGTH)
    assert torch.equal(torch.get_rng_state(), state)
    assert position.training
    assert [p.requires_grad for p in position.parameters()] == wants
    assert all(torch.equal(before[name], value) for name, value in position.state_dict().items())
    assert isinstance(figure, Figure)
    assert figure.get_suptitle() == type(position).__name__
    assert len(panels(figure)) == 5 + ("sink" in position.effects) + 2 * isinstance(position, Rotary)
    for axes in panels(figure):
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        assert axes.get_title(loc="left")
        assert axes.lines or axes.images


def test_alibi_curves_are_its_slopes():
    drawn = curves(panels(show(Alibi(4), length=LENGTH))[0])
    assert len(drawn) == 4
    for slope, (distance, bias) in zip(slopes(4), drawn, strict=True):
        assert distance.tolist() == list(range(LENGTH))
        torch.testing.assert_close(bias, -slope * distance.double())


def test_causal_map_hides_later_keys_and_shows_the_named_head():
    axes = panels(show(Alibi(4), length=LENGTH))[1]
    values = heatmap(axes)
    head = int(axes.get_title(loc="left").split()[-1])
    assert torch.equal(values.isnan(), torch.ones(LENGTH, LENGTH).triu(1).bool())
    torch.testing.assert_close(values[-1, 0], torch.tensor(-slopes(4)[head] * (LENGTH - 1), dtype=values.dtype))


def test_both_sides_where_the_mechanism_has_them():
    distance, factor = curves(panels(show(Epar(2, context=8), length=LENGTH))[0])[0]
    assert (int(distance.min()), int(distance.max())) == (1 - LENGTH // 2, LENGTH // 2)
    expected = Epar(2, context=8).double().score_scale(distance.double(), 8)[0]
    torch.testing.assert_close(factor, expected)


def test_rotary_changes_a_score_of_one_by_its_oscillation():
    rotary = Rotary()
    figure = show(rotary, length=LENGTH, head_dim=8)
    distance, change = curves(panels(figure)[0])[0]
    torch.testing.assert_close(change + 1, oscillation(rotary, distance.double(), 8))


def test_factor_and_bias_together_are_the_logit_of_a_score_of_one():
    both = Epar(2, context=8) + Alibi(2)
    axes = panels(show(both, length=LENGTH))[0]
    assert axes.get_ylabel() == "logit of a score of 1"
    distance, logit = curves(axes)[1]
    d = distance.double()
    expected = Epar(2, context=8).double().score_scale(d, 8)[1] + Alibi(2).double().bias(d, None)[1]
    torch.testing.assert_close(logit, expected)


def test_sums_are_named_and_a_sink_gets_a_row_of_its_own():
    figure = show(Alibi(2) + Sink(2, value=[1.0, 0.0]), length=LENGTH)
    assert figure.get_suptitle() == "Alibi + Sink"
    assert len(panels(figure)) == 8
    assert [y[0].item() for _, y in curves(panels(figure)[2])] == [1.0, 0.0]


def test_the_pattern_without_a_mechanism_is_the_same_for_all():
    alibi, rotary = (panels(show(p, length=LENGTH))[2] for p in (Alibi(2), Rotary()))
    torch.testing.assert_close(heatmap(alibi), heatmap(rotary), equal_nan=True)


def test_no_position_leaves_the_pattern_alone():
    _, _, without, with_it, _ = panels(show(NoPosition(), length=LENGTH))
    torch.testing.assert_close(heatmap(without), heatmap(with_it), equal_nan=True)


@pytest.mark.parametrize(
    "position",
    [
        Sinusoidal(6),  # three heads of two
        Learned(8, max_length=12),  # a table shorter than the figure
        Shaw(4, clip=2, acts_on="values", value_dim=3),
        Shaw(4, clip=2, heads=3) + Sinusoidal(12),
        Rotary(rotary_dim=2),  # one pair: dynamic NTK has nothing to stretch
        Rotary(scaling=LongRope((1.0, 1.0), (1.0, 2.0), 8, 2.0), length="sequence"),
        Rotary() + Cope(4, heads=2),
        T5Bias(12, form="bidirectional", buckets=8, max_distance=8),
    ],
    ids=repr,
)
def test_sizes_follow_the_mechanism(position):
    show(position, length=LENGTH)


def test_a_flat_learnable_mechanism_says_so():
    torch.manual_seed(0)
    note = panels(show(Shaw(8), length=LENGTH))[0].get_title(loc="right")
    assert "as initialized" in note


def test_a_custom_mechanism():
    class Window(Position):
        def bias(self, distance, length):
            return torch.where(distance.abs() < 4, 0.0, -torch.inf).to(distance.dtype)

    show(Window(), length=LENGTH).savefig("/dev/null", format="png", dpi=20)


def test_invalid_arguments_raise():
    with pytest.raises(WhenceError, match=r"'alibi'.*pass an instance"):
        show("alibi")
    with pytest.raises(WhenceError, match="at least 8"):
        show(Alibi(2), length=4)


def test_without_matplotlib_it_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"whence\[plot\]"):
        show(Alibi(2))
