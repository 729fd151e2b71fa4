"""``whence show``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HELP = "Draw what a position does to attention."
EXAMPLES = """Examples:

whence show alibi

whence show "Rotary() + Epar(learnable=True)" --heads 4 --out both.png"""


def show(
    position: Annotated[str, typer.Argument(help="a short name or an expression")],
    heads: Annotated[int, typer.Option(min=1)] = 4,
    head_dim: Annotated[int, typer.Option(help="Head dimension.", min=2)] = 16,
    context: Annotated[int, typer.Option(help="the length it is made for", min=2)] = 64,
    out: Annotated[Path, typer.Option(help="the picture")] = Path("position.png"),
) -> None:
    from whence.cli.output_paths import require_picture
    from whence.drawing import show as draw
    from whence.position.expression import ModelDims, build_position

    require_picture(out)
    made = build_position(position, ModelDims(heads, head_dim, heads * head_dim, context))
    draw(made).savefig(out)
    print(f"{made}\npicture: {out}")
