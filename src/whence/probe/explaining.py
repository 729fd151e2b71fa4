"""Where a bias comes from: one record for each way of looking at it, made once and read again afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from whence import records
from whence.probe import ablating, distances, interventions, likelihood, run_folder, states
from whence.probe.arrays import channels, geometry, noise, positional_vectors, rows
from whence.probe.identity import identify
from whence.probe.measuring import Notify, rounded
from whence.probe.plan import Plan
from whence.probe.projections import projection_matrix
from whence.probe.subject import Subject

SINGULAR = 8  # of the spectrum, how many values are kept
LOW = 10  # DCT frequencies that count as low
SPLIT_TEXTS = 2


def explain(subject: Subject, plan: Plan, folder: Path, notify: Notify) -> None:
    """All ways of looking; each record is written as soon as it is there, so that a stopped run goes on after it.

    A folder of another model, or of one whose identity is unknown, is refused. A model whose attention cannot be watched
    has no explanations; ``subject.unexplained`` says why.
    """
    identity = identify(subject)
    plan = run_folder.plan_for(folder, plan, identity)
    if subject.unexplained:
        return
    here = run_folder.environment(subject)
    for number, (name, way) in enumerate(WAYS.items()):
        path = folder / file_name(name)
        if read := records.exists(path):
            run_folder.require_plan(records.read(path), plan, path)
        else:
            started = run_folder.now()
            found = way(subject, plan)
            told = {"plan": plan.hash, "identity": identity, "way": name, "found": found, "started": started}
            records.write(path, {**told, "command": records.rerun_command(), "environment": here})
        notify(number + 1, len(WAYS), f"explanation: {name}", read)


def file_name(way: str) -> str:
    return f"explain-{way}.json"


def attention(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """From the records: by task, attention to the gold as it moves and to every slot, and how each head divides its row."""
    tasks: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for record in found:
        if isinstance(record["where"], int) and record["attention"]:
            tasks.setdefault(record["task"], {}).setdefault(record["where"], []).append(record["attention"])
    told = {}
    for name, places in tasks.items():
        order = sorted(places)
        slots = torch.stack([_mean(places[place], "slots") for place in order])
        gold, profile = rows.gold_and_profile(slots, order)
        divided = rows.position_or_content(slots, order)
        layers = places[order[0]][0].get("layers")  # which ones, where not all were looked at
        told[name] = {
            **({"layers": layers} if layers else {}),
            "places": order,
            "gold": rounded(gold),  # [layers, heads, places]
            "profile": rounded(profile),  # [layers, heads, slots]
            "regions": {
                region: rounded(torch.stack([_mean(places[place], region) for place in order]).mean(0))
                for region in ("sink", "primacy", "middle", "recency")
            },
            "shares": {part: rounded(divided[part]) for part in ("position", "content", "rest")},
        }
    return told


def content_free(subject: Subject, plan: Plan) -> dict[str, Any]:
    """By task, attention to each slot when all slots hold the same words."""
    told = {}
    for asked in plan.asked:
        task = asked.made()
        prompt = subject.framed(task.content_free(task.items[0].others[0]))
        row = likelihood.row_of(subject, subject.tokens(prompt.text))
        told[asked.label] = rounded(rows.slot_means(row, subject.token_spans(prompt.text, prompt.slots)))
    return told


def hidden_geometry(subject: Subject, plan: Plan) -> dict[str, Any]:
    """By layer: how much of plain texts' hidden states is position alone, and what that part looks like."""
    texts = states.plain_texts(subject, plan.texts, plan.tokens)
    every = torch.stack(list(states.each_text(subject, texts)))  # [texts, layers, tokens, width]
    layers = []
    for layer in range(every.shape[1]):
        whole = every[:, layer, 1:]
        trimmed_states, out = geometry.without_outliers(whole)
        parts, trimmed = geometry.decompose(whole), geometry.decompose(trimmed_states)
        values = geometry.spectrum(parts.position)
        low = geometry.frequencies(parts.position)[:LOW].sum()
        layers.append({
            "shares": parts.shares,
            "beyond_chance": parts.position_beyond_chance,
            "beyond_chance_without_outliers": trimmed.position_beyond_chance,
            "outliers": out,
            "relative_norm": geometry.relative_norm(parts),
            "stable_rank": geometry.stable_rank(values),
            "rank": geometry.rank(values),
            "signal_rank": noise.signal_rank(values, (parts.position.shape[0], parts.position.shape[1])),
            "spectrum": rounded(values[:SINGULAR] / values[0].clamp_min(1e-30)),
            "low_frequencies": float(low),
            "in_both_halves": noise.in_both_halves(whole, LOW),
            "incoherence": geometry.incoherence(parts),
        })  # fmt: skip
    return {
        "texts": plan.texts,
        "tokens": plan.tokens,
        "layers": layers,
        "vectors": vector_sizes(every),
        "scores": score_split(subject, texts[:SPLIT_TEXTS]) if states.has_projections(subject) else [],
    }


