"""The free table against a loop over distances, its penalty, and training with it."""

from __future__ import annotations

import bisect
import math

import pytest
import torch

from whence.errors import WhenceError
from whence.position.free_table import FreeTable, table_knots


def loop_value(knots: list[int], values: list[float], distance: float) -> float:
    """The value at one distance: linear in log(1 + d) between two knots, constant beyond the last."""
    far = abs(distance)
    if far >= knots[-1]:
        return values[-1]
    right = bisect.bisect_right(knots, far)
    low, high = math.log(1 + knots[right - 1]), math.log(1 + knots[right])
    share = (math.log(1 + far) - low) / (high - low)
    return values[right - 1] + share * (values[right] - values[right - 1])


@pytest.mark.parametrize("exact, per_octave, longest", [(1, 1, 2), (4, 3, 100), (16, 4, 4096), (50, 4, 20)])
def test_values_between_knots_are_linear_in_the_logarithm(exact: int, per_octave: int, longest: int) -> None:
    table = FreeTable(2, acts_on="bias and scale", exact=exact, per_octave=per_octave, max_distance=longest).double()
    for parameter in table.parameters():
        torch.nn.init.normal_(parameter)
    distance = torch.tensor([0, 1, -1, 2, 3.5, 7, 15, 16, 17, -40, 99, 100, 5000.0], dtype=torch.float64)
    for got, values in (
        (table.bias(distance, None), table.bias_table),
        (table.score_scale(distance, None), table.scale_table),
    ):
        wanted = [[loop_value(table.knots.tolist(), row, d) for d in distance.tolist()] for row in values.tolist()]
        torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64))


@pytest.mark.parametrize("exact, per_octave, longest", [(1, 1, 2), (3, 4, 64), (16, 4, 4096), (50, 4, 20)])
def test_knots_are_exact_near_and_logarithmic_far(exact: int, per_octave: int, longest: int) -> None:
    knots = table_knots(exact, per_octave, longest)
    assert knots[: min(exact, longest) + 1] == list(range(min(exact, longest) + 1))
    assert knots == sorted(set(knots)) and knots[-1] == longest
    octaves = [k for k in knots if 256 <= k < 512]
    assert not octaves or len(octaves) == per_octave


def test_an_untrained_table_has_no_effect_and_one_hook_is_one_hook() -> None:
    distance = torch.arange(9.0)
    assert not FreeTable().bias(distance, None).any()
    assert (FreeTable(acts_on="scale").score_scale(distance, None) == 1).all()
    assert FreeTable().effects == {"bias"} and FreeTable(acts_on="scale").effects == {"score_scale"}
    assert FreeTable(3).bias(distance, None).shape == (3, 9) and FreeTable().bias(distance, None).shape == (9,)


def test_the_penalty_is_that_of_second_differences() -> None:
    table = FreeTable(2, exact=2, per_octave=1, max_distance=4, smoothness=3.0)
    with torch.no_grad():
        table.bias_table.copy_(torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 1.0, 0.0]]))
    assert table.penalty().item() == pytest.approx(3.0 * (0 + 0 + 1 + 4) / 4)
    assert FreeTable().penalty() is None


def test_training_adds_the_penalty_once(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """With a task whose loss has no gradient, a step of training is a step on the penalty."""
    pytest.importorskip("accelerate")
    from whence.lab import training
    from whence.lab.study import Budget
    from whence.lab.tasks import load
    from whence.models import ModelSpec, build

    task = load("copy", string=3, symbols=4, items=2)
    spec = ModelSpec("decoder", vocab_size=task.vocab_size, layers=1, embed_dim=8, heads=2, ffn_dim=8)
    table = FreeTable(2, exact=2, per_octave=1, max_distance=4, smoothness=3.0)
    torch.nn.init.normal_(table.bias_table, generator=torch.Generator().manual_seed(0))
    seen = []

    def zero_loss(task, model, *others):
        return 0.0 * sum(p.sum() for p in model.parameters())

    def note_step(self, closure=None):
        seen.append(self.param_groups[0]["params"])
        seen.append([p.grad.clone() for p in self.param_groups[0]["params"]])

    monkeypatch.setattr(training, "compute_loss", zero_loss)
    monkeypatch.setattr(torch.optim.Adam, "step", note_step)
    model = build(spec, table, seed=0)
    own = next(part for part in model.modules() if isinstance(part, FreeTable))
    (wanted,) = torch.autograd.grad(own.penalty(), [own.bias_table])
    budget = Budget(steps=1, batch_size=4, lr=1e-3, grad_accum_steps=2, optimizer="Adam", max_grad_norm=None)
    training.train(model, task, budget, 0, tmp_path / "state")
    parameters, gradients = seen
    (index,) = [n for n, p in enumerate(parameters) if p is own.bias_table]
    torch.testing.assert_close(gradients[index], wanted)


@pytest.mark.parametrize(
    "arguments, parts",
    [
        ({"acts_on": "values"}, ("acts_on", "'values'", "bias and scale")),
        ({"exact": 0}, ("exact", "0", "16")),
        ({"max_distance": 1}, ("max_distance", "1", "longest distance")),
        ({"smoothness": -1.0}, ("smoothness", "-1", "0")),
        ({"per_octave": 1000}, ("per_octave", "1000", "4")),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict, parts: tuple[str, ...]) -> None:
    with pytest.raises(WhenceError) as error:
        FreeTable(**arguments)
    assert all(part in str(error.value) for part in parts)
