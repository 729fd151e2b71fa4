"""Report panels and figures of next-location studies and predictions, from records alone.

python -m whence_papers.pointer.next_location.figures results/next-location-HASH docs/next_location.png
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from whence import records
from whence.errors import require_package
from whence.lab.results import load_arm_records, load_study
from whence.position.expression import ModelDims, build_position
from whence.statistics import Interval, Summary, cluster_proportion, summary
from whence_papers.pointer.next_location.model import position_shape
from whence_papers.pointer.next_location.predictor import Prediction
from whence_papers.pointer.next_location.remarks import finished_runs, mean_accuracy, next_day

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

NAMES = {
    "acc@1": "Acc@1",
    "acc@5": "Acc@5",
    "acc@10": "Acc@10",
    "mrr": "MRR",
    "ndcg@10": "NDCG@10",
    "f1": "weighted F1",
}
COUNTINGS = {
    "all": "all questions, as in the source",
    "seen": "answers that occur in training",
    "by_user": "mean over users",
    "by_user_seen": "mean over users, answers that occur in training",
}
METRIC_TABLES = (  # counting, title and note of the tables of all metrics
    (
        "all",
        "All metrics on the test split",
        "In percent; mean over seeds ± half of its 95 % interval. The first rows are simple baselines. "
        "Counting of the source: locations that do not occur in training share one id.",
    ),
    (
        "seen",
        "All metrics on answers that occur in training",
        "The same without questions whose answer does not occur in training.",
    ),
)
MISSING = "–"
Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def report_panels(runs: Runs, baselines: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Panels of the report: tables of the test split, the form of each arm, generated shares, learned bias and scale."""
    finished = finished_runs(runs)
    simple = {name: row for name, row in baselines.items() if "metrics" in row}
    tables = [_metric_table(finished, simple, *counting) for counting in METRIC_TABLES]
    tables += [_counting_table(finished, simple), _form_table(finished), _uncertainty_table(finished, simple)]
    tables.append(_generated_table(finished))
    panels = [*tables, learned_bias_panel(finished), learned_scale_panel(finished)]
    return [one for one in panels if one["rows" if one["kind"] == "table" else "lines"]]


def metrics_on_test(record: Mapping[str, Any], counting: str) -> Mapping[str, float]:
    """A run's metrics on the test split."""
    return record["result"]["evaluations"][-1]["splits"]["test"]["metrics"].get(counting, {})


def learned_bias_panel(runs: Runs) -> dict[str, Any]:
    """The learned bias of the pointer by visits from the end, as lines: arm, seed, points."""
    # only differences of a bias matter in a softmax, so each line is shifted to mean 0
    lines = _lines(runs, "bias", lambda bias: [one - sum(bias) / len(bias) for one in bias])
    return {
        "kind": "lines", "title": "Learned bias of the pointer", "lines": lines,
        "x": "visits from the end (1 is the last visit)", "y": "added to the pointer's score, mean 0",
        "note": "Thick: mean of the seeds; thin: each seed. Only arms that add a bias have one.",
    }  # fmt: skip


def learned_scale_panel(runs: Runs) -> dict[str, Any]:
    """The learned score scale of the pointer, as lines."""
    return {
        "kind": "lines", "title": "Learned score scale of the pointer",
        "lines": _lines(runs, "score_scale", list),
        "x": "visits from the end (1 is the last visit)", "y": "times the pointer's score",
        "note": "Thick: mean of the seeds; thin: each seed. Only arms that multiply the score have one.",
    }  # fmt: skip


def _lines(
    runs: Runs, hook: str, transform: Callable[[list[float]], list[float]]
) -> dict[str, dict[str, list[list[float]]]]:
    lines: dict[str, dict[str, list[list[float]]]] = {}
    for arm, arm_records in runs.items():
        for record in arm_records:
            shape = record["notes"].get("shape") or {}
            if hook in shape:
                points = [list(point) for point in zip(shape["from_end"], transform(shape[hook]), strict=True)]
                lines.setdefault(arm, {})[str(record["seed"])] = points
    return lines


