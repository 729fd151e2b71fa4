"""``Intervention``: the protocol of everything that changes a model's behavior temporarily, and how one is named.

An intervention is an object with a name, settings, a context manager that changes a model, and controls. It is named in
a text in one of three forms:

    attention-temperature(temperature=1.5)     built in, or registered in the entry-point group ``whence.interventions``
    my_module:Sharpen(strength=2)              a class or function of a module that can be imported
    ./sharpen.py:Sharpen(strength=2)           a class or function of a file

Arguments are literals. They are parsed and never evaluated.

Example::

    intervention = load_intervention("attention-temperature(temperature=1.5)")
    with intervention.apply(model):
        logits = model(tokens).logits
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import nn

from whence.errors import WhenceError, usage_error
from whence.mend.catalogue import CURES
from whence.plugin_sources import hash_source_file
from whence.plugins import (
    INTERVENTIONS,
    did_you_mean,
    entry_points,
    is_reference,
    load_reference,
    load_registered,
    parse_arguments,
    parse_reference,
    rebase_file,
    require_known_settings,
    split_file,
)


@runtime_checkable
class Intervention(Protocol):
    """A temporary change to a model. Any object with these four members is one; no base class is needed."""

    @property
    def name(self) -> str:
        """A short name for tables and pages."""

    def settings(self) -> Mapping[str, Any]:
        """Everything that changes the effect, as JSON values. A record's hash includes it."""

    def apply(self, model: Any) -> AbstractContextManager[Any]:
        """Change the model inside the block and restore it exactly afterwards, also after an error."""

    def controls(self) -> Sequence[Intervention]:
        """What the intervention is compared with besides the unchanged model. May be empty."""


