"""Settings of the model and of training by name: the fields of ``ModelSpec`` and ``Budget``, one vocabulary for options,
TOML files, arms and sweeps.

    lr=3e-4                              a setting
    lr=1e-4,3e-4,1e-3                    the values of a sweep
    rotary; lr=3e-4; layers=4            an arm: a position, then what differs from the other arms
    preset=qwen3-20m                     the model settings of a preset; other settings override them

Records contain the settings of a preset and not its name.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.lab.arms import Arm
from whence.lab.study import Budget
from whence.models import PRESETS, ModelSpec
from whence.plugins import did_you_mean
from whence.position.expression import parse_position, rebase_position, split_outside

#: fields of ModelSpec that the task determines
OF_THE_TASK = ("kind", "vocab_size", "num_classes")
MODEL_SETTINGS = tuple(field.name for field in fields(ModelSpec) if field.name not in OF_THE_TASK)
BUDGET_SETTINGS = tuple(field.name for field in fields(Budget))
#: the name of a preset of whence.models, which stands for several settings
PRESET = "preset"
_WORDS = {"true": True, "false": False, "none": None}


def split_settings(settings: Mapping[str, Any], subject: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the model and those of the training budget. ``subject`` begins the error text.

    >>> split_settings({"lr": 3e-4, "layers": 4}, "")
    ({'layers': 4}, {'lr': 0.0003})
    >>> split_settings({"layers": 4, "preset": "qwen3-20m"}, "")[0]["layers"]
    4
    """
    known = (*MODEL_SETTINGS, *BUDGET_SETTINGS, PRESET)
    for name in settings:
        if name in OF_THE_TASK:
            raise usage_error(subject, f"the setting {name}", "the task determines it", "leave it out")
        if name not in known:
            rule = f"the settings are {', '.join(known)}"
            raise usage_error(
                subject, f"the unknown setting {name}", rule, did_you_mean(name, known, "rename or remove it")
            )
    model = find_preset(settings[PRESET], subject) if PRESET in settings else {}
    model |= {name: value for name, value in settings.items() if name in MODEL_SETTINGS}
    return model, {name: value for name, value in settings.items() if name in BUDGET_SETTINGS}


def find_preset(name: Any, subject: str) -> dict[str, Any]:
    """The model settings of a preset.

    >>> find_preset("qwen3-20m", "")["layers"]
    8
    """
    if not isinstance(name, str) or name not in PRESETS:
        remedy = did_you_mean(str(name), PRESETS, "choose one of them")
        raise usage_error(subject, f"{PRESET}={name!r}", f"the presets are {', '.join(PRESETS)}", remedy)
    return dict(PRESETS[name])


def parse_setting(text: str, subject: str) -> tuple[str, Any]:
    """The name and the value of a setting.

    >>> parse_setting("lr=3e-4", ""), parse_setting("schedule = cosine", ""), parse_setting("bias=false", "")
    (('lr', 0.0003), ('schedule', 'cosine'), ('bias', False))
    """
    name, sign, value = text.partition("=")
    if not sign or not name.strip() or not value.strip():
        raise usage_error(subject, repr(text), "a setting is a name, = and a value", "write lr=3e-4, for example")
    parsed = parse_value(value)
    split_settings({name.strip(): parsed}, subject)
    return name.strip(), parsed


def parse_value(text: str) -> Any:
    """A literal, or a word as it is. Nothing is evaluated.

    >>> parse_value("8"), parse_value("1e-3"), parse_value("AdamW"), parse_value("none")
    (8, 0.001, 'AdamW', None)
    """
    word = text.strip()
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        return ast.literal_eval(word)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return word


def parse_arm_text(text: str) -> Arm:
    """An arm from a position, with the settings that follow after semicolons. Its name is the text.

    >>> parse_arm_text("alibi"), parse_arm_text("rotary; lr=3e-4; layers=4").budget
    (Arm(name='alibi', position='Alibi()', model={}, budget={}), {'lr': 0.0003})
    """
    subject = f"position {text!r}"
    first, *rest = split_outside(text, ";")
    position = parse_position(first)
    settings: dict[str, Any] = {}
    for part in rest:
        name, value = parse_setting(part, subject)
        if name in settings:
            raise usage_error(subject, f"the setting {name} twice", "each setting may occur once", f"keep one {name}=")
        settings[name] = value
    model, budget = split_settings(settings, subject)
    return Arm("; ".join(part.strip() for part in (first, *rest)), position.text, model, budget)


def rebase_arm(text: str, folder: Path) -> str:
    """The text of an arm with the relative paths in it resolved against a folder.

    >>> rebase_arm("./bell.py; lr=3e-4", Path("/studies"))
    '/studies/bell.py; lr=3e-4'
    """
    first, *rest = split_outside(text, ";")
    return ";".join([rebase_position(first, folder), *rest])


def parse_arm_table(table: Any, subject: str) -> Arm:
    """An arm from a TOML table: ``position``, ``name``, and settings, alone or in the tables ``model`` and ``budget``.

    >>> parse_arm_table({"name": "slow", "position": "rotary", "lr": 1e-4, "model": {"layers": 4}}, "")
    Arm(name='slow', position='Rotary()', model={'layers': 4}, budget={'lr': 0.0001})
    """
    if not isinstance(table, Mapping) or not isinstance(table.get("position"), str):
        got = f"{table!r} without a position" if isinstance(table, Mapping) else repr(table)
        rule = "an arm is a table with a position, and with a name and settings if they differ from other arms'"
        raise usage_error(subject, got, rule, "write position = 'rotary', for example")
    name = table.get("name", table["position"])
    own = f"{subject}, the arm {name!r},"
    if not isinstance(name, str):
        raise usage_error(subject, f"the name {name!r}", "the name of an arm is a text", "write it in quotes")
    for part in ("model", "budget"):
        if not isinstance(table.get(part, {}), Mapping):
            rule = f"{part} is a table of settings"
            raise usage_error(own, f"{part}={table[part]!r}", rule, "write budget = {lr = 3e-4}, for example")
    flat = {key: value for key, value in table.items() if key not in ("name", "position", "model", "budget")}
    model, budget = split_settings(flat, own)
    _, inside = split_settings(table.get("budget", {}), own)
    unknown = [key for key in table.get("budget", {}) if key not in inside]
    if unknown:
        rule = f"the settings of the budget are {', '.join(BUDGET_SETTINGS)}"
        raise usage_error(own, f"budget.{unknown[0]}", rule, f"move {unknown[0]} to model")
    # a task with a model of its own has settings of its own, so the task checks the table model
    return Arm(
        name.strip(), parse_position(table["position"]).text, {**model, **table.get("model", {})}, {**budget, **inside}
    )
