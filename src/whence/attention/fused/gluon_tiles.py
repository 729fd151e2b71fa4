"""Where the elements of a consumer's tile lie in its registers, and tables of the distance read along its diagonals.

A tile has 64 rows, in the layout that the tensor cores leave products in. Import this module late; see ``gluon_roles``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

ROWS = gl.constexpr(64)


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
    """The accumulator layout, seen as ``[rows / 16, 2, 8, columns / 8, 8]``; see ``diagonals``."""
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


@gluon.jit
def diagonal_pointers(base, COLUMNS: gl.constexpr, SIGN: gl.constexpr, WIDTH: gl.constexpr):
    """Pointers to ``base + SIGN * (row - column) * WIDTH`` in the five-axis view."""
    group = gl.arange(0, 4, axis_layout(COLUMNS, 0))[:, None, None, None, None] * (16 * SIGN * WIDTH)
    half = gl.arange(0, 2, axis_layout(COLUMNS, 1))[None, :, None, None, None] * (8 * SIGN * WIDTH)
    row = gl.arange(0, 8, axis_layout(COLUMNS, 2))[None, None, :, None, None] * (SIGN * WIDTH)
    block = gl.arange(0, COLUMNS // 8, axis_layout(COLUMNS, 3))[None, None, None, :, None] * (8 * SIGN * WIDTH)
    column = gl.arange(0, 8, axis_layout(COLUMNS, 4))[None, None, None, None, :] * (SIGN * WIDTH)
    # first what depends on the thread, then what depends on the register: the compiler makes the latter immediate offsets
    return ((base + (group + (row - column))) + (half - block)).to(gl.int64)


@gluon.jit
def load_numbers(pointers):
    return gl.inline_asm_elementwise(
        "ld.global.nc.f32 $0, [$1];", "=f,l", [pointers], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def load_numbers_again(pointers):
    """The same load in other words, so that the compiler does not keep the first result in registers instead."""
    return gl.inline_asm_elementwise(
        "ld.global.f32 $0, [$1];", "=f,l", [pointers], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def load_pairs(pointers):
    return gl.inline_asm_elementwise(
        "ld.global.nc.v2.f32 {$0, $1}, [$2];", "=f,=f,l", [pointers], dtype=(gl.float32, gl.float32), is_pure=True, pack=1
    )  # fmt: skip


@gluon.jit
def as_tile(x, COLUMNS: gl.constexpr):
    return gl.convert_layout(gl.reshape(x, [ROWS, COLUMNS]), tile_layout(COLUMNS), assert_trivial=True)


@gluon.jit
def as_diagonals(x, COLUMNS: gl.constexpr):
    return gl.convert_layout(gl.reshape(x, [4, 2, 8, COLUMNS // 8, 8]), diagonal_layout(COLUMNS), assert_trivial=True)


@gluon.jit
def load_table(base, COLUMNS: gl.constexpr, SIGN: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr):
    """Tiles of the score scale and the bias; ``base`` points at the distance of the first row and column.

    If the table holds only one of them, that one twice. Without a table, zeros that nothing reads.
    """
    if HAS_SCORE_SCALE and HAS_BIAS:
        scale, bias = load_pairs(diagonal_pointers(base, COLUMNS, SIGN, 2))
        return as_tile(scale, COLUMNS), as_tile(bias, COLUMNS)
    elif HAS_SCORE_SCALE or HAS_BIAS:
        tile = as_tile(load_numbers(diagonal_pointers(base, COLUMNS, SIGN, 1)), COLUMNS)
        return tile, tile
    else:
        return 0.0, 0.0


@gluon.jit
def multiply_by_scale(x, base, COLUMNS: gl.constexpr, SIGN: gl.constexpr, HAS_BIAS: gl.constexpr):
    """A tile times the score scale, which is loaded again: from its table, or from the pairs of scale and bias."""
    WIDTH: gl.constexpr = 2 if HAS_BIAS else 1
    return x * as_tile(load_numbers_again(diagonal_pointers(base, COLUMNS, SIGN, WIDTH)), COLUMNS)
