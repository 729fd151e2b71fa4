"""Names of metrics, and those of classification from a confusion matrix: rows are true classes, columns are predicted ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: metrics of classification that follow from the confusion matrix
CLASSIFICATION_METRICS = ("accuracy", "balanced_accuracy", "macro_f1", "mcc")
#: further ones of two classes
BINARY_METRICS = ("binary_f1",)
#: metrics of predicted texts (BLEU and chrF from 0 to 100, ROUGE from 0 to 1), answers (from 0 to 1) and numbers (from -1 to 1)
PREDICTION_METRICS = (
    "bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact_match", "token_f1", "pearson", "spearman",
)  # fmt: skip


def classification_scores(confusion: Sequence[Sequence[int]]) -> dict[str, float]:
    """Accuracy, balanced accuracy, macro F1 and Matthews' correlation coefficient (MCC).

    Balanced accuracy is the mean recall of the classes that occur. F1 is 0 for a class without a correct prediction; macro F1 is
    its mean over the classes that occur or are predicted. MCC is Gorodkin's for several classes, and 0 where its denominator is 0,
    such as for a constant answer. Two classes also have the F1 of the second one, ``binary_f1``. The definitions are those of
    scikit-learn.

    >>> {name: round(value, 4) for name, value in classification_scores([[40, 10], [20, 30]]).items()}
    {'accuracy': 0.7, 'balanced_accuracy': 0.7, 'macro_f1': 0.697, 'mcc': 0.4082, 'binary_f1': 0.6667}
    >>> {name: round(value, 4) for name, value in classification_scores([[69, 0], [31, 0]]).items()}
    {'accuracy': 0.69, 'balanced_accuracy': 0.5, 'macro_f1': 0.4083, 'mcc': 0.0, 'binary_f1': 0.0}
    """
    true = [sum(row) for row in confusion]
    predicted = [sum(column) for column in zip(*confusion, strict=True)]
    right = [row[index] for index, row in enumerate(confusion)]
    total, correct = sum(true), sum(right)
    recalls = [r / t for r, t in zip(right, true, strict=True) if t]
    f1 = [2 * r / (t + p) for r, t, p in zip(right, true, predicted, strict=True) if t + p]
    covariance = correct * total - sum(t * p for t, p in zip(true, predicted, strict=True))
    spread = (total**2 - sum(p * p for p in predicted)) * (total**2 - sum(t * t for t in true))
    scores = {
        "accuracy": correct / total,
        "balanced_accuracy": sum(recalls) / len(recalls),
        "macro_f1": sum(f1) / len(f1),
        "mcc": covariance / math.sqrt(spread) if spread else 0.0,
    }
    if len(confusion) == 2:
        either = true[1] + predicted[1]
        scores["binary_f1"] = 2 * right[1] / either if either else 0.0
    return scores
