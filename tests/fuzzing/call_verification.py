"""What a call with a wrong argument may end in, and the checks of what an accepted value leads to."""

import contextlib
import copy
import re

import torch
from invalid_values import OPERAND
from torch import Tensor

import whence
from whence import KVCache, WhenceError, attend
from whence import position as p
from whence.errors import UnknownArgument

B, H, G, T, D = 2, 2, 1, 5, 8  # batch, heads, key heads, tokens and head width of the calls


class Wrong(Exception):
    """An accepted call, or an error text, that is not as it must be."""


def judge_refusal(error, names, unknown):
    if unknown and isinstance(error, UnknownArgument):
        rule_first = r"^[^\n]+ got [^\n]+, but there is no argument [^\n]+; [^\n]+[.?]$"
        spelling_first = r"^[^\n]+ got [^\n]+; did you mean [^\n]+\? \(there is no argument [^\n]+\)$"
        if not re.match(f"{rule_first}|{spelling_first}", str(error)):
            raise Wrong(f"an unknown argument without a remedy: {error}")
        return
    if isinstance(error, TypeError) and not isinstance(error, WhenceError):
        if unknown and "unexpected keyword argument" in str(error):
            return
        raise Wrong(f"a raw TypeError: {error}")
    if not isinstance(error, WhenceError):
        raise Wrong(f"a raw {type(error).__name__}: {str(error)[:300]}")
    text = str(error)
    if not re.match(r"^[^\n]+ got [^\n]+, but [^\n]+; [^\n]+\.$", text):
        raise Wrong(f"an error without a rule or a remedy: {text}")
    # Learned speaks of one position; a layer hands its positions on to attend as q_positions
    if names != [OPERAND] and not any(re.search(rf"(\b|_){name.removesuffix('s')}", text) for name in names):
        raise Wrong(f"an error that does not name {' or '.join(names)}: {text}")


# --- caches: nothing may change when a call is refused -----------------------------------------------------------------


def state_of(cache):
    """Everything a cache holds, copied."""
    if not isinstance(cache, KVCache):
        return None
    state = {name: value for name, value in vars(cache).items() if name != "_entries"}
    held = None if cache._entries is None else [t[:, : len(cache)].clone() for t in cache._entries.tensors()]
    return state, held


def require_same_state(before, after):
    if before is None:
        return
    same = before[0] == after[0] and (before[1] is None) == (after[1] is None)
    if not same or (before[1] is not None and not all(map(torch.equal, before[1], after[1]))):
        raise Wrong(f"the refused call changed the cache: {before[0]} to {after[0]}")


# --- what an accepted value leads to -------------------------------------------------------------------------------------


def tensors_of(heads, width, value_dim=None, dtype=torch.float64, groups=None):
    shapes = (B, heads, T, width), (B, groups or heads, T, width), (B, groups or heads, T, value_dim or width)
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def compare(what, actual, exact, rough):
    """``found`` against ``exact``, allowed some times the error of ``rough``, the plain computation in its dtype."""
    if actual.shape != exact.shape:
        raise Wrong(f"{what} has shape {list(actual.shape)}, not {list(exact.shape)}")
    if not bool(torch.isfinite(actual).all()):
        raise Wrong(f"{what} is not finite")
    unit = torch.finfo(actual.dtype).eps
    allowed = 4 * float((rough.double() - exact).abs().max()) + 2e3 * unit * (1 + float(exact.abs().max()))
    off = float((actual.double() - exact).abs().max())
    if off > allowed:
        raise Wrong(f"{what} is off by {off:.2g}, allowed {allowed:.2g}")


def nudge(x):
    return x * (1 + 1e-14 * torch.randn_like(x))


def nudged_copy(position):
    """The same with the last digits of all its numbers changed: what rounding may do to a result."""
    copied = copy.deepcopy(position)
    with torch.no_grad():
        for x in (*copied.parameters(), *copied.buffers()):
            if x.is_floating_point():
                x.copy_(nudge(x))
    return copied


