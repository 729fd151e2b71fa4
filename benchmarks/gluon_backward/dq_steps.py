"""The steps of the consumers of the dq kernel: weights, gradients of scores, and sums for parameters."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from diagonal_tables import as_diagonals, diagonal_pointers, load_pure, load_table, load_table_again
from layouts import column_layout, operand_layout, row_layout
from roles import HEAD_DIM, ROWS, end_turn, issue_scores, wait_turn
from whence.attention.fused.gluon_forward import exp2


@gluon.jit
def dq_weights(
    s, lse, table, qk_scale, distance0,
    KEYS: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    if HAS_SCORE_SCALE:
        p = exp2(s * load_table(table, KEYS, 1) - lse[:, None])
    elif HAS_BIAS:
        p = exp2(s * qk_scale + (load_table(table, KEYS, 1) - lse[:, None]))
    else:
        p = exp2(s * qk_scale - lse[:, None])
    if MASKED:
        queries = gl.arange(0, ROWS, row_layout(KEYS))
        keys = gl.arange(0, KEYS, column_layout(KEYS))
        p = gl.where((distance0 + queries)[:, None] >= keys[None, :], p, 0.0)
    return p


@gluon.jit
def sum_registers(x):
    return gl.sum(gl.sum(x, 3), 1)


@gluon.jit
def contract_derivatives(
    tile, base, g0, g1, g2, KEYS: gl.constexpr, DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr
):  # fmt: skip
    """Add a gradient tile times each parameter's derivative table, summed within threads."""
    x = as_diagonals(tile, KEYS)
    pointers = diagonal_pointers(base, KEYS, 1, DERIV_WIDTH)
    if DERIVS == 1:
        g0 += sum_registers(x * load_pure(pointers))
    elif DERIVS == 2:
        d0, d1 = gl.inline_asm_elementwise(
            "ld.global.nc.v2.f32 {$0, $1}, [$2];", "=f,=f,l", [pointers], dtype=(gl.float32, gl.float32), is_pure=True, pack=1
        )  # fmt: skip
        g0 += sum_registers(x * d0)
        g1 += sum_registers(x * d1)
    elif DERIVS == 3:
        d0, d1, d2, _ = gl.inline_asm_elementwise(
            "ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4];", "=f,=f,=f,=f,l", [pointers],
            dtype=(gl.float32, gl.float32, gl.float32, gl.float32), is_pure=True, pack=1,
        )  # fmt: skip
        g0 += sum_registers(x * d0)
        g1 += sum_registers(x * d1)
        g2 += sum_registers(x * d2)
    return g0, g1, g2


@gluon.jit
def dq_gradients(
    s, p, dp, delta, table, derivatives, g0, g1, g2,
    KEYS: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr, AMPLITUDE: gl.constexpr,
):  # fmt: skip
    """The gradients of the scores, and the sums for the parameters."""
    ds = p * (dp - delta[:, None])
    if DERIVS > 0:
        g0, g1, g2 = contract_derivatives(
            ds * s if HAS_SCORE_SCALE else ds, derivatives, g0, g1, g2, KEYS, DERIVS, DERIV_WIDTH
        )
    if HAS_SCORE_SCALE:
        ds = ds * load_table_again(table, KEYS, 1)
    if AMPLITUDE:  # q . dq, without q
        g2 += sum_registers(as_diagonals(ds * s, KEYS))
    return ds, g0, g1, g2


