"""Name the free tables of trained models, and store the result as a record.

The record ``discovery.json`` holds the learned tables, the kinds of heads with their rankings, the challenger and the text of the
mechanism. It belongs to the tables: it is used again only for the same values.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whence import records
from whence.discover.challenger import Search, challenge
from whence.discover.curves import Curves, read_tables
from whence.discover.fitting import NO_EFFECT
from whence.discover.kinds import MAX_KINDS, Kind, discover
from whence.discover.mechanism_file import format_mechanism
from whence.errors import usage_error
from whence.lab import checkpoints
from whence.lab.results import count_items, load_arm_records, summarize_arm
from whence.lab.scores import collect_baselines, judge_constant
from whence.lab.study import Run, Study
from whence.lab.study_folder import weights_path
from whence.lab.study_task import build_model, load_task
from whence.lab.tasks.baselines import CONSTANT, RULE

RECORD, MECHANISM, PAGE = "discovery.json", "discovered.py", "report.html"
CLASS_NAME = "Discovered"
FACTS = ("layers", "heads", "context", "seeds")  # of a record, about the models
FINE = 96  # points of a drawn formula


def load_curves(study: Study, folder: Path) -> tuple[dict[str, Curves], dict[str, Any]]:
    """The tables of a finished study by hook, with the heads of all layers in one row, and facts about the models.

    Seeds that diverged are left out.
    """
    task = load_task(study)
    done = _trained_seeds(study, folder)
    models = []
    for seed in done:
        run = Run(study, study.arms[0], seed)
        model = build_model(run, task)
        checkpoints.load_weights(weights_path(run, folder), model)
        models.append(model)
    if len(models) < 2:
        raise usage_error(
            "whence discover",
            f"{len(models)} seeds with tables in {folder}",
            "the uncertainty of a curve comes from at least 2 seeds",
            "pass more --seeds, or a lower --lr if seeds diverged",
        )
    layers = int({**study.model}.get("layers", 2))
    hooks = [hook for hook in ("bias", "scale") if hook in study.arms[0].position.partition("max_distance")[0]]
    curves = {}
    for hook in hooks:
        own = [read_tables(models, hook, layer, task.context - 1) for layer in range(layers)]
        curves[hook] = Curves(own[0].distances, np.concatenate([one.values for one in own], 1), hook)
    heads = curves[hooks[0]].heads // layers
    facts = {"layers": layers, "heads": heads, "context": task.context, "seeds": done}
    return curves, facts | {"learning": judge_learning(study, folder)}


def judge_learning(study: Study, folder: Path) -> dict[str, Any] | None:
    """The mean score of the tables beside the best of the task's constants and simple rules, and whether it is shown to be better.

    None if the task has no such baseline. Tables of models that learned nothing have curves too, of the start of the training.
    """
    if not records.exists(folder / "baselines.json"):
        return None
    task, arm, split = load_task(study), study.arms[0], study.decision.split
    own = summarize_arm(study, arm, folder)
    listed = collect_baselines(records.read(folder / "baselines.json")["baselines"], split)
    simple = [{**one, "kind": CONSTANT} for one in listed if one["kind"] in (CONSTANT, RULE)]
    items = count_items({arm.name: load_arm_records(study, arm, folder)}, split)
    judged = judge_constant([own], simple, task.metric, task.higher_is_better, split, items, study.decision.alpha)
    if judged is None:
        return None
    values = own["values"][split].values()
    return {
        "metric": task.metric, "split": split, "mean": math.fsum(values) / len(values), "better": bool(judged["beaten_by"]),
        "baseline": judged["name"], "value": judged["value"],
    }  # fmt: skip


def _trained_seeds(study: Study, folder: Path) -> list[int]:
    found = load_arm_records(study, study.arms[0], folder)
    return [one["seed"] for one in found if one["result"]["status"] == "done"]


def hash_curves(curves: Mapping[str, Curves]) -> str:
    """A hash of tables, which their record must have."""
    digest = hashlib.sha256()
    for hook, own in curves.items():
        digest.update(hook.encode())
        digest.update(own.distances.tobytes())
        digest.update(own.values.round(9).tobytes())
    return digest.hexdigest()[:16]


def name_curves(
    curves: Mapping[str, Curves],
    layers: int,
    *,
    pairs: bool = True,
    max_kinds: int = MAX_KINDS,
    search: Search | None = None,
    on_phase: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The kinds of heads of each hook and the mechanism, as plain JSON.

    Args:
        curves: learned values by hook; the heads of all layers are in one row.
        layers: number of layers.
        pairs: also try sums and products of two shapes.
        max_kinds: the largest number of kinds of a hook, beside heads without an effect.
        search: the size of the challenger's search; None for no challenger.
        on_phase: called with a text when a part of the work begins.
    """
    hooks, every = {}, []
    for hook, own in curves.items():
        on_phase(f"naming the {hook} of {own.heads} heads")
        kinds = discover(own, pairs=pairs, max_kinds=max_kinds)
        every += kinds
        listed = []
        for number, kind in enumerate(kinds):
            if search is not None:
                on_phase(f"challenger of kind {number + 1} of {len(kinds)}, {hook}: {kind.name}")
            listed.append(_describe_kind(kind, own, own.heads // layers, search))
        hooks[hook] = {
            "distances": own.distances.tolist(),
            "values": own.values.round(6).tolist(),
            "mean": own.mean.tolist(),
            "standard_error": own.standard_error.tolist(),
            "correlation": own.correlation,
            "kinds": listed,
        }
    return {
        "hooks": hooks,
        "no_effect": all(kind.name == NO_EFFECT for kind in every),
        "mechanism": format_mechanism(every, CLASS_NAME, layers),
    }


def _describe_kind(kind: Kind, curves: Curves, heads: int, search: Search | None) -> dict[str, Any]:
    # with the learned distances themselves, where a short period would fall between the points
    fine = np.union1d(np.geomspace(1, 1 + curves.distances[-1], FINE) - 1, curves.distances)
    row = kind.shown_row
    shown = {
        "heads": list(kind.heads),
        "label": kind.label_heads(heads if heads < curves.heads else None),
        "name": kind.name,
        "strongest": kind.shown_head,
        "formula": kind.naming.fit.describe(row),
        "values": kind.naming.fit.head_values(row),
        "ranking": [
            {
                "name": one.fit.name, "formula": one.fit.describe(row), "bits": one.bits, "held_out": one.held_out,
                "excess": one.excess, "margin": one.margin, "predicts": one.predicts,
                "established": one.established,
            }
            for one in kind.naming.ranking
        ],
        "fitted": {"distances": fine.tolist(), "values": kind.naming.fit.evaluate(fine).tolist()},
    }  # fmt: skip
    if search is not None:
        shown["challenger"] = challenge(curves, kind.shown_head, kind.naming.fit, search)
    return json.loads(json.dumps(shown))


def load_or_name(
    path: Path,
    folder: Path,
    study: Study,
    smoothness: Mapping[str, Any],
    *,
    max_kinds: int = MAX_KINDS,
    search: Search | None,
    on_phase: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The record of a discovery, after it was computed if it does not exist.

    Weights are needed for the first naming only. A record with another ``max_kinds`` is named again from the tables that it
    holds, and its mechanism file is removed unless it was edited.

    Args:
        path: of the record.
        folder: of the study of tables.
        study: the study of tables.
        smoothness: how the smoothness was chosen.
        max_kinds: the largest number of kinds of a hook, beside heads without an effect.
        search: the size of the challenger's search; None for no challenger.
        on_phase: called with a text when a part of the work begins.
    """
    stored = records.read(path) if records.exists(path) else None
    if stored is None or has_weights(study, folder):
        curves, facts = load_curves(study, folder)
        tables = hash_curves(curves)
    else:
        curves, facts = stored_curves(stored), {key: stored[key] for key in FACTS}
        facts["learning"] = stored.get("learning")  # older records have none
        tables = stored["tables"]
    if stored is not None:
        if (stored["hash"], stored["tables"]) != (study.hash, tables):
            raise usage_error(
                "whence discover",
                f"{path} of other tables",
                "a record belongs to the tables that it names",
                "move the file away, or choose another --out",
            )
        if stored.get("max_kinds") == max_kinds:
            return stored
        mechanism = path.with_name(MECHANISM)
        if mechanism.exists() and mechanism.read_text("utf-8") == stored["mechanism"]:
            mechanism.unlink()
    named = name_curves(curves, facts["layers"], max_kinds=max_kinds, search=search, on_phase=on_phase)
    record = {
        "tables": tables, "hash": study.hash, "spec": study.spec(), "smoothness": dict(smoothness), "max_kinds": max_kinds,
        **facts, **named,
        "command": records.rerun_command(), "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "environment": records.describe_environment(_packages(search)),
    }  # fmt: skip
    records.write(path, json.loads(json.dumps(record)))
    return records.read(path)


def has_weights(study: Study, folder: Path) -> bool:
    """Whether the weights of all trained tables are there. A folder that was copied or packed may be without."""
    return all(weights_path(Run(study, study.arms[0], seed), folder).exists() for seed in _trained_seeds(study, folder))


def stored_curves(record: Mapping[str, Any]) -> dict[str, Curves]:
    """The tables of a discovery, from its record."""
    return {
        hook: Curves(np.array(own["distances"]), np.array(own["values"]), hook) for hook, own in record["hooks"].items()
    }


def _packages(search: Search | None) -> Sequence[str]:
    return ("torch", "numpy", "scipy", *(("gplearn", "scikit-learn") if search is not None else ()))


def write_mechanism_file(record: Mapping[str, Any], path: Path) -> Path:
    """Write the mechanism of a record. A file that was edited is not replaced."""
    if path.exists() and path.read_text("utf-8") != record["mechanism"]:
        raise usage_error(
            "whence discover", f"{path}, which was edited", "it is the mechanism that was named", "rename your file"
        )
    records.write_text(path, record["mechanism"])
    return path
