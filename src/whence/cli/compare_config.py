"""The config file of ``whence compare``: a TOML file with values for the options, arms, and settings of model and budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from whence.errors import usage_error
from whence.plugins import did_you_mean

if TYPE_CHECKING:
    from whence.lab.arms import Arm

#: keys of what a config file has beside options
ARMS, SETTINGS = "whence.compare.arms", "whence.compare.settings"


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Use the values of a TOML file as defaults of the options with the same names, so that options override them."""
    import tomllib

    if path is None:
        return None
    from whence.lab.settings import BUDGET_SETTINGS, MODEL_SETTINGS, PRESET

    options = [
        str(option.name)
        for option in context.command.params
        if option.name not in ("config", "help", "setting", "as_json")
    ]
    known = list(dict.fromkeys([*options, "arms", *MODEL_SETTINGS, *BUDGET_SETTINGS, PRESET]))
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise usage_error("--config", f"no file {path}", "it must name a TOML file", "check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise usage_error("--config", f"{path.name}: {error}", "it must be a TOML file", "correct that line") from None
    unknown = sorted(set(values) - set(known))
    if unknown:
        got = f"{', '.join(unknown)} in {path.name}"
        remedy = did_you_mean(unknown[0], known, "rename or remove it")
        raise usage_error("--config", got, f"the options are {', '.join(known)}", remedy)
    values = rebase_values(values, path.parent)
    arms = values.pop("arms", [])
    if not isinstance(arms, list):
        raise usage_error("--config", f"arms in {path.name}", "it is a list of tables", "write [[arms]] above each")
    context.meta[ARMS] = arms
    context.meta[SETTINGS] = {name: values.pop(name) for name in list(values) if name not in options}
    if isinstance(values.get("sweep"), dict):
        values["sweep"] = [
            f"{name}={','.join(map(str, own if isinstance(own, list) else [own]))}"
            for name, own in values["sweep"].items()
        ]
    single = {name: [values[name]] for name in ("task", "position", "sweep") if isinstance(values.get(name), str)}
    context.default_map = values | single
    return path


def rebase_values(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The values of a config file, with the files of positions, tasks, executor, data and tokens resolved against its folder."""
    from whence.lab.data_options import rebase_data, rebase_tokens
    from whence.lab.settings import rebase_arm
    from whence.plugins import rebase_file

    rebased = dict(values)
    for name, change in (
        ("position", rebase_arm),
        ("baseline", rebase_arm),
        ("task", rebase_file),
        ("executor", rebase_file),
        ("data", rebase_data),
        ("tokens", rebase_tokens),
    ):
        value = values.get(name)
        if isinstance(value, str):
            rebased[name] = change(value, folder)
        elif isinstance(value, list):
            rebased[name] = [change(one, folder) if isinstance(one, str) else one for one in value]
    if isinstance(values.get("arms"), list):
        rebased["arms"] = [
            one | {"position": rebase_arm(one["position"], folder)}
            if isinstance(one, dict) and isinstance(one.get("position"), str)
            else one
            for one in values["arms"]
        ]
    return rebased


def choose_arms(ctx: typer.Context, positions: list[str] | None) -> list[str | Arm]:
    """The positions, and after them the arms of the config file unless --position is typed, which overrides the file."""
    from whence.lab.settings import parse_arm_table

    source = ctx.get_parameter_source("position")
    if source is not None and source.name == "COMMANDLINE":
        return list(positions or ())
    return [*(positions or ()), *(parse_arm_table(one, "[[arms]] of --config") for one in ctx.meta.get(ARMS, ()))]
