"""Evidence from the records of next-location studies: metrics in each counting, differences, learned biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.lab import results as lab
from whence.statistics import summary
from whence_papers.ledger.claims import LedgerFolders, MissingEvidence
from whence_papers.ledger.comparisons import compare_seeds, contrast_figures
from whence_papers.ledger.study_records import ONE_RUN, Reader, find_study, find_unbeaten_rule, missing_seeds
from whence_papers.pointer.next_location.figures import COUNTINGS, accuracy_over_users, metrics_on_test
from whence_papers.pointer.next_location.remarks import COLUMNS, LEVEL, best_rule, gain_over_rule, mean_accuracy

Records = list[dict[str, Any]]
COUNTED = {"all": "Over all questions", "seen": "On answers that occur in training"}


def load_runs(folders: LedgerFolders, study: str, *arms: str) -> tuple[dict[str, Records], Path]:
    """Load the finished runs of each arm, once for a judgement. All seeds must have ended."""
    spec, folder = find_study(folders, study)
    by_name = {arm.name: arm for arm in spec.arms}
    runs = {}
    for name in arms:
        if name not in by_name:
            rule = f"its arms are {', '.join(by_name)}"
            raise usage_error("claims", f"{name!r} in {study}", rule, "name one of them")
        if (folder, name) not in folders.runs:
            ended = lab.load_arm_records(spec, by_name[name], folder, folders.reader)
            if len(ended) < len(spec.seeds):
                raise missing_seeds(folders, spec, folder, by_name[name], len(spec.seeds) - len(ended))
            folders.runs[folder, name] = [record for record in ended if record["result"]["status"] == "done"]
        runs[name] = folders.runs[folder, name]
    return runs, folder


def seed_values(runs: Records, counting: str = "all", metric: str = "acc@1") -> list[float]:
    """One metric on the test split in percent, one number per seed."""
    return [100 * metrics_on_test(run, counting)[metric] for run in runs]


def next_places(folders: LedgerFolders, study: str, arm: str, figures: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Metrics of one arm in the source's counting, one value per seed, and Acc@1 in the other countings.

    ``NAME_mean`` is the mean over the seeds, ``NAME_low`` the lower end of its 95 % interval.
    """
    by_arm, folder = load_runs(folders, study, arm)
    runs = by_arm[arm]
    results: dict[str, Any] = {name: seed_values(runs, "all", metric) for name, metric in figures.items()}
    for name in figures:
        short = summary(results[name])
        results |= {
            f"{name}_mean": short.mean,
            f"{name}_low": short.interval.low if short.interval else short.mean,
            f"{name}_high": short.interval.high if short.interval else short.mean,
        }
    people = accuracy_over_users([run["result"]["evaluations"][-1]["splits"]["test"] for run in runs]).interval
    beside = [
        f"{words} {summary(seed_values(runs, name)).mean:.2f}" for name, words in COUNTINGS.items() if name != "all"
    ]
    over = f"95 % interval over users {100 * people.low:.2f} to {100 * people.high:.2f}; " if people else ""
    return results | {"words": f"Acc@1 in other countings: {over}{', '.join(beside)}."}, folder.as_posix()


def next_places_differ(
    folders: LedgerFolders, study: str, arm: str, baseline: str, counting: str = "all"
) -> tuple[dict[str, Any], str]:
    """Compare Acc@1 of two arms: 1 for better, -1 for worse, 0 for undecided.

    The claims compare several pairs of arms, so the family is that of all pairs of the study.

    Args:
        counting: one of ``all``, ``seen``, ``by_user`` and ``by_user_seen``.
    """
    spec, _ = find_study(folders, study)
    by_arm, folder = load_runs(folders, study, *(one.name for one in spec.arms))
    values = {
        name: {run["seed"]: seed_values([run], counting)[0] for run in runs} for name, runs in by_arm.items() if runs
    }
    one = contrast_figures(compare_seeds(values, "accuracy", references=folders.references), arm, baseline, "accuracy")
    means = ", ".join(f"{name} {summary(list(values[name].values())).mean:.2f}" for name in (baseline, arm))
    in_training = {name: summary(seed_values(by_arm[name], "seen")).mean for name in (baseline, arm)}
    beside = (
        ""
        if counting == "seen"
        else f" On answers that occur in training: {in_training[arm] - in_training[baseline]:+.2f} points."
    )
    words = f"{one['words']} Means: {means}.{beside} {ONE_RUN}"
    changes = [seed_values([b], counting)[0] - seed_values([a], counting)[0] for a, b in _pairs(by_arm, baseline, arm)]
    unbeaten = find_unbeaten_rule(folders, spec, folder, "accuracy", "test") if counting == "all" else {}
    return one | {"change": changes, "words": words} | unbeaten, folder.as_posix()


