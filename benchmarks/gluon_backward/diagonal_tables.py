"""Reading tables of the distance along the diagonals of a tile, in the accumulator's own layout."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from layouts import axis_layout, diagonal_layout, tile_layout
from roles import ROWS


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
def load_pure(pointers):
    return gl.inline_asm_elementwise(
        "ld.global.nc.f32 $0, [$1];", "=f,l", [pointers], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def load_again(pointers):
    """The same load in other words, so that the compiler does not keep the first result in registers instead."""
    return gl.inline_asm_elementwise(
        "ld.global.f32 $0, [$1];", "=f,l", [pointers], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def as_tile(x, COLUMNS: gl.constexpr):
    return gl.convert_layout(gl.reshape(x, [ROWS, COLUMNS]), tile_layout(COLUMNS), assert_trivial=True)


@gluon.jit
def as_diagonals(x, COLUMNS: gl.constexpr):
    return gl.convert_layout(gl.reshape(x, [4, 2, 8, COLUMNS // 8, 8]), diagonal_layout(COLUMNS), assert_trivial=True)


@gluon.jit
def load_table(base, COLUMNS: gl.constexpr, SIGN: gl.constexpr):
    return as_tile(load_pure(diagonal_pointers(base, COLUMNS, SIGN, 1)), COLUMNS)


@gluon.jit
def load_table_again(base, COLUMNS: gl.constexpr, SIGN: gl.constexpr):
    return as_tile(load_again(diagonal_pointers(base, COLUMNS, SIGN, 1)), COLUMNS)


@gluon.jit
def prefetch(base, COUNT: gl.constexpr):
    """Bring ``COUNT`` numbers, a multiple of 128, toward the threads. The result is not read."""
    threads = gl.arange(0, COUNT, gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise(
        "prefetch.global.L1 [$1]; mov.b32 $0, 0;", "=r,l", [(base + threads).to(gl.int64)], dtype=gl.int32, is_pure=False, pack=1
    )  # fmt: skip


@gluon.jit
def prefetch_tables(
    table, derivatives, KEYS: gl.constexpr, PREFETCH: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr,
    DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr,
):  # fmt: skip
    """What the next step of dq reads, or the next two, and this one does not."""
    if PREFETCH and (HAS_SCORE_SCALE or HAS_BIAS):
        prefetch(table + KEYS, 128)
        if DERIVS > 0:
            prefetch(derivatives + KEYS * DERIV_WIDTH, 128 * DERIV_WIDTH)