def _metric_table(runs: Runs, simple: Mapping[str, Any], counting: str, title: str, note: str) -> dict[str, Any]:
    rows = [
        [name, *(_percent(row["metrics"].get(counting, {}).get(metric)) for metric in NAMES)]
        for name, row in simple.items()
    ]
    for arm, arm_records in runs.items():
        rows.append(
            [
                arm,
                *(
                    _mean_and_half_interval([metrics_on_test(record, counting).get(metric) for record in arm_records])
                    for metric in NAMES
                ),
            ]
        )
    return {"kind": "table", "title": title, "head": ["", *NAMES.values()], "rows": rows, "note": note}


def _counting_table(runs: Runs, simple: Mapping[str, Any]) -> dict[str, Any]:
    rows = [
        [name, *(_percent(row["metrics"].get(counting, {}).get("acc@1")) for counting in COUNTINGS)]
        for name, row in simple.items()
    ]
    for arm, arm_records in runs.items():
        rows.append(
            [
                arm,
                *(
                    _mean_and_half_interval([metrics_on_test(one, counting).get("acc@1") for one in arm_records])
                    for counting in COUNTINGS
                ),
            ]
        )
    return {
        "kind": "table", "title": "Acc@1 in four ways of counting", "head": ["", *COUNTINGS.values()], "rows": rows,
        "note": "All locations that do not occur in training share one id. A pointer can copy it; a generator never learns it. The source's counting "
        "rewards that. The other countings exclude these answers or give every user the same weight.",
    }  # fmt: skip


def _form_table(runs: Runs) -> dict[str, Any]:
    """Which arms know the day of the next visit, with Acc@1 as trained and as delivered."""
    rows = []
    for arm, arm_records in runs.items():
        values = [
            mean_accuracy(arm_records, split, counting)
            for split in ("test", "delivered")
            for counting in ("all", "seen")
        ]
        rows.append([arm, next_day(arm_records[0]), *(MISSING if one is None else f"{one:.2f}" for one in values)])
    return {
        "kind": "table", "title": "Day of the next visit: what is reported and what is delivered", "rows": rows,
        "head": ["", "day of the next visit", "as trained", "as trained, answers in training", "as delivered",
                 "as delivered, answers in training"],
        "note": "Acc@1 in percent, mean over seeds. As trained: the split test. As delivered: what whence predict has without "
        "--day, where the day of the last visit stands in for that of the next. The source knows the day.",
    }  # fmt: skip


def accuracy_over_users(runs: Sequence[Mapping[str, Any]]) -> Summary:
    """Acc@1 over users as clusters, from the test splits of one or several runs; each user has the mean over the runs."""
    users = list(runs[0]["users"])
    right = [sum(one["users"][user][1] for one in runs) / len(runs) for user in users]
    return cluster_proportion(right, [runs[0]["users"][user][0] for user in users])


def _uncertainty_table(runs: Runs, simple: Mapping[str, Any]) -> dict[str, Any]:
    rows = [[name, _percent(row["value"]), MISSING, _interval_text(accuracy_over_users([row]).interval)]
            for name, row in simple.items() if "users" in row]  # fmt: skip
    for arm, arm_records in runs.items():
        scores = [record["result"]["evaluations"][-1]["splits"]["test"] for record in arm_records]
        short = summary([one["value"] for one in scores])
        rows.append(
            [
                arm,
                _percent(short.mean),
                _interval_text(short.interval),
                _interval_text(accuracy_over_users(scores).interval),
            ]
        )
    return {
        "kind": "table", "title": "Uncertainty of Acc@1", "rows": rows,
        "head": ["", COUNTINGS["all"], "95 % interval over seeds", "95 % interval over users"],
        "note": "In percent. The interval over users treats users as clusters and covers another sample of users; the interval "
        "over seeds covers only other initializations.",
    }  # fmt: skip


def _interval_text(interval: Interval | None) -> str:
    return MISSING if interval is None else f"{100 * interval.low:.2f} to {100 * interval.high:.2f}"


