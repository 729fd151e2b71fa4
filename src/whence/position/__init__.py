"""The ``Position`` interface, one mechanism per file, and composition with ``+``."""

from whence.position import catalogue
from whence.position.base import Position, Rows, Sum
from whence.position.catalogue import *  # noqa: F403
from whence.position.rotary_scaling import DynamicNtk, Linear, Llama3, LongRope, Yarn

__all__ = ["DynamicNtk", "Linear", "Llama3", "LongRope", "Position", "Rows", "Sum", "Yarn"]
__all__ += catalogue.__all__
