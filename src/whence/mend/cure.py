"""``Cure``: the base class of the built-in cures for positional bias. Each cure is one file, with its paper named.

A cure is an intervention (``whence.mend.Intervention``) that can do three more things: change a prompt before it is
tokenized, choose its own settings on a validation set, and say why it cannot be applied to a model. Most cures define
``edits`` alone: a ``whence.hf.AttentionEdit`` for each layer.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Self

from whence.errors import WhenceError
from whence.hf.edits import AttentionEdit
from whence.hf.intervene import intervene
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks.task import Prompt
from whence.user_code import find_user_frame

#: errors of a cure on a family of models whose modules differ from those that it knows
FAMILY_ERRORS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError)


class Cure(ABC):
    """The base class. Settings are the constructor's arguments, each kept in an attribute of the same name.

    Attributes:
        name: for ``--cure`` and tables.
        title: for pages.
        paper: authors, year and arXiv number.
        needs_documents: the token spans of the documents of a prompt must be known; see ``whence.hf.request``.
        path_settings: settings that are paths. A recipe stores a relative one relative to its own folder.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    needs_documents: ClassVar[bool] = False
    path_settings: ClassVar[tuple[str, ...]] = ()

    def edits(self, model: Any) -> AttentionEdit | Mapping[int, AttentionEdit]:
        """The edits of the model's layers: one for all, or by layer. New ones for each use, because they may hold state.

        A cure of the prompt's text alone has none.
        """
        return {}

    @abstractmethod
    def identity(self) -> Self:
        """The same cure with the setting that changes nothing."""

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments as JSON values."""
        names = [name for name in inspect.signature(type(self).__init__).parameters if name != "self"]
        return {name: _to_json(getattr(self, name)) for name in names}

    def apply(self, model: Any) -> AbstractContextManager[Any]:
        """Change the model inside the block and restore it exactly afterwards, also after an error."""
        return self._apply(model)

    @contextmanager
    def _apply(self, model: Any) -> Iterator[None]:
        edits = self.edits(model)
        with nullcontext() if isinstance(edits, Mapping) and not edits else intervene(model, edits):
            yield

    def controls(self) -> Sequence[Self]:
        """The identity setting, which must change nothing: it tests the machinery."""
        identity = self.identity()
        return () if identity.settings() == self.settings() else (identity,)

    def rewrite(self, lm: ProbedModel, prompt: Prompt) -> Prompt:
        """The prompt that the model reads instead, for cures that act on its text."""
        return prompt

    @property
    def rewrites_prompts(self) -> bool:
        """Whether the cure acts through ``rewrite``."""
        return type(self).rewrite is not Cure.rewrite

    def search(self, lm: ProbedModel, prompts: Sequence[Prompt]) -> Self:
        """The same cure with settings chosen on these prompts; itself if it has nothing to choose."""
        return self

    def describe_effect(self, lm: ProbedModel, prompts: Sequence[Prompt]) -> dict[str, Any] | None:
        """The attention to each slot by the cure's main setting, for the report: ``setting``, ``values`` and ``slots``.

        ``slots`` has a row for each value. None if the cure has no such figure.

        Args:
            prompts: with the same number of slots.
        """
        return None

    def unavailable(self, model: Any) -> str | None:
        """Why the cure cannot be applied to a model, in one sentence; None if it can."""
        return why_unavailable(self, model)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.settings().items())})"


def why_unavailable(cure: Any, model: Any) -> str | None:
    """Why an intervention cannot be applied to a model, in one sentence; None if it can. An error of the user's code is raised."""
    try:
        with cure.apply(model):
            return None
    except WhenceError as error:
        return str(error)
    except FAMILY_ERRORS as error:
        if find_user_frame(error) is not None:
            raise
        return describe_failure(error)


def describe_failure(error: Exception) -> str:
    """Why a cure failed that does not know this family of models."""
    text = " ".join(str(error).split())[:200].rstrip(".")
    return f"it failed on this model with {type(error).__name__}: {text}"


def number_of_layers(model: Any) -> int:
    return int(model.config.get_text_config().num_hidden_layers)


def context_length(model: Any) -> int:
    """The number of tokens that the model was trained for, as its config states it; 2048 if it does not."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2048)


def _to_json(value: Any) -> Any:
    if isinstance(value, range | tuple | list):
        return [_to_json(one) for one in value]
    return value
