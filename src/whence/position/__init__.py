"""The ``Position`` interface, one mechanism per file, and composition with ``+``."""

from whence.position import catalogue
from whence.position.base import Position
from whence.position.catalogue import *  # noqa: F403
from whence.position.coordinate_table import CoordinateTable
from whence.position.distance_table import DistanceTable
from whence.position.grid import grid_coordinates, grid_positions
from whence.position.hook_types import Rows
from whence.position.rotary_scaling import DynamicNtk, Linear, Llama3, LongRope, Proportional, Yarn
from whence.position.score_mod import from_score_mod
from whence.position.sum import Sum

__all__ = [
    "CoordinateTable",
    "DistanceTable",
    "DynamicNtk",
    "Linear",
    "Llama3",
    "LongRope",
    "Position",
    "Proportional",
    "Rows",
    "Sum",
    "Yarn",
    "from_score_mod",
    "grid_coordinates",
    "grid_positions",
]
__all__ += catalogue.__all__
