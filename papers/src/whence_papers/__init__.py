"""Reproductions of five documents about position in attention, built on whence."""

from pathlib import Path

__version__ = "0.2.0"

#: the data that the package carries: claims, committed records and study files
FOLDER = Path(__file__).parent
