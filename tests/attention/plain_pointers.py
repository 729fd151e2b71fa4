"""Independent implementation of additive attention, the pointer and the mixture: loops over Python floats, no tensors."""

import math


def softmax(scores, real):
    top = max(s for s, r in zip(scores, real, strict=True) if r)
    powers = [math.exp(s - top) if r else 0.0 for s, r in zip(scores, real, strict=True)]
    return [p / math.fsum(powers) for p in powers]


def product(matrix, vector):
    return [math.fsum(m * x for m, x in zip(row, vector, strict=True)) for row in matrix]


def additive(states, state, real, coverage, w_h, w_s, b, v, w_c):
    """One sequence and one step: context, weights, coverage afterwards, coverage loss."""
    decoder_proj = product(w_s, state)
    scores = []
    for h, c in zip(states, coverage, strict=True):
        encoder_proj = product(w_h, h)
        inside = [encoder_proj[a] + decoder_proj[a] + b[a] + w_c[a] * c for a in range(len(b))]
        scores.append(math.fsum(v[a] * math.tanh(inside[a]) for a in range(len(v))))
    weights = softmax(scores, real)
    context = [math.fsum(w * h[i] for w, h in zip(weights, states, strict=True)) for i in range(len(states[0]))]
    after = [c + w for c, w in zip(coverage, weights, strict=True)]
    return context, weights, after, math.fsum(min(w, c) for w, c in zip(weights, coverage, strict=True))


def pointer(
    items, real, w_q, b_q, w_k, b_k, turn=lambda q, k, d: (q, k), score_scale=lambda d: 1.0, bias=lambda d: 0.0
):
    """Weights of one sequence: the query is the last real item, distances count places from it."""
    last = max(j for j, r in enumerate(real) if r)
    query = [x + b for x, b in zip(product(w_q, items[last]), b_q, strict=True)]
    scores = []
    for j, item in enumerate(items):
        key = [x + b for x, b in zip(product(w_k, item), b_k, strict=True)]
        if not real[j]:
            scores.append(0.0)
            continue
        q, k = turn(query, key, last - j)
        score = math.fsum(x * y for x, y in zip(q, k, strict=True)) / math.sqrt(len(q))
        scores.append(score * score_scale(last - j) + bias(last - j))
    return softmax(scores, real)


def turned(q, k, distance, base=10000.0):
    """The query turned by the distance, in pairs (i, i + half), and the key left alone."""
    half = len(q) // 2
    out = list(q)
    for i in range(half):
        angle = distance * base ** (-2 * i / len(q))
        out[i] = q[i] * math.cos(angle) - q[i + half] * math.sin(angle)
        out[i + half] = q[i] * math.sin(angle) + q[i + half] * math.cos(angle)
    return out, k


def scatter_to_vocabulary(weights, items, size):
    out = [0.0] * size
    for weight, item in zip(weights, items, strict=True):
        out[item] += weight
    return out


def mixture(scores, copied, gate):
    """Probabilities over the extended vocabulary."""
    generated = softmax(scores, [True] * len(scores)) + [0.0] * (len(copied) - len(scores))
    p = 1 / (1 + math.exp(-gate))
    return [p * g + (1 - p) * c for g, c in zip(generated, copied, strict=True)]
