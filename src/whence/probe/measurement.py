"""Measure the tasks of a plan: one record for every few items in every condition, written once and resumable.

A condition is the slot of the gold, or one of the baselines (closed book, oracle). Choices are scored by likelihood;
generated answers are greedy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from whence import records
from whence.errors import usage_error
from whence.probe import likelihood, run_folder
from whence.probe.arrays import attention_rows
from whence.probe.endpoint import Endpoint
from whence.probe.identity import identify
from whence.probe.plan import Plan
from whence.probe.probed_model import ProbedModel, pad_batch, require_probed_model
from whence.probe.tasks import CLOSED_BOOK, ORACLE, ProbeTask, Prompt
from whence.probe.tasks.task import is_correct

DIGITS = 6

#: called after each record: number done, total, description of the last one, whether it was read from disk
Notify = Callable[[int, int, str, bool], None]


@dataclass(frozen=True)
class RecordSpec:
    """Some items of a task in one condition: the content of one record."""

    task: ProbeTask
    name: str  # the task's name in this plan
    condition: int | str
    first: int
    last: int

    @property
    def file_name(self) -> str:
        return run_folder.record_name(self.name, self.condition, self.first)


def record_specs(plan: Plan, tasks: Sequence[ProbeTask]) -> list[RecordSpec]:
    """All records of a plan: for each task the gold slots first, then the baselines."""
    specs = []
    for spec, task in zip(plan.tasks, tasks, strict=True):
        conditions: list[int | str] = [*spec.select_slots(task), CLOSED_BOOK, ORACLE]
        for condition in conditions:
            for first in range(0, spec.items, plan.items_per_record):
                specs.append(
                    RecordSpec(task, spec.label, condition, first, min(first + plan.items_per_record, spec.items))
                )
    return specs


def measure(
    lm: ProbedModel | Endpoint, plan: Plan, base: Path | str, notify: Notify = lambda *progress: None
) -> tuple[Path, list[dict[str, Any]]]:
    """Compute the missing records of a plan and read the others. Returns the folder and all records.

    The folder belongs to the plan and to the current model, with everything that is attached to it.
    """
    require_probed_model("measure(lm)", lm)
    tasks = build_tasks(plan)
    if isinstance(lm, ProbedModel):
        require_context(lm, plan, tasks)
    plan = run_folder.with_identity(plan, identify(lm))
    folder = run_folder.open_folder(lm, plan, Path(base), tasks)
    specs = record_specs(plan, tasks)
    environment = run_folder.environment(lm)
    all_records: list[dict[str, Any]] = []
    for number, spec in enumerate(specs):
        path = folder / spec.file_name
        if from_disk := records.exists(path):
            all_records.append(require_matching_record(records.read(path), spec, plan, path))
        else:
            all_records.append(
                {**make_record(lm, plan, spec), "command": records.rerun_command(), "environment": environment}
            )
            records.write(path, all_records[-1])
        notify(number + 1, len(specs), f"{spec.task.name}, {describe_condition(spec.condition)}", from_disk)
    return folder, all_records


def build_tasks(plan: Plan) -> list[ProbeTask]:
    """The tasks of a plan. Errors in them are raised here, before a model is loaded."""
    tasks = [spec.build() for spec in plan.tasks]
    for spec, task in zip(plan.tasks, tasks, strict=True):
        spec.select_slots(task)
        if "likelihood" in plan.scores and any(not item.rivals for item in task.items):
            raise usage_error(
                f"the task {spec.label}",
                "items without rivals",
                "the likelihood of an answer is compared with that of wrong answers",
                "add rivals to the items, or pass --score generation",
            )
    return tasks


def make_record(lm: ProbedModel | Endpoint, plan: Plan, spec: RecordSpec) -> dict[str, Any]:
    """One record: the choice and the generated text for each item, and the mean attention of the answering token."""
    start_time, started = time.perf_counter(), run_folder.utc_now()
    prompts = [spec.task.at(item, spec.condition) for item in spec.task.items[spec.first : spec.last]]
    answers: list[dict[str, Any]] = [{"item": spec.first + index} for index in range(len(prompts))]
    attention_parts: list[dict[str, torch.Tensor]] = []
    if isinstance(lm, ProbedModel):
        prompts = [lm.apply_template(prompt) for prompt in prompts]
        if "likelihood" in plan.scores:
            num_captured = (
                min(max(0, plan.attention_items - spec.first), len(prompts)) if isinstance(spec.condition, int) else 0
            )
            scores_by_prompt, attention_parts = score_and_attend(
                lm, prompts, plan.scored_tokens, 0 if lm.capture_error else num_captured
            )
            for row, prompt, scores in zip(answers, prompts, scores_by_prompt, strict=True):
                row |= judge_choice(prompt, scores)
    if "generation" in plan.scores:
        for row, prompt, generated in zip(answers, prompts, _generate(lm, plan, spec, prompts), strict=True):
            text = generated.pop("text")
            row |= {
                "output": text,
                "generated_correct": is_correct(spec.task.metric, text, prompt.accepted),
                **generated,
            }
    return {
        "plan": plan.hash,
        "identity": plan.identity,
        "task": spec.name,
        "task_hash": spec.task.hash,
        "source": spec.task.source,
        "condition": spec.condition,
        "rows": answers,
        "attention": _average_attention(attention_parts, getattr(lm, "capture_layers", None)),
        "started": started,
        "seconds": round(time.perf_counter() - start_time, 3),
    }


def score_and_attend(
    lm: ProbedModel, prompts: Sequence[Prompt], max_tokens: int, num_captured: int
) -> tuple[list[list[float]], list[dict[str, torch.Tensor]]]:
    """The scores of the choices of each prompt and, for the first ``num_captured``, the attention to its slots."""
    choices = likelihood.build_branches(lm, prompts, max_tokens)
    scores: list[list[float]] = []
    attention_parts: list[dict[str, torch.Tensor]] = []
    for batch in likelihood.batch_branches(lm, choices):
        if lm.supports_branching:
            reading = likelihood.CachedPrompts(lm, [choices[index] for index in batch])
            scores += reading.scores()
            rows = iter(reading.rows() if batch.start < num_captured else [])
        else:
            scores += [likelihood.score_separately(lm, choices[index]) for index in batch]
            rows = (likelihood.last_attention_row(lm, choices[index].shared) for index in batch)
        for index in range(batch.start, min(batch.stop, num_captured)):
            row = next(rows)
            spans = lm.token_spans(prompts[index].text, prompts[index].slots)
            attention_parts.append({"slots": attention_rows.slot_means(row, spans), **attention_rows.regions(row)})
    return scores, attention_parts


def judge_choice(prompt: Prompt, scores: list[float]) -> dict[str, Any]:
    """Correct only if the answer has a higher score than every rival; a tie is not correct."""
    best = max(range(len(scores)), key=scores.__getitem__)
    return {
        "correct": all(scores[0] > rival for rival in scores[1:]),
        "probability": round(likelihood.choice_probabilities(scores)[0], DIGITS),
        "loglikelihood": round(scores[0], DIGITS),
        "chosen_slot": prompt.owners[best],  # the slot whose answer has the highest score; None if no slot contains it
    }


def require_matching_record(record: dict[str, Any], spec: RecordSpec, plan: Plan, path: Path) -> dict[str, Any]:
    if run_folder.require_plan_hash(record, plan, path).get("task_hash") != spec.task.hash:
        raise usage_error(
            "measure",
            f"{path.name} with other items",
            "a record belongs to its items; those of needle use the help topics, which differ between versions of Python",
            "delete it, use another folder or, for the report only, run: whence report",
        )
    rows = record.get("rows")
    items = [row.get("item") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if items != list(range(spec.first, spec.last)):
        raise usage_error(
            "measure",
            f"{path.name} without the items {spec.first} to {spec.last - 1}",
            "a record contains all its items",
            "delete it and run the command again",
        )
    return record


def require_context(lm: ProbedModel, plan: Plan, tasks: Sequence[ProbeTask]) -> None:
    """Raise an error before any work if a prompt is longer than the model's context."""
    for spec, task in zip(plan.tasks, tasks, strict=True):
        longest = max(task.items, key=lambda item: len(item.gold) + sum(map(len, item.others)))
        prompt = lm.apply_template(task.prompt(longest, spec.select_slots(task)[0]))
        room = LONGEST_ANSWER if "generation" in plan.scores else plan.scored_tokens
        lm.require_context(f"the task {spec.task}", len(lm.tokens(prompt.text)) + room)


