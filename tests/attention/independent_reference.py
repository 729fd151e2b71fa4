"""Attention with every mechanism, from the papers' formulas: dense, one sequence at a time, plain torch.

Nothing here comes from the package, so a mistake in the package cannot hide in its own reference. Each function below
turns the numbers of one mechanism into a ``Part``; ``attention`` puts parts together:

    logit_ij  = ((scale * q_i.k_j + content_bias_ij) * score_scale_ij + bias_ij + sum of the steps of the real tokens of the
                 query's document after key j up to query i + mask_ij) / temperature                    for visible keys j
    weight_ij = exp(logit_ij) / (sum over visible keys of exp(logit) + exp(sink_i / temperature))
    output_i  = sum over visible keys of weight_ij * (v_j + value_ij)

A query that sees nothing gives zero. H query heads, T queries, S keys, D head dimension, E value dimension. A number of
a mechanism is a scalar tensor, or ``[H]`` with one number a head. All distances are query position minus key position.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass
class Part:
    """One mechanism of a sum; every effect is optional."""

    embed: Callable | None = None  # positions [n] -> what is added to the input, [n, width]
    rotate: Callable | None = None  # x [heads, n, D], positions [n], length -> like x
    rotate_keys: Callable | None = None  # the same for keys, where they rotate otherwise than queries
    score_scale: Callable | None = None  # distance [T, S], length -> [H or 1, T, S]
    bias: Callable | None = None  # distance [T, S], length -> [H or 1, T, S]
    content_bias: Callable | None = None  # q [H, T, D], k [H, S, D], ScoreContext -> [H, T, S]
    value: Callable | None = None  # weights [H, T, S], distance -> [H, T, E]
    sink: Callable | None = None  # q_positions [T] -> [H or 1, T]
    clock: Callable | None = None  # the layer input of the keys [S, width] -> steps [H, S]
    length: int | str | None = None  # a number, "query" or "sequence"


@dataclass
class ScoreContext:
    """What a content term may look at beside queries and keys."""

    scores: torch.Tensor  # [H, T, S], scale * q.k
    distance: torch.Tensor  # [T, S]
    visible: torch.Tensor  # [T, S], or [H, T, S] with a mask
    q_positions: torch.Tensor  # [T]
    k_positions: torch.Tensor  # [S]
    scale: float
    projected_q: torch.Tensor  # [H, T, D], before rotation
    projected_k: torch.Tensor  # [H, S, D], before rotation


# --- attention ---------------------------------------------------------------------------------------------------------


def count_positions(real, segment_ids=None):
    """A token's position is the number of real tokens before it in its row (in its document): ``[n]`` from ``[n]``.

    Padding takes no position. What is written for padding itself (here the same count) means nothing.
    """
    segment_ids = [0] * len(real) if segment_ids is None else segment_ids.tolist()
    counts, positions = {}, []
    for is_real, document in zip(real.tolist(), segment_ids, strict=True):
        positions.append(counts.get(document, 0))
        counts[document] = counts.get(document, 0) + bool(is_real)
    return torch.tensor(positions, dtype=torch.float64)


def attention(q, k, v, parts, q_positions, k_positions, *, causal=False, window=None, real=None, q_segment_ids=None,
              k_segment_ids=None, mask=None, x=None, scale=None, temperature=1.0):  # fmt: skip
    """Output ``[H, T, E]`` and weights ``[H, T, S]`` of one sequence: q ``[H, T, D]``, k ``[G, S, D]``, v ``[G, S, E]``.

    ``mask`` ``[H, T, S]`` is bool (True = attend) or is added to the logits. ``x`` ``[S, width]`` is the layer input of the keys.
    """
    heads, dim = q.shape[0], q.shape[2]
    k, v = ([x[head * x.shape[0] // heads] for head in range(heads)] for x in (k, v))
    k, v = torch.stack(k), torch.stack(v)
    scale = 1 / math.sqrt(dim) if scale is None else scale
    q_positions, k_positions = q_positions.to(q.dtype), k_positions.to(q.dtype)

    distance = q_positions[:, None] - k_positions[None, :]
    related = torch.ones(distance.shape, dtype=torch.bool)
    if real is not None:
        related = related & real[None, :]
    if q_segment_ids is not None:
        related = related & (q_segment_ids[:, None] == k_segment_ids[None, :])
    visible = related
    if causal:
        visible = visible & (distance >= 0)
    if window is not None:
        visible = visible & (distance.abs() < window)

    def length_for(part, rotating=False):
        if part.length == "query":
            return q_positions[:, None] + 1
        if part.length == "sequence" and rotating:
            return 1 + max(q_positions.max().item(), k_positions.max().item())
        return related.sum(-1, keepdim=True).clamp(min=1) if part.length == "sequence" else part.length

    projected_q, projected_k = q, k
    for part in parts:
        if part.rotate is not None:
            length = length_for(part, True)
            q, k = part.rotate(q, q_positions, length), (part.rotate_keys or part.rotate)(k, k_positions, length)
    scores = scale * torch.einsum("htd,hsd->hts", q, k)
    # a hidden distance may have no value: it takes that of distance 0, or of any visible one, and is never used
    safe_distance = torch.where(visible, distance, distance[visible][0] if visible.any() else 0.0)
    if mask is not None:
        visible = visible & (mask if mask.dtype == torch.bool else mask > -torch.inf)
    context = ScoreContext(scores, distance, visible, q_positions, k_positions, scale, projected_q, projected_k)
    logits = scores
    for part in parts:
        logits = logits if part.content_bias is None else logits + part.content_bias(q, k, context)
    for part in parts:
        logits = logits if part.score_scale is None else logits * part.score_scale(safe_distance, length_for(part))
    for part in parts:
        logits = logits if part.bias is None else logits + part.bias(safe_distance, length_for(part))
    for part in parts:
        if part.clock is not None:
            logits = logits + torch.einsum("hl,tsl->hts", part.clock(x), between(q_positions, k_positions, related))
    if mask is not None and mask.dtype != torch.bool:
        logits = logits + mask
    logits = logits / temperature

    sinks = [part.sink(q_positions) / temperature for part in parts if part.sink is not None]
    extra = [sink.expand(heads, -1)[:, :, None] for sink in sinks]
    columns = torch.cat([logits.masked_fill(~visible, -torch.inf), *extra], -1)
    empty = (columns == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(columns.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    weights = weights[..., : k.shape[1]]
    out = torch.einsum("hts,hse->hte", weights, v)
    for part in parts:
        out = out if part.value is None else out + part.value(weights, distance)
    return out, weights


def between(q_positions, k_positions, related):
    """1 where key l lies after key j and not after query i, -1 the other way round: ``[T, S, S]`` for i, j, l."""
    i, j, at = q_positions[:, None, None], k_positions[None, :, None], k_positions[None, None, :]
    forward, back = (j < at) & (at <= i), (i < at) & (at <= j)
    return (forward.to(i.dtype) - back.to(i.dtype)) * related[:, None, :]


def by_head(number):
    """A scalar, or ``[H]``, ready to meet ``[T, S]``."""
    return number.reshape(-1, 1, 1)


# --- at the input, and rotation ----------------------------------------------------------------------------------------


def sinusoid(positions, width, base):
    """Vaswani et al. 2017: columns 2i and 2i + 1 are the sine and cosine of ``p / base^(2i / width)``."""
    columns = []
    for column in range(width):
        angle = positions / base ** ((column - column % 2) / width)
        columns.append(angle.cos() if column % 2 else angle.sin())
    return torch.stack(columns, -1)


def sinusoidal(width, base, scale):
    return Part(embed=lambda positions: scale * sinusoid(positions, width, base))


def learned(table):
    """Gehring et al. 2017: one vector a position."""
    return Part(embed=lambda positions: table[positions.round().long().clamp(min=0)])


def rotary(width, layout, frequencies, attention_factor=1.0, length=None):
    """Su et al. 2021: each pair of columns turns by position times frequency; ``frequencies(length)`` gives ``[width/2]``."""

    def turn(x, positions, given):
        columns = [x[..., c] for c in range(x.shape[-1])]
        for pair, frequency in enumerate(frequencies(given)):
            a, b = (pair, pair + width // 2) if layout == "half" else (2 * pair, 2 * pair + 1)
            cos, sin = (attention_factor * f(positions * frequency) for f in (torch.cos, torch.sin))
            columns[a], columns[b] = x[..., a] * cos - x[..., b] * sin, x[..., b] * cos + x[..., a] * sin
        return torch.stack(columns, -1)

    return Part(rotate=turn, length=length)


def learned_rotary(log_frequency, width, layout):
    """Zhang et al. 2025: frequencies ``exp(log_frequency / 16)``."""
    return rotary(width, layout, lambda length: (log_frequency / 16).exp().flatten())


def xpos(width, layout, base, gamma, scale_base, center):
    """Sun et al. 2022: a pair of q times ``zeta^((i - m) / scale_base)``, of k times ``zeta^(-(j - m) / scale_base)``."""
    turn = rotary(width, layout, lambda length: [base ** (-2 * c / width) for c in range(width // 2)]).rotate
    zeta = torch.tensor([(2 * c / width + gamma) / (1 + gamma) for c in range(width // 2)], dtype=torch.float64)
    zeta = torch.cat([zeta, zeta]) if layout == "half" else zeta.repeat_interleave(2)

    def scaled(x, positions, power):
        return x * (zeta ** (power * (positions.double()[:, None] - center) / scale_base)).to(x.dtype)

    return Part(
        rotate=lambda x, p, _: scaled(turn(x, p, None), p, 1),
        rotate_keys=lambda x, p, _: scaled(turn(x, p, None), p, -1),
    )


def fope(cos_mixture, sin_mixture, width, base, compat):
    """Hua et al. 2024: plane p turns by mixtures ``sum_c M[c, p] cos(x theta_c)`` and the same of sines. ``[1, A, planes]``.

    The remaining planes stay; in the published codes their sine is 1.
    """
    kept, planes = cos_mixture.shape[1:]

    def turn(x, positions, length):
        columns = [x[..., c] for c in range(width)]
        angles = [positions * base ** (-2 * c / width) for c in range(kept)]
        for p in range(width // 2):
            cos, sin = 1.0, 1.0 if compat else 0.0
            if p < planes:
                cos = sum(cos_mixture[0, c, p] * angles[c].cos() for c in range(kept))
                sin = sum(sin_mixture[0, c, p] * angles[c].sin() for c in range(kept))
            a, b = x[..., p], x[..., p + width // 2]
            columns[p], columns[p + width // 2] = a * cos - b * sin, b * cos + a * sin
        return torch.stack(columns, -1)

    return Part(rotate=turn)


def split_position(positions, grid):
    """The coordinates of positions in reading order, one tensor per axis."""
    coordinates = []
    for size in reversed(grid[1:]):
        coordinates.insert(0, positions - size * (positions / size).floor())
        positions = (positions / size).floor()
    return [positions, *coordinates]


def axial_rotary(grid, base, layout):
    """Each axis has w columns of a head; its pair c turns by the coordinate times ``base^(-2c/w)``."""

    def turn(x, positions, length):
        columns, width = [x[..., c] for c in range(x.shape[-1])], 2 * (x.shape[-1] // (2 * len(grid)))
        for axis, coordinate in enumerate(split_position(positions, grid)):
            for c in range(width // 2):
                a = axis * width + c if layout == "blocks" else axis * width // 2 + c
                b = a + (width // 2 if layout == "blocks" else len(grid) * width // 2)
                cos, sin = (f(coordinate * base ** (-2 * c / width)) for f in (torch.cos, torch.sin))
                columns[a], columns[b] = x[..., a] * cos - x[..., b] * sin, x[..., b] * cos + x[..., a] * sin
        return torch.stack(columns, -1)

    return Part(rotate=turn)


def pope(delta, base):
    """Gopalakrishnan et al. 2025: columns ``softplus(x) cos`` and ``softplus(x) sin``, so that a score sums
    ``softplus(q) softplus(k) cos(d theta - delta)``. ``delta`` is ``[1, D]``."""

    def columns(x, positions, shift):
        angle = torch.stack([positions * base ** (-c / x.shape[-1]) for c in range(x.shape[-1])], -1) + shift
        magnitude = torch.log(1 + torch.exp(x))
        return torch.cat([magnitude * angle.cos(), magnitude * angle.sin()], -1)

    shift = torch.minimum(torch.maximum(delta, torch.full_like(delta, -2 * math.pi)), torch.zeros_like(delta))
    return Part(rotate=lambda x, p, _: columns(x, p, 0.0), rotate_keys=lambda x, p, _: columns(x, p, shift))


def scaled_queries(factor):
    """``factor(positions [n])`` gives ``[n]`` or ``[heads, n]``, by which queries are multiplied."""
    return Part(rotate=lambda x, p, _: x * factor(p.clamp(min=0))[..., None], rotate_keys=lambda x, p, _: x)


def log_temperature(form, original, scale):
    """Llama 4, Ministral 3 and Inkling: ``1 + scale ln(...)``; Su 2021: the logarithm to the base of the trained length."""
    count = {
        "llama4": lambda p: 1 + ((p + 1) / original).floor(),
        "ministral3": lambda p: 1 + (p / original).floor(),
        "inkling": lambda p: torch.maximum((p + 1) / original, torch.ones_like(p)),
    }
    if form == "log":
        return scaled_queries(lambda p: torch.where(p + 1 < original, 1.0, (p + 1).log() / math.log(original)))
    return scaled_queries(lambda p: 1 + scale * count[form](p).log())


def scalable_softmax(s, b):
    """Nakanishi 2025: ``s ln(n) + b``."""
    return scaled_queries(lambda p: s.reshape(-1, 1) * (p + 1).log() + (0 if b is None else b.reshape(-1, 1)))


# --- functions of distance ---------------------------------------------------------------------------------------------


def alibi_slopes(heads):
    """Press et al. 2021: ``2^(-8h/n)`` for n heads, n a power of two; otherwise more from twice as many heads."""
    power = 1
    while 2 * power <= heads:
        power *= 2
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return slopes + [2 ** (-8 * (2 * h + 1) / (2 * power)) for h in range(heads - power)]


def alibi(slope, scale):
    return Part(bias=lambda distance, length: -scale * by_head(slope) * distance.abs())


def epar(alpha, beta, gamma, length):
    """``alpha exp(-beta |d| / L)``; with gamma ``alpha (1 + gamma exp(-beta |d| / L)) / (1 + gamma)``."""

    def score_scale(distance, length):
        decay = torch.exp(-by_head(beta) * distance.abs() / length)
        if gamma is None:
            return by_head(alpha) * decay
        return by_head(alpha) * (1 + by_head(gamma) * decay) / (1 + by_head(gamma))

    return Part(score_scale=score_scale, length=length)


def kerple(form, r1, r2):
    """Chi et al. 2022: ``-r1 log(1 + r2 |d|)`` or ``-r1 |d|^r2``."""
    if form == "log":
        return Part(bias=lambda distance, length: -by_head(r1) * torch.log(1 + by_head(r2) * distance.abs()))
    return Part(bias=lambda distance, length: -by_head(r1) * power_of(distance.abs(), by_head(r2)))


def power_prior(alpha, beta):
    """``-|alpha d|^beta``"""
    return Part(bias=lambda distance, length: -power_of((by_head(alpha) * distance).abs(), by_head(beta)))


def power_of(x, exponent):
    """``x^exponent`` for x of at least 0; at 0 it is 0, and so are its derivatives by anything that made x 0."""
    nothing = x == 0
    return torch.where(nothing, 0.0, torch.exp(exponent * torch.where(nothing, 1.0, x).log()))


def t5_bucket(distance, form, buckets, max_distance):
    """Raffel et al. 2019: half of a side's buckets hold one distance each, the others grow as the logarithm."""
    side = buckets if form == "causal" else buckets // 2
    exact = side // 2
    far = round(abs(distance))
    if far < exact:
        result = far
    else:
        # exact + floor((side - exact) * log(far / exact) / log(max_distance / exact)), compared in whole numbers
        steps, result = side - exact, exact
        while (
            result + 1 < side
            and far**steps * exact ** (result + 1 - exact) >= max_distance ** (result + 1 - exact) * exact**steps
        ):
            result += 1
    return result + (side if form == "bidirectional" and distance < 0 else 0)