def require_finite_far_away(position):
    """Biases and factors at the largest distances there can be, in float32."""
    for part in position.parts:
        far = torch.tensor([0.0, 1.0, 1e3, 2.0**24, 2.0**53])
        length = {None: None, "context": part.context, "query": far + 1, "sequence": 2**24}[part.length]
        for hook in part.effects & {"score_scale", "bias"}:
            if not bool(torch.isfinite(getattr(part, hook)(far, length)).all()):
                raise Wrong(f"{hook} of {part} is not finite at all of {far.tolist()}")


def judge_position(position, _):
    """A mechanism that was built runs on every backend, alike, and its gradients are finite."""
    if isinstance(position, p.Rotary | p.Learned | p.Sinusoidal) or position.effects:
        repr(position)
    heads = position.heads or H
    width = next((w for part in position.parts if (w := getattr(part, "head_dim", None))), D)
    value_dim = next((w for part in position.parts if (w := getattr(part, "value_dim", None))), width)
    if isinstance(position, p.Rotary) and position.rotary_dim is not None:
        width = value_dim = max(width, position.rotary_dim)
    if heads * max(width, value_dim) > 2**14:
        return
    if "embed" in position.effects:
        if position.embed_dim > 2**14:
            return
        x = torch.randn(1, 3, position.embed_dim)
        actual = position.embed(x, torch.arange(3)[None]) if getattr(position, "max_length", 3) >= 3 else x
        if not bool(torch.isfinite(actual).all()) or actual.dtype != x.dtype:
            raise Wrong("the embedding is not finite")
        return
    require_finite_far_away(position)
    for causal in (True,) if position.causal_only else (True, False):
        exact_position = copy.deepcopy(position).double()
        q, k, v = tensors_of(heads, width, value_dim)
        how = {"causal": causal, "backend": "reference"}
        exact = attend(q, k, v, position=exact_position, **how)
        nudged = attend(nudge(q), k, v, position=nudged_copy(exact_position), **how)
        small = [t.float() for t in (q, k, v)]
        rough = attend(*small, position=position, **how)
        for backend in ("blockwise", "sdpa", "auto"):
            how["backend"] = backend
            try:
                actual = attend(q, k, v, position=exact_position, **how)
            except WhenceError:
                continue
            compare(f"{backend}, causal={causal}", actual, exact, nudged)
            single = attend(*small, position=position, **how)
            compare(f"{backend} in float32, causal={causal}", single, exact, rough)
            learnt = [x for x in position.parameters() if x.requires_grad]
            if learnt:
                grads = torch.autograd.grad(single.sum(), learnt, allow_unused=True)
                if not all(g is None or bool(torch.isfinite(g).all()) for g in grads):
                    raise Wrong(f"a gradient of {backend} is not finite")


def judge_scaling(scaling, _):
    context = {"context": 16} if scaling.needs_length else {}
    judge_position(p.Rotary(scaling=scaling, **context), None)


def canonical(arguments, *more):
    """The same call in float64, with positions and numbers in plain dtypes."""
    given = dict(arguments)
    for name in ("q", "k", "v", "q_positions", "k_positions", "x", *more):
        if isinstance(given.get(name), Tensor):
            given[name] = given[name].double()
    mask = given.get("attn_mask")
    if isinstance(mask, Tensor) and mask.is_floating_point():
        given["attn_mask"] = mask.double()
    for name in ("lengths", "segment_ids"):
        if isinstance(given.get(name), Tensor):
            given[name] = given[name].long()
    if isinstance(given.get("position"), torch.nn.Module):
        given["position"] = copy.deepcopy(given["position"]).double()
    return given


def has_finite_inputs(arguments):
    """Whether all inputs are finite; a mask may hold -inf."""
    inputs = [arguments.get(name) for name in ("q", "k", "v", "x", "memory")]
    if not all(bool(torch.isfinite(x).all()) for x in inputs if isinstance(x, Tensor) and x.is_floating_point()):
        return False
    mask = arguments.get("attn_mask")
    return mask is None or mask.dtype == torch.bool or bool((mask < torch.inf).all())


