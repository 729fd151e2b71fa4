"""``whence mend``"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whence.cli.json_output import JsonOption, json_document
from whence.cli.model_options import BatchTokens, Chat, Device, DeviceMap, Dtype, Items, Revision, Slots, TaskNames
from whence.errors import WhenceError, usage_error

if TYPE_CHECKING:
    from whence.mend import Intervention
    from whence.mend.trial_plan import TrialPlan

COMMAND = "whence mend"
HELP = (
    "Try cures for the positional bias of a pretrained model, judge each on held-out items, and write a self-contained "
    "HTML report. Save the best one as a recipe."
)
EXAMPLES = """Examples:

whence mend quick

whence mend smollm2

whence mend smollm2 --cure log-n --cure "scale-channel(candidates=5)" --task key-value --items 40

whence mend smollm2 --cure ./my_cure.py:MyCure --items my_items.jsonl --budget 1h

whence mend smollm2 --task key-value --length 10 --length 40 --items 400 --device cuda --budget 2h

In Python: whence.hf.apply_recipe(model, "recipe.json")"""


def mend(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(help="smollm2, a folder, a GGUF file, a name on the hub, or quick for a smoke test.")
    ] = "",
    cure: Annotated[
        list[str] | None,
        typer.Option(
            help="Cure by name with settings in parentheses, module:Name or ./file.py:Name. Repeatable. Default: all."
        ),
    ] = None,
    task: TaskNames = None,
    items: Items = None,
    score: Annotated[str, typer.Option(help="Score: likelihood or generation.")] = "likelihood",
    length: Annotated[
        list[int] | None, typer.Option(help="Slots of every task. Repeat for several lengths.", min=2)
    ] = None,
    slots: Slots = None,
    quick: Annotated[bool, typer.Option("--quick", help="The same as the model quick: a tiny random one.")] = False,
    search_items: Annotated[
        int | None,
        typer.Option(
            help="Items of each task on which cures choose their settings; never judged. Default: 1 on a CPU, else 16.",
            min=1,
        ),
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="Difference below which a cure is equivalent, in points. Default: 2.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Write the recipe of this cure, whatever its verdict. Default: the best if better."),
    ] = None,
    chat: Chat = False,
    budget: Annotated[str, typer.Option(help="Time limit, such as 90s, 20m or 2h. Rerun to resume.")] = "14m",
    dtype: Dtype = "float32",
    device: Device = "cpu",
    device_map: DeviceMap = None,
    revision: Revision = None,
    batch_tokens: BatchTokens = None,
    out: Annotated[Path, typer.Option(help="Folder for records, the report and the recipe.")] = Path("build/mend"),
    as_json: JsonOption = False,
) -> None:
    from whence.cli.mend_report import summarize_trial, write_trial_report
    from whence.cli.probe_options import print_warnings
    from whence.cli.progress import OutOfTime, probe_progress, stop_forward_passes
    from whence.cli.training_options import parse_duration
    from whence.mend import trial_plan as plans
    from whence.mend.trial import Trial
    from whence.probe import probed_model
    from whence.probe.identity import identify
    from whence.records import require_output_folder

    results = ctx.with_resource(json_document("mend", as_json))
    model = name_model(model, quick)
    require_output_folder("whence mend --out", out)
    seconds = parse_duration(budget)
    short = device == "cpu" and device_map is None
    plan = trial_plan(model, task, items, score, length, slots, margin, short)
    if not short:
        plan = plans.extend_plan(plan)
    if search_items is not None:
        plan = dataclasses.replace(plan, search_items=search_items)
    plan = dataclasses.replace(plan, dtype=dtype, chat=chat, revision=revision)
    cures = load_cures(cure, short)
    tasks = [spec.build() for spec in plan.tasks]  # errors in tasks and cures are raised before a model is loaded
    for spec, built in zip(plan.tasks, tasks, strict=True):
        spec.select_slots(built)
    print_warnings(plan.tasks, tasks, slots)
    lm = probed_model.load(
        model,
        device,
        dtype,
        revision=revision,
        device_map=device_map,
        chat=chat,
        batch_tokens=batch_tokens,
        command=COMMAND,
    )
    trial = Trial(lm, dataclasses.replace(plan, identity=identify(lm)), tasks, out)
    require_recipe_name(recipe, trial.folder, cures)
    for note in describe_short_searches(cure) if short else ():
        print(note, file=sys.stderr)
    try:
        with stop_forward_passes(lm.model, seconds / 60), probe_progress(seconds / 60) as notify:
            trial.run(cures, notify)
    except OutOfTime:
        print(
            f"stopped after {budget}; run the same command to resume. A record that takes longer than that needs a larger "
            f"--budget. Records: {trial.folder}",
            file=sys.stderr,
        )
    findings = write_trial_report(trial.folder, caller=COMMAND)
    results.update(folder=trial.folder, report=trial.folder / "report.html", **summarize_trial(findings))
    results["recipe"] = save_recipe(trial.folder, findings, lm.model, cures, recipe)


def name_model(model: str, quick: bool) -> str:
    """The model of the options, or an error if there is none or more than one."""
    from whence.probe.probed_model import QUICK

    if quick and model not in ("", QUICK):
        raise usage_error(
            f"{COMMAND} --quick", f"the model {model} too", "it has its own model", "leave one of them out"
        )
    if not quick and not model:
        raise usage_error(COMMAND, "no model", "cures are tried on one", "name one, such as smollm2, or pass --quick")
    return model or QUICK


def trial_plan(
    model: str,
    task: list[str] | None,
    items: list[str] | None,
    score: str,
    length: list[int] | None,
    slots: str | None,
    margin: float | None,
    short: bool,
) -> TrialPlan:
    """The plan of the options. ``short``: without tasks, take those that two cores can measure in minutes."""
    from whence.cli.probe_options import has_documents, select_tasks, split_items_option
    from whence.mend import trial_plan as plans
    from whence.probe.probed_model import QUICK
    from whence.probe.tasks import TASKS

    count, files = split_items_option(items, COMMAND)
    own_only = (task or files) and all(name not in TASKS for name in task or ())
    if model == QUICK:
        base = plans.quick_trial_plan()
    else:
        usual = plans.short_trial_plan if short and not (task or files or length) else plans.default_trial_plan
        base = usual(model, not own_only and has_documents())
    specs = select_tasks(base.tasks, task, count, length, files, slots, COMMAND)
    specs = tuple(one.with_items_hash() if one.is_custom else one for one in specs)
    return dataclasses.replace(base, tasks=specs, score=score, margin=plans.MARGIN if margin is None else margin)


def load_cures(texts: list[str] | None, short: bool) -> list[Intervention]:
    """The cures that the options name; all built-in ones by default. On a CPU, one without settings searches shortly."""
    from whence.mend import CURES, load_intervention
    from whence.mend.trial import label_cure
    from whence.mend.trial_plan import SHORT_SEARCH

    named = [SHORT_SEARCH.get(name.strip(), name) if short else name for name in texts or CURES]
    cures = [load_intervention(text, "--cure") for text in named]
    twice = {label_cure(cure) for cure in cures}
    if len(twice) < len(cures):
        raise usage_error("whence mend --cure", "a cure twice", "each cure is tried once", "name it once")
    return cures


def describe_short_searches(texts: list[str] | None) -> list[str]:
    """A note for the cures whose search is shorter on a CPU, as ``load_cures`` chooses it."""
    from whence.mend import CURES
    from whence.mend.trial_plan import SHORT_SEARCH

    if not texts:
        shortened = [name for name in CURES if name in SHORT_SEARCH]
        return [
            f"{' and '.join(shortened)}: short searches, because this is a CPU. For a full search name a cure with "
            f'parentheses, such as --cure "{shortened[0]}()", or use a GPU with --device.'
        ]
    return [
        f"{name}: a short search, because this is a CPU: {SHORT_SEARCH[name.strip()]}. For the full search pass settings, such as "
        f'"{name}()", or a GPU with --device.'
        for name in texts
        if name.strip() in SHORT_SEARCH
    ]


def require_recipe_name(name: str | None, folder: Path, cures: list[Intervention]) -> None:
    """Raise before a trial if ``--recipe`` names no cure of it."""
    from whence import records
    from whence.mend import identify_intervention
    from whence.mend.trial import CURE, distinguish_names, label_cure

    if name is None:
        return
    earlier = [
        records.read(folder / file) for file in records.RecordFolder(folder).names() if file.startswith(f"{CURE}-")
    ]
    named = {label_cure(cure): identify_intervention(cure) for cure in cures}
    every = {one["label"]: one["cure"] for one in earlier if "unavailable" not in one} | named
    names = distinguish_names(every)
    known = [{"label": label, "name": one["name"], "display_name": names[label]} for label, one in every.items()]
    base = name.partition("(")[0].strip()
    if find_cure(name, known, named) is None and base not in [
        one["name"] for one in known
    ]:  # settings are chosen later
        raise unknown_recipe(name, names.values())


def find_cure(name: str, known: Sequence[dict[str, Any]], named: Collection[str]) -> dict[str, Any] | None:
    """The cure that ``--recipe`` names; None if there is none. A name with several settings is an error.

    Args:
        name: a name, a name with settings, or a label.
        known: the cures, each with its label, its name and its display name.
        named: the labels of the cures of this command, which come before those of earlier ones.
    """
    for one in known:
        if name in (one["display_name"], one["label"], one.get("text")):
            return one
    same = [one for one in known if one["name"] == name]
    same = [one for one in same if one["label"] in named] or same
    if len(same) > 1:
        texts = ", ".join(f'"{one["display_name"]}"' for one in same)
        raise usage_error(
            "whence mend --recipe",
            name,
            f"{len(same)} cures have this name",
            f"pass one of them with its settings: {texts}",
        )
    return same[0] if same else None


def unknown_recipe(name: str, names: Iterable[str]) -> WhenceError:
    """The error for a ``--recipe`` that names no cure of a trial."""
    cures = ", ".join(names)
    return usage_error("whence mend --recipe", name, f"the cures are {cures or 'none'}", "name one of them")


def save_recipe(
    folder: Path, findings: dict[str, Any], model: Any, cures: list[Intervention], name: str | None
) -> Path | None:
    """Write the recipe of the best cure if it is better, or of the cure with a name. Returns its path, if one is written."""
    from whence.mend.recipe import write_recipe
    from whence.mend.trial import label_cure
    from whence.report.mend.sentences import best_cure

    chosen = best_cure(findings)
    reason = "no cure is better than the untouched model; --recipe CURE writes one with its verdict"
    if name is not None:
        chosen = find_cure(name, findings["cures"], {label_cure(cure) for cure in cures})
        if any(name in (one["name"], one["display_name"]) for one in findings["unavailable"]):
            reason = f"{name} cannot be applied"
        elif findings["missing"]:
            reason = f"{name} has no verdict yet; run the same command to resume"
        elif chosen is None:
            raise unknown_recipe(name, [one["display_name"] for one in findings["cures"]])
    elif not findings["cures"]:
        reason = "no cure has been measured yet"
    if chosen is None:
        print(f"no recipe: {reason}")
        print_earlier_recipe(folder)
        return None
    cure = rebuild_cure(chosen, cures)
    if cure is None:
        print(f"no recipe: {chosen['text']} needs a file or a folder that is not here; name it with --cure")
        print_earlier_recipe(folder)
        return None
    path = write_recipe(folder, findings, chosen, model, cure)
    print(f"recipe ({chosen['verdict']}) of {chosen['display_name']}: {path}")
    return path


def rebuild_cure(chosen: dict[str, Any], cures: list[Intervention]) -> Intervention | None:
    """The cure of a trial with its settings, also if an earlier command tried it; None if its file or its adapter is not here."""
    from whence.mend.protocol import BUILT_IN, identify_intervention
    from whence.mend.trial import label_cure, with_settings

    settings = chosen["chosen"]["settings"]
    cure = next((one for one in cures if label_cure(one) == chosen["label"]), None)
    if cure is not None:
        return with_settings(cure, settings)
    kind = BUILT_IN.get(chosen["name"])
    if kind is None:
        return None
    try:
        built: Intervention = kind(**settings)
    except WhenceError:
        return None
    return built if identify_intervention(built) == chosen["chosen"] else None


def print_earlier_recipe(folder: Path) -> None:
    """Say what the recipe of an earlier command holds, if there is one."""
    from whence import records
    from whence.mend.recipe import RECIPE

    if records.exists(folder / RECIPE):
        recipe = records.read(folder / RECIPE)
        verdict = recipe["evidence"]["verdict"]
        print(f"{folder / RECIPE} is of an earlier command: {recipe['cure']}, which was {verdict} then")
