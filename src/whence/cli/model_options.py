"""The options that commands on a pretrained model share: ``whence probe``, ``whence mend`` and ``whence bench``."""

from __future__ import annotations

from typing import Annotated

import typer

TaskNames = Annotated[
    list[str] | None,
    typer.Option(help="Built-in or installed task, module:Name or ./file.py:Name. Repeatable."),
]
Items = Annotated[
    list[str] | None, typer.Option(help="Number of items of each task, or a JSONL file of items. Repeat for both.")
]
Slots = Annotated[str | None, typer.Option(help="Slots for the gold: a count, or a list from 1 such as 1,5,10.")]
Chat = Annotated[bool, typer.Option("--chat", help="Apply the tokenizer's chat template. Default: raw text.")]
PositionName = Annotated[
    str | None, typer.Option(help="Mechanism to attach, such as alibi, module:Name or ./file.py:Name(size=3).")
]
KeepRotary = Annotated[
    bool,
    typer.Option(
        "--keep-rotary/--replace-rotary", help="Whether the model's own rotation stays active beside --position."
    ),
]
InterventionName = Annotated[
    str | None,
    typer.Option(help="Intervention to apply: a cure or other name, module:Name or ./file.py:Name(strength=2)."),
]
Dtype = Annotated[str, typer.Option(help="Dtype of the model: float32, bfloat16, float16.")]
Device = Annotated[str, typer.Option(help="Device of the model.")]
DeviceMap = Annotated[str | None, typer.Option(help="Device map of accelerate, such as auto. Overrides --device.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")]
BatchTokens = Annotated[int | None, typer.Option(help="Tokens in one batch.", min=1)]
