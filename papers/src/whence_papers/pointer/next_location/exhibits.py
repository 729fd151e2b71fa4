"""What a report shows of a study of next places beside its comparison: tables and a chart, from records alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whence.statistics import Interval, Summary, cluster_proportion, summary

NAMES = {
    "acc@1": "Acc@1",
    "acc@5": "Acc@5",
    "acc@10": "Acc@10",
    "mrr": "MRR",
    "ndcg@10": "NDCG@10",
    "f1": "weighted F1",
}
COUNTINGS = {
    "all": "every question, as the source counts",
    "seen": "answers that training has",
    "by_user": "each user once",
    "by_user_seen": "each user once, answers that training has",
}
ASKED = (  # counting, title and note of the tables of all metrics
    (
        "all",
        "Every metric on the test part",
        "In percent; mean of the seeds ± half of its 95 % interval. The first rows are rules that anyone should beat. "
        "Counted as the source counts: places that training does not have are one place.",
    ),
    (
        "seen",
        "Every metric where training has the answer",
        "The same without questions whose answer training does not have.",
    ),
)
NOTHING = "–"
Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def exhibits(runs: Runs, baselines: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Four tables of the test part, one of what was generated, and what each pointer's position learned, drawn."""
    finished = {
        arm: [record for record in found if record["result"]["status"] == "done"] for arm, found in runs.items()
    }
    finished = {arm: found for arm, found in finished.items() if found}
    simple = {name: row for name, row in baselines.items() if "metrics" in row}
    tables = [_every_metric(finished, simple, *asked) for asked in ASKED]
    tables += [_every_counting(finished, simple), _how_sure(finished, simple), _generated(finished)]
    found = [*tables, shapes(finished), factors(finished)]
    return [one for one in found if one["rows" if one["kind"] == "table" else "lines"]]


def of_test(record: Mapping[str, Any], counting: str) -> Mapping[str, float]:
    """A run's metrics on the test part."""
    return record["result"]["evaluations"][-1]["splits"]["test"]["metrics"].get(counting, {})


def shapes(runs: Runs) -> dict[str, Any]:
    """What each arm's position adds to the pointer's score over visits from the end, as lines: arm, seed, points."""
    # only differences of a bias count in a softmax, so each line is moved to a mean of 0
    lines = _lines(runs, "bias", lambda bias: [one - sum(bias) / len(bias) for one in bias])
    return {
        "kind": "lines", "title": "What the pointer's position learned to add", "lines": lines,
        "x": "visits from the end (1 is the last visit)", "y": "added to the pointer's score, mean 0",
        "note": "Thick: mean of the seeds; thin: each seed. Only arms that add a bias have one.",
    }  # fmt: skip


def factors(runs: Runs) -> dict[str, Any]:
    """The same for what multiplies the score."""
    return {
        "kind": "lines", "title": "What the pointer's position learned to multiply by",
        "lines": _lines(runs, "score_scale", list),
        "x": "visits from the end (1 is the last visit)", "y": "times the pointer's score",
        "note": "Thick: mean of the seeds; thin: each seed. Only arms that multiply the score have one.",
    }  # fmt: skip


def _lines(
    runs: Runs, hook: str, moved: Callable[[list[float]], list[float]]
) -> dict[str, dict[str, list[list[float]]]]:
    lines: dict[str, dict[str, list[list[float]]]] = {}
    for arm, found in runs.items():
        for record in found:
            shape = record["notes"].get("shape") or {}
            if hook in shape:
                points = [list(point) for point in zip(shape["from_end"], moved(shape[hook]), strict=True)]
                lines.setdefault(arm, {})[str(record["seed"])] = points
    return lines


def _every_metric(runs: Runs, simple: Mapping[str, Any], counting: str, title: str, note: str) -> dict[str, Any]:
    rows = [
        [name, *(_percent(row["metrics"].get(counting, {}).get(metric)) for metric in NAMES)]
        for name, row in simple.items()
    ]
    for arm, found in runs.items():
        rows.append([arm, *(_spread([of_test(record, counting).get(metric) for record in found]) for metric in NAMES)])
    return {"kind": "table", "title": title, "head": ["", *NAMES.values()], "rows": rows, "note": note}


def _every_counting(runs: Runs, simple: Mapping[str, Any]) -> dict[str, Any]:
    rows = [
        [name, *(_percent(row["metrics"].get(counting, {}).get("acc@1")) for counting in COUNTINGS)]
        for name, row in simple.items()
    ]
    for arm, found in runs.items():
        rows.append([arm, *(_spread([of_test(one, counting).get("acc@1") for one in found]) for counting in COUNTINGS)])
    return {
        "kind": "table", "title": "Acc@1, counted four ways", "head": ["", *COUNTINGS.values()], "rows": rows,
        "note": "A pointer can copy the number that all unseen places share, and a generator never learns it: the source's "
        "counting rewards that. The other countings do not, or let no busy user speak for all.",
    }  # fmt: skip


def over_users(tested: Sequence[Mapping[str, Any]]) -> Summary:
    """Acc@1 of every question over the users of one or several runs' test parts, each user with the mean of the runs."""
    users = list(tested[0]["users"])
    right = [sum(one["users"][user][1] for one in tested) / len(tested) for user in users]
    return cluster_proportion(right, [tested[0]["users"][user][0] for user in users])


def _how_sure(runs: Runs, simple: Mapping[str, Any]) -> dict[str, Any]:
    rows = [[name, _percent(row["value"]), NOTHING, _ends(over_users([row]).interval)]
            for name, row in simple.items() if "users" in row]  # fmt: skip
    for arm, found in runs.items():
        tested = [record["result"]["evaluations"][-1]["splits"]["test"] for record in found]
        short = summary([one["value"] for one in tested])
        rows.append([arm, _percent(short.mean), _ends(short.interval), _ends(over_users(tested).interval)])
    return {
        "kind": "table", "title": "How sure Acc@1 is", "rows": rows,
        "head": ["", COUNTINGS["all"], "another set of seeds (95 %)", "other people (95 %)"],
        "note": "In percent. People differ more than seeds: the third column says what as many other people would give, "
        "whose questions are alike, and the second only what other random starts would.",
    }  # fmt: skip


def _ends(interval: Interval | None) -> str:
    return NOTHING if interval is None else f"{100 * interval.low:.2f} to {100 * interval.high:.2f}"


def _generated(runs: Runs) -> dict[str, Any]:
    rows = []
    for arm, found in runs.items():
        shares = [record["notes"].get("generated") or {} for record in found]
        rows.append([arm, *(_spread([share.get(kind) for share in shares]) for kind in ("seen", "unseen"))])
    return {
        "kind": "table", "title": "How much is generated instead of copied",
        "head": ["", "where training has the answer", "where it does not"], "rows": rows,
        "note": "In percent of the probability, on the test part.",
    }  # fmt: skip


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.2f}"


def _spread(values: Sequence[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if not known:
        return NOTHING
    short = summary(known)
    if short.interval is None:
        return f"{short.mean:.2f}"
    return f"{short.mean:.2f} ± {short.interval.high - short.mean:.2f}"
