"""The table of EPAR's training tasks: the mean score of each arm over its seeds, beside the best rule without training."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from whence.lab import results as lab
from whence.records import RecordReader
from whence_papers.ledger.comparisons import METRICS

#: studies, with what a column shows
STUDIES = {
    "translation-gpu-multi30k": "Multi30k, BLEU",
    "question-answering-gpu-squad-original": "SQuAD, F1 (%)",
    "question-answering-gpu-squad-shuffled": "SQuAD shuffled, F1 (%)",
    "question-answering-cpu-questions-original": "generated questions, F1 (%)",
    "glue-gpu-sst2": "SST-2, accuracy (%)",
    "summarization-gpu-qmsum": "QMSum, ROUGE-L (%)",
    "language-modelling-gpu-wikitext2-valid": "WikiText-2, perplexity",
    "language-modelling-gpu-books": "books, perplexity",
}
ENDS = ("rule", "constant")  # kinds of baselines that need no trained model


def task_table(results: Path) -> str:
    """Mean and standard deviation over seeds for each arm and study; a dash where seeds are missing."""
    reader = RecordReader()
    columns = {}
    for folder in reader.find_folders(results, "study.json"):
        name = reader.read(folder / "study.json")["spec"]["name"]
        if name in STUDIES:
            columns[name] = read_column(folder, reader)
    titles = [title for name, title in STUDIES.items() if name in columns]
    arms = list(dict.fromkeys(arm for column in columns.values() for arm in column))
    lines = [f"| arm | {' | '.join(titles)} |", "|---|" + "---|" * len(titles)]
    for arm in arms:
        cells = [columns[name].get(arm, "-") for name in STUDIES if name in columns]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read_column(folder: Path, reader: RecordReader) -> dict[str, str]:
    """The cells of one study, by arm."""
    study = lab.load_study(folder, reader)
    task, split = reader.read(folder / "task.json"), study.decision.split
    factor = METRICS[task["metric"]][0]
    cells = {}
    for arm in study.arms:
        summary = lab.summarize_arm(study, arm, folder, reader)
        scores = [factor * one["evaluations"][-1]["splits"][split] for one in summary["curves"].values()]
        done = len(scores) == len(study.seeds)
        # a perplexity per byte is a small number
        digits = 2 if task["metric"] == "perplexity" and statistics.mean(scores) < 10 else 1
        cells[arm.name] = (
            f"{statistics.mean(scores):.{digits}f} ± {statistics.stdev(scores):.{digits}f}" if done else "-"
        )
    cells["best rule without training"] = best_rule(
        reader.read(folder / "baselines.json")["baselines"], task["metric"], split, factor, task["higher_is_better"]
    )
    return cells


def best_rule(
    baselines: dict[str, dict[str, Any]], metric: str, split: str, factor: float, higher_is_better: bool
) -> str:
    """The score and the name of the best rule or constant answer; a dash if none has the metric."""
    scores = {
        name: factor * one["splits"][split][metric]
        for name, one in baselines.items()
        if one["kind"] in ENDS and metric in one["splits"].get(split, {})
    }
    if not scores:
        return "-"
    name = (max if higher_is_better else min)(scores, key=lambda name: scores[name])
    return f"{scores[name]:.1f} ({name})"