def t5(table, form, max_distance):
    """``table`` is ``[buckets, H]``."""

    def bias(distance, length):
        number = {d: t5_bucket(d, form, table.shape[0], max_distance) for d in set(distance.flatten().tolist())}
        index = torch.tensor([number[d] for d in distance.flatten().tolist()]).reshape(distance.shape)
        return table[index].permute(2, 0, 1)

    return Part(bias=bias)


def sandwich(heads, width, base):
    """Chi et al. 2022: ``sum over i of cos(d / base^(2i/width))``, divided by ``8h / H`` in head h."""

    def bias(distance, length):
        total = sum(torch.cos(distance / base ** (2 * i / width)) for i in range(width // 2))
        return torch.stack([total / (8 * (h + 1) / heads) for h in range(heads)])

    return Part(bias=bias)


def recency(table):
    """``table[min(d + 1, n - 1)]``; keys after the query have entry 0. ``table`` is ``[n]`` or ``[H, n]``."""

    def bias(distance, length):
        index = (distance + 1).round().long().clamp(0, table.shape[-1] - 1)
        return table[..., index].reshape(-1, *distance.shape)

    return Part(bias=bias)


def fire(c, threshold, first, second, length, eps=1e-6):
    """Li et al. 2023: a network of ``psi(d) / psi(max(threshold, i))``, ``psi(x) = log(1 + |c| x)``, i the query's position.

    ``first`` and ``second`` are (weight, bias) of its layers; eps keeps the division finite, as in the authors' code.
    """

    def psi(x):
        return torch.log(1 + c.abs() * x)

    def bias(distance, length):
        i = length - 1 if torch.is_tensor(length) else torch.tensor(float(length - 1), dtype=distance.dtype)
        share = psi(distance.abs()) / (psi(torch.maximum(threshold.abs(), i)) + eps)
        hidden = torch.relu(share[..., None] @ first[0].T + first[1])
        return (hidden @ second[0].T + second[1]).permute(2, 0, 1)

    return Part(bias=bias, length=length)


# --- content, values and sinks -----------------------------------------------------------------------------------------


def shaw(key_table, value_table, clip):
    """Shaw et al. 2018: ``a_r`` joins the key and ``b_r`` the value, r the offset j - i clipped. ``[2 clip + 1, D]``, or a
    table for each head."""

    def pick(table, distance, heads):
        row = (-distance).round().clamp(-clip, clip).long() + clip
        return torch.stack([(table if table.ndim == 2 else table[h])[row] for h in range(heads)])  # [H, T, S, D]

    def content_bias(q, k, context):
        return context.scale * torch.einsum("htd,htsd->hts", q, pick(key_table, context.distance, q.shape[0]))

    def value(weights, distance):
        return torch.einsum("hts,htse->hte", weights, pick(value_table, distance, weights.shape[0]))

    return Part(content_bias=None if key_table is None else content_bias, value=None if value_table is None else value)


def transformer_xl(u, v, projection, width, base):
    """Dai et al. 2019: ``scale * (u.k_j + (q_i + v).W r_{i-j})`` beside q.k; r_d is all sines, then all cosines of d."""

    def content_bias(q, k, context):
        angles = [context.distance / base ** (2 * i / width) for i in range(width // 2)]
        r = torch.stack([a.sin() for a in angles] + [a.cos() for a in angles], -1)  # [T, S, width]
        keys = torch.einsum("hdw,tsw->htsd", projection.reshape(q.shape[0], -1, width), r)
        by_content = torch.einsum("hd,hsd->hs", u, k)[:, None, :]
        return context.scale * (by_content + torch.einsum("htd,htsd->hts", q + v[:, None, :], keys))

    return Part(content_bias=content_bias)


def cope(e):
    """Golovneva et al. 2024: q meets row p of e, p the sum of the gates sigmoid(score) from key j up to the query.

    Keys at one position are counted in the order in which they are stored. ``e`` is ``[rows, D]`` or ``[H, rows, D]``.
    """

    def content_bias(q, k, context):
        gates = torch.where(context.visible, torch.sigmoid(context.scores), 0.0)
        at, order = context.k_positions, torch.arange(gates.shape[-1])
        tied = (at[:, None] == at[None, :]) & (order[:, None] <= order[None, :])
        counted = (at[:, None] > at[None, :]) | tied  # [t, j]: whether key t counts for key j
        rows = e.shape[-2]
        p = (gates @ counted.to(gates.dtype)).clamp(max=rows - 1)
        below = p.detach().floor().clamp(max=rows - 2)
        share = (p - below)[..., None]
        tables = [e if e.ndim == 2 else e[h] for h in range(q.shape[0])]
        low, high = (torch.stack([t[b] for t, b in zip(tables, i.long(), strict=True)]) for i in (below, below + 1))
        return torch.einsum("htd,htsd->hts", q, (1 - share) * low + share * high)

    return Part(content_bias=content_bias)


def grape_a(slope, omega, v, u):
    """Zhang et al. 2025: ALiBi's slopes times omega and softplus of the query's, the key's or both products with a unit
    vector, divided by the root of D. ``[H, D]`` vectors; None for a side without a gate."""

    def gate(x, direction):
        unit = direction / (direction * direction).sum(-1, keepdim=True).sqrt()
        return torch.log(1 + torch.exp(torch.einsum("hnd,hd->hn", x, unit) / math.sqrt(x.shape[-1])))

    def content_bias(q, k, context):
        gates = 0.0 if v is None else gate(context.projected_q, v)[:, :, None]
        gates = gates if u is None else gates + gate(context.projected_k, u)[:, None, :]
        return -by_head(slope * omega) * context.distance * gates

    return Part(content_bias=content_bias)


def dape(base, first, second):
    """Zheng et al. 2024: ``b + f([z; b])`` at each pair, f two linear layers with LeakyReLU. ``base`` is a Part, or None."""

    def content_bias(q, k, context):
        inputs, bias = context.scores, 0.0
        if base is not None:
            distance = context.distance.clamp(min=0) if base.length == "query" else context.distance
            bias = base.bias(distance, context.q_positions[:, None] + 1).expand_as(inputs)
            inputs = torch.cat([inputs, bias])
        hidden = torch.einsum("nts,mn->tsm", inputs, first[0]) + first[1]
        hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
        return bias + torch.einsum("tsm,hm->hts", hidden, second[0]) + second[1][:, None, None]

    return Part(content_bias=content_bias)


def swin(table, grid):
    """Liu et al. 2021: the entry of each head's table at the differences of coordinates, clipped at its edge."""

    def content_bias(q, k, context):
        index = 0
        sides = (split_position(p, grid) for p in (context.q_positions, context.k_positions))
        for at_q, at_k, size in zip(*sides, grid, strict=True):
            difference = (at_q[:, None] - at_k[None, :]).round().clamp(1 - size, size - 1)
            index = index * (2 * size - 1) + difference + size - 1
        return table[:, index.long()]

    return Part(content_bias=content_bias)


def continuous_swin_table(first, last, grid, trained):
    """Liu et al. 2022: ``16 sigmoid`` of a network of logarithmic differences, ``[H, entries]``."""
    rows = [[]]
    for size, scale in zip(grid, trained, strict=True):
        values = [
            math.copysign(math.log2(1 + 8 * abs(d) / max(scale - 1, 1)) / 3, d) if d else 0.0
            for d in range(1 - size, size)
        ]
        rows = [[*row, value] for row in rows for value in values]
    u = torch.tensor(rows, dtype=last.dtype)
    return (16 / (1 + torch.exp(-torch.relu(u @ first[0].T + first[1]) @ last.T))).T


def query_table(projection, profiles):
    """Inkling with the query in place of the layer input: ``(W q_i) . P[:, d]`` for 0 <= d < extent, else 0."""

    def content_bias(q, k, context):
        mixed = torch.einsum("htd,hdr->htr", context.projected_q, projection)
        out = torch.zeros_like(context.scores)
        for d in range(profiles.shape[1]):
            here = (context.distance.round() == d).to(out.dtype)
            out = out + here * (mixed @ profiles[:, d])[:, :, None]
        return out

    return Part(content_bias=content_bias)


def stable_mask(gamma, context):
    """Yin et al. 2024: the logits ``-gamma t`` of the later positions t of the context widen a row's normaliser.

    Past the context one position is left, the next one.
    """

    def sink(positions):
        columns = []
        for p in positions.tolist():
            later = range(int(p) + 1, context) if p < context else [int(p) + 1]
            terms = [-gamma.reshape(-1) * t for t in later]
            columns.append(
                torch.logsumexp(torch.stack(terms), 0) if terms else torch.full_like(gamma.reshape(-1), -torch.inf)
            )
        return torch.stack(columns, -1)

    return Part(sink=sink, length=context)


def forget_gate(weight, b, scale=1.0):
    """Lin et al. 2025: the logarithm of ``sigmoid(w . x + b)``; weight ``[H, width]`` or None."""

    def steps(x):
        logits = b[None, :].expand(x.shape[0], -1) if weight is None else x @ weight.T + b
        return -scale * torch.log(1 + torch.exp(-logits)).T

    return Part(clock=steps)


def sink(value):
    """One more logit in the normaliser; its value is nothing."""
    return Part(sink=lambda positions: value.reshape(-1, 1).expand(-1, positions.shape[0]))
