"""Every mechanism of the catalogue, with a formula for the independent reference.

A maker draws settings and returns the package's mechanism together with a formula: the reference's ``Part`` from the
mechanism's parameters and buffers, which come as a dictionary of tensors by name. The makers in ``FORMULAS`` draw all
settings and write the formula out. A mechanism without one is drawn as the catalogue makes it, with its own hooks as
the formula; its own test compares the hooks with the paper.
"""

from collections.abc import Callable
from dataclasses import dataclass

import independent_reference as plain
import rotary_frequencies
import torch

import whence
from whence.position import DynamicNtk, Linear, Llama3, LongRope, Proportional, Yarn
from whence.position.catalogue import CATALOGUE
from whence.position.regions import RegionRotary


@dataclass
class Pair:
    """A mechanism and its formula."""

    mechanism: whence.Position
    formula: Callable  # parameters and buffers by name -> Part
    causal: bool = False  # defined for keys at or before the query only
    whole: bool = False  # defined for whole positions only
    alone: bool = False  # one rotation for a whole row: neither padding nor documents
    no_cache: bool = False


def parameter_value(state, name):
    """A number that stays above 0: fixed, or the softplus of a free parameter."""
    if f"{name}.raw" in state:
        return torch.log(1 + torch.exp(state[f"{name}.raw"]))
    return state[f"{name}.fixed"]


def no_position(rng, heads, dim, value_dim):
    return Pair(whence.NoPosition(), lambda state: plain.Part())


def sinusoidal(rng, heads, dim, value_dim):
    width, base, scale = heads * dim, rng.choice([10000.0, 37.0]), rng.choice([1.0, 0.3])
    return Pair(whence.Sinusoidal(width, base=base, scale=scale), lambda state: plain.sinusoidal(width, base, scale))


def learned(rng, heads, dim, value_dim):
    return Pair(whence.Learned(heads * dim, 1024), lambda state: plain.learned(state["table"]))


def turning(rng, dim, least=2):
    """How many columns turn: all, or an even number of them."""
    return rng.choice([None, *range(least, dim + 1, 2)] if dim % 2 == 0 else [*range(least, dim + 1, 2)])