def judge_output(result, arguments):
    out = result[0] if isinstance(result, tuple) else result
    q, v = arguments["q"], arguments["v"]
    if isinstance(result, tuple) != arguments.get("return_weights", False) or out.dtype != q.dtype:
        raise Wrong(f"a result of type {type(result).__name__} and dtype {out.dtype}")
    if out.shape != (*q.shape[:3], v.shape[3]):
        raise Wrong(f"shape {list(out.shape)}")
    if not has_finite_inputs(arguments):
        return
    if arguments.get("dropout", 0) > 0:
        if not bool(torch.isfinite(out).all()):
            raise Wrong("not finite")
        return
    plain = {
        name: value for name, value in arguments.items() if name not in ("cache", "return_weights", "check_finite")
    }
    plain["backend"] = "reference"
    exact, rough = attend(**canonical(plain)), attend(**plain)
    compare("the output", out, exact, rough)


def judge_explanation(result, arguments):
    if not isinstance(result, whence.Explanation) or result.backend not in str(result):
        raise Wrong("no explanation")
    uncalled = WhenceError if arguments.get("mask_fn") is not None else ()  # explain does not call the function
    with contextlib.suppress(uncalled):
        attend(**arguments)


def judge_step(make_cache):
    def judge(result, arguments):
        if not has_finite_inputs(arguments):
            return
        given = canonical({k: v for k, v in arguments.items() if k not in ("return_weights", "check_finite")})
        given["backend"] = "reference"
        if arguments.get("dropout", 0) > 0 or arguments["cache"] is None:
            return
        fresh = len(arguments["cache"]) <= arguments["q"].shape[2]  # an empty cache was given instead
        given["cache"] = KVCache() if fresh else make_cache()
        exact = attend(**given)
        given["cache"] = KVCache() if fresh else make_cache()
        rough = attend(**given | {"position": arguments["position"]})
        compare("the cached output", result[0] if isinstance(result, tuple) else result, exact, rough)

    return judge


def judge_forward(layer, make_cache):
    def judge(result, arguments):
        out = result[0] if isinstance(result, tuple) else result
        x = arguments["x"]
        if out.shape != x.shape or out.dtype != x.dtype:
            raise Wrong(f"an output {list(out.shape)} of {out.dtype}")
        if not has_finite_inputs(arguments):
            return
        given = {name: value for name, value in arguments.items() if name != "return_weights"}
        exact_layer = copy.deepcopy(layer).double()
        exact_layer.backend = layer.backend = "reference"
        given["cache"] = make_cache(layer, arguments["cache"])
        rough = layer(**given)
        given["cache"] = make_cache(exact_layer, arguments["cache"])
        exact = exact_layer(**canonical(given, "memory", "positions", "memory_positions"))
        compare("the layer's output", out, exact, rough)

    return judge


def judge_layer(layer, arguments):
    if layer.queries.in_features > 2**12:
        return
    x = torch.randn(1, 3, layer.queries.in_features)
    try:
        out = layer.eval()(x)
    except WhenceError:  # a position for other heads, say: only the call can tell
        return
    if out.shape != x.shape or not bool(torch.isfinite(out).all()):
        raise Wrong("the layer's output is not finite")


def judge_cache(cache, _):
    x = torch.randn(1, 1, 3, 4)
    if cache.capacity is not None and not 3 <= cache.capacity <= 2**16:
        return
    for _step in range(2):
        out = attend(x, x, x, causal=True, window=cache.window, cache=cache)
        if cache.capacity is not None and cache.capacity < 6:
            break
    if not bool(torch.isfinite(out).all()):
        raise Wrong("the cached output is not finite")


def judge_finite(result, _):
    for x in result if isinstance(result, tuple) else (result,):
        if isinstance(x, Tensor) and bool(torch.isnan(x).any()):
            raise Wrong("NaN")


def judge_sum(result, _):
    if "embed" not in result.effects and result.heads in (None, H):
        judge_position(result, None)
