"""What a next-location study says beside its comparison: which form each arm has, and the simple rules, in two countings.

Everything comes from records, also from those that were written before there was more than one form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whence.statistics import cluster_proportion, summary
from whence_papers.pointer.next_location.model import READS

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
#: columns of a user's counts in a record: questions and correct answers
COLUMNS = {"all": (0, 1), "seen": (2, 3)}
LEVEL = 0.05


def finished_runs(runs: Runs) -> dict[str, list[Mapping[str, Any]]]:
    """The finished runs of each arm that has some."""
    done = {arm: [one for one in own if one["result"]["status"] == "done"] for arm, own in runs.items()}
    return {arm: own for arm, own in done.items() if own}


def next_day(record: Mapping[str, Any]) -> str:
    """Whether the model of a record knows the day of the next visit: ``"known"`` or ``"unknown"``."""
    spec = record["spec"]
    if spec["task_settings"].get("window", "next") == "next":
        return "known"
    arm = next(arm for arm in spec["arms"] if arm["name"] == record["arm"])
    return "known" if "ago" in (spec["model"] | (arm.get("model") or {})).get("reads", READS) else "unknown"


def scored_split(record: Mapping[str, Any], split: str) -> Mapping[str, Any] | None:
    """The last scores of a run on a split; None if it has none."""
    return record["result"]["evaluations"][-1]["splits"].get(split)


def mean_accuracy(records: Sequence[Mapping[str, Any]], split: str, counting: str = "all") -> float | None:
    """Acc@1 in percent, the mean over seeds; None if a run lacks it."""
    scores = [scored_split(record, split) for record in records]
    values = [None if one is None else one["metrics"].get(counting, {}).get("acc@1") for one in scores]
    return None if None in values else 100 * summary([value for value in values if value is not None]).mean


def describe_forms(runs: Runs) -> list[str]:
    """Which arms know the day of the next visit, and the accuracy of each as trained and as delivered."""
    finished = finished_runs(runs)
    forms: dict[str, list[str]] = {}
    for arm, own in finished.items():
        forms.setdefault(next_day(own[0]), []).append(arm)
    sentences = []
    if set(forms) == {"known"}:
        sentences.append(
            "Every arm knows the day of the next visit, as in the source. A prediction knows it only with --day, and is less "
            "accurate without it: see the study next-location-forms."
        )
    elif forms:
        knowing, others = (", ".join(forms.get(kind, [])) or "none" for kind in ("known", "unknown"))
        sentences.append(
            f"Arms that know the day of the next visit, as in the source: {knowing}. Arms that do not, like a prediction: {others}."
        )
    rows = [
        f"{arm} {trained:.2f} and {delivered:.2f}"
        for arm, own in finished.items()
        if (trained := mean_accuracy(own, "test")) is not None
        and (delivered := mean_accuracy(own, "delivered")) is not None
    ]
    if rows:
        sentences.append(
            f"Acc@1 in percent as trained (test) and as predicted without the day (delivered): {'; '.join(rows)}."
        )
    return sentences


def describe_rules(runs: Runs, baselines: Mapping[str, Any]) -> list[str]:
    """The best simple rule and the arms above it, over all questions and over answers that occur in training."""
    finished = finished_runs(runs)
    rules = {name: row for name, row in baselines.items() if "users" in row}
    if not finished or not rules:
        return []
    split = next(iter(finished.values()))[0]["spec"]["decision"]["split"]
    sentences = []
    for counting, where in (("all", "Over all questions"), ("seen", "On answers that occur in training")):
        found = best_rule(rules, counting)
        if found is None:
            continue
        best, accuracy = found
        above: list[str] = []
        not_above: list[str] = []
        for arm, own in finished.items():
            gain = gain_over_rule(own, rules[best], split, counting, 1 - LEVEL / len(finished))
            if gain is not None:
                (above if gain.interval is not None and gain.interval.low > 0 else not_above).append(
                    f"{arm} ({100 * gain.mean:+.1f})"
                )
        sentence = f"{where} the best simple rule is {best!r} with {100 * accuracy:.2f} %."
        if above:
            sentence += f" Above it in points: {', '.join(above)}."
        if not_above:
            sentence += f" Not shown to be above it for other users: {', '.join(not_above)}."
        sentences.append(sentence)
    if sentences:
        sentences[-1] += " What is above is decided by intervals over users, at 95 % for all arms together."
    return sentences


def best_rule(rules: Mapping[str, Any], counting: str) -> tuple[str, float] | None:
    """The simple rule with the highest Acc@1 in a counting, and that share; None if no rule has one."""
    accuracy = {
        name: row["metrics"][counting]["acc@1"]
        for name, row in rules.items()
        if "users" in row and "acc@1" in row["metrics"].get(counting, {})
    }
    return max(accuracy.items(), key=lambda one: one[1]) if accuracy else None


def gain_over_rule(
    records: Sequence[Mapping[str, Any]], rule: Mapping[str, Any], split: str, counting: str, level: float
) -> Any:
    """The accuracy of an arm minus that of a rule on the same questions, with an interval over users; None without scores."""
    scores = [scored_split(record, split) for record in records]
    if any(one is None for one in scores):
        return None
    asked, right = COLUMNS[counting]
    users = [user for user, counts in rule["users"].items() if counts[asked]]
    gains = [
        sum(one["users"][user][right] for one in scores if one) / len(scores) - rule["users"][user][right]
        for user in users
    ]
    return cluster_proportion(gains, [rule["users"][user][asked] for user in users], level)