@gluon.jit
def dq_first_step(
    q, do, lse, delta, dq, g0, g1, g2, table, derivatives, k_smem, v_smem, k_full, v_full, v_empty, turns, qk_scale,
    distance0, position, INDEX: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
    HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr, AMPLITUDE: gl.constexpr,
):  # fmt: skip
    """The step of the diagonal. Its last product goes on, and its keys are still in use."""
    slot = position % STAGES
    phase = (position // STAGES) & 1
    mbarrier.wait(k_full.index(slot), phase)
    mbarrier.wait(v_full.index(slot), phase)
    wait_turn(turns, position, INDEX, TURNS)
    s = issue_scores(q, k_smem, slot, KEYS)
    dp = issue_scores(do, v_smem, slot, KEYS)
    end_turn(turns, INDEX, TURNS)
    s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
    p = dq_weights(s, lse, table, qk_scale, distance0, KEYS, HAS_SCORE_SCALE, HAS_BIAS, True)
    dp = warpgroup_mma_wait(num_outstanding=0, deps=(dp,))
    mbarrier.arrive(v_empty.index(slot), count=1)
    ds, g0, g1, g2 = dq_gradients(
        s, p, dp, delta, table, derivatives, g0, g1, g2, KEYS, HAS_SCORE_SCALE, DERIVS, DERIV_WIDTH, AMPLITUDE
    )
    ds16 = gl.convert_layout(ds.to(k_smem.dtype), operand_layout(HEAD_DIM), assert_trivial=True)
    dq = warpgroup_mma(ds16, k_smem.index(slot).reshape([KEYS, HEAD_DIM]), dq, is_async=True)
    return dq, ds16, g0, g1, g2


@gluon.jit
def dq_step(
    q, do, lse, delta, dq, ds16, g0, g1, g2, table, derivatives, k_smem, v_smem, k_full, v_full, k_empty, v_empty, turns, qk_scale,
    position, INDEX: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr, EARLY: gl.constexpr,
    HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr, AMPLITUDE: gl.constexpr,
):  # fmt: skip
    """A step without a mask. Products end in the order (dq of the last step), s, dp, dq."""
    slot = position % STAGES
    phase = (position // STAGES) & 1
    mbarrier.wait(k_full.index(slot), phase)
    mbarrier.wait(v_full.index(slot), phase)
    wait_turn(turns, position, INDEX, TURNS)
    s = issue_scores(q, k_smem, slot, KEYS)
    if KEYS > 64:  # registers: the last step's gradients first make room for dp
        dq, ds16 = warpgroup_mma_wait(num_outstanding=1, deps=(dq, ds16))
        dp = issue_scores(do, v_smem, slot, KEYS)
        end_turn(turns, INDEX, TURNS)
        s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
    else:
        dp = issue_scores(do, v_smem, slot, KEYS)
        end_turn(turns, INDEX, TURNS)
        s, dq, ds16 = warpgroup_mma_wait(num_outstanding=1, deps=(s, dq, ds16))
    mbarrier.arrive(k_empty.index((position - 1) % STAGES), count=1)
    p = dq_weights(s, lse, table, qk_scale, 0, KEYS, HAS_SCORE_SCALE, HAS_BIAS, False)
    if EARLY:  # wait again: else the compiler moves the exponentials behind the next line
        mbarrier.wait(v_full.index(slot), phase)
    dp, p = warpgroup_mma_wait(num_outstanding=0, deps=(dp, p))
    mbarrier.arrive(v_empty.index(slot), count=1)
    ds, g0, g1, g2 = dq_gradients(
        s, p, dp, delta, table, derivatives, g0, g1, g2, KEYS, HAS_SCORE_SCALE, DERIVS, DERIV_WIDTH, AMPLITUDE
    )
    ds16 = gl.convert_layout(ds.to(k_smem.dtype), operand_layout(HEAD_DIM), assert_trivial=True)
    dq = warpgroup_mma(ds16, k_smem.index(slot).reshape([KEYS, HEAD_DIM]), dq, is_async=True)
    return dq, ds16, g0, g1, g2


@gluon.jit
def dq_step_ahead(
    q, do, lse, delta, s, dq, ds16, g0, g1, g2, table, derivatives, k_smem, v_smem, k_full, v_full, k_empty, v_empty, qk_scale,
    position, KEYS: gl.constexpr, STAGES: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr,
    DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr, AMPLITUDE: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    """The same, but its scores were computed in the last step, and it computes those of the next, unless it is the LAST.

    Products end in the order (dq of the last step), dp, s of the next step, dq.
    """
    slot = position % STAGES
    mbarrier.wait(v_full.index(slot), (position // STAGES) & 1)
    dp = issue_scores(do, v_smem, slot, KEYS)
    p = dq_weights(s, lse, table, qk_scale, 0, KEYS, HAS_SCORE_SCALE, HAS_BIAS, False)
    mbarrier.wait(v_full.index(slot), (position // STAGES) & 1)  # again: as in dq_step
    dq, ds16, p = warpgroup_mma_wait(num_outstanding=1, deps=(dq, ds16, p))
    mbarrier.arrive(k_empty.index((position - 1) % STAGES), count=1)
    if LAST:
        next_s = s
        dp = warpgroup_mma_wait(num_outstanding=0, deps=(dp,))
    else:
        next_slot = (position + 1) % STAGES
        mbarrier.wait(k_full.index(next_slot), ((position + 1) // STAGES) & 1)
        next_s = issue_scores(q, k_smem, next_slot, KEYS)
        dp = warpgroup_mma_wait(num_outstanding=1, deps=(dp,))
    mbarrier.arrive(v_empty.index(slot), count=1)
    ds, g0, g1, g2 = dq_gradients(
        s, p, dp, delta, table, derivatives, g0, g1, g2, KEYS, HAS_SCORE_SCALE, DERIVS, DERIV_WIDTH, AMPLITUDE
    )
    ds16 = gl.convert_layout(ds.to(k_smem.dtype), operand_layout(HEAD_DIM), assert_trivial=True)
    dq = warpgroup_mma(ds16, k_smem.index(slot).reshape([KEYS, HEAD_DIM]), dq, is_async=True)
    if not LAST:
        next_s = warpgroup_mma_wait(num_outstanding=1, deps=(next_s,))
    return next_s, dq, ds16, g0, g1, g2
