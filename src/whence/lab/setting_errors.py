"""Errors about settings name what the user wrote: an option or an arm, not the class that rejects the value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from whence.errors import WhenceError

#: the subject of an error of one of these classes, such as ModelSpec(embed_dim=..., heads=...)
SUBJECT = re.compile(r"(?:Budget|Decision|ModelSpec)\(((?:\w+=\.\.\.(?:, )?)+)\)(?= got )")


@contextmanager
def rename_settings(rename: Callable[[list[str]], str]) -> Iterator[None]:
    """Raise errors of the body about settings with other names for them.

    >>> with rename_settings(lambda names: f"--{names[0]}"):
    ...     raise WhenceError("Budget(lr=...) got 0, but it must be above 0; set another value.")
    Traceback (most recent call last):
    whence.errors.WhenceError: --lr got 0, but it must be above 0; set another value.
    """
    try:
        yield
    except WhenceError as error:
        found = SUBJECT.match(str(error))
        if found is None:
            raise
        subject = rename(re.findall(r"(\w+)=", found[1]))
        raise type(error)(subject + str(error)[found.end() :]) from None


def rename_arm_settings(arm: str) -> AbstractContextManager[None]:
    """Raise errors of the body about settings as errors about the settings of an arm."""
    return rename_settings(lambda names: f"{' and '.join(names)} of the arm {arm!r}")
