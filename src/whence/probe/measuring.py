"""Asking the questions of a plan: a record for every few items at every place, written once, gone on from where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from whence import records
from whence.errors import usage_error
from whence.probe import generation, likelihood, metrics, run_folder
from whence.probe.arrays import rows
from whence.probe.endpoint import Endpoint
from whence.probe.identity import identify
from whence.probe.plan import Plan
from whence.probe.subject import Subject
from whence.probe.tasks import CLOSED_BOOK, ORACLE, Prompt, Task

DIGITS = 6

#: called with how many pieces of work are done, of how many, what was last, and whether it was read from its record
Notify = Callable[[int, int, str, bool], None]


@dataclass(frozen=True)
class Piece:
    """A few items of a task at one place: the work of one record."""

    task: Task
    name: str  # the task's name in this plan
    where: int | str
    first: int
    last: int

    @property
    def file_name(self) -> str:
        return run_folder.record_name(self.name, self.where, self.first)


def pieces(plan: Plan, tasks: Sequence[Task]) -> list[Piece]:
    """All of them, the lines of each task after its places."""
    found = []
    for asked, task in zip(plan.asked, tasks, strict=True):
        places: list[int | str] = [*asked.spread(task), CLOSED_BOOK, ORACLE]
        for where in places:
            for first in range(0, asked.items, plan.chunk):
                found.append(Piece(task, asked.label, where, first, min(first + plan.chunk, asked.items)))
    return found


def measure(
    subject: Subject | Endpoint, plan: Plan, base: Path, notify: Notify = lambda *progress: None
) -> tuple[Path, list[dict[str, Any]]]:
    """Every record of a plan: those that are there are read, the others are made. Returns their folder and them.

    The folder is that of the plan and of the model as it is now, with whatever is attached to it.
    """
    tasks = made_tasks(plan)
    if isinstance(subject, Subject):
        require_room(subject, plan, tasks)
    plan = run_folder.identified(plan, identify(subject))
    folder = run_folder.begun(subject, plan, base, tasks)
    every = pieces(plan, tasks)
    here = run_folder.environment(subject)
    found: list[dict[str, Any]] = []
    for number, piece in enumerate(every):
        path = folder / piece.file_name
        if read := records.exists(path):
            found.append(require_own(records.read(path), piece, plan, path))
        else:
            found.append({**ask(subject, plan, piece), "command": records.rerun_command(), "environment": here})
            records.write(path, found[-1])
        notify(number + 1, len(every), f"{piece.task.name}, {told(piece.where)}", read)
    return folder, found


def made_tasks(plan: Plan) -> list[Task]:
    """The tasks of a plan, with what cannot be asked refused before a model is loaded."""
    tasks = [asked.made() for asked in plan.asked]
    for asked, task in zip(plan.asked, tasks, strict=True):
        asked.spread(task)
        if "likelihood" in plan.scores and any(not item.rivals for item in task.items):
            raise usage_error(
                f"the task {asked.label}",
                "items without rivals",
                "the likelihood of an answer is held against wrong ones",
                "add rivals to the items, or pass --score generation",
            )
    return tasks


def ask(subject: Subject | Endpoint, plan: Plan, piece: Piece) -> dict[str, Any]:
    """One record: what was chosen and written for each item, and where the answering token looked, averaged."""
    began, started = time.perf_counter(), run_folder.now()
    prompts = [piece.task.at(item, piece.where) for item in piece.task.items[piece.first : piece.last]]
    answers: list[dict[str, Any]] = [{"item": piece.first + index} for index in range(len(prompts))]
    looks: list[dict[str, torch.Tensor]] = []
    if isinstance(subject, Subject):
        prompts = [subject.framed(prompt) for prompt in prompts]
        if "likelihood" in plan.scores:
            watched = min(max(0, plan.watched - piece.first), len(prompts)) if isinstance(piece.where, int) else 0
            found, looks = asked_together(subject, prompts, plan.scored, 0 if subject.unexplained else watched)
            for row, prompt, scores in zip(answers, prompts, found, strict=True):
                row |= judged(prompt, scores)
    if "generation" in plan.scores:
        for row, prompt, one in zip(answers, prompts, _written(subject, plan, piece, prompts), strict=True):
            text = one.pop("text")
            row |= {"output": text, "written": metrics.right(piece.task.metric, text, prompt.accepted), **one}
    return {
        "plan": plan.hash,
        "identity": plan.identity,
        "task": piece.name,
        "task_hash": piece.task.hash,
        "source": piece.task.source,
        "where": piece.where,
        "rows": answers,
        "attention": _averaged(looks, getattr(subject, "chosen_layers", None)),
        "started": started,
        "seconds": round(time.perf_counter() - began, 3),
    }


def asked_together(
    subject: Subject, prompts: Sequence[Prompt], scored: int, watched: int
) -> tuple[list[list[float]], list[dict[str, torch.Tensor]]]:
    """The contest of each prompt and, for the first ``watched``, what one row of attention says about its slots."""
    made = likelihood.branches(subject, prompts, scored)
    scores: list[list[float]] = []
    looks: list[dict[str, torch.Tensor]] = []
    for some in likelihood.together(subject, made):
        if subject.takes_branches:
            reading = likelihood.Reading(subject, [made[index] for index in some])
            scores += reading.scores()
            seen = iter(reading.rows() if some.start < watched else [])
        else:
            scores += [likelihood.row_by_row(subject, made[index]) for index in some]
            seen = (likelihood.row_of(subject, made[index].shared) for index in some)
        for index in range(some.start, min(some.stop, watched)):
            row = next(seen)
            spans = subject.token_spans(prompts[index].text, prompts[index].slots)
            looks.append({"slots": rows.slot_means(row, spans), **rows.regions(row)})
    return scores, looks


def judged(prompt: Prompt, scores: list[float]) -> dict[str, Any]:
    """Right only where the answer beats every rival; a tie is not right."""
    best = max(range(len(scores)), key=scores.__getitem__)
    return {
        "right": all(scores[0] > rival for rival in scores[1:]),
        "share": round(likelihood.shares(scores)[0], DIGITS),
        "loglikelihood": round(scores[0], DIGITS),
        "chosen": prompt.owners[best],  # the slot whose answer won; None where it stands in none
    }


def require_own(record: dict[str, Any], piece: Piece, plan: Plan, path: Path) -> dict[str, Any]:
    if run_folder.require_plan(record, plan, path).get("task_hash") != piece.task.hash:
        raise usage_error(
            "measure",
            f"{path.name} with other questions",
            "a record belongs to its data; a needle lies in the help topics, which differ between versions of Python",
            "delete it, take another folder or, for the page alone, run: whence report",
        )
    rows = record.get("rows")
    items = [row.get("item") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if items != list(range(piece.first, piece.last)):
        raise usage_error(
            "measure",
            f"{path.name} without the items {piece.first} to {piece.last - 1}",
            "a record is written whole",
            "delete it, and it is measured again",
        )
    return record


def require_room(subject: Subject, plan: Plan, tasks: Sequence[Task]) -> None:
    """Refuse before any work a plan with a prompt that the model has no positions for."""
    for asked, task in zip(plan.asked, tasks, strict=True):
        longest = max(task.items, key=lambda item: len(item.gold) + sum(map(len, item.others)))
        prompt = subject.framed(task.prompt(longest, asked.spread(task)[0]))
        room = generation.LONGEST_ANSWER if "generation" in plan.scores else plan.scored
        subject.require_room(f"the task {asked.task}", len(subject.tokens(prompt.text)) + room)


def told(where: int | str) -> str:
    """Where the gold is, for people: slots are counted from 1.

    >>> told(0), told("oracle")
    ('gold in slot 1', 'oracle')
    """
    return f"gold in slot {where + 1}" if isinstance(where, int) else where


def _written(subject: Subject | Endpoint, plan: Plan, piece: Piece, prompts: list[Prompt]) -> Sequence[dict[str, Any]]:
    if isinstance(subject, Endpoint):
        return subject.answers(prompts, piece.task.metric, plan.identity or {})
    return [{"text": text} for text in generation.answers(subject, prompts, piece.task.metric)]


def _averaged(looks: list[dict[str, torch.Tensor]], layers: tuple[int, ...] | None) -> dict[str, Any] | None:
    if not looks:
        return None
    means = {name: torch.stack([look[name] for look in looks]).mean(0) for name in looks[0]}
    told = {"count": len(looks), **{name: rounded(value) for name, value in means.items()}}
    return told if layers is None else told | {"layers": sorted(layers)}


def rounded(value: torch.Tensor) -> Any:
    """A tensor as nested lists of numbers with four digits that count: attention to one token of thousands is small.

    >>> rounded(torch.tensor([[0.000123456, 2.0]]))
    [[0.0001235, 2.0]]
    """
    return _short(value.double().tolist())


def _short(value: Any) -> Any:
    return [_short(one) for one in value] if isinstance(value, list) else float(f"{value:.4g}")
