"""``whence predict``"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whence.cli.json_output import JsonOption, json_document
from whence.errors import usage_error

if TYPE_CHECKING:
    from whence_papers.pointer.next_location.predictor import Prediction

MAX_SKIPPED_LISTED = 5


def predict(
    ctx: typer.Context,
    weights: Annotated[Path, typer.Argument(help="Weights of a next-location study (.safetensors).")],
    visits: Annotated[Path, typer.Argument(help="CSV file of visits.")],
    user: Annotated[list[str] | None, typer.Option(help="User to predict. Repeatable; default: all.")] = None,
    day: Annotated[
        str | None,
        typer.Option(help="Day of the next visit, as a number or a date, for weights that use it."),
    ] = None,
    top_k: Annotated[int, typer.Option(help="Number of places to list per user.", min=1)] = 5,
    out: Annotated[
        Path, typer.Option(help="Image file of the pointer weights, or a CSV file of all predictions.")
    ] = Path("prediction.png"),
    as_json: JsonOption = False,
) -> None:
    """Predict the next location of every user in a file of visits, and draw the pointer weights or write a CSV file.

    Examples:

    whence run next_location --only next-location-forms

    whence run next_location --visits visits.csv    (train on these visits instead)

    whence predict results/next-location-forms-*/weights/day-unknown-*-seed0.safetensors visits.csv

    whence predict model.safetensors visits.csv --user 12 --top-k 10 --out next.csv

    The header of visits.csv names user_id, location_id and either time (2024-05-17T08:30) or start_day, start_min and, if
    days are not dates, weekday. A column duration, in minutes, is optional. An invalid row is an error that names its line.

    The weights of "day unknown" do not use the day of the next visit; those of other arms do, and need --day for the
    reported accuracy. Users that cannot be predicted are named and skipped.
    """
    from whence.records import replace_file
    from whence.report.image_files import require_image_path
    from whence_papers.pointer.next_location.figures import MAX_USERS_DRAWN, prediction_figure
    from whence_papers.pointer.next_location.predictor import Predictor
    from whence_papers.pointer.next_location.visits import describe_time_zones, parse_day, read_visits

    results = ctx.with_resource(json_document("predict", as_json))
    to_csv = out.suffix.lower() == ".csv"
    require_image_path(out, others=["csv"])
    when = None if day is None else parse_day(day)
    all_visits = read_visits(visits, "whence predict")
    users = list(dict.fromkeys(visit.user for visit in all_visits))
    absent = {name: f"no visit in {visits.name}" for name in user or () if name not in users}
    if user and len(absent) == len(set(user)):
        names = ", ".join(users[:10]) + (", ..." if len(users) > 10 else "")
        raise usage_error("--user", ", ".join(absent), f"the users of {visits.name} are {names}", "name one of them")
    selected = [visit for visit in all_visits if not user or visit.user in user]
    predictor = Predictor.from_weights(weights, "whence predict")
    predictions = predictor.predict(selected, when, top_k)
    skipped = absent | predictor.skipped_users(selected, when)
    results.update(file=out, predictions=list(map(describe_prediction, predictions)), skipped=skipped)
    for one in predictions if not to_csv else ():
        print("\n".join(format_prediction(one)))
    for note in (describe_time_zones(selected), describe_day(predictions)):
        if note:
            print(note, file=sys.stderr)
    for name, reason in list(skipped.items())[:MAX_SKIPPED_LISTED]:
        print(f"skipped {name}: {reason}", file=sys.stderr)
    if rest := list(skipped)[MAX_SKIPPED_LISTED:]:
        print(f"skipped {_count(len(rest), 'more user')}: {', '.join(rest)}", file=sys.stderr)
    if to_csv:
        write_csv(out, predictions, skipped)
        unknown = sum(not one.known for one in predictions)
        note = f" ({unknown} not in training)" if unknown else ""
        print(f"predictions of {_count(len(predictions), 'user')}{note}: {out}")
        return
    with replace_file(out) as part:
        prediction_figure(predictions).savefig(part, dpi=150, format=out.suffix[1:].lower())
    left_out = len(predictions) - MAX_USERS_DRAWN
    note = (
        f" (the first {MAX_USERS_DRAWN} of {len(predictions)} users; select others with --user)" if left_out > 0 else ""
    )
    print(f"image: {out}{note}")


def write_csv(path: Path, predictions: Sequence[Prediction], skipped: Mapping[str, str]) -> None:
    """Write every prediction, one row for each place, and one row with a note for each skipped user. Dates are ISO dates."""
    from whence.records import replace_file
    from whence_papers.pointer.next_location.visits import day_cell

    with replace_file(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("user_id", "day", "next_day", "rank", "location_id", "probability", "note"))
        for one in predictions:
            note = "" if one.known else "user not in training"
            for rank, (place, share) in enumerate(one.places, 1):
                rows.writerow((one.user, day_cell(one.day), one.next_day, rank, place, f"{share:.6f}", note))
        for name, reason in skipped.items():
            rows.writerow((name, "", "", "", "", "", f"skipped: {reason}"))


def describe_prediction(one: Prediction) -> dict[str, Any]:
    """The prediction of one user for ``--json``. The pointer weights belong to the visits that the model reads."""
    from whence_papers.pointer.next_location.visits import day_cell

    return {
        "user": one.user,
        "known": one.known,
        "day": day_cell(one.day),
        "next_day": one.next_day,
        "places": [{"place": place, "probability": share} for place, share in one.places],
        "pointer": None
        if one.weights is None
        else [
            {"place": visit.place, "day": day_cell(visit.day), "minute": visit.minute, "weight": weight}
            for visit, weight in zip(one.history, one.weights, strict=True)
        ],
        "generated_share": one.generated_share,
    }


def describe_day(predictions: Sequence[Prediction]) -> str:
    """A sentence if the model needs the day of the next visit and it was not given; empty otherwise."""
    if not any(one.next_day == "assumed" for one in predictions):
        return ""
    return (
        "These weights use the day of the next visit, and the day of the last visit stands in for it. The accuracy is that of "
        "the split delivered, below the reported one; pass --day, or weights of the arm 'day unknown'."
    )


def format_prediction(one: Prediction) -> list[str]:
    """Format the prediction of one user: the history, the places, and the visits with the largest pointer weights."""
    from whence_papers.pointer.next_location.visits import format_day

    when = {"given": "on", "assumed": "assumed on", "unknown": "after the last visit on"}[one.next_day]
    heading = f"{one.user}: next location {when} {format_day(one.day)}, from {_count(len(one.history), 'visit')}"
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
