"""The model of a page and the work with it: one pass at a time, and what it has done so far while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from whence.explore.known_tokens import KnownTokens
from whence.explore.model_reading import NOTHING, Reading, load_model, read
from whence.hf import LoadedModel

#: seconds between two displays of progress
INTERVAL = 0.2


@dataclass
class ReadText:
    """The readings of one text, kept so that nothing is computed twice: as it is, and with the latest change."""

    model: str
    text: str
    change: str = NOTHING
    readings: dict[str, Reading] = field(default_factory=dict)

    @property
    def shown(self) -> Reading:
        """The reading of which attention is drawn: with the change, if there is one."""
        return self.readings[self.change]


class ModelSession:
    """The model of a page, loaded on first use; one at a time, because a model is large."""

    def __init__(self) -> None:
        self.name = ""
        self.loaded: LoadedModel | None = None
        self.needle: KnownTokens | None = None  # the text of the last needle
        self.lock = threading.Lock()  # a change of the model must not be seen by another pass

    def get(self, name: str) -> LoadedModel:
        if self.loaded is None or name != self.name:
            self.loaded = self.needle = None
            self.loaded = load_model(name)
            self.name = name
        return self.loaded

    def run(self, name: str, work: Callable[..., Any]) -> Iterator[Any]:
        """Call ``work(lm, report=...)`` in a thread. Yields what it reports, the latest only, and at last what it returns.

        The thread ends its work even if nobody waits for it, so the model is always restored.
        """
        messages: SimpleQueue[tuple[str, Any]] = SimpleQueue()

        def target() -> None:
            try:
                with self.lock:
                    result = work(self.get(name), report=lambda value: messages.put(("report", value)))
                messages.put(("result", result))
            except Exception as problem:  # raised again where it is waited for
                messages.put(("problem", problem))

        threading.Thread(target=target, daemon=True).start()
        last = 0.0
        while True:
            kind, value = messages.get()
            while kind == "report" and not messages.empty():
                kind, value = messages.get()
            if kind == "problem":
                raise value
            if kind == "result" or time.monotonic() - last > INTERVAL:
                yield value
                last = time.monotonic()
            if kind == "result":
                return

    def read(self, before: ReadText | None, name: str, text: str, change: str) -> Iterator[Reading | ReadText]:
        """Read a text, as it is and with a change, as far as ``before`` does not have it. Yields progress, then all."""
        change = change.strip() or NOTHING
        if before is not None and (before.model, self.name) != (name, name):
            before = None  # of another model
        known = before.readings if before is not None and before.text == text else {}
        earlier = None if before is None else before.readings[NOTHING]
        readings = {one: known[one] for one in (NOTHING, change) if one in known}
        for one in dict.fromkeys((NOTHING, change)):
            if one not in readings:
                for reading in self.run(name, partial(read, text=text, change=one, before=earlier)):
                    yield reading
                readings[one] = reading
        yield ReadText(name, text, change, readings)
