"""Exceptions, and the form of every error text: the call or option, the value received, the rule, the remedy."""

from __future__ import annotations

import importlib
from typing import Any


class WhenceError(ValueError):
    """Invalid input. Raised before any computation starts, except for ``NonFiniteHook``."""


class UnknownArgument(WhenceError, TypeError):
    """A call has an argument that the function does not take."""


class NonFiniteHook(WhenceError):
    """A hook of a mechanism returned NaN or an infinity that reached the output."""


class CausalOnly(WhenceError):
    """A mechanism that is defined for keys at or before the query is used in attention without a causal mask."""


class MissingExtra(WhenceError, ImportError):
    """A feature needs an optional dependency that is not installed or cannot be imported."""


class Terminated(WhenceError):
    """A signal or a time limit asked training to stop. A checkpoint was written; the run resumes from it."""

    def __init__(self, message: str, signal_number: int | None = None) -> None:
        super().__init__(message)
        self.signal_number = signal_number  # of the signal that asked, if one did


def usage_error(
    subject: str, got: str, rule: str, remedy: str, *, kind: type[WhenceError] = WhenceError
) -> WhenceError:
    """An error to raise, as one sentence. A remedy that is a question comes before the rule, which may be a long list.

    >>> print(usage_error("attend(q)", "rank 3", "q must have rank 4", "add the batch axis"))
    attend(q) got rank 3, but q must have rank 4; add the batch axis.
    >>> print(usage_error("--task", "'cpoy'", "the tasks are copy, recall", "did you mean copy?"))
    --task got 'cpoy'; did you mean copy? (the tasks are copy, recall)
    """
    if remedy.endswith("?"):
        return kind(f"{subject} got {got}; {remedy} ({rule})")
    return kind(f"{subject} got {got}, but {rule}; {remedy}.")


def missing_extra(feature: str, extra: str, package: str) -> MissingExtra:
    """The error for a feature whose extra is not installed.

    >>> print(missing_extra("whence.show", "plot", "matplotlib"))
    whence.show needs matplotlib, which is not installed; run: pip install "whence[plot]".
    """
    return MissingExtra(f'{feature} needs {package}, which is not installed; run: pip install "whence[{extra}]".')


def require_package(module: str, feature: str, extra: str) -> Any:
    """Import a module of an optional package when a feature needs it. ``MissingExtra`` names what to install.

    A package that is installed but fails to import is reported as such, with the reason.

    >>> require_package("json", "the example", "lab").loads("1")
    1
    >>> require_package("nonesuch.parts", "the example", "lab")
    Traceback (most recent call last):
    whence.errors.MissingExtra: the example needs nonesuch, which is not installed; run: pip install "whence[lab]".
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)  # a submodule that is already loaded would not import its package again
        return importlib.import_module(module)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise missing_extra(feature, extra, package) from None
        raise MissingExtra(
            f"{feature} needs {module}, but the installed {package} fails to import ({type(error).__name__}: {error}); "
            f'correct that, or run: pip install --upgrade "whence[{extra}]".'
        ) from error
