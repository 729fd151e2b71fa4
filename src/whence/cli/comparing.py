"""``whence compare``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from whence.errors import refusal

HELP = "Train the same small model with several positions on the same tasks and seeds, and write a report to send on."
EXAMPLES = """Examples:

whence compare

whence compare --task retrieval --position none --position rotary --seeds 5

whence compare --position none --position "Rotary() + Epar(learn=True)"

whence compare --config mine.toml --jobs 2"""


def compare(
    task: Annotated[list[str] | None, typer.Option(help="a task; again for more")] = None,
    position: Annotated[list[str] | None, typer.Option(help="a short name or an expression; again for more")] = None,
    seeds: Annotated[int, typer.Option(help="how many seeds each arm has", min=1)] = 3,
    steps: Annotated[int | None, typer.Option(help="training steps of every run", min=1)] = None,
    baseline: Annotated[str | None, typer.Option(help="the position all others are held against")] = None,
    jobs: Annotated[int | None, typer.Option(help="runs side by side; all cores by default", min=1)] = None,
    out: Annotated[Path, typer.Option(help="folder for records and the report")] = Path("build/compare"),
    config: Annotated[Path | None, typer.Option(help="a TOML file with the same names as these options")] = None,
) -> None:
    from whence.cli.running import run_all
    from whence.lab import comparing

    given: dict[str, Any] = {
        "task": task, "position": position, "seeds": seeds, "steps": steps, "baseline": baseline,
    }  # fmt: skip
    if config is not None:
        given |= read_config(config, given)
    made = comparing.studies(
        tuple(given["task"] or comparing.QUESTIONS),
        tuple(given["position"] or comparing.POSITIONS),
        tuple(range(int(given["seeds"]))),
        given["steps"],
        given["baseline"],
    )
    command = " ".join(["whence", *sys.argv[1:]])
    run_all(made, out, jobs, "Which position does what", command)


def read_config(path: Path, known: dict[str, Any]) -> dict[str, Any]:
    """The options in a TOML file."""
    import tomllib

    try:
        found = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise refusal("--config", f"no file {path}", "it names a TOML file", "check the path") from None
    except tomllib.TOMLDecodeError as error:
        raise refusal("--config", f"{path.name}: {error}", "it is a TOML file", "correct that line") from None
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise refusal(
            "--config", f"{', '.join(unknown)} in {path.name}", f"it knows {', '.join(known)}", "rename or drop it"
        )
    return found
