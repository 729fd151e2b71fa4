"""The source's four experiments on EPAR, with trained and untrained weights, and the training of their heads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from whence.lab.experiment import Experiment
from whence_papers.epar.experiments import (
    adaptive_attention,
    optimal_position,
    parameter_sensitivity,
    position_effect,
    trained_heads,
)
from whence_papers.epar.experiments.setup import QUICK

__all__ = ["ADAPTIVE_ATTENTION", "ALL", "OPTIMAL_POSITION", "PARAMETER_SENSITIVITY", "POSITION_EFFECT", "TRAINED_HEADS"]

#: values of each parameter in the smoke tests
FEW_VALUES: dict[str, Any] = {"alphas": (0.5, 1.0, 2.0), "betas": (0.0, 1.0, 4.0), "gammas": (0.0, 0.5, 2.0)}


def _draw_with(name: str) -> Callable[[dict[str, Any], Path], None]:
    """The function that draws the figures and writes the tables of an experiment; matplotlib is imported on its first call."""

    def draw(record: dict[str, Any], folder: Path) -> None:
        from importlib import import_module

        from whence_papers.epar.experiments import tables

        import_module(f"whence_papers.epar.experiments.figures.{name}").draw(record, folder)
        getattr(tables, f"write_{name}")(record, folder)

    return draw


def _declare(
    module: ModuleType, folder: str, question: str, spec: Any, quick: Any, needs: tuple[Experiment, ...] = ()
) -> Experiment:
    """An experiment of the group ``epar`` that has the name of its module."""
    name = module.__name__.rpartition(".")[2]
    return Experiment(name, "epar", folder, question, spec, quick, module.compute, _draw_with(name), needs)


TRAINED_HEADS = _declare(
    trained_heads,
    "heads",
    "Does a head learn the attention that solves a task with a known answer, with and without EPAR?",
    trained_heads.Training(),
    quick=trained_heads.Training(**QUICK, steps=4, rows=1),
)
POSITION_EFFECT = _declare(
    position_effect,
    "position",
    "Which properties does the position effect have, and how does it change attention?",
    position_effect.PositionEffectSpec(),
    quick=position_effect.PositionEffectSpec(**QUICK, blocks=16),
    needs=(TRAINED_HEADS,),
)
OPTIMAL_POSITION = _declare(
    optimal_position,
    "optimal",
    "Is the position of maximum benefit where the source predicts it, and is that above chance?",
    optimal_position.OptimalPositionSpec(),
    quick=optimal_position.OptimalPositionSpec(**QUICK),
    needs=(TRAINED_HEADS,),
)
PARAMETER_SENSITIVITY = _declare(
    parameter_sensitivity,
    "parameter",
    "What do alpha, beta and gamma change, and which values are best?",
    parameter_sensitivity.ParameterSensitivitySpec(),
    quick=parameter_sensitivity.ParameterSensitivitySpec(
        **(QUICK | {"runs": 2}), **FEW_VALUES, grid_points=3, grid_rounds=2, starts=1
    ),
    needs=(TRAINED_HEADS,),
)
ADAPTIVE_ATTENTION = _declare(
    adaptive_attention,
    "adaptive",
    "Can attention adapt to task and content, by terms on keys and in the source's per-row form?",
    adaptive_attention.AdaptiveAttentionSpec(),
    quick=adaptive_attention.AdaptiveAttentionSpec(seeds=(42, 43), inputs=32, steps=2, batch_size=8, **FEW_VALUES),
)
ALL = (TRAINED_HEADS, POSITION_EFFECT, OPTIMAL_POSITION, PARAMETER_SENSITIVITY, ADAPTIVE_ATTENTION)
