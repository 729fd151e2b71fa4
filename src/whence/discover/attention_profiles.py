"""The distance profile of a pretrained model's attention, named for every head.

The profile of a head is the mean weight that a query gives to the key at a distance, over the queries that have one. Its logarithm is the
bias that would give the same profile to attention without content. The first key is left out: heads put the attention that they
do not need there, at any distance. Far distances are averaged around the knots of a ``FreeTable``. Texts take the place of seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.discover.curves import Curves
from whence.discover.naming import name_formula
from whence.errors import usage_error
from whence.hf.capture import capture
from whence.hf.recorders import DistanceProfile, WeightBlock
from whence.position.free_table import table_knots

EXACT, PER_OCTAVE = 16, 4
SMALLEST = 1e-9  # weight whose logarithm is still shown
FINE = 64  # points of a drawn formula
SHOWN = 4  # formulas of a ranking

#: returns the stored result of a named part of the work, or computes and stores it
Keep = Callable[[str, Callable[[], Any]], Any]


def compute_part(name: str, compute: Callable[[], Any]) -> Any:
    """Compute a part and store nothing."""
    return compute()


class ProfileWithoutFirstKey(DistanceProfile):
    """The mean weight at each distance, over all keys but the first."""

    def add(self, sums: Tensor, block: WeightBlock, values: Tensor) -> None:
        others = values.clone()
        others[..., 0] = 0
        super().add(sums, block, others)


def measure_profiles(
    model: Any,
    texts: Sequence[Tensor],
    on_text: Callable[[int], None] = lambda done: None,
    *,
    keep: Keep = compute_part,
) -> Curves:
    """The logarithm of the distance profile by text and head, the heads of all layers in one row.

    Distances reach half the length of a text: beyond it few queries have such a key.

    Args:
        model: a causal language model of transformers.
        texts: at least two token rows ``[T]`` of the same length.
        on_text: called with the number of texts that are done.
        keep: stores the profile of each text, as plain JSON.
    """
    lengths = {len(text) for text in texts}
    if len(texts) < 2 or len(lengths) != 1 or min(lengths) < 4 * EXACT:
        raise usage_error(
            "measure_profiles(texts)",
            f"{len(texts)} texts of {sorted(lengths)} tokens",
            f"profiles need at least 2 texts of one length of at least {4 * EXACT} tokens",
            "pass more or longer texts",
        )
    length = lengths.pop()
    knots = table_knots(EXACT, PER_OCTAVE, length // 2)
    rows = []
    for number, text in enumerate(texts):
        rows.append(keep(f"text-{number}", partial(_measure_text, model, text, knots)))
        on_text(number + 1)
    return Curves(np.array(knots, float), np.log(np.maximum(np.array(rows), SMALLEST)))


def _measure_text(model: Any, text: Tensor, knots: Sequence[int]) -> list[list[float]]:
    """The mean weights of one text, by head and knot."""
    recorder = ProfileWithoutFirstKey()
    with torch.no_grad(), capture(model, recorder):
        model(input_ids=text[None].to(model.device))
    totals = torch.cat([recorder.totals[layer][0] for layer in sorted(recorder.totals)])  # [layers x heads, T]
    counts = recorder.counts[min(recorder.counts)][0, 0]
    return _average_around(knots, totals.double().numpy(), counts.double().numpy()).tolist()


def _average_around(knots: Sequence[int], totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Mean weights ``[heads, knots]``: of the distance itself, or of those nearer to a knot than to its neighbours."""
    found = []
    for index, knot in enumerate(knots):
        low = knot if index == 0 else (knots[index - 1] + knot + 1) // 2
        high = knot if index + 1 == len(knots) else (knot + knots[index + 1] - 1) // 2
        own = slice(low, max(low, high) + 1)
        found.append(totals[:, own].sum(1) / max(1.0, counts[own].sum()))
    return np.stack(found, 1)


def name_profiles(
    curves: Curves,
    heads: int,
    *,
    pairs: bool = False,
    on_head: Callable[[int, int], None] = lambda done, total: None,
    keep: Keep = compute_part,
) -> dict[str, Any]:
    """The formula of every head, as plain JSON.

    Args:
        curves: of ``measure_profiles``.
        heads: number of heads of a layer.
        pairs: also try sums and products of two shapes.
        on_head: called with the number of heads that are done, and of all.
        keep: stores the formulas of each layer.
    """
    fine = np.geomspace(1, 1 + curves.distances[-1], FINE) - 1

    def name_layer(first: int) -> list[dict[str, Any]]:
        found = []
        for head in range(first, min(first + heads, curves.heads)):
            found.append(_name_head(curves, head, heads, fine, pairs))
            on_head(head + 1, curves.heads)
        return found

    named: list[dict[str, Any]] = []
    for first in range(0, curves.heads, heads):
        named += keep(f"layer-{first // heads}", partial(name_layer, first))
    return {
        "distances": curves.distances.tolist(),
        "fine": fine.round(4).tolist(),
        "mean": curves.mean.round(4).tolist(),
        "standard_error": curves.standard_error.round(4).tolist(),
        "values": curves.values.round(4).tolist(),
        "heads": named,
        "families": dict(Counter(one["name"] for one in named).most_common()),
    }


def _name_head(curves: Curves, head: int, heads: int, fine: np.ndarray, pairs: bool) -> dict[str, Any]:
    naming = name_formula(curves, [head], pairs=pairs)
    return {
        "layer": head // heads, "head": head % heads, "name": naming.name, "formula": naming.fit.describe(),
        "values": naming.fit.values, "range": float(np.ptp(curves.mean[head])),
        "explained": _explained(curves.mean[head], naming.fit.evaluate(curves.distances)[0]),
        "fitted": naming.fit.evaluate(fine)[0].round(4).tolist(),
        "ranking": [
            {"name": one.fit.name, "bits": round(one.bits, 2), "held_out": round(one.held_out, 4)}
            for one in naming.ranking[:SHOWN]
        ],
    }  # fmt: skip


def _explained(values: np.ndarray, fitted: np.ndarray) -> float:
    """The share of the variance over distances that a formula explains."""
    total = float(((values - values.mean()) ** 2).sum())
    return 1 - float(((values - fitted) ** 2).sum()) / total if total else 1.0
