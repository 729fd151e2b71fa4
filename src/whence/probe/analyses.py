"""Analyses of where a positional bias comes from. Each is computed once and stored in a record.

Attention by distance is measured with the model's positions and with one position for all tokens; in the second case a
rotary model gets order from its causal mask only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence import records
from whence.probe import ablation, hidden_states, likelihood, run_folder
from whence.probe.arrays import attention_rows, channels, geometry, growth
from whence.probe.hidden_states import projection_matrix
from whence.probe.identity import identify
from whence.probe.measurement import Notify, to_rounded_list
from whence.probe.plan import Plan
from whence.probe.probed_model import ProbedModel, require_probed_model

SINGULAR = 8  # singular values of the spectrum that are stored
LOW = 10  # DCT frequencies that count as low
SPLIT_TEXTS = 2


def explain(lm: ProbedModel, plan: Plan, folder: Path | str, notify: Notify = lambda *progress: None) -> None:
    """Run all analyses. Each record is written as soon as it is complete, so that a stopped run can be resumed.

    A folder of another model, or of an unknown one, is an error. A model whose attention cannot be captured has no
    analyses; ``lm.capture_error`` says why.
    """
    require_probed_model("explain(lm)", lm)
    folder, identity = Path(folder), identify(lm)
    plan = run_folder.load_matching_plan(folder, plan, identity)
    if lm.capture_error:
        return
    environment = run_folder.environment(lm)
    for number, (name, analyze) in enumerate(ANALYSES.items()):
        path = folder / file_name(name)
        if read := records.exists(path):
            run_folder.require_plan_hash(records.read(path), plan, path)
        else:
            started = run_folder.utc_now()
            output = analyze(lm, plan)
            result = {"plan": plan.hash, "identity": identity, "analysis": name, "result": output, "started": started}
            records.write(path, {**result, "command": records.rerun_command(), "environment": environment})
        notify(number + 1, len(ANALYSES), f"explanation: {name}", read)


def file_name(analysis: str) -> str:
    return f"explain-{analysis}.json"


def summarize_attention(task_records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """From the records, by task: attention to the gold in each slot, to the other slots, and by region of the prompt."""
    tasks: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for record in task_records:
        if isinstance(record["condition"], int) and record["attention"]:
            tasks.setdefault(record["task"], {}).setdefault(record["condition"], []).append(record["attention"])
    result = {}
    for name, places in tasks.items():
        order = sorted(places)
        slots = torch.stack([_mean(places[place], "slots") for place in order])
        gold, profile = attention_rows.gold_and_profile(slots, order)
        divided = attention_rows.position_or_content(slots, order)
        layers = places[order[0]][0].get("layers")  # set if only some layers were captured
        result[name] = {
            **({"layers": layers} if layers else {}),
            "gold_slots": order,
            "gold": to_rounded_list(gold),  # [layers, heads, places]
            "profile": to_rounded_list(profile),  # [layers, heads, slots]
            "regions": {
                region: to_rounded_list(torch.stack([_mean(places[place], region) for place in order]).mean(0))
                for region in ("sink", "primacy", "middle", "recency")
            },
            "shares": {part: to_rounded_list(divided[part]) for part in ("position", "content", "rest")},
        }
    return result


def content_free(lm: ProbedModel, plan: Plan) -> dict[str, Any]:
    """By task, attention to each slot when all slots contain the same words."""
    result = {}
    for spec in plan.tasks:
        task = spec.build()
        prompt = lm.apply_template(task.content_free(task.items[0].others[0]))
        row = likelihood.last_attention_row(lm, lm.tokens(prompt.text))
        result[spec.label] = to_rounded_list(attention_rows.slot_means(row, lm.token_spans(prompt.text, prompt.slots)))
    return result


def hidden_geometry(lm: ProbedModel, plan: Plan) -> dict[str, Any]:
    """By layer: the share of position in the hidden states of plain texts, and the rank and spectrum of that part."""
    texts = hidden_states.plain_texts(lm, plan.texts, plan.tokens)
    states = torch.stack(list(hidden_states.iterate_states(lm, texts)))  # [texts, layers, tokens, hidden_size]
    layers = []
    for layer in range(states.shape[1]):
        whole = states[:, layer, 1:]
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
            "signal_rank": geometry.signal_rank(values, (parts.position.shape[0], parts.position.shape[1])),
            "spectrum": to_rounded_list(values[:SINGULAR] / values[0].clamp_min(1e-30)),
            "low_frequencies": float(low),
            "in_both_halves": geometry.in_both_halves(whole, LOW),
            "in_both_halves_without_outliers": geometry.in_both_halves(trimmed_states, LOW),
            "incoherence": geometry.incoherence(parts),
        })  # fmt: skip
    return {
        "texts": plan.texts,
        "tokens": plan.tokens,
        "layers": layers,
        "vectors": vector_sizes(states),
        "scores": score_split(lm, texts[:SPLIT_TEXTS]) if hidden_states.has_projections(lm) else [],
    }


def vector_sizes(states: torch.Tensor) -> dict[str, list[float]]:
    """By layer, of states ``[texts, layers, tokens, hidden_size]``: the norm of the parts of the positional vectors and of
    the content, and the largest cosine of a vector in the second half of the positions to one in the first half."""
    result: dict[str, list[float]] = {"base": [], "moving": [], "content": [], "nearest": []}
    for layer in range(states.shape[1]):  # one layer at a time, because all layers in float64 take much memory
        parts = geometry.positional_vectors(states[:, layer : layer + 1])
        result["base"].append(float(parts.base.norm()))
        result["moving"].append(float(parts.moving[0, 1:].norm(dim=-1).mean()))
        result["content"].append(float(parts.content[:, 0, 1:].norm(dim=-1).mean()))
        result["nearest"].append(float(geometry.nearest_inside(parts.vector[0], states.shape[2] // 2).mean()))
    return {name: [float(f"{value:.4g}") for value in values] for name, values in result.items()}


def score_split(lm: ProbedModel, texts: torch.Tensor) -> list[dict[str, Any]]:
    """For the first, the middle and the last layer: the shares of position and content in the attention scores."""
    modules = hidden_states.attention_modules(lm)
    numbers = sorted(modules)  # of a hybrid, not all layers attend
    layers = sorted({numbers[0], numbers[(len(numbers) - 1) // 2], numbers[-1]})
    with hidden_states.attention_inputs(lm, layers) as captured, torch.inference_mode():
        inputs: dict[int, list[torch.Tensor]] = {layer: [] for layer in layers}
        for text in texts:
            lm.model(input_ids=text[None].to(lm.device), use_cache=False, logits_to_keep=1)
            for layer in captured:  # a layer that reads an image does not run on text
                inputs[layer].append(captured[layer][0, 1:])
    result = []
    for layer in [layer for layer in layers if inputs[layer]]:
        parts = geometry.decompose(torch.stack(inputs[layer]))
        config = lm.model.config.get_text_config()
        head_dim = int(getattr(modules[layer], "head_dim", config.hidden_size // lm.heads))
        queries, keys = (
            projection_matrix(getattr(modules[layer], name), lm.model.dtype, lm.device).split(head_dim)
            for name in ("q_proj", "k_proj")
        )
        group = len(queries) // len(keys)
        shares = [geometry.score_shares(geometry.score_parts(parts, q, keys[head // group]))
                  for head, q in enumerate(queries)]  # fmt: skip
        result.append({"layer": layer, "heads": shares})
    return result


def find_channels(lm: ProbedModel, plan: Plan) -> dict[str, Any]:
    """The channels that are monotone in position over random texts, by each of the three fits."""
    means = hidden_states.mean_states(lm, hidden_states.random_texts(lm, plan.texts, plan.tokens))
    result: dict[str, Any] = {"texts": plan.texts, "tokens": plan.tokens, "hidden_size": means.shape[-1]}
    for fit in channels.FITS:
        every = channels.positional_channels(means, fit, most=None)
        result[fit] = {
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
    best = next((result[fit]["best"][0] for fit in channels.FITS if result[fit]["best"]), None)
    if best is not None:
        layer = best["layers"][len(best["layers"]) // 2]
        result["curve"] = {
            "channel": best["channel"], "layer": layer, "values": to_rounded_list(means[layer, :, best["channel"]]),
        }  # fmt: skip
    return result


def layer_growth(lm: ProbedModel, plan: Plan) -> dict[str, Any]:
    """How strongly channels depend on position, by layer, over random texts."""
    return measure_layer_growth(lm, plan.texts, plan.tokens, seed=2)


def measure_layer_growth(lm: ProbedModel, texts: int, tokens: int, seed: int) -> dict[str, Any]:
    """``growth.measure_growth`` with the model's positions and, where the model accepts positions, with one position for all
    tokens: a rotary model then has no encoding of position and gets order from its mask only."""
    count = max(4, texts // 2 * 2)  # two halves, and a variance in each
    every = hidden_states.random_texts(lm, count, tokens, seed=seed)
    arms: dict[str, dict[str, Tensor]] = {"own positions": {}}
    if lm.supports_branching:
        arms["one position for all tokens"] = {"positions": torch.zeros(tokens, dtype=torch.long)}
    result: dict[str, Any] = {"texts": count, "tokens": tokens, "arms": {}}
    for name, inputs in arms.items():
        halves = [growth.split_variance(hidden_states.iterate_states(lm, half, **inputs)) for half in every.chunk(2)]
        result["arms"][name] = growth.measure_growth(halves, seed)
    return result


def mask_or_encoding(lm: ProbedModel, plan: Plan) -> dict[str, Any]:
    """The share of position in the states of the middle layer in each arm, and how far the span moved. Empty for a model that
    does not accept positions and a mask."""
    if not lm.supports_branching:
        return {}
    tokens = plan.tokens
    span, shift = (tokens * 2 // 5, tokens * 3 // 5), tokens // 5
    texts = hidden_states.random_texts(lm, max(2, plan.texts // 2), tokens, seed=1)
    layer = lm.layers // 2
    result: dict[str, Any] = {"span": span, "shift": shift, "layer": layer, "texts": len(texts), "arms": {}}
    untouched = None
    for name, (positions, visible) in ablation.arms(tokens, span, shift).items():
        states = torch.stack([
            hidden_states.normalize_states(one[layer]) for one in hidden_states.iterate_states(lm, texts, positions=positions, visible=visible)
        ])  # fmt: skip
        curve = states.mean(0)
        untouched = curve if untouched is None else untouched
        result["arms"][name] = {
            "position_share": geometry.decompose(states[:, 1:]).position_beyond_chance,
            # distance of vectors of length 1: 0 for equal ones, about 1.4 for unrelated ones
            "moved": float((curve - untouched)[span[0] : span[1]].norm(dim=-1).mean()),
        }
    return result


def measure_emphasis(lm: ProbedModel, plan: Plan, quantity: str = "weight") -> dict[str, Any]:
    """Test whether answers follow attention, on the first task in which every slot contains an answer."""
    for spec in plan.tasks:
        task = spec.build()
        if task.paired and plan.intervention_items and lm.supports_branching:
            result = ablation.emphasize_slots(lm, task, min(plan.intervention_items, spec.items), quantity)
            return {"task": spec.label, **result, "summary": ablation.summarize_emphasis(result["rows"])}
    return {}


def _mean(parts: list[Mapping[str, Any]], name: str) -> torch.Tensor:
    """The mean over records, each counted with its items."""
    counts = torch.tensor([float(part["items"]) for part in parts])
    values = torch.stack([torch.tensor(part[name]) for part in parts])
    return (values * counts.reshape(-1, *[1] * (values.dim() - 1))).sum(0) / counts.sum()


TEXTS = 2


def by_distance(lm: ProbedModel, plan: Plan) -> dict[str, Any]:
    """Mean attention at each distance over all queries of plain texts, in doublings, ``[layers, heads, ranges]``."""
    texts = hidden_states.plain_texts(lm, min(TEXTS, plan.texts), plan.tokens)
    ranges, attention = _mean_attention_by_distance(lm, texts, {})
    result: dict[str, Any] = {"ranges": ranges, "attention": to_rounded_list(attention)}
    if lm.supports_branching:  # it accepts positions
        equal_positions = torch.zeros(1, texts.shape[1], dtype=torch.long, device=lm.device)
        # without a mask, transformers reads positions that do not increase as packed texts
        _, one_position = _mean_attention_by_distance(
            lm, texts, {"attention_mask": torch.ones_like(equal_positions), "position_ids": equal_positions}
        )
        result["one_position"] = to_rounded_list(one_position)
    return result


def _mean_attention_by_distance(
    lm: ProbedModel, texts: Tensor, inputs: dict[str, Tensor]
) -> tuple[list[tuple[int, int]], Tensor]:
    from whence import hf

    total: Tensor | None = None
    for text in texts:
        profile = hf.DistanceProfile()
        with torch.inference_mode(), hf.capture(lm.model, profile, layers=lm.capture_layers):
            lm.model(input_ids=text[None].to(lm.device), use_cache=False, logits_to_keep=1, **inputs)
        attention = profile.stack()[:, 0]
        total = attention if total is None else total + attention
    assert total is not None
    # attention_rows.by_distance expects the query last and a sink first
    as_row = torch.cat([torch.zeros_like(total[..., :1]), (total / len(texts)).flip(-1)], -1)
    return attention_rows.by_distance(as_row)


#: by the name of the record
ANALYSES: dict[str, Callable[[ProbedModel, Plan], dict[str, Any]]] = {
    "content-free": content_free,
    "distance": by_distance,
    "geometry": hidden_geometry,
    "channels": find_channels,
    "growth": layer_growth,
    "mask-or-encoding": mask_or_encoding,
    "ablation": ablation.run_ablation,
    "emphasis-weight": measure_emphasis,
    "emphasis-score": partial(measure_emphasis, quantity="score"),
}
