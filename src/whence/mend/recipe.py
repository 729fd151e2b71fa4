"""A recipe: one cure with its settings, the model it was judged on, and the evidence, as a JSON file.

The checksum of the model is over its weights in bfloat16, so a model that is loaded in float32 and in bfloat16 from one
checkpoint is the same model.

The source file of a cure of your own is copied beside the recipe, with the modules of its folder that it imports. The
folder can then be moved. A recipe stores the hash of the source, and other code is an error.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import os
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from whence import records
from whence.errors import usage_error
from whence.hf.integrations import unwrap_peft
from whence.mend.cure import Cure
from whence.mend.protocol import BUILT_IN, Intervention, identify_intervention, load_intervention
from whence.plugin_sources import find_sibling_modules
from whence.plugins import FILE_MODULE
from whence.probe.identity import checksum

FORMAT = 1
RECIPE = "recipe.json"
SOURCE = "cure_source"  # the folder with the source file of a cure of the user
HASH = "source_sha256"
APPLIED = "_whence_recipes"  # attribute of a model


class AppliedRecipe:
    """A recipe on a model. It stays until ``remove()``, or until the end of a ``with`` block; the model keeps it meanwhile.

    Attributes:
        cure: the intervention. A cure that rewrites prompts, such as an order of documents, does it with
            ``cure.rewrite(lm, prompt)``.
        recipe: the content of the file.
    """

    def __init__(self, model: Any, cure: Intervention, recipe: dict[str, Any]) -> None:
        self.cure, self.recipe, self._model = cure, recipe, model
        applied = applied_recipes(model)
        if any(one.recipe == recipe for one in applied):
            raise usage_error(
                "apply_recipe(model)",
                f"a model with the recipe of {cure.name} on it",
                "a recipe is applied once",
                "call remove() of the first result",
            )
        self._undo = ExitStack()
        self._undo.enter_context(cure.apply(model))
        model.__dict__[APPLIED] = [*applied, self]  # otherwise an unused result, and with it the cure, would be lost

    def remove(self) -> None:
        """Restore the model exactly. Calling it again does nothing. The recipe that was applied last is removed first."""
        applied = applied_recipes(self._model)
        if self not in applied:
            return
        if applied[-1] is not self:
            raise usage_error(
                "AppliedRecipe.remove()",
                f"the recipe of {self.cure.name}",
                f"the recipe of {applied[-1].cure.name} was applied after it",
                "remove that one first",
            )
        self._undo.close()
        self._model.__dict__[APPLIED] = applied[:-1]
        if not applied[:-1]:
            del self._model.__dict__[APPLIED]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # a copy of the model is as it was when it was copied, and has nothing to remove

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def applied_recipes(model: Any) -> list[AppliedRecipe]:
    """The recipes on a model, in the order in which they were applied."""
    return list(model.__dict__.get(APPLIED, ()))


def apply_recipe(model: Any, path: str | Path, *, force: bool = False) -> AppliedRecipe:
    """Put the cure of a recipe on a model; see ``whence.hf.apply_recipe``."""
    subject = "apply_recipe(path)"
    recipe = read_recipe(subject, Path(path))
    found, expected = model_checksum(model), recipe["model"]["checksum"]
    if found != expected:
        error = usage_error(
            "apply_recipe(model)",
            f"a model with the checksum {found[:12]}",
            f"the recipe was made for {recipe['model']['name']} with the checksum {expected[:12]}",
            "load that model, run whence mend on this one, or pass force=True",
        )
        if not force:
            raise error
        warnings.warn(f"the evidence of the recipe is about another model: {error}", stacklevel=3)
    cure = load_recipe_cure(subject, Path(path), recipe)
    if isinstance(cure, Cure) and cure.rewrites_prompts:
        warnings.warn(
            f"{cure.name} changes prompts and nothing in the model; pass every prompt through cure.rewrite(lm, prompt) of "
            "the result",
            stacklevel=3,
        )
    return AppliedRecipe(model, cure, recipe)


def load_recipe_cure(subject: str, path: Path, recipe: dict[str, Any]) -> Intervention:
    """The cure of a recipe. Code outside whence must be that which was judged."""
    folder = path if path.is_dir() else path.parent
    cure = load_intervention(recipe["cure"], subject, folder)
    found, expected = identify_intervention(cure).get(HASH), recipe.get(HASH)
    if expected is not None and found != expected:
        raise usage_error(
            subject,
            f"{recipe['cure']} with the source {str(found)[:12]}",
            f"the recipe was made with the source {expected[:12]}",
            "restore the file, or judge the new one with whence mend",
        )
    return cure


def read_recipe(subject: str, path: Path) -> dict[str, Any]:
    """The content of a recipe."""
    file = path / RECIPE if path.is_dir() or not path.suffix else path  # the folder of a packed trial does not exist
    if not records.exists(file):
        raise usage_error(subject, f"no file {file}", "whence mend writes recipes", "check the path")
    recipe = records.read(file)
    model = recipe.get("model")
    complete = isinstance(model, dict) and all(isinstance(model.get(name), str) for name in ("name", "checksum"))
    if recipe.get("format") != FORMAT or not isinstance(recipe.get("cure"), str) or not complete:
        raise usage_error(
            subject,
            str(path),
            f"a recipe has the format {FORMAT}, a cure, and a model with its name and its checksum",
            "write one with whence mend",
        )
    return recipe


def write_recipe(folder: Path, findings: dict[str, Any], cure: dict[str, Any], model: Any, build: Intervention) -> Path:
    """Write the recipe of one cure of a trial into the folder of its records.

    Args:
        findings: of ``collect_trial``.
        cure: one of its cures.
        model: the untouched model.
        build: the intervention with the chosen settings.
    """
    names = [
        name for name in records.RecordFolder(folder).names() if f"-{cure['label']}" in name or "untouched" in name
    ]
    source = _copy_source(build, folder)
    settings = {**cure["chosen"]["settings"], **relative_paths(build, folder)}
    content = {
        "format": FORMAT,
        "cure": name_intervention(build, settings, None if source is None else f"./{source}"),
        "settings": settings,
        **{name: value for name, value in identify_intervention(build).items() if name == HASH},
        "model": {"name": findings["model"]["name"], "checksum": model_checksum(model)},
        "evidence": {
            "verdict": cure["verdict"],
            "contrast": cure["contrast"],
            **{name: cure[name] for name in ("average", "worst", "gap", "ratios", "perplexity", "at_best")},
            "untouched": {name: findings["untouched"][name] for name in ("average", "worst", "gap")},
            "tasks": [{name: one[name] for name in ("task", "name", "hash", "items")} for one in findings["tasks"]],
            "plan": findings["hash"],
            "records": {name: _hash_record(records.read(folder / name)) for name in names},
        },
        "whence": importlib.metadata.version("whence"),
    }
    path = folder / RECIPE
    records.write(path, content)
    return path


def relative_paths(intervention: Intervention, folder: Path) -> dict[str, str]:
    """The settings of an intervention that are relative paths, relative to the folder of its recipe."""
    settings = dict(intervention.settings())
    paths = {name: settings.get(name) for name in getattr(type(intervention), "path_settings", ())}
    return {
        name: Path(os.path.relpath(path, folder)).as_posix()
        for name, path in paths.items()
        if path is not None and not Path(path).expanduser().is_absolute()
    }


def name_intervention(intervention: Intervention, settings: Mapping[str, Any], source: str | None = None) -> str:
    """The text with which ``load_intervention`` builds an intervention again. ``source`` is its file, if it is of a file."""
    kind = type(intervention)
    arguments = ", ".join(f"{name}={value!r}" for name, value in sorted(settings.items()))
    if BUILT_IN.get(intervention.name) is kind:
        return f"{intervention.name}({arguments})"
    return f"{source or kind.__module__}:{kind.__qualname__}({arguments})"


def _copy_source(intervention: Intervention, folder: Path) -> str | None:
    """Copy the file of a cure, and the modules beside it that it imports. Its path in the folder; None if it has no file."""
    kind = type(intervention)
    file = inspect.getsourcefile(kind) if kind.__module__.startswith(FILE_MODULE) else None
    if file is None:
        return None
    path = Path(file).resolve()
    for one in (path, *find_sibling_modules(path)):
        copy = folder / SOURCE / one.relative_to(path.parent)
        if copy.resolve() != one:
            records.make_folder(copy.parent)
            records.write_bytes(copy, one.read_bytes())
    return f"{SOURCE}/{path.name}"


def model_checksum(model: Any) -> str:
    """SHA-256 of the weights in bfloat16, with their names."""
    model = unwrap_peft(model)
    if not isinstance(model, nn.Module):
        raise usage_error(
            "apply_recipe(model)",
            f"a {type(model).__name__}",
            "it must be a model of transformers",
            "load one with AutoModelForCausalLM.from_pretrained",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = model.state_dict()
    entries = {
        name: value.to(torch.bfloat16) if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in state.items()
    }
    return str(checksum(entries.items())["sha256"])


def _hash_record(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
