"""Random calls with wrong arguments, and a judge: refused in a sentence that names the argument and a remedy, or right.

A call is right in everything but one or two arguments, which come from ``invalid_values``. Where it is accepted all the
same, the arguments must have had the types they are meant to have, and the result must be finite, of the right shape
and dtype, and equal to the float64 reference within an error budget taken from the data.
"""

import random
import warnings
from collections import Counter
from dataclasses import dataclass, field

import torch
from call_verification import (
    B,
    D,
    G,
    H,
    T,
    Wrong,
    judge_cache,
    judge_explanation,
    judge_finite,
    judge_forward,
    judge_layer,
    judge_output,
    judge_position,
    judge_refusal,
    judge_scaling,
    judge_step,
    judge_sum,
    require_same_state,
    state_of,
)
from invalid_values import OBJECTS, OPERAND, SCALARS, may_be, tensors
from torch import Tensor

from whence import Attention, KVCache, attend, explain
from whence import position as p
from whence.attention.additive import AdditiveAttention
from whence.attention.pointer import Gate, PointerAttention, last_item, mix, scatter_to_vocabulary

LEARN = {"learnable": ("flag", [True, False])}
HEADS = {"heads": ("integer", [H])}
ANY_HEADS = {"heads": ("integer?", [None, H])}
STD = {"std": ("number", [0.02, 0.0])}
BASE = {"base": ("number", [10000.0, 500])}

