"""Attention maps: packed into the page once, drawn by the script on two canvases side by side."""

from __future__ import annotations

import base64
import binascii
import html
import json
import zlib
from collections.abc import Mapping
from typing import Any

from whence.errors import usage_error
from whence.report.comparison.style import Look

ROOM = 3_600_000  # characters for the maps of all studies, of the page's 5 MB


def packed(study: dict[str, Any], examples: int) -> dict[str, Any] | None:
    """What the script needs of one study: tokens, padding and all weights of an example in one compressed piece."""
    arms = []
    for arm in study["arms"]:
        seen = (study.get("observations") or {}).get(arm["name"]) or {}
        kept = [_example(example, arm["name"]) for example in seen.get("examples", [])[:examples]]
        if kept:
            arms.append({"name": arm["name"], "seed": seen.get("seed"), "examples": kept})
    return {"arms": arms} if arms else None


def fitted(studies: list[dict[str, Any]]) -> tuple[list[dict[str, Any] | None], int, int]:
    """The maps of all studies, with as many examples as the page has room for: (maps, examples kept, examples given)."""
    counts = [len(seen["examples"]) for s in studies for seen in (s.get("observations") or {}).values()]
    given = max(counts, default=0)
    everything = [packed(study, given) for study in studies]
    for kept in range(given, 0, -1):
        some = [_first(maps, kept) for maps in everything]
        if sum(len(json.dumps(maps)) for maps in some) <= ROOM:
            return some, kept, given
    return [None] * len(studies), 0, given


def viewer(study: int, maps: dict[str, Any], looks: Mapping[str, Look], kept: int, given: int) -> str:
    """The selectors, two canvases and the data, which the script ties together."""
    names = [arm["name"] for arm in maps["arms"]]
    shapes = [example for arm in maps["arms"] for example in arm["examples"]]
    layers, heads = max(e["layers"] for e in shapes), max(e["heads"] for e in shapes)
    most = max((arm["examples"] for arm in maps["arms"]), key=len)
    examples = [f"{index + 1}: {' '.join(e['tokens'][:7])[:40]}" for index, e in enumerate(most)]
    sides = (("left", 0), ("right", len(names) - 1))[: len(names)]  # one arm has nothing to stand beside
    selectors = "".join(
        (
            _select(study, "example", "Example", examples, 0),
            _select(study, "layer", "Layer", [str(layer + 1) for layer in range(layers)], 0),
            _select(study, "head", "Head", [str(head + 1) for head in range(heads)], 0),
            _select(study, "shade", "Shading", ["square root: small weights show", "in proportion"], 0),
        )
    )
    panels = "".join(
        f'<figure class="panel">{_select(study, side, f"{side} arm".capitalize() if len(sides) > 1 else "Arm", names, start)}'
        f'<canvas tabindex="0" data-side="{side}" role="img" aria-label="Attention map" '
        f'aria-describedby="maps-help-{study}"></canvas></figure>'
        for side, start in sides
    )
    short = f" {given - kept} of {given} examples were left out to keep the page under 5 MB." if kept < given else ""
    seeds = sorted({arm["seed"] for arm in maps["arms"] if arm["seed"] is not None})
    whose = f" The models are those of seed {', '.join(map(str, seeds))}." if seeds else ""
    data = {**maps, "arms": [{**arm, "place": looks[arm["name"]].place} for arm in maps["arms"]]}
    return (
        f'<div class="maps" data-maps="maps-{study}"><div class="selectors">{selectors}</div>'
        f'<div class="panels">{panels}</div>'
        '<div class="ramp" aria-hidden="true"><canvas class="bar"></canvas></div>'
        f'<p class="small" id="maps-help-{study}">Rows are queries, columns are keys; the shade is the weight a query '
        "gives to a key, on one scale for all maps. Hatched: padding. Point at a cell, or focus a map and use the "
        f'arrow keys, to read it.{whose}{short}</p><p class="readout" role="status" aria-live="polite"></p>'
        f'<script type="application/json" id="maps-{study}">{embedded(data)}</script></div>'
    )


def embedded(data: Any) -> str:
    """JSON that no browser can take for markup, whatever the texts in it."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _select(study: int, name: str, label: str, options: list[str], chosen: int) -> str:
    items = "".join(
        f'<option value="{index}"{" selected" if index == chosen else ""}>{html.escape(option)}</option>'
        for index, option in enumerate(options)
    )
    identity = f"{name}-{study}"
    return f'<label for="{identity}">{label}<select id="{identity}" data-choice="{name}">{items}</select></label>'


def _example(example: dict[str, Any], arm: str) -> dict[str, Any]:
    tokens = [str(token) for token in example["tokens"]]
    size, pieces = len(tokens) ** 2, []
    for layer, heads in enumerate(example["maps"]):
        for head, text in enumerate(heads):
            try:
                weights = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                weights = b""
            if len(weights) != size:
                raise usage_error(
                    "page(findings)",
                    f"a map of {len(weights)} bytes for {arm!r}, layer {layer}, head {head}",
                    f"{len(tokens)} tokens have {size} weights of one byte, in base64",
                    "encode the T x T map as uint8, row by row",
                )
            pieces.append(weights)
    layers = example["maps"]
    return {
        "tokens": tokens,
        "padding": example.get("padding"),
        "layers": len(layers),
        "heads": max((len(heads) for heads in layers), default=0),
        "weights": base64.b64encode(zlib.compress(b"".join(pieces), 9)).decode("ascii"),
    }


def _first(maps: dict[str, Any] | None, examples: int) -> dict[str, Any] | None:
    if maps is None:
        return None
    return {"arms": [{**arm, "examples": arm["examples"][:examples]} for arm in maps["arms"]]}
