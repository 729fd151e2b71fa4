"""The pictures of docs/lengths-and-caches.md, drawn from what attention itself tells a mechanism.

A ``Recorder`` takes part in a call of ``attend`` and stores the positions of queries and keys, and which keys each query
sees. The pictures show these numbers, so they cannot differ from the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import whence

BLUES = ("#dbe9f6", "#9ecae1", "#6aaed6", "#4292c6")
HIDDEN, PADDING, TEXT = "#f2f2f2", "#bdbdbd", "#222222"
CALLS = ("#cfe3f5", "#fde0c5", "#d5ecd0", "#e5d8ef", "#f9d5dd")
#: the length of the texts, and the query that is watched, in the picture of the three lengths
TEXTS, QUERY = (8, 16, 32), 7


@dataclass(frozen=True)
class SeenRows:
    """What one call told a mechanism about one sequence."""

    q_positions: Tensor  # [T]
    k_positions: Tensor  # [S]
    visible: Tensor  # [T, S]

    @property
    def distance(self) -> Tensor:
        return self.q_positions[:, None] - self.k_positions[None, :]


class Recorder(whence.Position):
    """A mechanism that changes nothing and stores what each call tells it."""

    relative = False

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[SeenRows] = []

    def content_bias(self, rows: whence.Rows) -> Tensor:
        visible = rows.visible.expand(rows.scores.shape)[0, 0]
        self.calls.append(SeenRows(rows.q_positions[0], rows.k_positions[0], visible))
        return torch.zeros_like(rows.scores)


def record(chunks: Sequence[int], cache: whence.KVCache | None = None, **options: Any) -> list[SeenRows]:
    """What a mechanism is told in causal attention over tokens that come in chunks."""
    recorder = Recorder()
    for count in chunks:
        x = torch.zeros(1, 1, count, 2)
        whence.attend(x, x, x, position=recorder, causal=True, cache=cache, backend="reference", **options)
    return recorder.calls


class Share(whence.Position):
    """A penalty on the distance as a share of the length: ``-4 * distance / length``."""

    def bias(self, distance: Tensor, length: Any) -> Tensor:
        return -4 * distance / length


def weights_of_query(kind: str, tokens: int) -> Tensor:
    """The weights of one query over its keys in a text of some tokens; q and k are zero, so position alone decides."""
    position = Share(length=kind, context=TEXTS[-1] if kind == "context" else None)
    x = torch.zeros(1, 1, tokens, 2)
    return whence.attend(x, x, x, position=position, causal=True, return_weights=True)[1][0, 0, QUERY, : QUERY + 1]


def draw_grid(
    axes: Any, seen: SeenRows, words: Sequence[str], *, rows: Sequence[str] | None = None, padding: Sequence[int] = ()
) -> None:
    """One square for each query and key: its distance, or grey where the key is hidden."""
    distance = seen.distance
    row_words = words if rows is None else rows
    for i in range(distance.shape[0]):
        for j in range(distance.shape[1]):
            visible = bool(seen.visible[i, j])
            number = int(distance[i, j])
            blank = j in padding or (i in padding and rows is None)
            color = PADDING if blank else BLUES[max(0, 3 - number)] if visible else HIDDEN
            draw_cell(axes, i, j, color, str(number) if visible and not blank else "")
    finish_grid(axes, words, row_words)


def draw_cell(axes: Any, row: int, column: int, color: str, text: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=color, edgecolor="white", linewidth=2))
    axes.text(column, row, text, ha="center", va="center", fontsize=10, color="white" if color == BLUES[3] else TEXT)


def finish_grid(axes: Any, columns: Sequence[str], rows: Sequence[str]) -> None:
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_aspect("equal")
    axes.set_xticks(range(len(columns)), columns, fontsize=9)
    axes.set_yticks(range(len(rows)), rows, fontsize=9)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def label_tokens(words: Sequence[str], positions: Tensor, padding: Sequence[int] = ()) -> list[str]:
    """Each word with its position below; padding has none."""
    return [f"{word}\n{'-' if i in padding else int(positions[i])}" for i, word in enumerate(words)]


def draw_cases(out: Path) -> None:
    """One pass, left padding, right padding and packed documents."""
    from matplotlib.figure import Figure

    sentence = ["the", "cat", "sat", "down", "now"]
    padded = torch.tensor([[False, False, True, True, True]])
    cases: list[tuple[str, SeenRows, list[str], tuple[int, ...]]] = [
        ("one text", record([5])[0], sentence, ()),
        ("padding on the left", record([5], key_mask=padded)[0], ["pad", "pad", "the", "cat", "sat"], (0, 1)),
        (
            "padding on the right",
            record([5], lengths=torch.tensor([3]))[0],
            ["the", "cat", "sat", "pad", "pad"],
            (3, 4),
        ),
        (
            "two packed documents",
            record([5], segment_ids=torch.tensor([0, 0, 0, 1, 1]))[0],
            ["the", "cat", "sat", "hello", "you"],
            (),
        ),
    ]
    figure = Figure(figsize=(9, 9), layout="constrained")
    for axes, (title, seen, words, padding) in zip(figure.subplots(2, 2).flat, cases, strict=True):
        draw_grid(axes, seen, label_tokens(words, seen.k_positions, padding), padding=padding)
        axes.set_title(title, fontsize=12, fontweight="bold", pad=12)
        axes.set_ylabel("query, with its position", fontsize=9, color="#666666")
    figure.savefig(out, dpi=110)


def draw_cache(out: Path) -> None:
    """The same text in one pass, in three calls with a cache, and in three calls with a window of three tokens."""
    from matplotlib.figure import Figure

    chunks = (3, 1, 1)
    cases = [
        ("one pass", record([5])),
        ("three calls with a KVCache", record(chunks, whence.KVCache())),
        ("three calls with\nKVCache(window=3)", record(chunks, whence.KVCache(window=3), window=3)),
    ]
    words = [f"{word}\n{place}" for place, word in enumerate(["the", "cat", "sat", "down", "now"])]
    figure = Figure(figsize=(11, 4.0), layout="constrained")
    for axes, (title, calls) in zip(figure.subplots(1, 3), cases, strict=True):
        for number, seen in enumerate(calls):
            visible = {
                (int(q), int(k))
                for i, q in enumerate(seen.q_positions)
                for j, k in enumerate(seen.k_positions)
                if seen.visible[i, j]
            }
            stored = {int(k) for k in seen.k_positions}
            for q in map(int, seen.q_positions):
                for k in range(5):
                    shown = (q, k) in visible
                    draw_cell(
                        axes,
                        q,
                        k,
                        CALLS[number] if shown else HIDDEN if k in stored else "white",
                        str(q - k) if shown else "",
                    )
            first = int(seen.q_positions[0])
            last = int(seen.q_positions[-1])
            axes.text(4.62, (first + last) / 2, f"call {number + 1}", fontsize=9, va="center", color="#666666")
        finish_grid(axes, words, words)
        axes.set_title(title, fontsize=12, fontweight="bold", pad=12)
    figure.savefig(out, dpi=110)


def draw_lengths(out: Path) -> None:
    """The weights of one query, as the text behind it grows, for the three meanings of length."""
    from matplotlib.figure import Figure

    titles = {
        "context": f'length="context"\nalways {TEXTS[-1]}',
        "query": f'length="query"\n{QUERY + 1} for this query',
        "sequence": 'length="sequence"\nthe number of tokens of the text',
    }
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    styles = (("#1f77b4", "-", 6.0), ("#ff7f0e", "-", 3.5), ("#222222", "--", 1.5))
    all_axes = figure.subplots(1, 3, sharey=True)
    for axes, (kind, title) in zip(all_axes, titles.items(), strict=True):
        for tokens, (color, line, width) in zip(TEXTS, styles, strict=True):
            weights = weights_of_query(kind, tokens)
            axes.plot(range(QUERY + 1), weights, line, color=color, linewidth=width, label=f"text of {tokens} tokens")
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("position of the key")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    all_axes[0].set_ylim(0, 0.5)
    all_axes[0].set_ylabel(f"weight of the query at position {QUERY}")
    all_axes[0].legend(frameon=False, fontsize=9, loc="upper left")
    figure.savefig(out, dpi=110)


def draw(folder: Path) -> None:
    """Write all pictures of the page."""
    draw_cases(folder / "length-cases.png")
    draw_cache(folder / "length-cache.png")
    draw_lengths(folder / "lengths.png")