#: of each argument the kind and some values that are right; the first call it is not given at all
CONSTRUCTORS = {
    p.NoPosition: {"heads": ("integer?", [None, H])},
    p.Alibi: HEADS | LEARN | {"form": ("string", ["causal", "symmetric"]), "scale": ("number", [1, 0.5]), "slope": ("numbers?", [None, [0.5, 0.1]])},
    p.Sinusoidal: {"embed_dim": ("integer", [H * D]), "scale": ("number", [1.0, -2])} | BASE,
    p.Learned: {"embed_dim": ("integer", [H * D]), "max_length": ("integer", [16])} | STD,
    p.Rotary: BASE | {"layout": ("string", ["half", "interleaved"]), "rotary_dim": ("integer?", [None, 4]), "scaling": ("scaling?", [None, p.Linear(2.0)])},
    "Rotary with DynamicNtk": {"length": ("string?", ["context", "sequence"]), "context": ("integer?", [16]), "scaling": ("scaling?", [p.DynamicNtk(2.0, 8)])},
    p.Shaw: {"head_dim": ("integer", [D]), "clip": ("integer", [3]), "acts_on": ("string", ["keys", "values", "keys and values"]), "value_dim": ("integer?", [None, D])} | ANY_HEADS | STD,
    p.TransformerXL: HEADS | {"head_dim": ("integer", [D]), "embed_dim": ("integer?", [None, 6])} | BASE | STD,
    p.T5Bias: HEADS | {"form": ("string", ["causal", "bidirectional"]), "buckets": ("integer", [8, 32]), "max_distance": ("integer", [20, 128])} | STD,
    p.Kerple: HEADS | LEARN | {"form": ("string", ["log", "power"]), "r1": ("numbers?", [None, 0.5]), "r2": ("numbers?", [None, [0.5, 0.1]])},
    p.Fire: HEADS | {"hidden_dim": ("integer", [4]), "c": ("number", [0.1]), "threshold": ("number", [4.0]), "length": ("string", ["query", "context"]), "context": ("integer?", [16])},
    p.FreeTable: ANY_HEADS | {"acts_on": ("string", ["bias", "scale", "bias and scale"]), "exact": ("integer", [4]), "per_octave": ("integer", [2]), "max_distance": ("integer", [20]), "smoothness": ("number", [0, 0.1])},
    p.Cope: {"head_dim": ("integer", [D]), "positions": ("integer", [4])} | ANY_HEADS,
    p.Sandwich: HEADS | {"dim": ("integer", [8])} | BASE,
    p.Epar: ANY_HEADS | LEARN | {"form": ("string", ["basic", "enhanced"]), "alpha": ("numbers", [1.0]), "beta": ("numbers", [1.0]), "gamma": ("numbers", [0.5]), "length": ("string", ["query", "context", "sequence"]), "context": ("integer?", [16])},
    p.PowerPrior: ANY_HEADS | LEARN | {"alpha": ("numbers", [0.5, -1]), "beta": ("numbers", [1.0, 2])},
    p.Recency: {"max_length": ("integer", [4])} | ANY_HEADS,
    p.StableMask: HEADS | LEARN | {"context": ("integer", [8]), "gamma": ("numbers?", [None, 0.5])},
    p.Sink: HEADS | LEARN | {"value": ("numbers", [0.0, [1, -1]])},
    p.Linear: {"factor": ("number", [2])},
    p.DynamicNtk: {"factor": ("number", [2]), "original": ("integer", [8])},
    p.Yarn: {"factor": ("number", [2]), "original": ("integer", [8]), "beta_fast": ("number", [32]), "beta_slow": ("number", [1]), "attention_factor": ("number?", [None, 1.5]), "mscale": ("number?", [None]), "mscale_all_dim": ("number?", [1]), "truncate": ("flag", [True, False])},
    p.Llama3: {"factor": ("number", [2]), "low": ("number", [1]), "high": ("number", [4]), "original": ("integer", [8])},
    p.LongRope: {"short": ("tuple", [(1.0,) * (D // 2)]), "long": ("tuple", [[2.0] * (D // 2)]), "original": ("integer", [8]), "factor": ("number", [2]), "attention_factor": ("number?", [None])},
    Attention: {"embed_dim": ("integer", [H * D]), "heads": ("integer", [H]), "position": ("position?", [None]), "num_kv_heads": ("integer?", [None, G]), "head_dim": ("integer?", [None, D]), "value_dim": ("integer?", [None, 4]), "norm": ("string", ["none", "rms"]), "bias": ("flag", [True]), "causal": ("flag", [True]), "window": ("integer?", [None, 2]), "scale": ("number?", [None, 0.5]), "temperature": ("number", [1]), "dropout": ("number", [0.0]), "backend": ("string", ["auto", "blockwise"]), "skip_blocks": ("flag", [False])},
    KVCache: {"capacity": ("integer?", [None]), "window": ("integer?", [4]), "rollback": ("integer", [0, 2])},
    PointerAttention: {"embed_dim": ("integer", [D]), "position": ("position?", [None]), "bias": ("flag", [True])},
    AdditiveAttention: {"encoder_dim": ("integer", [D]), "decoder_dim": ("integer", [4]), "attention_dim": ("integer", [6])},
}  # fmt: skip
CALL = {
    "q": "tensor", "k": "tensor", "v": "tensor", "position": "position?", "causal": "flag", "window": "integer?",
    "q_positions": "tensor?", "k_positions": "tensor?", "lengths": "whole?", "key_mask": "mask?", "segment_ids": "whole?",
    "attn_mask": "pair mask?", "mask_fn": "function?", "scale": "number?", "temperature": "number", "dropout": "number", "cache": "cache?", "backend": "string",
    "skip_blocks": "flag", "return_weights": "flag", "check_finite": "flag",
}  # fmt: skip
FORWARD = {
    "x": "tensor", "memory": "tensor?", "positions": "tensor?", "memory_positions": "tensor?", "lengths": "whole?",
    "key_mask": "mask?", "segment_ids": "whole?", "attn_mask": "pair mask?", "mask_fn": "function?", "cache": "cache?", "return_weights": "flag",
}  # fmt: skip
SHAPES = {
    "q": (B, H, T, D), "k": (B, G, T, D), "v": (B, G, T, D), "x": (B, T, H * D), "memory": (B, T, H * D), "lengths": (B,),
    "key_mask": (B, T), "segment_ids": (T,), "q_positions": (T,), "k_positions": (B, T), "positions": (T,),
    "memory_positions": (T,), "index": (B,), "items": (B, T), "log_weights": (B, T), "encoded": (B, T, D),
    "attn_mask": (B, 1, T, T), "scores": (B, 4), "copied": (B, 6), "gate": (B,),
}  # fmt: skip


@dataclass
class Outcome:
    """What came of some calls."""

    counts: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def draw_invalid_value(draw, name, kind):
    """Something for an argument: of any type, or of the right type and all the same likely to be wrong."""
    pools = [SCALARS, SCALARS, OBJECTS, tensors(*SHAPES.get(name, ()))]
    if draw.random() < 0.4:
        pools = [[make for pool in pools[1:] for make in pool if may_be(kind, make())]]
    elif name in SHAPES and draw.random() < 0.5:
        pools = pools[3:]
    return draw.choice(draw.choice(pools) or SCALARS)()


def replace_arguments(draw, arguments, kinds):
    """The arguments with one or two of them replaced; their names, and whether each may have what it got."""
    names = draw.sample(sorted(kinds), min(len(kinds), draw.choice([1, 1, 1, 2])))
    changed = {name: draw_invalid_value(draw, name, kinds[name]) for name in names}
    return {**arguments, **changed}, names, all(may_be(kinds[name], changed[name]) for name in names)


def run_case(family, number):
    """One random call. Returns "refused", "unknown" or "accepted", and raises Wrong."""
    draw = random.Random(f"{family} {number}")
    torch.manual_seed(number)
    make, arguments, kinds, judge, cache = FAMILIES[family](draw)
    arguments, names, typed = replace_arguments(draw, arguments, kinds)
    unknown = draw.random() < 0.02
    if unknown:
        arguments[draw.choice(["caual", "head", "is_causal"])] = True
    before = state_of(cache)
    description = f"{family} {number}: {names} = " + ", ".join(show(arguments[name]) for name in names)
    try:
        try:
            result = make(**arguments)
        except Exception as error:
            judge_refusal(error, names, unknown)
            require_same_state(before, state_of(cache))
            return "unknown" if isinstance(error, TypeError) else "refused"
        if unknown:
            raise Wrong("an unknown argument was accepted")
        if not typed:
            raise Wrong("a value of the wrong type was accepted")
        judge(result, arguments)
        return "accepted"
    except Wrong as wrong:
        raise Wrong(f"{description}\n    {wrong}") from wrong.__cause__
    except Exception as error:
        raise Wrong(f"{description}\n    accepted, then {type(error).__name__}: {str(error)[:300]}") from error


def show(value):
    if isinstance(value, Tensor):
        return f"<{value.dtype} {value.layout} {value.device}>"
    try:
        return f"{type(value).__name__} {value!r:.60}"
    except Exception:
        return type(value).__name__


def run_cases(family, count):
    outcome = Outcome()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(count):
            try:
                outcome.counts[run_case(family, number)] += 1
            except Wrong as wrong:
                outcome.counts["wrong"] += 1
                outcome.wrong.append(str(wrong))
    return outcome


# --- the families of calls ---------------------------------------------------------------------------------------------


def constructors(draw):
    kind = draw.choice(list(CONSTRUCTORS))
    about = CONSTRUCTORS[kind]
    arguments = {name: draw.choice(right) for name, (_, right) in about.items()}
    kinds = {name: what for name, (what, _) in about.items()}
    if kind == "Rotary with DynamicNtk":
        return p.Rotary, arguments, kinds, judge_position, None
    if kind is Attention:
        return kind, arguments, kinds, judge_layer, None
    if kind is KVCache:
        return kind, arguments, kinds, judge_cache, None
    if kind in (PointerAttention, AdditiveAttention):
        return kind, arguments, kinds, lambda *_: None, None
    return kind, arguments, kinds, judge_scaling if issubclass(kind, p.rotary_scaling.Scaling) else judge_position, None


POSITIONS = [
    lambda: None, lambda: p.Alibi(H), lambda: p.Epar(H, learnable=True), lambda: p.Rotary(), lambda: p.Kerple(H),
    lambda: p.Rotary() + p.PowerPrior(H), lambda: p.Shaw(D), lambda: p.Sink(H), lambda: p.Fire(H), lambda: p.Cope(D),
    lambda: p.T5Bias(H, std=1.0) + p.Epar(H, length="query"), lambda: p.StableMask(H, context=16),
]  # fmt: skip


def call_arguments(draw, dtype, tokens=T):
    q, k, v = (torch.randn(B, heads, tokens, D).to(dtype) for heads in (H, G, G))
    return {"q": q, "k": k, "v": v, "position": draw.choice(POSITIONS)(), "causal": True}


def some_dtype(draw):
    return draw.choice([torch.float64] * 5 + [torch.float32] * 3 + [torch.bfloat16, torch.float16])


def mask_pairs(batch, head, q_position, k_position):
    return (q_position + k_position + head) % 3 > 0


def attending(draw):
    arguments = call_arguments(draw, some_dtype(draw))
    arguments |= draw.choice(
        [
            {},
            {},
            {"window": 2},
            {"backend": "blockwise"},
            {"return_weights": True},
            {"lengths": torch.tensor([T, 2])},
            {"attn_mask": torch.rand(H, T, T)[None]},
            {"mask_fn": mask_pairs},
        ]
    )
    return attend, arguments, CALL, judge_output, None


def explaining(draw):
    return explain, call_arguments(draw, some_dtype(draw)), CALL, judge_explanation, None


def filled_cache(about, window):
    generator = torch.Generator().manual_seed(3)
    cache = KVCache(**about)
    q, k, v = (torch.randn(B, heads, T, D, generator=generator).double() for heads in (H, G, G))
    attend(q, k, v, causal=True, window=window, cache=cache)
    return cache


def stepping(draw):
    about = draw.choice([{}, {}, {"capacity": 16}, {"window": 3, "rollback": 1}])
    cache = filled_cache(about, about.get("window"))
    arguments = call_arguments(draw, torch.float64, 1) | {"cache": cache, "window": about.get("window")}
    with_grad = arguments["position"] is not None and arguments["position"].trainable
    if about.get("capacity") and with_grad:
        arguments["position"].requires_grad_(False)
    kinds = {name: kind for name, kind in CALL.items() if name != "check_finite"}
    return attend, arguments, kinds, judge_step(lambda: filled_cache(about, about.get("window"))), cache


def caching(draw):
    cache = filled_cache({}, None)
    if draw.random() < 0.5:
        return cache.crop, {"length": 2}, {"length": "integer"}, lambda *_: None, cache

    def judge(_, arguments):
        if cache._entries.k.shape[0] != len(arguments["index"]):
            raise Wrong("not as many rows as the index names")

    return cache.reorder, {"index": torch.tensor([1, 0])}, {"index": "whole"}, judge, cache


def forwarding(draw):
    position = draw.choice([*POSITIONS, lambda: p.Sinusoidal(H * D), lambda: p.Learned(H * D, 16)])()
    layer = Attention(H * D, H, position, num_kv_heads=G, causal=True)
    earlier = torch.randn(B, 2, H * D)

    def make_cache(layer, like):
        """A cache as full as the one that was given had been."""
        cache = None if like is None else KVCache()
        if cache is not None and like.seq_length > T:
            with torch.no_grad():
                layer(earlier.to(layer.out.weight.dtype), cache=cache)
        return cache

    cache = None
    if draw.random() < 0.4:
        cache = KVCache()
        with torch.no_grad():
            layer(earlier, cache=cache)
    arguments = {"x": torch.randn(B, T, H * D), "cache": cache}
    return layer, arguments, FORWARD, judge_forward(layer, make_cache), cache


def composing(draw):
    first = draw.choice(POSITIONS[1:])()
    if draw.random() < 0.5:
        return (lambda operand: first + operand), {OPERAND: None}, {OPERAND: "position"}, judge_sum, None
    return (lambda operand: operand + first), {OPERAND: None}, {OPERAND: "position"}, judge_sum, None


def pointing(draw):
    at = draw.choice(["pointer", "vocab_size", "mix", "gate", "last", "additive"])
    encoded, lengths = torch.randn(B, T, D), torch.tensor([T, 2])
    if at == "pointer":
        kinds = {"encoded": "tensor", "lengths": "whole?", "key_mask": "mask?", "positions": "tensor?"}
        return PointerAttention(D, p.Recency(8)), {"encoded": encoded}, kinds, judge_finite, None
    if at == "vocab_size":
        given = {
            "log_weights": torch.randn(B, T).log_softmax(-1),
            "items": torch.zeros(B, T, dtype=torch.long),
            "size": 6,
        }
        return (
            scatter_to_vocabulary,
            given,
            {"log_weights": "tensor", "items": "whole", "size": "integer"},
            lambda *_: None,
            None,
        )
    if at == "mix":
        given = {"scores": torch.randn(B, 4), "copied": torch.randn(B, 6).log_softmax(-1), "gate": torch.randn(B)}
        return mix, given, dict.fromkeys(given, "tensor"), lambda *_: None, None
    if at == "gate":
        gate = Gate(D, 3)
        return lambda operand: gate(torch.ones(B, D), operand), {OPERAND: None}, {OPERAND: "tensor"}, judge_finite, None
    if at == "last":
        kinds = {"encoded": "tensor", "lengths": "whole?", "key_mask": "mask?"}
        return last_item, {"encoded": encoded}, kinds, lambda *_: None, None
    attention = AdditiveAttention(D, 4, 6)
    given = {"memory": attention.build_memory(encoded, lengths=lengths), "state": torch.randn(B, 4), "coverage": None}
    return attention, given, {"memory": "memory", "state": "tensor", "coverage": "tensor?"}, lambda *_: None, None


FAMILIES = {
    "constructors": constructors, "attend": attending, "explain": explaining, "cached attend": stepping,
    "cache": caching, "Attention": forwarding, "sums": composing, "pointers": pointing,
}  # fmt: skip
