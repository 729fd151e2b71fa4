"""Name the hook whose NaN or infinity reached the output of ``attend``."""

from __future__ import annotations

import torch
from torch import Tensor

from whence import torch_modes
from whence.attention.call import Call, build_rows
from whence.errors import NonFiniteHook, WhenceError, usage_error
from whence.position.base import Position
from whence.position.evaluate import evaluate, evaluate_content_bias, evaluate_value_bias


def require_finite_hooks(call: Call, inputs: tuple[Tensor, ...], out: Tensor, *, always: bool) -> None:
    """Raise ``NonFiniteHook`` if a hook made the output NaN or infinite although the inputs are finite.

    Reading a value from a GPU waits for it, so on a GPU nothing is checked unless ``always`` is True. The hooks are evaluated again
    for one query row, and only after the output turned out not to be finite.
    """
    if not call.position.effects or not (always or out.device.type == "cpu"):
        return
    if not torch_modes.can_read_values(out) or torch_modes.is_transforming():
        return
    if bool(torch.isfinite(out).all()) or not all(bool(torch.isfinite(x).all()) for x in inputs):
        return
    with torch.no_grad():
        row = int((~torch.isfinite(out)).any(-1).flatten(0, 1).any(0).nonzero()[0])
        for part in call.position.parts:
            _require_finite_row(part, call, slice(row, row + 1))


def _require_finite_row(part: Position, call: Call, rows: slice) -> None:
    layout, heads = call.layout, call.q.shape[1]
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    if "rotate" in part.effects and not bool(torch.isfinite(call.q).all() and torch.isfinite(call.k).all()):
        raise _non_finite(part, "rotate", "a query or key that is NaN or infinite")
    if "clock" in part.effects and call.clock is not None and not bool(torch.isfinite(call.clock.k).all()):
        raise _non_finite(part, "clock", "a step that is NaN or infinite")
    distance = layout.hook_distances(dtype, rows)
    for hook, inputs in (
        ("score_scale", distance),
        ("bias", distance),
        ("sink", layout.q_positions[:, rows].to(dtype)[..., None]),
    ):
        values = evaluate(part, hook, inputs, heads, lambda one: layout.length_of(one, rows))
        if values is None:
            continue
        bad = values.isnan() | values.isposinf() if hook == "sink" else ~torch.isfinite(values)  # -inf: no sink
        if bool(bad.any()):
            place = inputs.expand(values.shape[1:]).expand_as(values)[bad][0].item()
            kind = "position" if hook == "sink" else "distance"
            future = kind == "distance" and place < 0
            raise _non_finite(part, hook, f"{values[bad][0].item()} for {kind} {place:g}", future=future)
    if not part.effects & {"content_bias", "value_bias"}:
        return
    q, k = call.q[:, :, rows].to(dtype), call.k.to(dtype).repeat_interleave(heads // call.k.shape[1], 1)
    scores, visible = call.scale * (q @ k.transpose(-1, -2)), layout.visible(rows)
    view = build_rows(call, q, k, scores, visible, rows)
    term = evaluate_content_bias(part, view)
    if term is not None and bool((term.isnan() | term.isposinf()).any()):  # -inf hides a key
        raise _non_finite(part, "content_bias", "a score term that is NaN or infinite")
    weights = visible.expand_as(scores).to(dtype)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1)
    more = evaluate_value_bias(part, weights, view, (*q.shape[:3], call.v.shape[3]))
    if more is not None and not bool(torch.isfinite(more).all()):
        raise _non_finite(part, "value_bias", "an output term that is NaN or infinite")


def _non_finite(part: Position, hook: str, got: str, future: bool = False) -> WhenceError:
    usual = "look for a division by 0, a logarithm of 0 or an overflow; whence.check(position) tests every hook"
    remedy = part.non_finite_remedy or usual
    if future:
        remedy = f"set causal_only = True if it is defined for past distances alone; otherwise {remedy}"
    return usage_error(
        f"{type(part).__name__}.{hook}",
        got,
        "a hook must return finite numbers for every distance and position it receives",
        remedy,
        kind=NonFiniteHook,
    )