def _generated_table(runs: Runs) -> dict[str, Any]:
    rows = []
    for arm, arm_records in runs.items():
        shares = [record["notes"].get("generated") or {} for record in arm_records]
        rows.append(
            [arm, *(_mean_and_half_interval([share.get(kind) for share in shares]) for kind in ("seen", "unseen"))]
        )
    return {
        "kind": "table", "title": "Generated share",
        "head": ["", "answers in training", "other answers"], "rows": rows,
        "note": "In percent of the probability, on the test split.",
    }  # fmt: skip


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.2f}"


def _mean_and_half_interval(values: Sequence[float | None]) -> str:
    percents = [100 * value for value in values if value is not None]
    if not percents:
        return MISSING
    short = summary(percents)
    if short.interval is None:
        return f"{short.mean:.2f}"
    return f"{short.mean:.2f} ± {short.interval.high - short.mean:.2f}"


MAX_USERS_DRAWN = 4  # users per figure
MAX_LABELS = 24  # visits with a label below the axis
DARK, LIGHT = "#1f5a96", "#d8dde3"  # distinguishable in grayscale
COUNTING_STYLES: dict[str, dict[str, Any]] = {
    "all": {"color": DARK, "marker": "o"},
    "seen": {"color": "#b5651d", "marker": "D", "markerfacecolor": "white"},
}


def prediction_figure(predictions: Sequence[Prediction]) -> Figure:
    """For each user, left: the pointer weight of each past visit; right: the predicted locations. At most four users."""
    figure = _figure(11, 3.4 * len(predictions[:MAX_USERS_DRAWN]))
    axes = figure.subplots(len(predictions[:MAX_USERS_DRAWN]), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), one in zip(axes, predictions, strict=False):
        _draw_history(left, one)
        names = [name for name, _ in reversed(one.places)]
        shares = [100 * share for _, share in reversed(one.places)]
        right.barh(range(len(names)), shares, color=DARK)
        right.set_yticks(range(len(names)), [_short(name) for name in names], fontsize=8)
        right.bar_label(right.containers[0], fmt="%.1f", fontsize=8, padding=2)
        right.set_xlim(0, max(100.0, max(shares)))
        right.set_xlabel("probability (%)", fontsize=8)
        right.set_title(f"next location ({100 * one.generated_share:.0f} % generated)", loc="left", fontsize=9)
        for panel in (left, right):
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(labelsize=8)
    return figure


def study_figure(runs: Runs, baselines: Mapping[str, Any]) -> Figure:
    """Left: Acc@1 of every arm and of the best baseline; right: the learned bias of each pointer, a panel for each arm."""
    figure = _figure(11, 4.8)
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(5, 6))[0]
    _draw_accuracies(left.subplots(), runs, baselines)
    draw_learned_bias(right, runs)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    return figure


