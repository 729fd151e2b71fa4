"""Next-location prediction as a task of the lab: ``load("whence_papers.pointer.next_location.task:NextPlaceTask", data="geolife")``.

The two forms of the question. In the source the model knows the day of the next visit: it reads how many days before it each
visit was. A prediction does not know that day. With ``window="last"`` a study has arms of both forms: a model that reads
``ago`` knows the day, one that reads ``before_last`` does not. The split "test" asks each model as it was trained;
"delivered" asks it as ``whence predict`` does without ``--day``, where the day of the last visit stands in for that of the
next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.lab.arms import Arm
from whence.lab.data.corpora import content_hash
from whence.lab.tasks import Batch, MetricAccumulator, Task
from whence.lab.tasks.base import require_at_least, require_choice, require_known_fields, to_ints
from whence.lab.tasks.file_rows import require_same_data
from whence.models import eval_mode
from whence_papers.pointer.next_location.figures import report_panels
from whence_papers.pointer.next_location.histories import (
    PUBLISHED,
    UNKNOWN,
    WINDOWS,
    LocationIds,
    build_histories,
    split_by_days,
    trim_to_next_day,
)
from whence_papers.pointer.next_location.metrics import (
    Counts,
    RankAccumulator,
    compute_metrics,
    evaluate_rules,
    target_ranks,
)
from whence_papers.pointer.next_location.model import (
    READS,
    NextPlaceModel,
    NextPlaceSpec,
    build_next_place,
    learned_shape,
)
from whence_papers.pointer.next_location.remarks import describe_forms, describe_rules
from whence_papers.pointer.next_location.visits import describe_time_zones, read_visits
from whence_papers.pointer.next_location.world import World, best_accuracy, best_cross_entropy

POOL = 16  # batches per pool; questions are sorted by length within a pool, for little padding in a random order
EVALUATED = 512  # questions per evaluation batch


class NextPlaceTask(Task):
    """Predict the next place from the visits of the last days.

    Args:
        data: ``"geolife"`` or ``"foursquare"`` from the folder of WHENCE_DATA, ``"world"``, which is synthetic, or a CSV file.
        days: length of a history in days.
        window: ``"next"``: the days count back from the next visit, as in the source; ``"last"``: from the last visit. Then
            there is a split ``delivered``.
        sha256: the hash that a CSV file must have, if it is not empty.
    """

    name = "next_place"
    kind = "next_place"
    metric = "accuracy"
    validation = "valid"
    needs_weights = True

    def __init__(self, data: str = "geolife", days: int = 7, window: str = "next", sha256: str = "") -> None:
        own_file = data.endswith(".csv")
        if not own_file:
            require_choice(self.name, "data", data, (*PUBLISHED, "world", "a file.csv"))
        require_choice(self.name, "window", window, WINDOWS)
        require_at_least(self.name, "days", days, 1)
        self.time_zones = ""
        if own_file:
            visits = read_visits(Path(data), f"task {self.name!r}")
            require_same_data(data, "", sha256)
            self.time_zones, parts = describe_time_zones(visits), split_by_days(visits)
        else:
            parts = World(history=days).parts() if data == "world" else PUBLISHED[data](f"task {self.name!r}")
        self.numbers, self.days, self.window = LocationIds.from_visits(parts["train"]), days, window
        self.parts = {
            name: build_histories(visits, self.numbers, days, window) for name, visits in parts.items() if visits
        }
        empty = [name for name in parts if not len(self.parts.get(name, ()))]
        if empty:
            enough = 5 * (days + 1) + 1  # the last 20 % of them, a part, has days + 1 days
            raise usage_error(
                f"task {self.name!r}",
                f"{data} with too few visits: no question in {', '.join(empty)}",
                f"each part of 60, 20 and 20 % of a user's days needs a visit after {days} days and 3 visits in the {days} days before it",
                f"add visits until they cover about {enough} days of a user, with a visit on most days",
            )
        self.vocab_size = self.classes = self.numbers.size
        self.context = int(self.parts["train"].lengths.max())
        self.durations = bool((self.parts["train"].table.duration > 0).any())
        table_bytes = (column.numpy().tobytes() for part in self.parts.values() for column in vars(part.table).values())
        self.settings = {
            "task": self.name, "data": data, "days": days, "questions": {n: len(p) for n, p in self.parts.items()},
            "places": len(self.numbers.places), "users": len(self.numbers.users), "data_hash": content_hash(table_bytes),
        }  # fmt: skip
        if window != "next":  # records of the source's form do not have it
            self.settings["window"] = window

    def splits(self) -> dict[str, int]:
        longest = max(int(part.lengths.max()) for part in self.parts.values())
        return dict.fromkeys(("valid", "test", "delivered") if self.window == "last" else ("valid", "test"), longest)

    def train_batch(self, size: int, generator: torch.Generator) -> Batch:
        part = self.parts["train"]
        return part.batch(torch.randint(len(part), (size,), generator=generator))

    def epoch(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        part = self.parts["train"]
        batches: list[Tensor] = []
        for pool in torch.randperm(len(part), generator=generator).split(POOL * size):
            batches += pool[part.lengths[pool].argsort(stable=True)].split(size)
        for at in torch.randperm(len(batches), generator=generator).tolist():
            yield part.batch(batches[at])

    def evaluation(self, split: str) -> list[Batch]:
        self.split_length(split)
        part = self.parts["test" if split == "delivered" else split]
        batches = [part.batch(rows) for rows in part.lengths.argsort(stable=True).split(EVALUATED)]
        if split != "delivered":
            return batches
        return [replace(one, extras={**one.extras, "ago": one.extras["before_last"]}) for one in batches]

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return [self.numbers.name(token) for token in to_ints(tokens)]

    def spec(self, settings: Mapping[str, Any]) -> NextPlaceSpec:
        """The model's spec, completed from the data. Features that the data does not have cannot be read."""
        reads = settings.get("reads", [name for name in READS if name != "duration" or self.durations])
        if "duration" in reads and not self.durations:
            raise usage_error("reads", "duration", f"{self.settings['data']} has no durations", "remove it from reads")
        from_data = {
            "places": self.vocab_size, "users": len(self.numbers.users), "days": self.days, "context": self.context,
        }  # fmt: skip
        require_known_fields("study.model", settings, NextPlaceSpec)
        return NextPlaceSpec(**(from_data | dict(settings) | {"reads": tuple(reads)}))

    def build_model(self, settings: Mapping[str, Any], arm: Arm, seed: int) -> nn.Module:
        return build_next_place(self.spec(settings), arm, seed)

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        batch = self._visible(model, batch)
        return model(batch.tokens, key_mask=batch.key_mask, extras=batch.extras)

    def _visible(self, model: nn.Module, batch: Batch) -> Batch:
        """The batch as a model sees it: one that knows the day of the next visit has the history before that day."""
        trims = self.window == "last" and "ago" in find_spec(model).reads
        return trim_to_next_day(batch, self.days) if trims else batch

    def next_day(self, model: nn.Module) -> str:
        """Whether a model's input shows the day of the next visit: ``"known"`` or ``"unknown"``."""
        return "known" if self.window == "next" or "ago" in find_spec(model).reads else "unknown"

    def metric_accumulator(self) -> MetricAccumulator:
        return RankAccumulator()

    def baselines(self) -> dict[str, Any]:
        counts = Counts(self.parts["train"].table, self.vocab_size)
        scores: dict[str, Any] = evaluate_rules(counts, self.evaluation("test"))
        if self.settings["data"] == "world":
            test = self.parts["test"]
            exact = World(history=self.days).probabilities(test, self.numbers)
            targets, users = test.table.place[test.target], test.table.user[test.target]
            scores["the world's own rules"] = {
                "value": best_accuracy(exact), "cross_entropy": best_cross_entropy(exact),
                "metrics": compute_metrics(target_ranks(exact, targets), exact.argmax(1), targets, users),
            }  # fmt: skip
        return scores

    def notes(self, model: nn.Module) -> dict[str, Any]:
        assert isinstance(model, NextPlaceModel)
        return {
            "shape": learned_shape(model, self.context),
            "generated": self._generated(model),
            "next_day": self.next_day(model),
        }

    @torch.no_grad()
    def _generated(self, model: NextPlaceModel) -> dict[str, float]:
        """Mean generated share for answers that occur in training and for those that do not."""
        device = next(model.parameters()).device
        with eval_mode(model):
            batches = [
                (
                    model.predict(batch.tokens, key_mask=batch.key_mask, extras=batch.extras).generated_share,
                    batch.targets,
                )
                for batch in (
                    self._visible(model, one).map(lambda tensor: tensor.to(device)) for one in self.evaluation("test")
                )
            ]
        share, targets = (torch.cat(column) for column in zip(*batches, strict=True))
        by_answer = {"seen": share[targets != UNKNOWN], "unseen": share[targets == UNKNOWN]}
        return {name: float(some.mean()) for name, some in by_answer.items() if len(some)}

    @staticmethod
    def panels(runs: Mapping[str, list[dict[str, Any]]], baselines: Mapping[str, Any]) -> list[dict[str, Any]]:
        return report_panels(runs, baselines)

    @staticmethod
    def remarks(runs: Mapping[str, list[dict[str, Any]]], baselines: Mapping[str, Any]) -> list[str]:
        return describe_forms(runs) + describe_rules(runs, baselines)

    def describe_data(self) -> dict[str, Any]:
        if not self.settings["data"].endswith(".csv"):
            return {}
        split = f"by day within each user: 60, 20 and 20 %. {self.time_zones}".strip()
        return {"items": self.settings["questions"], "split": split}

    def weights_metadata(self, model: nn.Module) -> dict[str, Any]:
        assert isinstance(model, NextPlaceModel)
        return {
            "spec": asdict(model.spec),
            "places": list(self.numbers.places),
            "users": list(self.numbers.users),
            "days": self.days,
            "next_day": self.next_day(model),
        }


def find_spec(model: nn.Module) -> NextPlaceSpec:
    """The spec of a model, also inside the wrapper of distributed or compiled training."""
    return next(module for module in model.modules() if isinstance(module, NextPlaceModel)).spec
