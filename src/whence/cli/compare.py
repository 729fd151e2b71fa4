"""``whence compare``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whence.errors import usage_error

HELP = "Train the same small model with several positions on the same tasks and seeds, and write a report to send on."
EXAMPLES = """Examples:

whence compare

whence compare --task retrieval --position none --position rotary --seeds 5

whence compare --position none --position "Rotary() + Epar(learnable=True)"

whence compare --config mine.toml --jobs 2

Tasks: retrieval, copy, votes, places, topics, sources; from the folder of WHENCE_DATA also speeches_classify, speeches_lm,
wikitext2, wikitext103, books, sst2.

Positions: none, sinusoidal, learned, rotary, shaw, xl, t5, alibi, kerple, fire, cope, sandwich, epar, power, recency,
stablemask, sink; or mechanisms with settings, joined by +."""


def from_file(context: typer.Context, path: Path | None) -> Path | None:
    """What a TOML file says becomes the default of the options of the same names, so what is typed wins."""
    import tomllib

    if path is None:
        return None
    known = [option.name for option in context.command.params if option.name not in ("config", "help")]
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise usage_error("--config", f"no file {path}", "it names a TOML file", "check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise usage_error("--config", f"{path.name}: {error}", "it is a TOML file", "correct that line") from None
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise usage_error(
            "--config", f"{', '.join(unknown)} in {path.name}", f"it knows {', '.join(known)}", "rename or drop it"
        )
    single = {name: [found[name]] for name in ("task", "position") if isinstance(found.get(name), str)}
    context.default_map = found | single
    return path


def compare(
    task: Annotated[list[str] | None, typer.Option(help="a task; again for more")] = None,
    position: Annotated[list[str] | None, typer.Option(help="a short name or an expression; again for more")] = None,
    seeds: Annotated[int, typer.Option(help="how many seeds each arm has", min=1)] = 3,
    steps: Annotated[int | None, typer.Option(help="training steps of every run", min=1)] = None,
    baseline: Annotated[
        str | None, typer.Option(help="the position all others are held against; the first by default")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="runs side by side; all cores by default", min=1)] = None,
    out: Annotated[Path, typer.Option(help="folder for records and the report")] = Path("build/compare"),
    config: Annotated[
        Path | None,
        typer.Option(
            help="a TOML file with the same names as these options; what is typed wins",
            callback=from_file,
            is_eager=True,  # the others need it
        ),
    ] = None,
) -> None:
    from whence.cli.run import run_all
    from whence.lab import comparing

    made = comparing.studies(
        tuple(task or comparing.QUESTIONS), tuple(position or comparing.POSITIONS), tuple(range(seeds)), steps, baseline
    )
    run_all(made, out, jobs, "Which position does what")
