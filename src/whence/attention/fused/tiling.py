"""Tile sizes, measured on an H200: small tiles of four warps, two or three programs on a processor at a time.

Registers decide: the same tile can be a third slower with one table more. ``registers`` caps what a thread may take,
where the compiler would otherwise trade the third program for fewer spills.
"""

from __future__ import annotations

from dataclasses import dataclass

LONG = 4096  # rows from which on a large tile, read by fewer programs, is the faster


@dataclass(frozen=True)
class Tile:
    rows: int
    keys: int
    warps: int = 4
    stages: int = 2
    registers: int | None = None

    @property
    def options(self) -> dict[str, int]:
        given = {"num_warps": self.warps}
        return given if self.registers is None else given | {"maxnreg": self.registers}


def forward_tile(head_dim: int, bytes_each: int, tables: bool, rows: int) -> Tile:
    if bytes_each == 4:
        return Tile(64, 32, 4, 2) if head_dim <= 64 else Tile(64, 32, 8, 1)
    if head_dim > 128:
        return Tile(64, 64, 8, 2)
    if head_dim > 64 and rows > LONG:
        return Tile(128, 128, 8, 3)
    return Tile(64, 64, 4, 2 if tables and head_dim <= 64 else 3)


def keys_tile(head_dim: int, bytes_each: int, score_scale: bool, decay: bool, slope: bool, texts: bool) -> Tile:
    """``texts``: padding or packed documents are told apart in every block, for which the small tiles are not trusted."""
    if bytes_each == 4:
        return Tile(32, 64, 4, 1) if head_dim <= 64 else Tile(32, 64, 8, 1)
    if head_dim > 128:
        return Tile(32, 64, 8, 2)
    if head_dim > 64:
        return Tile(32, 64, 4, 3) if decay and not texts else Tile(64, 64, 4, 2)
    return Tile(32, 64, 4, 3) if (score_scale or slope) and not texts else Tile(64, 64, 4, 3, 168)


def queries_tile(head_dim: int, bytes_each: int, parameter_gradients: int, dense: int) -> Tile:
    if bytes_each == 4:
        return Tile(64, 32, 4, 1) if head_dim <= 64 else Tile(64, 32, 8, 1)
    if head_dim > 128:
        return Tile(64, 32, 8, 2)
    if head_dim > 64:
        return Tile(64, 64, 4, 2) if dense or parameter_gradients else Tile(128, 64, 8, 3)
    if dense == 1:
        return Tile(64, 64, 4, 2, 168)
    return Tile(64, 64, 4, 3, 168) if parameter_gradients else Tile(64, 64, 4, 3)


def tables_tile(head_dim: int, bytes_each: int) -> Tile:
    if bytes_each == 4:
        return Tile(64, 32, 4, 1) if head_dim <= 64 else Tile(64, 32, 8, 1)
    if head_dim > 128:
        return Tile(64, 64, 8, 1)
    return Tile(128, 64, 8, 2) if head_dim > 64 else Tile(64, 64, 4, 3)


def decode_tile(rows: int, head_dim: int, bytes_each: int) -> Tile:
    if bytes_each == 4 or head_dim > 128:
        return Tile(rows, 32, 4, 2)
    return Tile(rows, 128, 4, 2) if rows <= 32 else Tile(rows, 64, 4, 3)
