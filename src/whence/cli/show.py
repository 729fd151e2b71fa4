"""``whence show``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whence.cli.json_output import JsonOption, json_document

if TYPE_CHECKING:
    from whence.position import Position

HELP = "Draw how a position changes attention. Without one, list the mechanisms."
EXAMPLES = """Examples:

whence show

whence show alibi

whence show "Rotary() + Epar(learnable=True)" --heads 4 --out both.png"""


def show(
    ctx: typer.Context,
    position: Annotated[
        str | None,
        typer.Argument(
            help="Short name, expression, module:Class or ./file.py:Class. Without it, the short names are listed.",
            show_default=False,
        ),
    ] = None,
    heads: Annotated[int, typer.Option(help="Number of heads.", min=1)] = 4,
    head_dim: Annotated[int, typer.Option(help="Head dimension.", min=2)] = 16,
    context: Annotated[int, typer.Option(help="Context length.", min=2)] = 64,
    out: Annotated[Path, typer.Option(help="Output image.")] = Path("position.png"),
    as_json: JsonOption = False,
) -> None:
    from whence.plotting import show as draw
    from whence.position.expression import ModelDims, build_position
    from whence.records import replace_file
    from whence.report.image_files import require_image_path

    results = ctx.with_resource(json_document("show", as_json))
    if position is None:
        listed = list_mechanisms()
        results.update(mechanisms=[{"name": name, "expression": text, "idea": idea} for name, text, idea in listed])
        width = max(len(name) for name, _, _ in listed)
        print("\n".join(f"{name:{width}}  {idea}" for name, _, idea in listed))
        print("\nwhence show NAME draws one; whence compare --position NAME trains with it.")
        return
    require_image_path(out)
    built = build_position(position, ModelDims(heads, head_dim, heads * head_dim, context))
    with replace_file(out) as part:
        draw(built).savefig(part, format=out.suffix[1:].lower())
    parameters = sum(parameter.numel() for parameter in built.parameters())
    results.update(position=repr(built), effects=sorted(built.effects), parameters=parameters, image=out)
    print(f"{built}\n{describe_parameters(built)}\nimage: {out}")


def list_mechanisms() -> list[tuple[str, str, str]]:
    """The short name of every mechanism, what it stands for, and its idea.

    >>> list_mechanisms()[0]
    ('none', 'NoPosition()', 'no position; a decoder learns order from the causal mask alone')
    """
    from whence.position.catalogue import CATALOGUE, SHORT_NAMES

    ideas: dict[str, str] = {}
    for entry in CATALOGUE:
        ideas.setdefault(entry.name.partition(",")[0], entry.idea)  # the first of several forms
    return [(name, text, ideas[text.partition("(")[0]]) for name, text in SHORT_NAMES.items()]


def describe_parameters(position: Position) -> str:
    """How many numbers a mechanism learns, and how its argument ``learnable`` changes that.

    >>> from whence import Alibi, Rotary
    >>> describe_parameters(Rotary()), describe_parameters(Alibi(4))
    ('learns nothing', 'learns nothing; Alibi learns with learnable=True')
    """
    from whence.position.catalogue import describe_learning

    count = sum(parameter.numel() for parameter in position.parameters() if parameter.requires_grad)
    learns = f"learns {count} number{'s' if count != 1 else ''}" if count else "learns nothing"
    remarks = {
        type(part).__name__: describe_learning(part).replace("`", "").replace("fixed", "is fixed")
        for part in position.parts
    }
    learning = {type(part).__name__: part.trainable for part in position.parts}  # what is so already is not said
    told = [f"{name} {text}" for name, text in remarks.items() if text and text.startswith("learns") != learning[name]]
    return "; ".join([learns, *told])
