"""What the tab of models shows of a reading: attention by layer and head, the text, and next tokens."""

from __future__ import annotations

import html

import torch
from torch import Tensor

from whence.explore import drawings
from whence.explore.model_reading import Reading
from whence.hf import LoadedModel

NEXT_TOKENS = 8
PROFILE_POINTS = 120  # of a curve over distance; more are not seen


def distance_profile(rows: Tensor) -> Tensor:
    """The mean weight at each distance, ``[H, T]``, of rows ``[H, T, T]``."""
    count = rows.shape[-1]
    place = torch.arange(count)
    distance = place[:, None] - place
    seen = distance >= 0
    sums = rows.new_zeros(rows.shape[0], count).index_add_(1, distance[seen], rows[:, seen])
    return sums / (count - place)


def profile_distances(count: int) -> Tensor:
    """Distances 0 to ``count - 1``, all of the near ones and fewer of the far ones.

    >>> profile_distances(5).tolist(), len(profile_distances(512)) <= 120
    ([0, 1, 2, 3, 4], True)
    """
    if count <= PROFILE_POINTS:
        return torch.arange(count)
    return torch.logspace(0, torch.tensor(float(count)).log2(), PROFILE_POINTS, base=2).round().long().unique() - 1


def draw_reading(reading: Reading, layer: int, head: int, back: int) -> str:
    """Facts, arcs, map, distance profile and the share of the first token. Numbers beyond the last are the last."""
    layer = min(layer, reading.layers - 1)
    weights = reading.rows(layer)
    head, count = min(head, len(weights) - 1), len(reading.tokens)
    query = max(0, count - 1 - back)
    rows, first_share = weights[head], reading.first_share()
    later = torch.ones(count, count, dtype=torch.bool).triu(1)
    distances = profile_distances(count)
    profile = distance_profile(weights)[:, distances]
    facts = drawings.tiles(
        ("tokens", str(count) if count == reading.total else f"the first {count} of {reading.total}"),
        ("to the first token, this head", f"{100 * float(rows[query, 0]):.0f} %"),
        ("to the first token, all heads", f"{100 * float(first_share.nanmean()):.0f} %"),
    )
    panels = [
        drawings.heatmap(f"Attention, layer {layer}, head {head}", rows.masked_fill(later, torch.nan), "weight", weights=True),
        drawings.heatmap("Share of the first token", first_share, "share, from the last token", rows="layer", columns="head"),
        drawings.line_chart(
            "Mean weight by distance", drawings.head_curves(distances, profile, False),
            "distance to the key (tokens)", "mean weight", log_distance=True,
        ),
    ]  # fmt: skip
    arcs = drawings.arcs(f"From “{reading.tokens[query].strip()}”", reading.tokens, rows[query].tolist(), query)
    words = drawings.shaded_words("The text", reading.tokens, rows[query].tolist(), query)
    return f'{facts}{arcs}<div class="panels">{"".join(panels)}</div>{words}'


def draw_next(lm: LoadedModel, reading: Reading, other: Reading | None) -> str:
    """The most probable next tokens, also with the change."""
    assert reading.next_probabilities is not None
    best = reading.next_probabilities.topk(NEXT_TOKENS).indices.tolist()
    changed = None if other is None else other.next_probabilities
    if changed is not None:
        best = list(dict.fromkeys([*best, *changed.topk(3).indices.tolist()]))
    rows = [
        (
            repr(lm.tokenizer.decode([token])),
            float(reading.next_probabilities[token]),
            None if changed is None else float(changed[token]),
        )
        for token in best
    ]
    return drawings.bars("Next token", rows, ("as it is", "changed"))


def draw_continuations(lines: list[tuple[str, str]]) -> str:
    """Continuations of a text, each after the name of its condition."""
    return "".join(
        f'<p class="generated"><span class="given">{html.escape(name)}: …</span>{html.escape(line)}</p>'
        for name, line in lines
    )
