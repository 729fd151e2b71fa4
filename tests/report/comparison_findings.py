"""Synthetic findings for the tests of the report. No number in them was measured."""

from __future__ import annotations

import base64
import math
import random
from collections.abc import Sequence
from typing import Any

from whence.lab import decisions, results
from whence.lab.arms import Arm
from whence.lab.study import Budget, Decision, Study
from whence.statistics import summary

ARMS = ("none", "Sinusoid", "Rotary", "Alibi", "T5 buckets", "Epar + Rotary")
STRENGTH = {"none": 0.0, "Sinusoid": 0.3, "Rotary": 0.62, "Alibi": 0.8, "T5 buckets": 0.74, "Epar + Rotary": 1.0}
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "then",
    "it",
    "sleeps",
    "under",
    "an",
    "old",
    "oak",
    "tree",
    "near",
]


ENVIRONMENT = {
    "machine": {"processor": "Synthetic 9000", "architecture": "x86_64", "cores": 2},
    "system": "Linux-6.1", "python": "3.11.2", "packages": {"torch": "2.11.0", "numpy": "2.4.6"},
    "commit": "0123456789abcdef0123456789abcdef01234567", "uncommitted_changes": True, "source_hash": "f" * 64,
}  # fmt: skip


def findings(arms: tuple[str, ...] = ARMS, seeds: int = 3, maps: bool = True) -> dict[str, Any]:
    """Three studies: one with too few seeds to claim anything, one with enough, one with a diverged seed."""
    spoiled = study("Sorting", "accuracy", arms, seeds, maps=False, lost=arms[-1])
    return {
        "title": "Which position lets a small model read further than it was trained?",
        "command": "python -m whence.lab compare studies/*.json --out build/comparison.html",
        "when": "2026-11-15 07:00 UTC",
        "environment": {"commit": "fedcba9876543210fedcba9876543210fedcba98", "uncommitted_changes": False},
        "studies": [
            study("Copying", "accuracy", arms, seeds, maps), study("Speeches", "perplexity", arms, max(seeds, 6) if seeds > 1 else 1, maps), spoiled,
        ],
    }  # fmt: skip


def study(
    name: str, metric: str, arms: tuple[str, ...], seeds: int, maps: bool, lost: str | None = None
) -> dict[str, Any]:
    lengths = {"test": 17, "2x": 33, "4x": 65, "8x": 129}
    arm_rows = [_arm(arm, metric, lengths, seeds, name, arm == lost) for arm in arms]
    accuracy = metric == "accuracy"
    comparison, why = None, None
    if lost is not None:
        why = f"not every seed of {lost} has a value"
    elif len(arms) < 2:
        why = "the study has one arm"
    else:
        comparison = compare_rows(arms, arm_rows, metric, seeds)
    spec = {"name": name, "seeds": list(range(seeds)), "decision": {"split": "test", "baseline": arms[0]}}
    return {
        "name": name, "question": f"Does a position mechanism help {name.lower()}, and does the gain last beyond the trained length?",
        "task": name.lower(), "hash": "abc123def456", "spec": spec, "about": "Numbers of this study are made up for a test.",
        "metric": metric, "higher_is_better": accuracy, "split": "test", "lengths": lengths, "trained_length": 17,
        "arms": arm_rows, "baselines": _baselines(metric, lengths), "comparison": comparison, "why_no_comparison": why, "plan_change": None,
        "ran": [{"environment": ENVIRONMENT, "runs": seeds * len(arms), "started": "2026-11-14T06:00:00Z"}],
        "observations": {arm: _observed(arm) for arm in arms} if maps else None,
    }  # fmt: skip


def _baselines(metric: str, lengths: dict[str, int]) -> list[dict[str, Any]]:
    chance = {"accuracy": 0.5, "perplexity": 60.0}
    return [{"name": "chance", "kind": "constant", "about": "", "splits": dict.fromkeys(lengths, chance)}]