def describe_condition(condition: int | str) -> str:
    """A condition in words; slots are counted from 1.

    >>> describe_condition(0), describe_condition("oracle")
    ('gold in slot 1', 'oracle')
    """
    return f"gold in slot {condition + 1}" if isinstance(condition, int) else condition


def _generate(
    lm: ProbedModel | Endpoint, plan: Plan, spec: RecordSpec, prompts: list[Prompt]
) -> Sequence[dict[str, Any]]:
    if isinstance(lm, Endpoint):
        return lm.generate_answers(prompts, spec.task.metric, plan.identity or {})
    return [{"text": text} for text in generate_answers(lm, prompts, spec.task.metric)]


def _average_attention(
    attention_parts: list[dict[str, torch.Tensor]], layers: tuple[int, ...] | None
) -> dict[str, Any] | None:
    if not attention_parts:
        return None
    means = {name: torch.stack([part[name] for part in attention_parts]).mean(0) for name in attention_parts[0]}
    means_by_part = {"items": len(attention_parts), **{name: to_rounded_list(mean) for name, mean in means.items()}}
    return means_by_part if layers is None else means_by_part | {"layers": sorted(layers)}


def to_rounded_list(value: torch.Tensor) -> Any:
    """A tensor as nested lists of numbers with four significant digits.

    >>> to_rounded_list(torch.tensor([[0.000123456, 2.0]]))
    [[0.0001235, 2.0]]
    """
    return _round_nested(value.double().tolist())