def vector_sizes(every: torch.Tensor) -> dict[str, list[float]]:
    """By layer, of states ``[texts, layers, tokens, width]``: the length of the positional vectors' parts and of the
    content, and how near the vectors of the second half of the positions come to one of the first."""
    told: dict[str, list[float]] = {"base": [], "moving": [], "content": [], "nearest": []}
    for layer in range(every.shape[1]):  # one at a time: in float64, with the content beside it, all are large
        found = positional_vectors.positional_vectors(every[:, layer : layer + 1])
        told["base"].append(float(found.base.norm()))
        told["moving"].append(float(found.moving[0, 1:].norm(dim=-1).mean()))
        told["content"].append(float(found.content[:, 0, 1:].norm(dim=-1).mean()))
        told["nearest"].append(float(positional_vectors.nearest_inside(found.vector[0], every.shape[2] // 2).mean()))
    return {name: [float(f"{value:.4g}") for value in values] for name, values in told.items()}


def score_split(subject: Subject, texts: torch.Tensor) -> list[dict[str, Any]]:
    """For the first, the middle and the last layer: what of their scores is position meeting position, and so on."""
    modules = states.attention_modules(subject)
    numbers = sorted(modules)  # of a hybrid, not all layers attend
    chosen = sorted({numbers[0], numbers[(len(numbers) - 1) // 2], numbers[-1]})
    with states.attention_inputs(subject, chosen) as seen, torch.inference_mode():
        inputs: dict[int, list[torch.Tensor]] = {layer: [] for layer in chosen}
        for text in texts:
            subject.model(input_ids=text[None].to(subject.device), use_cache=False, logits_to_keep=1)
            for layer in seen:  # a layer that reads an image does not run on text
                inputs[layer].append(seen[layer][0, 1:])
    told = []
    for layer in [layer for layer in chosen if inputs[layer]]:
        parts = geometry.decompose(torch.stack(inputs[layer]))
        config = subject.model.config.get_text_config()
        width = int(getattr(modules[layer], "head_dim", config.hidden_size // subject.heads))
        queries, keys = (
            projection_matrix(getattr(modules[layer], name), subject.model.dtype, subject.device).split(width)
            for name in ("q_proj", "k_proj")
        )
        group = len(queries) // len(keys)
        shares = [geometry.score_shares(geometry.score_parts(parts, q, keys[head // group]))
                  for head, q in enumerate(queries)]  # fmt: skip
        told.append({"layer": layer, "heads": shares})
    return told


def followed_channels(subject: Subject, plan: Plan) -> dict[str, Any]:
    """The channels that follow position over random texts, by each of the three fits."""
    means = states.mean_states(subject, states.random_texts(subject, plan.texts, plan.tokens))
    told: dict[str, Any] = {"texts": plan.texts, "tokens": plan.tokens, "width": means.shape[-1]}
    for fit in channels.FITS:
        every = channels.positional_channels(means, fit, most=None)
        told[fit] = {
            "count": len(every),
            "by_chance": channels.by_chance(means, fit),
            "best": [
                {
                    "channel": one.channel,
                    "direction": one.direction,
                    "layers": list(one.layers),
                    "roughness": one.roughness,
                }
                for one in every[:10]
            ],
        }
    best = next((told[fit]["best"][0] for fit in channels.FITS if told[fit]["best"]), None)
    if best is not None:
        layer = best["layers"][len(best["layers"]) // 2]
        told["curve"] = {
            "channel": best["channel"], "layer": layer, "values": rounded(means[layer, :, best["channel"]]),
        }  # fmt: skip
    return told


def mask_or_encoding(subject: Subject, plan: Plan) -> dict[str, Any]:
    """The share of position in the middle layer's states in each arm, and how far the span moved; nothing of a model whose
    positions and mask cannot be handed to it."""
    if not subject.takes_branches:
        return {}
    tokens = plan.tokens
    span, shift = (tokens * 2 // 5, tokens * 3 // 5), tokens // 5
    texts = states.random_texts(subject, max(2, plan.texts // 2), tokens, seed=1)
    layer = subject.layers // 2
    told: dict[str, Any] = {"span": span, "shift": shift, "layer": layer, "texts": len(texts), "arms": {}}
    untouched = None
    for name, (positions, visible) in interventions.arms(tokens, span, shift).items():
        every = torch.stack([
            states.as_read(one[layer]) for one in states.each_text(subject, texts, positions=positions, visible=visible)
        ])  # fmt: skip
        curve = every.mean(0)
        untouched = curve if untouched is None else untouched
        told["arms"][name] = {
            "position_share": geometry.decompose(every[:, 1:]).position_beyond_chance,
            # of vectors of length 1: 0 for no movement, about 1.4 for one to somewhere unrelated
            "moved": float((curve - untouched)[span[0] : span[1]].norm(dim=-1).mean()),
        }
    return told


def follows(subject: Subject, plan: Plan, multiplied: str = "weight") -> dict[str, Any]:
    """Whether answers follow attention, on the first task whose slots each hold an answer."""
    for asked in plan.asked:
        task = asked.made()
        if task.paired and plan.intervened and subject.takes_branches:
            told = interventions.answer_follows(subject, task, min(plan.intervened, asked.items), multiplied)
            return {"task": asked.label, **told, "short": interventions.followed(told["rows"])}
    return {}


#: by the name of its record
WAYS: dict[str, Callable[[Subject, Plan], dict[str, Any]]] = {
    "content-free": content_free,
    "distance": distances.by_distance,
    "geometry": hidden_geometry,
    "channels": followed_channels,
    "mask-or-encoding": mask_or_encoding,
    "ablation": ablating.ablated,
    "follows": follows,
    "follows-score": partial(follows, multiplied="score"),
}


def _mean(parts: list[Mapping[str, Any]], name: str) -> torch.Tensor:
    """The mean over records, each counted with its items."""
    counts = torch.tensor([float(part["count"]) for part in parts])
    values = torch.stack([torch.tensor(part[name]) for part in parts])
    return (values * counts.reshape(-1, *[1] * (values.dim() - 1))).sum(0) / counts.sum()
