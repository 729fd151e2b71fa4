"""The source's four experiments on EPAR, with trained and untrained weights, and the training of their heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
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


def _draw_with(name: str) -> Callable[[dict[str, Any], Path], None]:
    """The function that draws the figures and writes the tables of an experiment; matplotlib is imported on its first call."""

    def draw(record: dict[str, Any], folder: Path) -> None:
        from importlib import import_module

        from whence_papers.epar.experiments import tables

        import_module(f"whence_papers.epar.experiments.figures.{name}").draw(record, folder)
        getattr(tables, f"write_{name}")(record, folder)

    return draw


TRAINED_HEADS = Experiment(
    name="trained_heads",
    group="epar",
    folder="heads",
    question="Does a head learn the attention that solves a task with a known answer, with and without EPAR?",
    spec=trained_heads.Training(),
    quick=trained_heads.Training(**QUICK, steps=4, rows=1),
    compute=trained_heads.compute,
    draw=_draw_with("trained_heads"),
)
POSITION_EFFECT = Experiment(
    name="position_effect",
    group="epar",
    folder="position",
    question="Which properties does the position effect have, and how does it change attention?",
    spec=position_effect.PositionEffectSpec(),
    quick=position_effect.PositionEffectSpec(**QUICK, blocks=16),
    compute=position_effect.compute,
    draw=_draw_with("position_effect"),
    needs=(TRAINED_HEADS,),
)
OPTIMAL_POSITION = Experiment(
    name="optimal_position",
    group="epar",
    folder="optimal",
    question="Is the position of maximum benefit where the source predicts it, and is that above chance?",
    spec=optimal_position.OptimalPositionSpec(),
    quick=optimal_position.OptimalPositionSpec(**QUICK),
    compute=optimal_position.compute,
    draw=_draw_with("optimal_position"),
    needs=(TRAINED_HEADS,),
)
PARAMETER_SENSITIVITY = Experiment(
    name="parameter_sensitivity",
    group="epar",
    folder="parameter",
    question="What do alpha, beta and gamma change, and which values are best?",
    spec=parameter_sensitivity.ParameterSensitivitySpec(),
    quick=parameter_sensitivity.ParameterSensitivitySpec(
        **(QUICK | {"runs": 2}), alphas=(0.5, 1.0, 2.0), betas=(0.0, 1.0, 4.0), gammas=(0.0, 0.5, 2.0), grid_points=3,
        grid_rounds=2, starts=1,
    ),
    compute=parameter_sensitivity.compute,
    draw=_draw_with("parameter_sensitivity"),
    needs=(TRAINED_HEADS,),
)  # fmt: skip
ADAPTIVE_ATTENTION = Experiment(
    name="adaptive_attention",
    group="epar",
    folder="adaptive",
    question="Can attention adapt to task and content, by terms on keys and in the source's per-row form?",
    spec=adaptive_attention.AdaptiveAttentionSpec(),
    quick=replace(
        adaptive_attention.AdaptiveAttentionSpec(), seeds=(42, 43), inputs=32, steps=2, batch_size=8, alphas=(0.5, 1.0, 2.0),
        betas=(0.0, 1.0, 4.0), gammas=(0.0, 0.5, 2.0),
    ),
    compute=adaptive_attention.compute,
    draw=_draw_with("adaptive_attention"),
)  # fmt: skip
ALL = (TRAINED_HEADS, POSITION_EFFECT, OPTIMAL_POSITION, PARAMETER_SENSITIVITY, ADAPTIVE_ATTENTION)
