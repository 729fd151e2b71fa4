"""``build_next_place``: the model that a spec and an arm describe."""

from __future__ import annotations

import torch

from whence.errors import usage_error
from whence.lab.arms import Arm, parse_arm
from whence.position.expression import ModelDims
from whence.position.no_position import NoPosition
from whence_papers.pointer.next_location.model import NextPlace
from whence_papers.pointer.next_location.reading import NextPlaceModel
from whence_papers.pointer.next_location.recurrent import NextPlaceLstm
from whence_papers.pointer.next_location.spec import NextPlaceSpec


def build_next_place(spec: NextPlaceSpec, arm: Arm, seed: int | None = None) -> NextPlaceModel:
    """A model whose pointer has the arm's position. Arms of one seed start from the same weights in what they share."""
    dims = ModelDims(1, spec.embed_dim, spec.embed_dim, spec.context, causal=True)
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        position = arm.build(dims)
        takes_none = spec.pointer == "additive" or spec.answers == "generate"
        if takes_none and not isinstance(position, NoPosition):
            raise usage_error(
                "build_next_place",
                f"position {arm.position} with pointer={spec.pointer!r}, answers={spec.answers!r}",
                "only a dot-product pointer has a position",
                "give NoPosition()",
            )
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # again, so that what a mechanism drew does not move the weights
        return NextPlaceLstm(spec) if spec.body == "lstm" else NextPlace(spec, parse_arm(spec.encoder), position)
