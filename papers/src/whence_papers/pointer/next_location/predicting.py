"""Trained weights and a file of visits: where everyone goes next, with what probability, and what was pointed at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from whence.errors import usage_error
from whence.lab import checkpoints
from whence.lab.arms import Arm
from whence_papers.pointer.next_location.build import build_next_place
from whence_papers.pointer.next_location.histories import PADDING, UNKNOWN, Numbers, Table, gathered
from whence_papers.pointer.next_location.reading import NextPlaceModel
from whence_papers.pointer.next_location.spec import NextPlaceSpec
from whence_papers.pointer.next_location.visits import Visit, day_name, in_time

ELSEWHERE = "(a place not in training)"


@dataclass(frozen=True)
class Prediction:
    """What a model says of one user."""

    user: str
    known: bool  # whether training has the user
    day: int  # for which it is said
    history: tuple[Visit, ...]  # what it was said from
    before: int  # older visits, which the model does not read
    weights: tuple[float, ...] | None  # of each visit of the history; None without a pointer
    generating: float  # the share of the answer that was not copied
    places: tuple[tuple[str, float], ...]  # the most likely first


@dataclass(frozen=True)
class Predictor:
    """A model with the names it was trained on."""

    model: NextPlaceModel
    numbers: Numbers
    days: int

    @classmethod
    def from_weights(cls, path: Path, asked: str) -> Predictor:
        """The model of a file of weights that a study of next places wrote, with its spec inside."""
        about = checkpoints.read_metadata(path, asked)
        kept = about.get("task") or {}
        if not {"places", "users", "days", "spec"} <= kept.keys():
            raise usage_error(
                asked,
                f"{path.name}, weights of {about.get('spec', {}).get('task', 'something else')}",
                "it takes a model of next places",
                "give the weights of such a study, like studies/next_location.py",
            )
        arm = next(arm for arm in about["spec"]["arms"] if arm["name"] == about["arm"])
        model = build_next_place(NextPlaceSpec(**kept["spec"]), Arm(**arm), 0)
        checkpoints.load_weights(path, model)
        return cls(model.eval(), Numbers(tuple(kept["places"]), tuple(kept["users"])), kept["days"])

    def predict(self, visits: Sequence[Visit], day: int | None = None, most: int = 5) -> list[Prediction]:
        """The next place of every user, for a visit on ``day``; by default on the day of the user's last visit."""
        return [
            self._one(user, list(own), day, most) for user, own in groupby(in_time(visits), key=lambda visit: visit.user)
        ]  # fmt: skip

    @torch.no_grad()
    def _one(self, user: str, visits: list[Visit], day: int | None, most: int) -> Prediction:
        last = visits[-1].day
        when = last if day is None else day
        if when < last:
            raise usage_error(
                f"predict(day={when})",
                f"a visit of {user} on {day_name(last)}",
                "no visit lies after it",
                "give a later day",
            )
        history = [visit for visit in visits if visit.day >= when - self.days]
        if not history:
            raise usage_error(
                f"predict(day={when})",
                f"no visit of {user} in the {self.days} days before",
                "a prediction needs a history",
                "give later visits, or an earlier day",
            )
        table = Table.of(history, self.numbers)
        batch = gathered(table, torch.tensor([0]), torch.tensor([len(history)]), torch.tensor([when]))
        answer = self.model.answer(batch.tokens, key_mask=batch.key_mask, extras=batch.extras)
        weights = None if answer.log_weights is None else answer.log_weights[0].exp().tolist()
        generating = float(answer.generating[0])
        chances = self._by_name(answer.log_p[0].exp().tolist(), history, weights, generating)
        ordered = sorted(chances.items(), key=lambda item: -item[1])
        return Prediction(
            user, user in self.numbers.users, when, tuple(history), len(visits) - len(history),
            None if weights is None else tuple(weights), generating, tuple(ordered[:most]),
        )  # fmt: skip

    def _by_name(
        self, chances: list[float], history: list[Visit], weights: list[float] | None, generating: float
    ) -> dict[str, float]:
        """Probabilities by name. What was copied from places that training does not have goes to their own names."""
        found = {self.numbers.name(n): chances[n] for n in range(len(chances)) if n not in (PADDING, UNKNOWN)}
        left = chances[UNKNOWN]
        for visit, weight in zip(history, weights or [0.0] * len(history), strict=True):
            if self.numbers.place(visit.place) == UNKNOWN:
                copied = (1 - generating) * weight
                found[visit.place] = found.get(visit.place, 0.0) + copied
                left -= copied
        return found | {ELSEWHERE: max(left, 0.0)}
