"""Run a trial: choose the settings of every cure on one half of the items, and measure it on the other half.

One record for each cure, task, gold slot and round is written as soon as it is measured, so a killed trial resumes. The
rounds go through all cures before the next begins: a trial that runs out of time has judged every cure on some items.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from whence import records
from whence.errors import WhenceError, usage_error
from whence.mend import costs, measurement
from whence.mend.cure import FAMILY_ERRORS, Cure, describe_failure, why_unavailable
from whence.mend.protocol import Intervention, identify_intervention
from whence.mend.trial_plan import BEST_SLOT_ITEMS, JUDGE, SEARCH, TrialPlan, split_items, split_rounds
from whence.probe import run_folder
from whence.probe.identity import describe_intervention, text_checksum
from whence.probe.measurement import describe_condition, judge_choice
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks import ProbeTask, Prompt
from whence.probe.tasks.task import is_correct
from whence.user_code import find_user_frame

UNTOUCHED = "untouched"
PLAN = "trial.json"
CURE, TEXTS, ANSWERS = "cure", "texts", "answers"  # kinds of records
PENDING = "pending"  # in the record of a cure whose settings are not chosen yet


class Refusal(Exception):
    """A cure cannot be applied to the prompts of a trial, for example because they are longer than a window."""


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except WhenceError as error:
        raise Refusal(str(error)) from error
    except FAMILY_ERRORS as error:
        if isinstance(error, torch.OutOfMemoryError) or find_user_frame(error) is not None:
            raise
        raise Refusal(describe_failure(error)) from error


#: called after each record: number done, total, description of the last one, whether it was read from disk
Notify = Callable[[int, int, str, bool], None]


@dataclass(frozen=True)
class Part:
    """Some items of a task in one gold slot: the content of one record of a cure."""

    task: ProbeTask
    name: str
    slot: int
    half: str
    round: int
    items: tuple[int, ...]

    def file_name(self, label: str) -> str:
        return f"{ANSWERS}-{label}-{self.name}-{self.slot:03d}-{self.half}{self.round}.json"


def label_cure(cure: Intervention | None) -> str:
    """The name of a cure in file names, different for different settings."""
    if cure is None:
        return UNTOUCHED
    identity = identify_intervention(cure)
    return f"{re.sub(r'[^A-Za-z0-9._]+', '-', cure.name)}-{text_checksum(identity)[:8]}"


def distinguish_names(identities: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """A name for every cure of a trial by its label. Cures that share a name are told apart by the settings that differ.

    >>> same = {"name": "log-n", "settings": {"trained": 16, "form": "log"}}
    >>> distinguish_names({"a": same, "b": {**same, "settings": {"trained": 32, "form": "log"}}})
    {'a': 'log-n(trained=16)', 'b': 'log-n(trained=32)'}
    >>> distinguish_names({"a": same})
    {'a': 'log-n'}
    """
    names = {}
    for label, identity in identities.items():
        others = [one for other, one in identities.items() if other != label and one["name"] == identity["name"]]
        own = identity["settings"]
        differing = {
            name: value
            for name, value in own.items()
            if any(name not in one["settings"] or one["settings"][name] != value for one in others)
        }
        names[label] = describe_intervention({**identity, "settings": differing}) if others else identity["name"]
    shared = {name for name, count in Counter(names.values()).items() if count > 1}  # other code, equal settings
    return {label: label if name in shared else name for label, name in names.items()}


def list_parts(plan: TrialPlan, tasks: Sequence[ProbeTask]) -> tuple[list[Part], list[list[Part]]]:
    """The parts of the search half, and those of each round of the judging half."""
    searching: list[Part] = []
    rounds: list[list[Part]] = [[] for _ in range(plan.rounds)]
    for spec, task in zip(plan.tasks, tasks, strict=True):
        search, judge = split_items(spec.items, plan.seed)
        slots = spec.select_slots(task)
        searching += [
            Part(task, spec.label, slot, SEARCH, 0, tuple(search[: max(plan.search_items, 1)])) for slot in slots
        ]
        for number, items in enumerate(split_rounds(judge, plan.rounds)):
            if items:
                rounds[number] += [Part(task, spec.label, slot, JUDGE, number, tuple(items)) for slot in slots]
    return searching, rounds


def list_best_slot_parts(plan: TrialPlan, tasks: Sequence[ProbeTask]) -> list[Part]:
    """Further items of the search half for the untouched model alone, whose best slot few items cannot tell."""
    parts = []
    for spec, task in zip(plan.tasks, tasks, strict=True):
        further = tuple(split_items(spec.items, plan.seed)[0][plan.search_items : BEST_SLOT_ITEMS])
        if further:
            parts += [Part(task, spec.label, slot, SEARCH, 1, further) for slot in spec.select_slots(task)]
    return parts


class Trial:
    """The records of a trial in its folder.

    Args:
        lm: the untouched model.
        plan: with the identity of the model.
        tasks: of the plan.
        base: the folder that holds the folders of trials.
    """

    def __init__(self, lm: ProbedModel, plan: TrialPlan, tasks: Sequence[ProbeTask], base: Path) -> None:
        self.lm, self.plan, self.tasks = lm, plan, list(tasks)
        self.folder = plan.folder(base)
        self.environment = run_folder.environment(lm)
        self.searching, self.rounds = list_parts(plan, tasks)
        self.best_slot_parts = list_best_slot_parts(plan, tasks)
        self._names: dict[str, str] = {}  # of cures in progress lines, by label
        self._costs_of_process: dict[str, Any] | None = None
        self._tokenized: dict[str, tuple[list[Prompt], list[measurement.TokenizedPrompt]]] = {}
        lm.capture_error  # noqa: B018  looked up on the untouched model
        path = self.folder / PLAN
        if not records.exists(path):
            about = [run_folder.describe_task(spec, task) for spec, task in zip(plan.tasks, tasks, strict=True)]
            content = {"plan": plan.to_json(), "hash": plan.hash, "model": lm.about, "tasks": about}
            records.write(path, {**content, "command": records.rerun_command()})

    def run(self, cures: Sequence[Intervention], notify: Notify = lambda *progress: None) -> None:
        """Measure everything that is missing. ``notify`` may raise to stop; the records stay.

        If no cure can be applied to the model, that is an error before anything is measured.
        """
        self._names = distinguish_names({label_cure(cure): identify_intervention(cure) for cure in cures})
        reasons = [self._find_obstacle(cure) for cure in cures]
        if cures and None not in reasons:
            raise usage_error(
                "whence mend --cure",
                ", ".join(cure.name for cure in cures),
                f"no cure can be applied to {self.plan.model} ({' '.join(str(reason) for reason in reasons)})",
                "name another cure, or leave --cure out to try all",
            )
        for cure, reason in zip(cures, reasons, strict=True):
            path = self.folder / cure_file(label_cure(cure))
            if reason is not None:
                self._write(path, {**about_cure(cure), "unavailable": reason})
            elif not records.exists(path):  # a report names the cures that the time did not reach
                self._write(path, {**about_cure(cure), PENDING: True})
        applicable = [cure for cure, reason in zip(cures, reasons, strict=True) if reason is None]
        parts_of_cures = sum(map(len, self.rounds)) + 2
        of_untouched = len(self.searching) + len(self.best_slot_parts) + sum(map(len, self.rounds)) + 1
        total = of_untouched + parts_of_cures * len(applicable)
        for done, (description, from_disk) in enumerate(self._steps(applicable), 1):
            notify(done, total, description, from_disk)

    def _steps(self, cures: Sequence[Intervention]) -> Iterator[tuple[str, bool]]:
        chosen: dict[str, Intervention] = {}
        refused: set[str] = set()
        for part in self.searching:
            yield self._measure(None, UNTOUCHED, part)
        for number, parts in enumerate(self.rounds):
            for cure in (None, *cures):
                label = label_cure(cure)
                if label in refused:
                    continue
                try:
                    if number == 0:
                        if cure is not None:
                            yield self._search(cure, label, chosen)
                        yield self._measure_harm(chosen.get(label), label)
                    for part in parts:
                        yield self._measure(chosen.get(label), label, part)
                except Refusal as refusal:
                    assert cure is not None
                    refused.add(label)
                    self._write(self.folder / cure_file(label), {**about_cure(cure), "unavailable": str(refusal)})
                    yield f"{self._names[label]}, which refused these prompts", False
            if number == 0:
                for part in self.best_slot_parts:
                    yield self._measure(None, UNTOUCHED, part)

    def search_prompts(self) -> list[Prompt]:
        """The prompts that cures may choose their settings on."""
        return [prompt for part in self.searching for prompt in self._prompts(part)]

    def _prompts(self, part: Part) -> list[Prompt]:
        return [self.lm.apply_template(part.task.prompt(part.task.items[item], part.slot)) for item in part.items]

    def _tokenize(self, part: Part, prompts: list[Prompt]) -> list[measurement.TokenizedPrompt]:
        """The tokens of the prompts of a part. Most cures read the same prompts, whose tokens are kept."""
        key = part.file_name(UNTOUCHED)
        known = self._tokenized.get(key)
        if known is None or known[0] != prompts:
            known = list(prompts), measurement.tokenize_prompts(self.lm, prompts, self.plan.scored_tokens)
            self._tokenized.setdefault(key, known)
        return known[1]

    def _find_obstacle(self, cure: Intervention) -> str | None:
        """Why a cure cannot be applied to the model; None if it can."""
        return cure.unavailable(self.lm.model) if isinstance(cure, Cure) else why_unavailable(cure, self.lm.model)

    def _search(self, cure: Intervention, label: str, chosen: dict[str, Intervention]) -> tuple[str, bool]:
        """Choose the settings of a cure, or take those of its record, and measure its costs."""
        path = self.folder / cure_file(label)
        description = f"{self._names[label]}, settings and cost"
        if records.exists(path) and "chosen" in records.read(path):  # what was refused may be possible now
            record = self._require(path, label)
            chosen[label] = with_settings(cure, record["chosen"]["settings"])
            return description, True
        start, started = time.perf_counter(), run_folder.utc_now()
        prompts = self.search_prompts()
        with _refusals():
            best = cure.search(self.lm, prompts) if isinstance(cure, Cure) else cure
            seconds = round(time.perf_counter() - start, 3)
            alike = [prompt for prompt in prompts if len(prompt.slots) == len(prompts[0].slots)]
            effect = best.describe_effect(self.lm, alike) if isinstance(best, Cure) else None
            own_costs = {UNTOUCHED: self._untouched_costs(), "cure": self._costs(best)}
        content = {
            **about_cure(cure),
            "chosen": identify_intervention(best),
            "text": describe_intervention(identify_intervention(best)),
            "search_seconds": seconds,
            "effect": effect,
            "costs": own_costs,
            "started": started,
            "seconds": round(time.perf_counter() - start, 3),
        }
        self._write(path, content)
        chosen[label] = best
        return description, False

    def _costs(self, cure: Intervention | None) -> dict[str, Any]:
        prompt = self._prompts(self.searching[0])[0]
        return costs.measure_costs(self.lm, cure, prompt, self.plan.scored_tokens)

    def _untouched_costs(self) -> dict[str, Any]:
        """Measured once in each process. The first measurement of a process is slower, so it does not count."""
        if self._costs_of_process is None:
            self._costs(None)
            self._costs_of_process = self._costs(None)
        return self._costs_of_process

    def _measure_harm(self, cure: Intervention | None, label: str) -> tuple[str, bool]:
        path = self.folder / harm_file(label)
        description = f"{self._names.get(label, UNTOUCHED)}, plain texts"
        if records.exists(path):
            self._require(path, label, cure)
            return description, True
        start, started = time.perf_counter(), run_folder.utc_now()
        loss = costs.measure_text_loss(self.lm, cure, self.plan.texts, self.plan.tokens)
        seconds = round(time.perf_counter() - start, 3)
        content = {"kind": TEXTS, "label": label, "cure": _identity(cure), **loss}
        self._write(path, {**content, "started": started, "seconds": seconds})
        return description, False

    def _measure(self, cure: Intervention | None, label: str, part: Part) -> tuple[str, bool]:
        """Measure one part under a cure, unless its record exists."""
        path = self.folder / part.file_name(label)
        further = ", further items" if part.half == SEARCH and part.round else ""
        name = self._names.get(label, UNTOUCHED)
        description = f"{name}, {part.task.name}, {describe_condition(part.slot)}{further}"
        if records.exists(path):
            record = self._require(path, label, cure)
            if record["task_hash"] != part.task.hash or [row["item"] for row in record["rows"]] != list(part.items):
                raise usage_error(
                    "whence mend", f"{path.name} with other items", "a record belongs to its items", "delete it"
                )
            return description, True
        start, started = time.perf_counter(), run_folder.utc_now()
        prompts = self._prompts(part)
        rows: list[dict[str, Any]] = [{"item": item} for item in part.items]
        attention: list[float] = []
        if self.plan.score == "likelihood":
            with nullcontext() if cure is None else _refusals():
                read = measurement.rewrite_prompts(self.lm, cure, prompts)
            tokenized = self._tokenize(part, read)
            with nullcontext() if cure is None else _refusals(), measurement.applied(self.lm, cure):
                scores, attention = measurement.score_and_attend(
                    self.lm, tokenized, self.plan.attention_items if part.half == JUDGE else 0
                )
            for row, prompt, own in zip(rows, read, scores, strict=True):
                row |= judge_choice(prompt, own)
        else:
            with nullcontext() if cure is None else _refusals():
                texts = measurement.generate_under_cure(self.lm, cure, prompts, part.task.metric)
            for row, prompt, text in zip(rows, prompts, texts, strict=True):
                row |= {"output": text, "generated_correct": is_correct(part.task.metric, text, prompt.accepted)}
        content = {
            "kind": ANSWERS,
            "label": label,
            "cure": _identity(cure),
            "task": part.name,
            "task_hash": part.task.hash,
            "source": part.task.source,
            "condition": part.slot,
            "half": part.half,
            "round": part.round,
            "rows": rows,
            "gold_attention": [float(f"{share:.5g}") for share in attention],
            "started": started,
            "seconds": round(time.perf_counter() - start, 3),
        }
        self._write(path, content)
        return description, False

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        common = {"plan": self.plan.hash, "identity": self.plan.identity}
        provenance = {"command": records.rerun_command(), "environment": self.environment}
        records.write(path, {**common, **content, **provenance})

    def _require(self, path: Path, label: str, cure: Intervention | None = None) -> dict[str, Any]:
        """The record in a file, which must be of this plan and, for a measurement, of this cure with its settings."""
        record = records.read(path)
        of_cure = record.get("kind") == CURE
        other_cure = record.get("label") != label or (not of_cure and record.get("cure") != _identity(cure))
        if record.get("plan") != self.plan.hash or other_cure:
            raise usage_error(
                "whence mend",
                f"{path.name} of another {'cure' if other_cure else 'plan'}",
                "a record belongs to its plan and its cure with its settings",
                "delete it, or use another folder with --out",
            )
        return record


def cure_file(label: str) -> str:
    """The file with the settings and costs of a cure."""
    return f"{CURE}-{label}.json"


def harm_file(label: str) -> str:
    """The file with the loss of plain texts under a cure."""
    return f"{TEXTS}-{label}.json"


def about_cure(cure: Intervention) -> dict[str, Any]:
    """What a cure is, before its settings are chosen."""
    kind = type(cure)
    return {
        "kind": CURE,
        "label": label_cure(cure),
        "cure": identify_intervention(cure),
        "title": getattr(kind, "title", cure.name),
        "paper": getattr(kind, "paper", ""),
    }


def with_settings(cure: Intervention, settings: dict[str, Any]) -> Intervention:
    """The same cure with other settings."""
    if dict(cure.settings()) == settings:
        return cure
    build: Any = type(cure)
    return build(**settings)


def _identity(cure: Intervention | None) -> dict[str, Any] | None:
    return None if cure is None else identify_intervention(cure)