def rotary(rng, heads, dim, value_dim):
    kind = rng.choice(["none", "linear", "proportional", "ntk", "yarn", "yarn", "llama3", "longrope"])
    kind = "none" if kind == "ntk" and dim < 4 else kind
    width = turning(rng, dim, 4 if kind == "ntk" else 2)
    turns = dim if width is None else width
    base, layout = rng.choice([10000.0, 50.0]), rng.choice(["half", "interleaved"])
    factor, original = rng.choice([1.0, 2.5, 8.0]), rng.choice([8, 64])
    length, context, scaling, strength = None, None, None, 1.0
    if kind in ("ntk", "longrope"):
        length = rng.choice([None, "context", "sequence"])
        context = None if length == "sequence" else rng.choice([4, 30, 200])
    if kind == "none":

        def frequencies(length):
            return rotary_frequencies.plain_frequencies(turns, base)
    elif kind == "linear":
        scaling = Linear(factor)

        def frequencies(length):
            return rotary_frequencies.linear_frequencies(turns, base, factor)
    elif kind == "proportional":
        share = rng.choice([0.0, 0.3, 0.75, 1.0])
        scaling = Proportional(share, factor)

        def frequencies(length):
            whole = rotary_frequencies.linear_frequencies(turns, base, factor)
            return [f if 2 * (pair + 1) <= share * turns else 0 * f for pair, f in enumerate(whole)]
    elif kind == "ntk":
        scaling = DynamicNtk(factor, original)

        def frequencies(length):
            return rotary_frequencies.ntk_frequencies(turns, base, factor, original, length)
    elif kind == "yarn":
        fast, slow, whole = rng.choice([32.0, 4.0]), rng.choice([1.0, 0.5]), rng.choice([True, False])
        given = rng.choice([{}, {"attention_factor": 0.7}, {"mscale": 0.8, "mscale_all_dim": 0.5}])
        scaling = Yarn(factor, original, beta_fast=fast, beta_slow=slow, truncate=whole, **given)
        warmth = [
            0.1 * given.get(name, 1.0) * torch.tensor(factor).double().log().item() + 1
            for name in ("mscale", "mscale_all_dim")
        ]
        strength = given.get("attention_factor", warmth[0] / warmth[1] if "mscale" in given else warmth[0])

        def frequencies(length):
            return rotary_frequencies.yarn_frequencies(turns, base, factor, original, fast, slow, whole)
    elif kind == "llama3":
        low, high = rng.choice([(1.0, 4.0), (0.5, 2.0)])
        scaling = Llama3(factor, low, high, original)

        def frequencies(length):
            return rotary_frequencies.llama3_frequencies(turns, base, factor, low, high, original)
    else:
        short, long = ([1 + rng.random() * 3 for _ in range(turns // 2)] for _ in range(2))
        given = rng.choice([None, 0.9])
        scaling = LongRope(short, long, original, factor, attention_factor=given)
        ratio = torch.tensor(factor).double().log() / torch.tensor(original).double().log()
        strength = (1 + ratio).sqrt().item() if given is None else given

        def frequencies(length):
            return rotary_frequencies.longrope_frequencies(turns, base, short, long, original, length)

    mechanism = whence.Rotary(
        base=base, layout=layout, rotary_dim=width, scaling=scaling, length=length, context=context
    )
    length_used = "sequence" if length == "sequence" else context
    formula = plain.rotary(turns, layout, frequencies, strength, length_used)
    sequence = length == "sequence"
    return Pair(mechanism, lambda state: formula, alone=sequence, no_cache=sequence)


def alibi(rng, heads, dim, value_dim):
    form, scale, learnable = rng.choice(["causal", "symmetric"]), rng.choice([1.0, 0.0, 3.0]), rng.choice([True, False])
    slope = rng.choice([None, [0.1 + rng.random() for _ in range(heads)]])
    mechanism = whence.Alibi(heads, form=form, scale=scale, learnable=learnable, slope=slope)
    wanted = torch.tensor(plain.alibi_slopes(heads) if slope is None else slope)
    torch.testing.assert_close(mechanism.slope().flatten(), wanted)
    return Pair(mechanism, lambda state: plain.alibi(parameter_value(state, "slope"), scale), causal=form == "causal")


def numbers(rng, heads, low, high):
    """One number, or one a head."""
    if heads is None or rng.random() < 0.3:
        return rng.uniform(low, high)
    return [rng.uniform(low, high) for _ in range(heads)]


def epar(rng, heads, dim, value_dim):
    form, length = rng.choice(["basic", "enhanced"]), rng.choice(["context", "query", "sequence"])
    heads = rng.choice([heads, None])
    given = {name: numbers(rng, heads, 0.3, 2.0) for name in ("alpha", "beta", "gamma")}
    context = rng.choice([1, 7, 100])
    mechanism = whence.Epar(heads, form=form, learnable=rng.random() < 0.7, length=length, context=context, **given)

    def formula(state):
        gamma = parameter_value(state, "gamma") if form == "enhanced" else None
        length_used = context if length == "context" else length
        return plain.epar(parameter_value(state, "alpha"), parameter_value(state, "beta"), gamma, length_used)

    return Pair(mechanism, formula, no_cache=length == "sequence")


def kerple(rng, heads, dim, value_dim):
    form = rng.choice(["log", "power"])
    given = rng.choice([{}, {"r1": numbers(rng, heads, 0.1, 2.0), "r2": numbers(rng, heads, 0.1, 1.9)}])
    mechanism = whence.Kerple(heads, form=form, learnable=rng.random() < 0.7, **given)

    def formula(state):
        if form == "power" and "r2.raw" in state:  # above 1e-4 and at most 2
            r2 = 2 - (2 - 1e-4) / (1 + torch.exp(-state["r2.raw"]))
        else:
            r2 = parameter_value(state, "r2")
        return plain.kerple(form, parameter_value(state, "r1"), r2)

    return Pair(mechanism, formula)


def power_prior(rng, heads, dim, value_dim):
    heads = rng.choice([heads, None])
    alpha, beta = numbers(rng, heads, -0.8, 0.8), numbers(rng, heads, 0.3, 2.0)
    mechanism = whence.PowerPrior(heads, alpha=alpha, beta=beta, learnable=rng.random() < 0.7)
    return Pair(mechanism, lambda state: plain.power_prior(state["alpha"], parameter_value(state, "beta")))


def t5(rng, heads, dim, value_dim):
    form, (buckets, farthest) = (
        rng.choice(["causal", "bidirectional"]),
        rng.choice([(32, 128), (8, 16), (6, 30), (4, 5)]),
    )
    mechanism = whence.T5Bias(heads, form=form, buckets=buckets, max_distance=farthest)
    return Pair(mechanism, lambda state: plain.t5(state["table"], form, farthest), causal=form == "causal")


def sandwich(rng, heads, dim, value_dim):
    width, base = rng.choice([128, 6, 2]), rng.choice([10000.0, 20.0])
    return Pair(whence.Sandwich(heads, dim=width, base=base), lambda state: plain.sandwich(heads, width, base))


def recency(rng, heads, dim, value_dim):
    mechanism = whence.Recency(rng.choice([2, 5, 256]), heads=rng.choice([heads, None]))
    return Pair(mechanism, lambda state: plain.recency(state["table"]))


def fire(rng, heads, dim, value_dim):
    threshold, length = rng.choice([0.5, 0.5, 6.0, 512.0]), rng.choice(["query", "query", "context"])
    context = rng.choice([1, 20]) if length == "context" else None
    mechanism = whence.Fire(
        heads, hidden_dim=rng.choice([1, 8, 8]), threshold=threshold, length=length, context=context
    )

    def formula(state):
        first, second = ((state[f"network.{n}.weight"], state[f"network.{n}.bias"]) for n in (0, 2))
        return plain.fire(state["c"], state["multiplier"] * threshold, first, second, context or length)

    return Pair(mechanism, formula, causal=True)


def shaw(rng, heads, dim, value_dim):
    clip, acts_on = rng.choice([1, 3, 16]), rng.choice(["keys and values", "keys", "values"])
    mechanism = whence.Shaw(dim, clip=clip, acts_on=acts_on, heads=rng.choice([heads, None]), value_dim=value_dim)
    return Pair(mechanism, lambda state: plain.shaw(state.get("key_table"), state.get("value_table"), clip))


def transformer_xl(rng, heads, dim, value_dim):
    width, base = rng.choice([2, 8, 14]), rng.choice([10000.0, 20.0])
    mechanism = whence.TransformerXL(heads, dim, embed_dim=width, base=base)
    return Pair(mechanism, lambda state: plain.transformer_xl(state["u"], state["v"], state["projection"], width, base))


def cope(rng, heads, dim, value_dim):
    mechanism = whence.Cope(dim, positions=rng.choice([2, 5, 64]), heads=rng.choice([heads, None]))
    return Pair(mechanism, lambda state: plain.cope(state["e"]), causal=True)


def stable_mask(rng, heads, dim, value_dim):
    context, gamma = rng.choice([1, 9, 200]), rng.choice([None, numbers(rng, heads, 0.01, 1.0)])
    mechanism = whence.StableMask(heads, context=context, gamma=gamma, learnable=rng.choice([True, False]))
    return Pair(
        mechanism, lambda state: plain.stable_mask(parameter_value(state, "gamma"), context), causal=True, whole=True
    )


def sink(rng, heads, dim, value_dim):
    mechanism = whence.Sink(heads, value=numbers(rng, heads, -2.0, 2.0), learnable=rng.choice([True, False]))
    return Pair(mechanism, lambda state: plain.sink(state["value"]))


def log_temperature(rng, heads, dim, value_dim):
    form, original, scale = (
        rng.choice(["llama4", "ministral3", "inkling", "log"]),
        rng.choice([2, 5]),
        rng.choice([0.1, 0.7]),
    )
    mechanism = whence.LogTemperature(form=form, original=original, scale=scale)
    return Pair(mechanism, lambda state: plain.log_temperature(form, original, scale))


def scalable_softmax(rng, heads, dim, value_dim):
    mechanism = whence.ScalableSoftmax(heads, s=numbers(rng, heads, -1.0, 1.0), intercept=rng.choice([True, False]))
    return Pair(mechanism, lambda state: plain.scalable_softmax(state["s"], state.get("b")), causal=True)


def learned_rotary(rng, heads, dim, value_dim):
    sets, layout = rng.choice([None, 1]), rng.choice(["half", "interleaved"])
    mechanism = whence.LearnedRotary(dim, num_kv_heads=sets, base=rng.choice([10000.0, 50.0]), layout=layout)
    return Pair(mechanism, lambda state: plain.learned_rotary(state["log_frequency"], dim, layout))


def xpos(rng, heads, dim, value_dim):
    layout, base = rng.choice(["half", "interleaved"]), rng.choice([10000.0, 50.0])
    gamma, scale_base = rng.choice([0.4, 1.0]), rng.choice([512.0, 2000.0])
    center = rng.choice([0.0, 9.0])
    mechanism = whence.XPos(base=base, layout=layout, gamma=gamma, scale_base=scale_base, center=center)
    return Pair(mechanism, lambda state: plain.xpos(dim, layout, base, gamma, scale_base, center), causal=True)


def fope(rng, heads, dim, value_dim):
    base, context, compat = rng.choice([10000.0, 50.0]), rng.choice([7, 30, 200]), rng.choice([True, False])
    settings = {"num_kv_heads": rng.choice([None, 1]), "learnable": rng.choice([True, False]), "planes": None}
    if rng.random() < 0.5:
        settings["planes"] = len(whence.Fope(dim, context=context, base=base).frequencies())
    mechanism = whence.Fope(dim, context=context, base=base, compat=compat, **settings)
    return Pair(mechanism, lambda state: plain.fope(state["cos_mixture"], state["sin_mixture"], dim, base, compat))


def draw_grid(rng):
    return rng.choice([(2, 3), (4, 4), (1, 5), (2, 2, 3)])


def axial_rotary(rng, heads, dim, value_dim):
    grid = draw_grid(rng) if dim >= 6 else (2, 3)
    base, layout = rng.choice([100.0, 20.0]), rng.choice(["blocks", "across"])
    return Pair(
        whence.AxialRotary(grid, base=base, layout=layout), lambda state: plain.axial_rotary(grid, base, layout)
    )


def swin(rng, heads, dim, value_dim):
    grid, trained, form = draw_grid(rng), None, rng.choice(["table", "continuous"])
    if form == "continuous" and rng.random() < 0.5:
        trained = tuple(2 * size for size in grid)
    mechanism = whence.SwinBias(heads, grid, form=form, hidden_dim=rng.choice([1, 4]), trained_grid=trained)

    def formula(state):
        if form == "table":
            return plain.swin(state["table"], grid)
        first = state["network.0.weight"], state["network.0.bias"]
        return plain.swin(plain.continuous_swin_table(first, state["network.2.weight"], grid, trained or grid), grid)

    return Pair(mechanism, formula)


def pope(rng, heads, dim, value_dim):
    base, phase = rng.choice([10000.0, 50.0]), rng.choice(["zero", "uniform"])
    mechanism = whence.Pope(dim, num_kv_heads=rng.choice([None, 1]), base=base, phase=phase)
    return Pair(mechanism, lambda state: plain.pope(state["delta"], base))


def grape_a(rng, heads, dim, value_dim):
    mechanism = whence.GrapeA(heads, dim, gate=rng.choice(["query and key", "query", "key"]))
    torch.testing.assert_close(mechanism.get_buffer("_slope").flatten(), torch.tensor(plain.alibi_slopes(heads)))

    def formula(state):
        return plain.grape_a(state["_slope"], parameter_value(state, "omega"), state.get("v"), state.get("u"))

    return Pair(mechanism, formula, causal=True)


def dape(rng, heads, dim, value_dim):
    base = rng.choice(["alibi", "kerple", "fire", "none"])
    mechanism = whence.Dape(heads, base=base, hidden_dim=rng.choice([1, 4]))

    def formula(state):
        own = {n.removeprefix("base_bias."): t for n, t in state.items() if n.startswith("base_bias.")}
        first, second = ((state[f"network.{n}.weight"], state[f"network.{n}.bias"]) for n in (0, 2))
        part = None
        if base == "alibi":
            part = plain.alibi(parameter_value(own, "slope"), 1.0)
        elif base == "kerple":
            part = plain.kerple("log", parameter_value(own, "r1"), parameter_value(own, "r2"))
        elif base == "fire":
            layers = ((own[f"network.{n}.weight"], own[f"network.{n}.bias"]) for n in (0, 2))
            part = plain.fire(own["c"], own["multiplier"] * 512.0, *layers, "query")
        return plain.dape(part, first, second)

    return Pair(mechanism, formula, causal=base in ("alibi", "fire"))


def query_table(rng, heads, dim, value_dim):
    mechanism = whence.QueryTable(heads, dim, rank=rng.choice([1, 3]), extent=rng.choice([1, 4, 30]))
    return Pair(mechanism, lambda state: plain.query_table(state["projection"], state["profiles"]))


def forget_gate(rng, heads, dim, value_dim):
    form = rng.choice(["data", "data", "bias", "fixed"])
    times = rng.choice([(2.0, 128.0), (0.5, 3.0)])
    mechanism = whence.ForgetGate(heads * dim, heads, form=form, decay_times=None if form == "data" else times)
    return Pair(mechanism, lambda state: plain.forget_gate(state.get("weight"), state["b"]), causal=True)


def data_dependent_alibi(rng, heads, dim, value_dim):
    scale = rng.choice([1.0, 0.3, 0.0])
    mechanism = whence.DataDependentAlibi(heads * dim, heads, b=rng.choice([5.0, -1.0]), log_scale=scale)
    return Pair(mechanism, lambda state: plain.forget_gate(state["weight"], state["b"], scale), causal=True)


FORMULAS = {
    "NoPosition": no_position, "Sinusoidal": sinusoidal, "Learned": learned, "Rotary": rotary, "Shaw": shaw,
    "TransformerXL": transformer_xl, "T5Bias": t5, "Alibi": alibi, "Kerple": kerple, "Fire": fire, "Cope": cope,
    "Sandwich": sandwich, "Epar": epar, "PowerPrior": power_prior, "Recency": recency, "StableMask": stable_mask,
    "Sink": sink, "LogTemperature": log_temperature, "ScalableSoftmax": scalable_softmax,
    "LearnedRotary": learned_rotary, "XPos": xpos, "Pope": pope, "GrapeA": grape_a, "Dape": dape, "QueryTable": query_table,
    "Fope": fope, "AxialRotary": axial_rotary, "SwinBias": swin, "ForgetGate": forget_gate,
    "DataDependentAlibi": data_dependent_alibi,
}  # fmt: skip


class HookCall(torch.nn.Module):
    """A hook as a forward pass, so that ``functional_call`` can replace the mechanism's tensors."""

    def __init__(self, mechanism):
        super().__init__()
        self.mechanism = mechanism

    def forward(self, hook, *arguments):
        return getattr(self.mechanism, hook)(*arguments)


def catalogue_pair(entry, heads, dim):
    """A mechanism of the catalogue with its own hooks as the formula."""
    mechanism = entry.make(heads, dim)
    caller, length, effects = HookCall(mechanism), mechanism.length, mechanism.effects

    def formula(state):
        tensors = {f"mechanism.{name}": tensor for name, tensor in state.items()}
        last_rows = []

        def call(hook, *arguments):
            return torch.func.functional_call(caller, tensors, (hook, *arguments))

        def by_distance(hook):
            def evaluate(distance, length):
                length = length.expand(distance.shape).flatten() if torch.is_tensor(length) else length
                return call(hook, distance.flatten(), length).reshape(-1, *distance.shape)

            return evaluate

        def content_bias(q, k, context):
            positions = context.q_positions[None], context.k_positions[None]
            visible = context.visible.expand(context.scores.shape)
            last_rows[:] = [
                whence.Rows(
                    q[None],
                    k[None],
                    context.scores[None],
                    *positions,
                    visible[None],
                    context.scale,
                    context.projected_q[None],
                    context.projected_k[None],
                )
            ]
            return call("content_bias", *last_rows)[0] if "content_bias" in effects else 0.0

        hooks = {
            "embed": lambda p: call("embed", torch.zeros(1, len(p), heads * dim, dtype=p.dtype), p[None])[0],
            "rotate": lambda x, p, length: call("rotate", x[None], x[None], p[None], p[None])[0][0],
            "score_scale": by_distance("score_scale"),
            "bias": by_distance("bias"),
            "sink": lambda p: call("sink", p, p + 1 if length == "query" else mechanism.context),
            "clock": lambda x: call("clock", x[None])[0],
        }
        part = plain.Part(**{hook: function for hook, function in hooks.items() if hook in effects})
        part.rotate_keys = lambda x, p, length: call("rotate", x[None], x[None], p[None], p[None])[1][0]
        part.length = mechanism.context if length == "context" else length
        if effects & {"content_bias", "value_bias"}:
            part.content_bias = content_bias
        if "value_bias" in effects:
            part.value = lambda weights, distance: call("value_bias", weights[None], *last_rows)[0]
        return part

    sequence = length == "sequence"
    return Pair(mechanism, formula, causal=mechanism.causal_only, alone=sequence, no_cache=sequence)


def list_makers(entries=CATALOGUE, formulas=FORMULAS):
    """A maker for each class of the catalogue, by its name."""
    makers = dict(formulas)
    for entry in entries:
        name = type(entry.make(2, 4)).__name__
        if name not in makers:
            makers[name] = lambda rng, heads, dim, value_dim, entry=entry: catalogue_pair(entry, heads, dim)
    return makers


MAKERS = list_makers()
BUILT = {type(mechanism).__name__: mechanism for mechanism in (entry.make(2, 4) for entry in CATALOGUE)}
EFFECTS = {name: mechanism.effects for name, mechanism in BUILT.items()}
WIDE = {name for name, mechanism in BUILT.items() if mechanism.widens}
#: what a sum with one of those may hold: no other rotation, and no term that reads rotated queries or keys
BESIDE_WIDE = {
    name
    for name, mechanism in BUILT.items()
    if not ("rotate" in mechanism.effects and mechanism.rotates)
    and not (mechanism.effects & {"content_bias", "value_bias"} and mechanism.reads_rotated)
}
#: rotations by regions, beside which a sum holds no other rotation
REGIONS = {name for name, mechanism in BUILT.items() if isinstance(mechanism, RegionRotary)}
ROTATING = REGIONS | {name for name, own in BUILT.items() if "rotate" in own.effects and own.rotates}


def fit_dims(names, dim, value_dim):
    """The dimensions of heads that the named mechanisms allow: those of the catalogue may need even, equal ones."""
    dim = max(dim, 4) if "AxialRotary" in names else dim  # a pair for each of two axes
    if all(name in FORMULAS for name in names):
        even = dim + dim % 2 if {"LearnedRotary", "XPos", "Fope"} & set(names) else dim  # these rotate the whole head
        return even, value_dim
    return dim + dim % 2, dim + dim % 2


@dataclass
class RandomPosition:
    """A mechanism, or a sum of them, whose parameters have random values."""

    position: whence.Position
    pairs: list[Pair]

    def any(self, name):
        return any(getattr(one, name) for one in self.pairs)

    def parts(self, state):
        """The reference's parts, from the position's tensors by name."""
        if len(self.pairs) == 1:
            return [self.pairs[0].formula(state)]
        own = [
            {n.split(".", 2)[2]: t for n, t in state.items() if n.startswith(f"members.{i}.")}
            for i in range(len(self.pairs))
        ]
        return [one.formula(tensors) for one, tensors in zip(self.pairs, own, strict=True)]


def draw_position(rng, names, heads, dim, value_dim, dtype):
    """The sum of the named mechanisms; ``+`` of one is itself."""
    pairs = [MAKERS[name](rng, heads, dim, value_dim) for name in names]
    position = pairs[0].mechanism
    for one in pairs[1:]:
        position = position + one.mechanism
    position = position.to(dtype)
    with torch.no_grad():  # a mechanism at its start may be flat, or the same in all heads
        for parameter in position.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return RandomPosition(position, pairs)


def draw_names(rng, first, *, fit=lambda name: True):
    """The first name, and sometimes more."""
    names = [first]
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        names.append(rng.choice([n for n in MAKERS if fit(n)]))
    rng.shuffle(names)
    regions = [name for name in names if name in REGIONS]
    if regions:
        kept = first if first in ROTATING else regions[0]
        names = [kept, *(name for name in names if name not in (ROTATING if kept in REGIONS else {kept} | REGIONS))]
    wide = [name for name in names if name in WIDE]
    if not wide:
        return names
    if first in WIDE or first in BESIDE_WIDE:
        return [wide[0], *(name for name in names if name in BESIDE_WIDE)]
    return [name for name in names if name not in WIDE]
