"""``whence predict``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whence.errors import usage_error

if TYPE_CHECKING:
    from whence_papers.pointer.next_location.predictor import Prediction

MAX_SKIPPED_LISTED = 5


def predict(
    weights: Annotated[Path, typer.Argument(help="Weights of a next-location study (.safetensors).")],
    visits: Annotated[Path, typer.Argument(help="CSV file of visits.")],
    user: Annotated[list[str] | None, typer.Option(help="User to predict. Repeatable; default: all.")] = None,
    day: Annotated[
        str | None,
        typer.Option(help="Day of the next visit, as a number or a date. Default: the user's last day."),
    ] = None,
    top_k: Annotated[int, typer.Option(help="Number of places to list per user.", min=1)] = 5,
    out: Annotated[Path, typer.Option(help="Image file of the pointer weights.")] = Path("prediction.png"),
) -> None:
    """Predict the next location of every user in a file of visits, and draw the pointer weights.

    Examples:

    whence run next_location

    whence predict results/next-location-*/weights/Recency-*-seed0.safetensors visits.csv

    whence predict model.safetensors visits.csv --user 12 --top-k 10 --out next.png

    The header of visits.csv names user_id, location_id and either time (2024-05-17T08:30) or start_day, start_min and
    weekday. A column duration, in minutes, is optional. An invalid row is an error that names its line.
    """
    from whence.records import replace_file
    from whence.report.image_files import require_image_path
    from whence_papers.pointer.next_location.figures import MAX_USERS_DRAWN, prediction_figure
    from whence_papers.pointer.next_location.predictor import Predictor
    from whence_papers.pointer.next_location.visits import parse_day, read_visits

    require_image_path(out)
    all_visits = read_visits(visits, "whence predict")
    users = list(dict.fromkeys(visit.user for visit in all_visits))
    missing = sorted(set(user or []) - set(users))
    if missing:
        names = ", ".join(users[:10]) + (", ..." if len(users) > 10 else "")
        raise usage_error("--user", ", ".join(missing), f"the users of {visits.name} are {names}", "name one of them")
    when = None if day is None else parse_day(day)
    selected = [visit for visit in all_visits if not user or visit.user in user]
    predictor = Predictor.from_weights(weights, "whence predict")
    predictions = predictor.predict(selected, when, top_k)
    for one in predictions:
        print("\n".join(format_prediction(one)))
    with replace_file(out) as part:
        prediction_figure(predictions).savefig(part, dpi=150, format=out.suffix[1:].lower())
    skipped = predictor.skipped_users(selected, when)
    for name, reason in list(skipped.items())[:MAX_SKIPPED_LISTED]:
        print(f"skipped {name}: {reason}", file=sys.stderr)
    if len(skipped) > MAX_SKIPPED_LISTED:
        print(f"skipped {len(skipped) - MAX_SKIPPED_LISTED} more users", file=sys.stderr)
    left_out = len(predictions) - MAX_USERS_DRAWN
    note = (
        f" (the first {MAX_USERS_DRAWN} of {len(predictions)} users; select others with --user)" if left_out > 0 else ""
    )
    print(f"image: {out}{note}")


def format_prediction(one: Prediction) -> list[str]:
    """Format the prediction of one user: the history, the places, and the visits with the largest pointer weights."""
    from whence_papers.pointer.next_location.visits import format_day

    heading = f"{one.user}: next location on {format_day(one.day)}, from {_count(len(one.history), 'visit')}"
    if one.before:
        heading += f"; {_count(one.before, 'older visit')} ignored"
    if not one.known:
        heading += "; user not in training"
    lines = [heading, *(f"  {100 * share:6.2f} %  {name}" for name, share in one.places)]
    if one.weights is None:
        return [*lines, "  no pointer in this model"]
    ordered = sorted(range(len(one.history)), key=lambda at: -one.weights[at])[:3]  # type: ignore[index]
    for at in ordered:
        visit, ago = one.history[at], len(one.history) - at
        when = f"{format_day(visit.day)}, {visit.minute // 60:02}:{visit.minute % 60:02}"
        lines.append(f"  pointer {100 * one.weights[at]:5.1f} % on {visit.place} ({when}; {ago} from the end)")
    return lines


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