def draw_learned_bias(figure: SubFigure, runs: Runs) -> None:
    """Draw the learned bias of each arm by visits from the end: mean and every seed, and the value before training.

    Arms have panels of their own, because those of one mechanism are so alike that one line would hide the others. The
    bias of a panel is small or large, so each has its own scale.
    """
    panel = learned_bias_panel(runs)
    if not panel["lines"]:
        return
    every = figure.subplots(len(panel["lines"]), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (arm, lines) in zip(every, panel["lines"].items(), strict=True):
        at = [place for place, _ in next(iter(lines.values()))]
        axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
        for points in lines.values():
            axes.plot(*zip(*points, strict=True), color=DARK, linewidth=0.6, alpha=0.5)
        means = [sum(points[i][1] for points in lines.values()) / len(lines) for i in range(len(at))]
        axes.plot(at, means, color=DARK, linewidth=1.8, label="mean of the seeds")
        start = initial_bias(runs[arm][0], len(at))
        if start is not None:
            axes.plot(at, start, ":", color="#b5651d", linewidth=1.4, label="before training")
        axes.set_title(arm, loc="left", fontsize=8, pad=2)
        axes.margins(y=0.15)
    figure.suptitle(panel["title"], x=0.02, ha="left", fontsize=10, fontweight="bold")
    figure.supylabel(panel["y"], fontsize=9)
    every[-1].set_xlabel(panel["x"], fontsize=9)
    every[0].legend(frameon=False, fontsize=7.5, loc="upper right", ncols=2, bbox_to_anchor=(1, 1.55))


def initial_bias(record: Mapping[str, Any], most: int) -> list[float] | None:
    """The bias of a run's mechanism before training, by visits from the end, mean 0; None if it has none or a random one."""
    dims = ModelDims(heads=1, head_dim=1, embed_dim=1, context=most)
    drawn = []
    with torch.random.fork_rng():
        for seed in (0, 1):
            torch.manual_seed(seed)
            drawn.append(position_shape(build_position(record["position"], dims), most).get("bias"))
    values = drawn[0]
    if values is None or values != drawn[1]:
        return None
    return [value - sum(values) / most for value in values]


def _draw_accuracies(axes: Axes, runs: Runs, baselines: Mapping[str, Any]) -> None:
    """One row per arm, all questions (dark) and answers that occur in training (light): seeds, mean and interval."""
    for row, arm_records in enumerate(runs.values()):
        for side, (counting, style) in zip((-0.16, 0.16), COUNTING_STYLES.items(), strict=True):
            values = [100 * metrics_on_test(record, counting)["acc@1"] for record in arm_records]
            short = summary(values)
            name = COUNTINGS[counting] if row == 0 else None
            axes.plot(values, [row + side] * len(values), ".", color=style["color"], markersize=4, alpha=0.5)
            if short.interval is not None:
                axes.plot(
                    [short.interval.low, short.interval.high], [row + side] * 2, color=style["color"], linewidth=1.3
                )
            axes.plot([short.mean], [row + side], linestyle="none", markersize=6, label=name, **style)
    rule = max(baselines, key=lambda name: baselines[name]["value"])
    axes.axvline(
        100 * baselines[rule]["value"], color="0.5", linestyle=":", linewidth=1.2, label=f"best baseline: {rule}"
    )
    axes.set_yticks(range(len(runs)), list(runs))
    axes.set_ylim(len(runs) - 0.4, -0.6)
    _set_labels(axes, "Accuracy of next-location prediction", "Acc@1 on the test split (%)", "")
    axes.legend(facecolor="white", edgecolor="none", framealpha=0.9, fontsize=7.5, loc="upper left")


def _set_labels(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)


def _draw_history(axes: Axes, one: Prediction) -> None:
    visits = one.history
    weights = [100 * weight for weight in one.weights or [0.0] * len(visits)]
    best = one.places[0][0]
    axes.bar(
        range(len(visits)), weights, edgecolor=DARK, linewidth=0.6,
        color=[DARK if visit.place == best else LIGHT for visit in visits],
    )  # fmt: skip
    step = max(1, -(-len(visits) // MAX_LABELS))
    labelled = range((len(visits) - 1) % step, len(visits), step)  # the last visit is always labelled
    axes.set_xticks(labelled, [_short(visits[at].place, 10) for at in labelled], rotation=60, ha="right", fontsize=7)
    axes.set_ylabel("pointer weight (%)", fontsize=8)
    axes.set_xlabel(f"visits of the last days, oldest first; dark: {_short(best)}", fontsize=8)
    title = f"{one.user}: pointer weights" if one.weights is not None else f"{one.user}: no pointer in this model"
    axes.set_title(title, loc="left", fontsize=9, fontweight="bold")


def _short(name: str, letters: int = 22) -> str:
    return name if len(name) <= letters else name[: letters - 1] + "…"


def _figure(width: float, height: float) -> Figure:
    require_package("matplotlib", "drawing", "plot")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor="white", layout="constrained")


def main(folder: Path, out: Path) -> None:
    """Draw the figure of a study from its records."""
    study = load_study(folder)
    by_arm = {arm.name: load_arm_records(study, arm, folder) for arm in study.arms}
    runs = {arm: [one for one in some if one["result"]["status"] == "done"] for arm, some in by_arm.items()}
    simple = records.read(folder / "baselines.json")["baselines"]
    figure = study_figure({arm: some for arm, some in runs.items() if some}, simple)
    with records.replace_file(out) as part:
        figure.savefig(part, dpi=130, format=out.suffix[1:].lower())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m whence_papers.pointer.next_location.figures STUDY_FOLDER IMAGE")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