def _round_nested(value: Any) -> Any:
    return [_round_nested(one) for one in value] if isinstance(value, list) else float(f"{value:.4g}")


#: tokens of an answer: the published limit for questions; for a value, its tokens plus ROOM for a few words before it
LONGEST_ANSWER = 100
ROOM = 16


@torch.inference_mode()
def generate_answers(
    lm: ProbedModel,
    prompts: Sequence[Prompt],
    metric: str,
    around_batch: Callable[[range], AbstractContextManager[Any]] = lambda batch: nullcontext(),
) -> list[str]:
    """The greedy continuation of each prompt. If only the first line counts, generation stops when every row has one.

    ``around_batch`` returns the context in which the prompts of a batch are continued.
    """
    from transformers import StoppingCriteria, StoppingCriteriaList

    rows = lm.all_tokens([prompt.text for prompt in prompts])
    longest = LONGEST_ANSWER
    if metric == "value":
        longest = ROOM + max(map(len, lm.all_tokens([prompt.answer for prompt in prompts], special=False)))
    lm.require_context("answers", max(map(len, rows)) + longest)

    class FirstLine(StoppingCriteria):  # defined here, because its base class needs transformers
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
            return lm.newline_tokens[input_ids[:, -1]]

    stop = StoppingCriteriaList([FirstLine()] if metric == "subspan" else [])
    texts: list[str] = []
    for batch in lm.batches([len(row) + longest for row in rows]):
        tokens, real = pad_batch(lm, [rows[index] for index in batch], left=True)
        with around_batch(batch):
            output = lm.model.generate(
                input_ids=tokens, attention_mask=real, max_new_tokens=longest, do_sample=False, num_beams=1,
                stopping_criteria=stop, pad_token_id=lm.pad_token_id,
            )  # fmt: skip
        texts += lm.tokenizer.batch_decode(output[:, tokens.shape[1] :], skip_special_tokens=True)
    return texts