class AttentionTemperature:
    """Divide the attention scores of every layer by a temperature. The simplest intervention, and a template for others.

    A temperature above 1 flattens the attention weights, one below 1 sharpens them. It changes the attribute ``scaling``,
    which the attention modules of transformers multiply their scores by.

    Args:
        temperature: divides the scores; above 0.

    >>> hot = AttentionTemperature(temperature=2.0)
    >>> hot.settings(), [control.settings() for control in hot.controls()]
    ({'temperature': 2.0}, [{'temperature': 1.0}])
    """

    name = "attention-temperature"

    def __init__(self, temperature: float = 1.0) -> None:
        number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
        if not number or not (math.isfinite(temperature) and temperature > 0):
            raise usage_error(
                "AttentionTemperature(temperature=...)",
                repr(temperature),
                "temperature must be a finite number above 0",
                "pass 1.0 for no change",
            )
        self.temperature = float(temperature)

    def settings(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    @contextmanager
    def apply(self, model: nn.Module) -> Iterator[None]:
        modules: list[Any] = [m for m in model.modules() if isinstance(m.__dict__.get("scaling"), float)]
        before = [(module, module.scaling) for module in modules]
        if not before:
            raise usage_error(
                "AttentionTemperature.apply(model)",
                type(model).__name__,
                "the attention modules must have a number in the attribute scaling",
                "use a model such as LlamaForCausalLM or Qwen3ForCausalLM",
            )
        try:
            for module, scaling in before:
                module.scaling = scaling / self.temperature
            yield
        finally:
            for module, scaling in before:
                module.scaling = scaling

    def controls(self) -> tuple[AttentionTemperature, ...]:
        """Temperature 1, which must change nothing: it tests the machinery."""
        return () if self.temperature == 1 else (AttentionTemperature(1.0),)


BUILT_IN: dict[str, Any] = {AttentionTemperature.name: AttentionTemperature, **CURES}


def load_intervention(text: str, option: str = "--intervention", folder: Path | None = None) -> Intervention:
    """The intervention that a text names, built with the arguments in the text. ``option`` is named in errors.

    Relative paths, of a file in the text and of a cure's ``path_settings``, are resolved against ``folder`` if it is given.

    >>> load_intervention("attention-temperature(temperature=2)").settings()
    {'temperature': 2.0}
    """
    subject = f"{option} {text}"
    _require_closed_parenthesis(text, subject)
    text = text if folder is None else rebase_file(text, folder)
    if is_reference(text):
        reference = parse_reference(text, option)
        factory, arguments = load_reference(reference, subject), reference.arguments
    else:
        factory, arguments = _find_factory(text, subject)
    if not callable(factory):
        raise usage_error(subject, f"a {type(factory).__name__}", "it must be a class or a function", "check the name")
    if folder is not None:
        paths = {
            name: arguments[name] for name in getattr(factory, "path_settings", ()) if arguments.get(name) is not None
        }
        arguments |= {name: os.path.normpath(folder / Path(path).expanduser()) for name, path in paths.items()}
    require_known_settings(subject, factory, arguments)
    try:
        intervention = factory(**arguments)
    except WhenceError:
        raise
    except Exception as error:
        raise usage_error(
            subject, f"{type(error).__name__}: {error}", "it must be built without an error", "correct its arguments"
        ) from error
    return require_intervention(subject, intervention)


def _require_closed_parenthesis(text: str, subject: str) -> None:
    _, rest = split_file(text) or ("", text)
    if "(" in rest and not rest.rstrip().endswith(")"):
        raise usage_error(
            subject, "settings without a closing parenthesis", "they are written NAME(setting=value)", "add the )"
        )


def require_intervention(subject: str, intervention: object) -> Intervention:
    """The object itself, if it follows the protocol; otherwise an error that names the missing members."""
    missing = [
        member
        for member in ("name", "settings", "apply", "controls")
        if not hasattr(intervention, member) or (member != "name" and not callable(getattr(intervention, member)))
    ]
    if missing:
        raise usage_error(
            subject,
            f"a {type(intervention).__name__} without {', '.join(missing)}",
            "an intervention has name, settings(), apply(model) and controls()",
            f"add {', '.join(missing)}; see whence.mend.Intervention",
        )
    assert isinstance(intervention, Intervention)
    return intervention


def identify_intervention(intervention: Intervention) -> dict[str, Any]:
    """What a record stores of an intervention: its name, class, settings and, for code outside whence, a source hash.

    Two interventions with equal identities have the same effect, so this belongs in the hash of a record's spec.

    >>> identity = identify_intervention(AttentionTemperature(2.0))
    >>> identity["name"], identity["settings"], "source_sha256" in identity
    ('attention-temperature', {'temperature': 2.0}, False)
    """
    kind = type(intervention)
    settings = dict(intervention.settings())
    try:
        settings = json.loads(json.dumps(settings, sort_keys=True, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise usage_error(
            f"{kind.__name__}.settings()",
            str(error),
            "settings are part of a record and must be JSON values",
            "return numbers, texts, lists and dictionaries",
        ) from None
    identity: dict[str, Any] = {"name": intervention.name, "class": kind.__qualname__, "settings": settings}
    if kind.__module__.partition(".")[0] != "whence":
        identity["source_sha256"] = hash_source_file(kind)
    return identity


def _find_factory(text: str, subject: str) -> tuple[Any, dict[str, Any]]:
    """The built-in or installed factory that a text names, and the arguments in the text."""
    match = re.fullmatch(r"\s*([\w.-]+)\s*(\(.*\))?\s*", text, re.DOTALL)
    name = match[1] if match else text
    if match:
        factory = BUILT_IN.get(name) or load_registered(INTERVENTIONS, name, subject)
        if factory is not None:
            return factory, parse_arguments(match[2], subject)
    installed = entry_points(INTERVENTIONS)
    raise usage_error(
        subject,
        f"the unknown name {name}",
        f"the interventions are {', '.join(sorted({*BUILT_IN, *installed}))}",
        did_you_mean(
            name, (*BUILT_IN, *installed), "choose one of them, or name your own as module:Name or ./file.py:Name"
        ),
    )
