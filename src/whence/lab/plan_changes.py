"""Records that existed before the plan of their study: a study with another margin or more seeds reuses records.

The error rate of a comparison holds for a plan that was fixed before its results were seen. Whether they were seen nobody
can tell, so a report says how many records are older than the plan and what the plan changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from whence.errors import WhenceError
from whence.lab.study import Study

#: in words: what a record that was evaluated again was evaluated again for
EVALUATION = "metric or evaluation lengths"


def describe_plan_change(
    study: Study,
    records: Iterable[Mapping[str, Any]],
    planned: str | None = None,
    expected: Mapping[str, Collection[str]] | None = None,
) -> str | None:
    """How many records existed before the plan of the study and in what they were planned otherwise; None if none did.

    Args:
        study: the study that uses the records.
        records: of its runs.
        planned: when the plan was fixed; without it, the plan is as old as the first record with its hash.
        expected: differences that a command plans by its rules and that do not count, by the name of the records' study.
    """
    listed = list(records)
    own = [started_at(record) for record in listed if record["hash"] == study.hash]
    first = min([*own, *([planned] if planned else [])], default=None)
    earlier = 0
    changes: dict[str, None] = {}
    for record in listed:
        if "evaluation" in record:
            changed = [EVALUATION]
        elif record["hash"] == study.hash or (first is not None and record["started"] >= first):
            continue
        else:
            usual = (expected or {}).get(record["spec"]["name"], ())
            changed = [one for one in find_changes(study, record["spec"]) if one not in usual]
        earlier += bool(changed)
        changes |= dict.fromkeys(changed)
    if not earlier:
        return None
    *names, last = changes
    differs = f"{', '.join(names)} and {last}" if names else last
    text = (
        f"{earlier} of {len(listed)} records existed before this plan, which differs from theirs in {differs}. The error rate "
        "holds only if their results did not lead to the change."
    )
    if "seeds" not in changes or len(study.looks) > 1:
        return text
    return f"{text} To add seeds after a look at the results, use --until decided: it plans its looks in advance."


def _name_setting(name: str, now: Mapping[str, Any]) -> str:
    """A setting of a decision in words. The scale of perplexities changes the unit of the margin, also of the same number.

    >>> _name_setting("alpha", {}), _name_setting("perplexity_scale", {"margin": None})
    ('alpha', 'scale of perplexities')
    """
    if name != "perplexity_scale":
        return name
    if now["margin"] is None:
        return "scale of perplexities"
    unit = "per cent" if now[name] == "log" else "units of perplexity"
    return f"scale of perplexities (the margin of {now['margin']:g} is in {unit} now)"


def started_at(record: Mapping[str, Any]) -> str:
    """When a record was made, as text that sorts by time."""
    return str(record.get("evaluation", record)["started"])


def find_changes(study: Study, spec: Mapping[str, Any]) -> list[str]:
    """What differs between the plan of a study and the plan in the spec of another one."""
    try:
        other = Study.from_spec(spec)
    except (WhenceError, KeyError, TypeError, ValueError):  # of a package that is gone
        return ["a spec that cannot be read"]
    before, now = asdict(other.decision), asdict(study.decision)
    changed = [name for name in ("seeds", "arms") if getattr(study, name) != getattr(other, name)]
    changed += [_name_setting(name, now) for name in now if now[name] != before[name]]
    # the record itself ran with today's code of its own arm; that of other arms may have been another one
    edited = [name for name, digest in study.sources.items() if other.sources.get(name, digest) != digest]
    owners = [arm.name for arm in study.arms if any(name in arm.position for name in edited)]
    return changed + ([f"the code of {', '.join(owners) or 'the task'}"] if edited else [])
