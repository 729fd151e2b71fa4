"""What the records of a study of next places say of a claim: metrics in each counting, differences, learned biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.lab import results as lab
from whence.statistics import smallest_p, summary
from whence_papers.ledger.places import Places, Waiting
from whence_papers.ledger.studies import Reading, found_study, judged
from whence_papers.pointer.next_location.exhibits import COUNTINGS, of_test, over_users

Records = list[dict[str, Any]]


def runs_of(places: Places, study: str, *arms: str) -> tuple[dict[str, Records], Path]:
    """The finished runs of each arm, once every seed has ended."""
    spec, folder = found_study(places, study)
    known = {arm.name: arm for arm in spec.arms}
    found = {}
    for name in arms:
        if name not in known:
            rule = f"its arms are {', '.join(known)}"
            raise usage_error("claims", f"{name!r} in {study}", rule, "name one of them")
        ended = lab.load_arm_records(spec, known[name], folder)
        if len(ended) < len(spec.seeds):
            raise Waiting(f"{len(spec.seeds) - len(ended)} of {len(spec.seeds)} seeds of {study}, {name}")
        found[name] = [record for record in ended if record["result"]["status"] == "done"]
    return found, folder


def values_of(runs: Records, counting: str = "all", metric: str = "acc@1") -> list[float]:
    """One metric of the test part in percent, a number a seed."""
    return [100 * of_test(run, counting)[metric] for run in runs]


def next_places(places: Places, study: str, arm: str, figures: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Metrics of one arm as the source counts, by the figure's name, a value a seed; and what else must be known of Acc@1.

    ``NAME_mean`` is a metric's mean over the seeds, and ``NAME_low`` the lower end of its interval.
    """
    found, folder = runs_of(places, study, arm)
    runs = found[arm]
    told: dict[str, Any] = {name: values_of(runs, "all", metric) for name, metric in figures.items()}
    for name in figures:
        short = summary(told[name])
        told |= {f"{name}_mean": short.mean, f"{name}_low": short.interval.low if short.interval else short.mean}
    people = over_users([run["result"]["evaluations"][-1]["splits"]["test"] for run in runs]).interval
    beside = [
        f"{words} {summary(values_of(runs, name)).mean:.2f}" for name, words in COUNTINGS.items() if name != "all"
    ]
    over = f"other people would give {100 * people.low:.2f} to {100 * people.high:.2f}; " if people else ""
    return told | {"words": f"Acc@1 beside it: {over}{', '.join(beside)}."}, folder.as_posix()


def next_places_differ(
    places: Places, study: str, arm: str, baseline: str, comparisons: int, counting: str = "all"
) -> tuple[dict[str, Any], str]:
    """Acc@1 of one arm against another: 1 where it can be called better, -1 where worse, 0 where neither.

    Args:
        comparisons: for how many the test is corrected: those that the ledger makes with the study.
        counting: one of ``all``, ``seen``, ``by_user`` and ``by_user_seen``.
    """
    found, folder = runs_of(places, study, baseline, arm)
    sides = {name: values_of(runs, counting) for name, runs in found.items()}
    one = judged(sides, baseline, "accuracy", comparisons)[arm]
    means = ", ".join(f"{name} {summary(values).mean:.2f}" for name, values in sides.items())
    seen = {name: summary(values_of(runs, "seen")).mean for name, runs in found.items()}
    beside = "" if counting == "seen" else f" Where training has the answer: {seen[arm] - seen[baseline]:+.2f} points."
    words = f"{one['words']} On average {means}.{beside} One run of each, as in the source, gives no p below {smallest_p(1, 1):g}."
    changes = [values_of([b], counting)[0] - values_of([a], counting)[0] for a, b in _pairs(found, baseline, arm)]
    return one | {"change": changes, "words": words}, folder.as_posix()


def pointer_gain(places: Places, study: str, arm: str, baseline: str) -> tuple[dict[str, Any], str]:
    """How much of what an arm gets right more than another lies at answers that training does not have."""
    found, folder = runs_of(places, study, baseline, arm)
    both = [(_by_answer(a)["right"], _by_answer(b)["right"]) for a, b in _pairs(found, baseline, arm)]
    seen, unseen = (summary([b[kind] - a[kind] for a, b in both]).mean for kind in ("seen", "unseen"))
    asked = _by_answer(found[arm][0])["asked"]
    share = {
        "share_of_gain_at_unseen": unseen / (seen + unseen),
        "share_of_questions_unseen": asked["unseen"] / sum(asked.values()),
    }
    words = (
        f"{arm} has {seen:.0f} more right of {asked['seen']} whose answer training has, and {unseen:.0f} more of "
        f"{asked['unseen']} whose answer it does not have: {100 * share['share_of_gain_at_unseen']:.0f} % of the gain at "
        f"{100 * share['share_of_questions_unseen']:.1f} % of the questions."
    )
    return share | {"words": words}, folder.as_posix()


def learned_bias(places: Places, study: str, arm: str, to: int) -> tuple[dict[str, Any], str]:
    """How much more a learned bias adds to the last visit than to the one so far from the end, seed by seed.

    Only differences of a bias count. ``surely`` is the lower end of the interval of their mean.
    """
    found, folder = runs_of(places, study, arm)
    biases = [run["notes"]["shape"]["bias"] for run in found[arm]]
    more = [bias[0] - bias[to - 1] for bias in biases]
    short = summary(more)
    spans = [max(bias[:to]) - min(bias[:to]) for bias in biases]
    words = f"Over these {to} visits the learned bias spans {summary(spans).mean:.3f} on average."
    low = short.interval.low if short.interval else short.mean
    return {"last_over_others": more, "surely": low, "spans": spans, "words": words}, folder.as_posix()


def _pairs(found: Mapping[str, Records], one: str, other: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Runs of two arms with the same seed, where both finished."""
    by_seed = {run["seed"]: run for run in found[other]}
    return [(run, by_seed[run["seed"]]) for run in found[one] if run["seed"] in by_seed]


def _by_answer(run: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """What was asked and what was right, by whether training has the answer."""
    users = run["result"]["evaluations"][-1]["splits"]["test"]["users"].values()
    asked, right, asked_seen, right_seen = (sum(user[column] for user in users) for column in range(4))
    return {
        "asked": {"seen": asked_seen, "unseen": asked - asked_seen},
        "right": {"seen": right_seen, "unseen": right - right_seen},
    }


NEXT_PLACES: dict[str, Reading] = {
    function.__name__: function for function in (next_places, next_places_differ, pointer_gain, learned_bias)
}