def pointer_gain(folders: LedgerFolders, study: str, arm: str, baseline: str) -> tuple[dict[str, Any], str]:
    """The share of an arm's gain over another that falls on answers that do not occur in training, per seed."""
    runs, folder = load_runs(folders, study, baseline, arm)
    both = [(_by_answer(a)["correct"], _by_answer(b)["correct"]) for a, b in _pairs(runs, baseline, arm)]
    gains = [{kind: b[kind] - a[kind] for kind in ("seen", "unseen")} for a, b in both]
    seen, unseen = (summary([gain[kind] for gain in gains]).mean for kind in ("seen", "unseen"))
    questions = _by_answer(runs[arm][0])["questions"]
    share = {
        "share_of_gain_at_unseen": [gain["unseen"] / sum(gain.values()) for gain in gains],
        "share_of_questions_unseen": questions["unseen"] / sum(questions.values()),
    }
    words = (
        f"{arm} answers {seen:.0f} more of {questions['seen']} questions whose answer occurs in training, and {unseen:.0f} more of "
        f"{questions['unseen']} whose answer does not: {100 * unseen / (seen + unseen):.0f} % of the gain on "
        f"{100 * questions['unseen'] / sum(questions.values()):.1f} % of the questions."
    )
    return share | {"words": words}, folder.as_posix()


def lost_without_day(folders: LedgerFolders, study: str, arm: str) -> tuple[dict[str, Any], str]:
    """Acc@1 as reported (split test) minus that of a prediction without the day of the next visit (delivered), per seed."""
    runs, folder = load_runs(folders, study, arm)
    reported, delivered = ([mean_accuracy([run], split) for run in runs[arm]] for split in ("test", "delivered"))
    lost = [a - b for a, b in zip(reported, delivered, strict=True) if a is not None and b is not None]
    words = f"Means: reported {mean_accuracy(runs[arm], 'test'):.2f}, delivered {mean_accuracy(runs[arm], 'delivered'):.2f}."
    return {"lost": lost, "words": words}, folder.as_posix()


def gain_over_rules(
    folders: LedgerFolders, study: str, arm: str, split: str = "delivered"
) -> tuple[dict[str, Any], str]:
    """Acc@1 of an arm minus that of the best simple rule, over all answers and over those that occur in training.

    ``all_low`` and ``all_high``, ``seen_low`` and ``seen_high`` are 95 % intervals over users, in points.
    """
    runs, folder = load_runs(folders, study, arm)
    rules = folders.reader.read(folder / "baselines.json")["baselines"]
    figures: dict[str, Any] = {}
    sentences = []
    for counting in COLUMNS:
        found = best_rule(rules, counting)
        gain = found and gain_over_rule(runs[arm], rules[found[0]], split, counting, 1 - LEVEL)
        if not found or not gain or gain.interval is None:
            raise MissingEvidence(f"simple rules and users of {study}, {arm}, {split}")
        low, high = 100 * gain.interval.low, 100 * gain.interval.high
        figures |= {f"{counting}_gain": 100 * gain.mean, f"{counting}_low": low, f"{counting}_high": high}
        sentences.append(
            f"{COUNTED[counting]} {arm} has {mean_accuracy(runs[arm], split, counting):.2f} and {found[0]!r} {100 * found[1]:.2f}: "
            f"{100 * gain.mean:+.2f} points ({low:+.2f} to {high:+.2f} over users)."
        )
    return figures | {"words": " ".join(sentences)}, folder.as_posix()


def learned_bias(folders: LedgerFolders, study: str, arm: str, to: int) -> tuple[dict[str, Any], str]:
    """How much more a learned bias adds to the last visit than to visit ``to`` from the end, per seed.

    Only differences of a bias matter in a softmax. ``mean_low`` and ``mean_high`` are the interval of their mean.
    """
    runs, folder = load_runs(folders, study, arm)
    biases = [run["notes"]["shape"]["bias"] for run in runs[arm]]
    more = [bias[0] - bias[to - 1] for bias in biases]
    short = summary(more)
    spans = [max(bias[:to]) - min(bias[:to]) for bias in biases]
    words = f"Over the last {to} visits the learned bias spans {summary(spans).mean:.3f} on average."
    low, high = (short.interval.low, short.interval.high) if short.interval else (short.mean, short.mean)
    return {
        "last_over_others": more, "mean_low": low, "mean_high": high, "spans": spans, "words": words
    }, folder.as_posix()  # fmt: skip


def _pairs(runs: Mapping[str, Records], one: str, other: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of runs with the same seed that both finished."""
    by_seed = {run["seed"]: run for run in runs[other]}
    return [(run, by_seed[run["seed"]]) for run in runs[one] if run["seed"] in by_seed]


def _by_answer(run: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Questions and correct answers, split by whether the answer occurs in training."""
    users = run["result"]["evaluations"][-1]["splits"]["test"]["users"].values()
    questions, correct, questions_seen, correct_seen = (sum(user[column] for user in users) for column in range(4))
    return {
        "questions": {"seen": questions_seen, "unseen": questions - questions_seen},
        "correct": {"seen": correct_seen, "unseen": correct - correct_seen},
    }


READERS: dict[str, Reader] = {
    function.__name__: function
    for function in (next_places, next_places_differ, pointer_gain, learned_bias, lost_without_day, gain_over_rules)
}
