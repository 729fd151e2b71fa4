"""Predict the next location of every user from trained weights and a file of visits.

A model was trained with the day of the next visit or without it, and its weights say which. Without the day nothing else is
needed. With it the day must be given; if it is not, the day of the user's last visit stands in for it, which is less accurate
than the reported figures of that form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from whence.errors import usage_error
from whence.lab import checkpoints
from whence.lab.arms import Arm
from whence_papers.pointer.next_location.histories import (
    PADDING,
    SHORTEST,
    UNKNOWN,
    LocationIds,
    Table,
    gather_histories,
)
from whence_papers.pointer.next_location.model import NextPlaceModel, NextPlaceSpec, build_next_place
from whence_papers.pointer.next_location.visits import Visit, format_day, sort_by_time

ELSEWHERE = "(a place not in training)"
MAX_NAMED = 3  # users in an error
#: the remedy where weights are missing: none are committed
TRAIN = "run `whence run next_location`, which trains where weights are missing, and pass a file of its weights folder"


@dataclass(frozen=True)
class Prediction:
    """The prediction for one user."""

    user: str
    known: bool  # whether the user occurs in training
    day: int  # day of the predicted visit; of the last visit if the day of the next one is not known
    next_day: str  # how the day is known: "given", "assumed" (the day of the last visit) or "unknown" (not used)
    history: tuple[Visit, ...]  # visits that the model reads
    before: int  # number of older visits, which the model ignores
    weights: tuple[float, ...] | None  # pointer weight of each visit; None without a pointer
    generated_share: float  # probability mass that is generated rather than copied
    places: tuple[tuple[str, float], ...]  # most likely first


@dataclass(frozen=True)
class Predictor:
    """A trained model with its place and user ids."""

    model: NextPlaceModel
    numbers: LocationIds
    days: int
    next_day: str = "known"  # whether the model was trained with the day of the next visit: "known" or "unknown"

    @classmethod
    def from_weights(cls, path: Path, subject: str) -> Predictor:
        """Load the model from a weights file of a next-location study, which stores its spec."""
        about = checkpoints.read_metadata(path, subject, TRAIN)
        metadata = about.get("task") or {}
        if not {"places", "users", "days", "spec"} <= metadata.keys():
            raise usage_error(
                subject,
                f"{path.name}, weights of {about.get('spec', {}).get('task', 'something else')}",
                "the weights of a next-location model are needed",
                TRAIN,
            )
        arm = next(arm for arm in about["spec"]["arms"] if arm["name"] == about["arm"])
        model = build_next_place(NextPlaceSpec(**metadata["spec"]), Arm(**arm), 0)
        checkpoints.load_weights(path, model)
        numbers = LocationIds(tuple(metadata["places"]), tuple(metadata["users"]))
        return cls(model.eval(), numbers, metadata["days"], metadata.get("next_day", "known"))

    def predict(self, visits: Sequence[Visit], day: int | None = None, top_k: int = 5) -> list[Prediction]:
        """Predict the next place of every user, for a visit on ``day`` if the model was trained with that day.

        Users that cannot be predicted are left out (``skipped_users`` lists them). If none is left, it is an error.
        """
        if day is not None and self.next_day == "unknown":
            raise usage_error(
                "--day",
                format_day(day),
                "these weights were trained without the day of the next visit",
                "leave out --day, or pass weights of an arm that knows the day",
            )
        skipped = self.skipped_users(visits, day)
        predictions = [
            self._predict_user(user, list(own), day, top_k)
            for user, own in groupby(sort_by_time(visits), key=lambda visit: visit.user)
            if user not in skipped
        ]
        if not predictions:
            reasons = [f"{user} ({reason})" for user, reason in skipped.items()]
            more = f" and {len(reasons) - MAX_NAMED} more" if len(reasons) > MAX_NAMED else ""
            raise usage_error(
                "predict" if day is None else f"predict(day={format_day(day)})",
                ", ".join(reasons[:MAX_NAMED]) + more or "no visits",
                f"a prediction needs {SHORTEST} visits in the {self.days} days before the day and no visit after it",
                "pass another day, or more visits",
            )
        return predictions

    def skipped_users(self, visits: Sequence[Visit], day: int | None) -> dict[str, str]:
        """Users that cannot be predicted for ``day``, with the reason."""
        reasons: dict[str, str] = {}
        for user, own in groupby(sort_by_time(visits), key=lambda visit: visit.user):
            days = [visit.day for visit in own]
            last = max(days)
            target_day = last if day is None else day
            recent = sum(one >= target_day - self.days for one in days)
            if last > target_day:
                reasons[user] = f"last visit on {format_day(last)}"
            elif recent < SHORTEST:
                count = f"{'no' if recent == 0 else recent} visit{'s' if recent > 1 else ''}"
                reasons[user] = (
                    f"{count} in the {self.days} days before {format_day(target_day)}; {SHORTEST} are needed"
                )
        return reasons

    @torch.no_grad()
    def _predict_user(self, user: str, visits: list[Visit], day: int | None, top_k: int) -> Prediction:
        target_day = visits[-1].day if day is None else day
        history = [visit for visit in visits if visit.day >= target_day - self.days]
        table = Table.from_visits(history, self.numbers)
        batch = gather_histories(table, torch.tensor([0]), torch.tensor([len(history)]), torch.tensor([target_day]))
        output = self.model.predict(batch.tokens, key_mask=batch.key_mask, extras=batch.extras)
        weights = None if output.log_weights is None else output.log_weights[0].exp().tolist()
        generated_share = float(output.generated_share[0])
        probabilities = self._probabilities_by_name(output.log_p[0].exp().tolist(), history, weights, generated_share)
        ordered = sorted(probabilities.items(), key=lambda item: -item[1])
        how = "unknown" if self.next_day == "unknown" else "assumed" if day is None else "given"
        return Prediction(
            user, user in self.numbers.users, target_day, how, tuple(history), len(visits) - len(history),
            None if weights is None else tuple(weights), generated_share, tuple(ordered[:top_k]),
        )  # fmt: skip

    def _probabilities_by_name(
        self, probabilities: list[float], history: list[Visit], weights: list[float] | None, generated_share: float
    ) -> dict[str, float]:
        """Probabilities by place name. Copies of places that do not occur in training count for their own names."""
        by_name = {
            self.numbers.name(n): probabilities[n] for n in range(len(probabilities)) if n not in (PADDING, UNKNOWN)
        }
        left = probabilities[UNKNOWN]
        for visit, weight in zip(history, weights or [0.0] * len(history), strict=True):
            if self.numbers.place(visit.place) == UNKNOWN:
                copied = (1 - generated_share) * weight
                by_name[visit.place] = by_name.get(visit.place, 0.0) + copied
                left -= copied
        return by_name | {ELSEWHERE: max(left, 0.0)}
