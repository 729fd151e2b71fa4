"""Perplexities compared by differences and by ratios, beside an arm whose perplexity explodes.

The logarithm of a perplexity is a seed effect plus an effect of the arm's own, with a standard deviation of ``sigma``. The arm
that diverges has ``DIVERGED`` times the perplexity of the others, and its logarithm varies ``SPREAD`` times as much.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from comparison_data import FAMILIES, Row, blocks, draw, find_claims, list_pairs
from whence.statistics.moderated_t import Layout, Reference, reference_scenarios

ARMS, SEEDS = (4, 8), (3, 5, 8)
LEVEL = 6.0  # perplexity of the arms that do not diverge
DIVERGED, SPREAD = 40.0, 4.0
SIGMAS = (0.05, 0.3)
D = 2.0  # difference of the logarithms that power is measured for, in units of sigma
TAILS = ("normal", "t3")
SCALES = ("value", "log")


def measure_scales(family: str, arms: int, seeds: int, repetitions: int, draws: int) -> list[Row]:
    """False claims between arms that do not diverge and do not differ, and the probability to claim that arm 1 differs.

    Both scales judge the same data sets. The last arm diverges; its claims are true and do not count.
    """
    layout = Layout(np.ones((seeds, arms), bool), list_pairs(family, arms))
    reference = Reference(layout, reference_scenarios(family), draws=draws)
    counted = (layout.first != arms - 1) & (layout.second != arms - 1)
    rows = []
    for number, (sigma, tails, diverging, d) in enumerate(product(SIGMAS, TAILS, (False, True), (0.0, D))):
        generator = np.random.default_rng([9, arms, seeds, FAMILIES.index(family), number])
        events = dict.fromkeys(SCALES, 0)
        for many in blocks(repetitions):
            logs = draw(generator, many, seeds, arms, tails=tails)
            logs[:, :, 1] -= d
            if diverging:
                logs[:, :, -1] *= SPREAD
            logs = sigma * logs + math.log(LEVEL)
            if diverging:
                logs[:, :, -1] += math.log(DIVERGED)
            for scale, values in (("value", np.exp(logs)), ("log", logs)):
                claims = find_claims(layout, reference, values)
                events[scale] += int((claims[:, 0] if d else claims[:, counted].any(axis=1)).sum())
        cell = {"family": family, "arms": arms, "seeds": seeds, "sigma": sigma, "tails": tails}
        terms = ({"d": d} if d else {}) | ({"spread": "diverging"} if diverging else {})
        rows += [
            {"kind": "scale power" if d else "scale error", **cell, **terms, "scale": scale}
            | {"events": events[scale], "repetitions": repetitions}
            for scale in SCALES
        ]
    return rows
