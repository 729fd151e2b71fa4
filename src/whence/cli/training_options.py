"""The options that commands which train models share: ``whence compare`` and ``whence discover``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from whence.errors import usage_error

#: title of these options in the help
MODEL = "Model and budget of a run"

TextColumn = Annotated[str | None, typer.Option(help="Column of --data with the texts, or its number. Default: text.")]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column of --data with the labels, or its number. Default: label.")
]
Tokens = Annotated[str | None, typer.Option(help="Tokens of --data: words, bytes, characters or a tokenizer.json.")]
Duration = Annotated[str, typer.Option(help="Time limit, such as 90s, 20m or 2h. Rerun to resume.")]
Layers = Annotated[int | None, typer.Option(help="Number of layers.", min=1, rich_help_panel=MODEL)]
EmbedDim = Annotated[int | None, typer.Option(help="Dimension of a token's vector.", min=1, rich_help_panel=MODEL)]
Heads = Annotated[int | None, typer.Option(help="Number of query heads.", min=1, rich_help_panel=MODEL)]
FfnDim = Annotated[
    int | None, typer.Option(help="Hidden units of each feed-forward network.", min=1, rich_help_panel=MODEL)
]
Dropout = Annotated[float | None, typer.Option(help="Dropout probability.", rich_help_panel=MODEL)]
Steps = Annotated[int | None, typer.Option(help="Training steps of every run.", min=1, rich_help_panel=MODEL)]
BatchSize = Annotated[int | None, typer.Option(help="Inputs of a training step.", min=1, rich_help_panel=MODEL)]
LearningRate = Annotated[float | None, typer.Option(help="Learning rate.", rich_help_panel=MODEL)]
WarmupSteps = Annotated[int | None, typer.Option(help="Steps of linear warmup.", min=0, rich_help_panel=MODEL)]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Any other setting of ModelSpec or Budget, as schedule=cosine. Repeatable.", rich_help_panel=MODEL
    ),
]


def collect_settings(texts: Sequence[str] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of ``--set`` and of options of their own, which override them.

    >>> collect_settings(["schedule=cosine", "lr=1"], {"lr": 0.1, "heads": None})
    {'schedule': 'cosine', 'lr': 0.1}
    """
    from whence.lab.settings import parse_setting

    settings = dict(parse_setting(text, "--set") for text in texts or ())
    return {**settings, **{name: value for name, value in named.items() if value is not None}}


def name_options(known: Sequence[str], settings: Sequence[str]) -> str:
    """The options for settings.

    >>> name_options(["embed_dim", "heads"], ["embed_dim", "heads"]), name_options(["lr"], ["schedule"])
    ('--embed-dim and --heads', '--set schedule')
    """
    options = [f"--{name.replace('_', '-')}" if name in known else f"--set {name}" for name in settings]
    return " and ".join(options)


def parse_duration(text: str) -> float:
    """Seconds.

    >>> parse_duration("90s"), parse_duration("20m"), parse_duration("1.5h")
    (90.0, 1200.0, 5400.0)
    """
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = text[:-1], text[-1:]
    if unit not in units or not number.replace(".", "", 1).isdecimal():
        raise usage_error("--budget", repr(text), "it is a number with s, m or h", "pass 20m, for example")
    if float(number) <= 0:
        raise usage_error("--budget", repr(text), "it must be above 0", "pass 20m, for example")
    return float(number) * units[unit]
