"""A witness for the pointer-generator: the whole model in loops over Python's floats, read off its state dict."""

import math


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def linear(weights, name, x):
    out = [dot(row, x) for row in weights[f"{name}.weight"].tolist()]
    bias = weights.get(f"{name}.bias")
    return out if bias is None else [o + b for o, b in zip(out, bias.tolist(), strict=True)]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def softmax(scores):
    powers = [math.exp(s - max(scores)) for s in scores]
    return [p / math.fsum(powers) for p in powers]


def lstm(weights, prefix, suffix, x, h, c):
    """One step; torch's order of gates is input, forget, cell, output."""
    w, u, b, d = (
        weights[f"{prefix}.{kind}{suffix}"].tolist() for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    z = [dot(w[r], x) + b[r] + dot(u[r], h) + d[r] for r in range(len(w))]
    n = len(h)
    i, f, g, o = (z[k * n : (k + 1) * n] for k in range(4))
    c = [sigmoid(f[k]) * c[k] + sigmoid(i[k]) * math.tanh(g[k]) for k in range(n)]
    return [sigmoid(o[k]) * math.tanh(c[k]) for k in range(n)], c


def encode(weights, tokens, hidden_size):
    vectors = [weights["embedding.weight"][token].tolist() for token in tokens]
    runs, ends = [], []
    for suffix, order in (("_l0", range(len(tokens))), ("_l0_reverse", reversed(range(len(tokens))))):
        h, c, states = [0.0] * hidden_size, [0.0] * hidden_size, {}
        for place in order:
            h, c = lstm(weights, "encoder.lstm", suffix, vectors[place], h, c)
            states[place] = h
        runs.append(states)
        ends.append((h, c))
    states = [runs[0][place] + runs[1][place] for place in range(len(tokens))]
    first_h = [max(0.0, x) for x in linear(weights, "encoder.reduce_h", ends[0][0] + ends[1][0])]
    first_c = [max(0.0, x) for x in linear(weights, "encoder.reduce_c", ends[0][1] + ends[1][1])]
    return states, first_h, first_c


def tell(weights, spec, tokens, extended, inputs, size):
    """One source and the inputs of its steps: for each step P over ``size`` words, p_gen, weights, coverage loss."""
    states, h, c = encode(weights, tokens, spec.hidden_size)
    context, coverage = [0.0] * (2 * spec.hidden_size), [0.0] * len(tokens)
    v = weights["decoder.attention.score.weight"][0].tolist()
    covers = weights.get("decoder.attention.coverage_proj.weight")
    w_c = [0.0] * spec.scoring if covers is None else covers[:, 0].tolist()
    steps = []
    for word in inputs:
        x = linear(weights, "decoder.merge", weights["embedding.weight"][word].tolist() + context)
        h, c = lstm(weights, "decoder.cell", "", x, h, c)
        of_state = linear(weights, "decoder.attention.decoder_proj", h + c)
        scores = []
        for place, state in enumerate(states):
            of_place = linear(weights, "decoder.attention.encoder_proj", state)
            inside = [a + b + w * coverage[place] for a, b, w in zip(of_place, of_state, w_c, strict=True)]
            scores.append(dot(v, [math.tanh(z) for z in inside]))
        seen = softmax(scores)
        context = [math.fsum(a * s[k] for a, s in zip(seen, states, strict=True)) for k in range(2 * spec.hidden_size)]
        repeated = math.fsum(min(a, b) for a, b in zip(seen, coverage, strict=True))
        coverage = [a + b for a, b in zip(seen, coverage, strict=True)]
        probabilities = softmax(linear(weights, "decoder.out", linear(weights, "decoder.hidden_proj", h + context)))
        p_gen = 1.0
        if spec.output == "pointer":
            p_gen = sigmoid(linear(weights, "decoder.gate.layers.0", context + h + c + x)[0])
        p = [p_gen * s for s in probabilities] + [0.0] * (size - len(probabilities))
        for place, number in enumerate(extended):
            p[number] += (1 - p_gen) * seen[place]
        steps.append((p, p_gen, seen, repeated))
    return steps
