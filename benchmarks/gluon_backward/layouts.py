"""Where the elements of tiles lie in the registers of a consumer."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def tile_layout(columns):
    """The accumulator of ``[64, columns]`` in the registers of four warps."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@gluon.constexpr_function
def operand_layout(columns):
    """The same as the left operand of a product with as many columns."""
    return gl.DotOperandLayout(0, tile_layout(columns), 2)


@gluon.constexpr_function
def row_layout(columns):
    return gl.SliceLayout(1, tile_layout(columns))


@gluon.constexpr_function
def column_layout(columns):
    return gl.SliceLayout(0, tile_layout(columns))


@gluon.constexpr_function
def diagonal_layout(columns):
    """The accumulator layout, seen as ``[4, 2, 8, columns / 8, 8]``; see ``whence.attention.fused.diagonals``."""
    blocks = columns // 8
    registers = [[0, 0, 0, 0, 1], [0, 1, 0, 0, 0], *([0, 0, 0, n, 0] for n in (1, 2, 4, 8) if n < blocks)]
    lanes = [[0, 0, 0, 0, 2], [0, 0, 0, 0, 4], [0, 0, 1, 0, 0], [0, 0, 2, 0, 0], [0, 0, 4, 0, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[1, 0, 0, 0, 0], [2, 0, 0, 0, 0]], [], [4, 2, 8, blocks, 8])


@gluon.constexpr_function
def axis_layout(columns, axis):
    """The layout of a vector along one of the five axes."""
    layout = diagonal_layout(columns)
    for other in (4, 3, 2, 1, 0):
        if other != axis:
            layout = gl.SliceLayout(other, layout)
    return layout


@gluon.constexpr_function
def sums_layout(columns):
    """The layout of a five-axis tile summed over the registers of each thread."""
    return gl.SliceLayout(1, gl.SliceLayout(3, diagonal_layout(columns)))
