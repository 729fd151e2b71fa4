"""``whence predict``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whence.errors import usage_error

if TYPE_CHECKING:
    from whence_papers.pointer.next_location.predicting import Prediction


def predict(
    weights: Annotated[Path, typer.Argument(help="weights that a study of next places wrote (.safetensors)")],
    visits: Annotated[Path, typer.Argument(help="a CSV file of visits")],
    user: Annotated[list[str] | None, typer.Option(help="only this user; again for more")] = None,
    day: Annotated[
        str | None,
        typer.Option(help="day of the next visit, as start_day counts or a date; by default that of the last visit"),
    ] = None,
    most: Annotated[int, typer.Option(help="places a user", min=1)] = 5,
    out: Annotated[Path, typer.Option(help="the picture")] = Path("pointed.png"),
) -> None:
    """Say where everyone in a file of visits goes next, with probabilities, and draw which past visits were pointed at.

    Examples:

    whence run next_location

    whence predict results/next-location-*/weights/Recency-*-seed0.safetensors visits.csv

    whence predict model.safetensors visits.csv --user 12 --most 10 --out next.png

    The first line of visits.csv names user_id, location_id and either time (2024-05-17T08:30), or start_day, start_min and
    weekday; duration in minutes may follow. A file with a bad row is refused, and every bad row is named with its line.
    """
    from whence.cli.output_paths import require_image_path
    from whence.records import replace_file
    from whence_papers.pointer.next_location.drawing import DRAWN, pointed
    from whence_papers.pointer.next_location.predicting import Predictor
    from whence_papers.pointer.next_location.visits import day_of, read_visits

    require_image_path(out)
    found = read_visits(visits, "whence predict")
    users = list(dict.fromkeys(visit.user for visit in found))
    missing = sorted(set(user or []) - set(users))
    if missing:
        shown = ", ".join(users[:10]) + (", ..." if len(users) > 10 else "")
        raise usage_error("--user", ", ".join(missing), f"{visits.name} has {shown}", "name one of them")
    when = None if day is None else day_of(day)
    chosen = [visit for visit in found if not user or visit.user in user]
    said = Predictor.from_weights(weights, "whence predict").predict(chosen, when, most)
    for one in said:
        print("\n".join(lines_of(one)))
    with replace_file(out) as part:
        pointed(said).savefig(part, dpi=150, format=out.suffix[1:].lower())
    drawn = "" if len(said) <= DRAWN else f" (the first {DRAWN} of {len(said)} users; --user chooses others)"
    print(f"picture: {out}{drawn}")


def lines_of(one: Prediction) -> list[str]:
    """A user's prediction as text: what it was said from, the places, and the visits that were pointed at most."""
    from whence_papers.pointer.next_location.visits import day_name

    heading = f"{one.user}: next place on {day_name(one.day)}, from {_many(len(one.history), 'visit')}"
    if one.before:
        heading += f"; {_many(one.before, 'older visit')} not read"
    if not one.known:
        heading += "; a user not in training, so without habits"
    width = max(len(name) for name, _ in one.places)
    lines = [heading, *(f"  {100 * share:6.2f} %  {name:{width}}" for name, share in one.places)]
    if one.weights is None:
        return [*lines, "  this model has no pointer"]
    ordered = sorted(range(len(one.history)), key=lambda at: -one.weights[at])[:3]  # type: ignore[index]
    for at in ordered:
        visit, ago = one.history[at], len(one.history) - at
        when = f"{day_name(visit.day)}, {visit.minute // 60:02}:{visit.minute % 60:02}"
        lines.append(f"  pointed {100 * one.weights[at]:5.1f} % at {visit.place} ({when}; {ago} from the end)")
    return lines


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