def compare_rows(
    arms: Sequence[str], rows: list[dict[str, Any]], metric: str, seeds: int, family: str = "baseline", **decision: Any
) -> dict[str, Any] | None:
    study = Study(
        name="made up", question="", task="copy", arms=tuple(Arm(name, "none") for name in arms),
        seeds=tuple(range(seeds)), budget=Budget(steps=1), decision=Decision(baseline=arms[0], family=family, **decision),
    )  # fmt: skip
    values = results.decisive_values(study, rows)
    comparison = decisions.judge_study(study, values, metric, metric == "accuracy").comparison
    return comparison and decisions.comparison_findings(study, comparison, values, metric)


def _arm(name: str, metric: str, lengths: dict[str, int], seeds: int, study: str, lost: bool) -> dict[str, Any]:
    strength = STRENGTH.get(name, (sum(map(ord, name)) % 97) / 97)
    values: dict[str, dict[str, float]] = {split: {} for split in lengths}
    curves, diverged = {}, []
    for seed in range(seeds):
        draw = random.Random(f"{study} {name} {seed}")
        if lost and seed == 1:
            diverged.append({"seed": seed, "step": 340, "reason": "the loss became nan"})
            continue
        offset = draw.gauss(0, 0.012)

        def value(length: int, share: float, offset: float = offset) -> float:
            fall = (1.15 - strength) * math.log2(length / 17) * 0.17
            if metric == "accuracy":
                return max(0.05, min(1.0, (0.62 + 0.34 * strength) * share - fall + offset))
            return (46 - 19 * strength) * math.exp(fall * 2.2 + (1 - share) * 2.5) * (1 + offset)

        steps = range(50, 1001, 50)
        grown = {step: 1 - 0.75 * math.exp(-step / 180) for step in steps}
        curves[str(seed)] = {
            "losses": [{"step": s, "loss": 4.2 * math.exp(-s * (0.6 + strength) / 500) + 0.4 + draw.gauss(0, 0.05)} for s in steps],
            "evaluations": [{"step": s, "splits": {k: value(n, grown[s]) for k, n in lengths.items()}} for s in steps],
        }  # fmt: skip
        for split, length in lengths.items():
            values[split][str(seed)] = value(length, 1.0)
    learned = "Epar" in name
    return {
        "summary": summary(list(values["test"].values())).to_json(),
        "name": name, "position": f"p.{name}()", "parameters": 105_216 + 64 * len(name), "values": values,
        "diverged": diverged, "failed": [], "curves": curves, "wall_seconds": 41.7 + len(name),
        "numbers": {
            "before": {f"blocks.{k}": "beta=[1, 1, 1, 1]" for k in range(2)} if learned else {},
            "after": {f"blocks.{k}": "beta=[0.42, 1.7, 3.1, 0.08]" for k in range(2)} if learned else {},
        },
    }  # fmt: skip


def _observed(arm: str, count: int = 24, layers: int = 2, heads: int = 2) -> dict[str, Any]:
    examples = []
    for index in range(2):
        tokens = [WORDS[(5 * index + at) % len(WORDS)] for at in range(count - 4 * index)] + ["<pad>"] * 4 * index
        padding = [token == "<pad>" for token in tokens] if index else None
        drawn = [
            [_map(f"{arm} {index} {la} {he}", tokens, 2.0 + 6 * he + la) for he in range(heads)] for la in range(layers)
        ]
        examples.append({"tokens": tokens, "padding": padding, "maps": drawn})
    decay = 1 + STRENGTH.get(arm, 0.5) * 3
    rows = [[math.exp(-d * decay / (6 + 8 * layer)) for d in range(count)] for layer in range(layers)]
    return {
        "examples": examples,
        "mass": {"distance": list(range(count)), "by_layer": [[v / sum(r) for v in r] for r in rows]},
    }


def _map(name: str, tokens: list[str], reach: float) -> str:
    draw, weights = random.Random(name), bytearray()
    for query in range(len(tokens)):
        row = [draw.random() ** 3 * math.exp(-(query - key) / reach) + 1e-6 if key <= query and (tokens[key] != "<pad>" or key == query) else 0.0
               for key in range(len(tokens))]  # fmt: skip
        weights += bytes(round(255 * value / sum(row)) for value in row)
    return base64.b64encode(bytes(weights)).decode()
