"""``apply_recipe``: put the cure that ``whence mend`` has chosen on a model."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any


def apply_recipe(model: Any, path: str | Path, *, force: bool = False) -> Any:
    """Put the cure of a recipe on a model. ``remove()`` on the result, or the end of a ``with`` block, restores the model.

    Args:
        model: the causal language model that the recipe was made for, in any precision.
        path: ``recipe.json`` of ``whence mend``, or its folder.
        force: apply it to another model too, with a warning.

    Example::

        applied = hf.apply_recipe(model, "recipe.json")
        model.generate(tokens)
        applied.remove()
    """
    recipes = importlib.import_module("whence.mend.recipe")  # cures are built on this package
    return recipes.apply_recipe(model, path, force=force)
