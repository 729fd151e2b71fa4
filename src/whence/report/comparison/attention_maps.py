"""Attention maps: compressed into the page, drawn by ``attention_maps.js`` on two canvases side by side."""

from __future__ import annotations

import base64
import binascii
import html
import json
import zlib
from dataclasses import dataclass
from typing import Any

from whence.errors import usage_error

MAX_CHARS = 3_600_000  # for the maps of all studies; the page stays below 5 MB


@dataclass(frozen=True)
class PackedMaps:
    """The maps of all studies, with as many examples as fit on the page."""

    studies: list[dict[str, Any] | None]
    num_included: int
    num_recorded: int


def pack_maps(studies: list[dict[str, Any]]) -> PackedMaps:
    counts = [len(seen["examples"]) for s in studies for seen in (s.get("observations") or {}).values()]
    num_recorded = max(counts, default=0)
    everything = [_pack_study(study) for study in studies]
    for num_included in range(num_recorded, 0, -1):
        some = [_take_examples(maps, num_included) for maps in everything]
        if sum(len(json.dumps(maps)) for maps in some) <= MAX_CHARS:
            return PackedMaps(some, num_included, num_recorded)
    return PackedMaps([None] * len(studies), 0, num_recorded)


def _pack_study(study: dict[str, Any]) -> dict[str, Any] | None:
    arms = []
    for arm in study["arms"]:
        observed = (study.get("observations") or {}).get(arm["name"]) or {}
        examples = [_pack_example(example, arm["name"]) for example in observed.get("examples", [])]
        if examples:
            arms.append({"name": arm["name"], "seed": observed.get("seed"), "examples": examples})
    return {"arms": arms} if arms else None


def _pack_example(example: dict[str, Any], arm: str) -> dict[str, Any]:
    """Tokens, padding and all maps of one example; the maps are concatenated and compressed."""
    tokens = [str(token) for token in example["tokens"]]
    size, maps = len(tokens) ** 2, []
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
                    f"{len(tokens)} tokens have {size} weights of one byte each, in base64",
                    "encode the T x T map as uint8, row by row",
                )
            maps.append(weights)
    return {
        "tokens": tokens,
        "padding": example.get("padding"),
        "layers": len(example["maps"]),
        "heads": max((len(heads) for heads in example["maps"]), default=0),
        "weights": base64.b64encode(zlib.compress(b"".join(maps), 9)).decode("ascii"),
    }


def _take_examples(maps: dict[str, Any] | None, count: int) -> dict[str, Any] | None:
    if maps is None:
        return None
    return {"arms": [{**arm, "examples": arm["examples"][:count]} for arm in maps["arms"]]}


def map_viewer(study: int, packed: PackedMaps) -> str:
    """Selectors, two canvases and the data of a study's maps; a sentence if there are none."""
    maps = packed.studies[study]
    if maps is None:
        too_large = packed.num_recorded and not packed.num_included
        reason = "The attention maps are too large for this page." if too_large else "No attention maps were recorded."
        return f'<p class="small">{reason}</p>'
    names = [arm["name"] for arm in maps["arms"]]
    all_examples = [example for arm in maps["arms"] for example in arm["examples"]]
    layers, heads = max(e["layers"] for e in all_examples), max(e["heads"] for e in all_examples)
    longest = max((arm["examples"] for arm in maps["arms"]), key=len)
    examples = [f"{index + 1}: {' '.join(e['tokens'][:7])[:40]}" for index, e in enumerate(longest)]
    sides = (("left", 0), ("right", len(names) - 1))[: len(names)]  # a single arm has one canvas
    selectors = "".join(
        (
            _select(study, "example", "Example", examples, 0),
            _select(study, "layer", "Layer", [str(layer + 1) for layer in range(layers)], 0),
            _select(study, "head", "Head", [str(head + 1) for head in range(heads)], 0),
            _select(study, "shade", "Color scale", ["square root: shows small weights", "linear"], 0),
        )
    )
    panels = "".join(
        f'<figure class="panel">{_select(study, side, f"{side} arm".capitalize() if len(sides) > 1 else "Arm", names, start)}'
        f'<canvas tabindex="0" data-side="{side}" role="img" aria-label="Attention map" '
        f'aria-describedby="maps-help-{study}"></canvas></figure>'
        for side, start in sides
    )
    seeds = sorted({arm["seed"] for arm in maps["arms"] if arm["seed"] is not None})
    notes = [
        "Rows are queries and columns are keys. All maps share one color scale. Hatched: padding.",
        "Point at a cell, or focus a map and use the arrow keys, to read a weight.",
    ]
    if seeds:
        notes.append(f"The models have seed {', '.join(map(str, seeds))}.")
    if packed.num_included < packed.num_recorded:
        omitted = packed.num_recorded - packed.num_included
        notes.append(f"{omitted} of {packed.num_recorded} examples were omitted to keep the page below 5 MB.")
    return (
        f'<div class="maps" data-maps="maps-{study}"><div class="selectors">{selectors}</div>'
        f'<div class="panels">{panels}</div>'
        '<div class="ramp" aria-hidden="true"><canvas class="bar"></canvas></div>'
        f'<p class="small" id="maps-help-{study}">{" ".join(notes)}</p>'
        '<p class="readout" role="status" aria-live="polite"></p>'
        f'<script type="application/json" id="maps-{study}">{script_json(maps)}</script></div>'
    )


def script_json(data: Any) -> str:
    """JSON for a script element; no text in it can be read as markup."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _select(study: int, name: str, label: str, options: list[str], selected: int) -> str:
    items = "".join(
        f'<option value="{index}"{" selected" if index == selected else ""}>{html.escape(option)}</option>'
        for index, option in enumerate(options)
    )
    identifier = f"{name}-{study}"
    return f'<label for="{identifier}">{label}<select id="{identifier}" data-choice="{name}">{items}</select></label>'
