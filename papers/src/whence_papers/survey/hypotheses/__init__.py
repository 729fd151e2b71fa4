"""Three hypotheses that a survey doubts, about the method that scales one positional channel (Yu et al. 2024), each as an experiment.

The survey (in French, 2025) calls it unfounded that hidden states have channels which run one way and smoothly along a
text, not shown that the causal mask puts position into them, and empirical to scale one. ``write_all`` tests each on a
model and writes ``hypothesis-NAME.json`` with the numbers and an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from whence import records
from whence.errors import usage_error
from whence.probe import run_folder
from whence.probe.identity import identify, same_model
from whence.probe.measurement import Notify
from whence.probe.probed_model import ProbedModel
from whence_papers.survey.hypotheses.from_mask import from_mask
from whence_papers.survey.hypotheses.one_way import one_way
from whence_papers.survey.hypotheses.scaling_helps import scaling_helps

EXPERIMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "one-way": one_way,
    "from-mask": from_mask,
    "scaling-helps": scaling_helps,
}

_FEW = {"texts": 4, "tokens": 48}
_SOME = {"texts": 8, "tokens": 256}
#: sizes by plan: seconds on the tiny model, a quarter of an hour on two cores for SmolLM2, and the real one for a GPU
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "quick": {
        "one-way": _FEW,
        "from-mask": _FEW,
        "scaling-helps": {"items": 4, "pairs": 3, "gold_slots": 3, "controls": 1, "scales": (1.0, 0.0), **_FEW},
    },
    "usual": {
        "one-way": _SOME,
        "from-mask": _SOME,
        "scaling-helps": {"items": 8, "pairs": 6, "gold_slots": 3, "controls": 1, "scales": (1.0, 0.0, -1.0), **_SOME},
    },
    "full": {"scaling-helps": {"items": 300, "controls": 2, "scales": (1.0, 0.5, 0.0, -1.0)}},
}


def write_all(
    lm: ProbedModel, folder: Path, sizes: dict[str, dict[str, Any]], notify: Notify = lambda *progress: None
) -> list[dict[str, Any]]:
    """The record of every hypothesis: those that are in the folder are read, the others are made.

    Where the folder has a plan, it is one of the same model.
    """
    found = []
    identity = identify(lm)
    if records.exists(folder / run_folder.PLAN):
        run_folder.require_identity(folder, identity)
    for number, (name, experiment) in enumerate(EXPERIMENTS.items()):
        path = folder / f"hypothesis-{name}.json"
        if not (read := records.exists(path)):
            records.write(path, {**experiment(lm, **sizes.get(name, {})), "identity": identity})
        found.append(records.read(path))
        if not same_model(found[-1].get("identity") or {}, identity):
            raise usage_error(
                "a probe", f"{path.name} of another model", "a folder holds one model", "delete it, or restore it"
            )
        notify(number + 1, len(EXPERIMENTS), f"hypothesis: {name}", read)
    return found


__all__ = ["EXPERIMENTS", "SIZES", "from_mask", "one_way", "scaling_helps", "write_all"]
