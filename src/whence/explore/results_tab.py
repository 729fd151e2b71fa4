"""The tab of results: choose a report of a folder and read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whence.errors import WhenceError, usage_error
from whence.explore import drawings
from whence.explore.results import FoundReport, find_reports, label_report, show_report

#: seconds that a report takes to draw, where that is long
LONG = {"trial of cures": "about half a minute", "probe": "some seconds"}


class DrawnReports:
    """The reports that were drawn from records, kept while their records stay the same."""

    def __init__(self) -> None:
        self._pages: dict[Path, tuple[tuple[int, ...], str]] = {}

    def show(self, folder: str, label: str | None) -> Iterator[str]:
        """The chosen result as HTML, and before it a line if it takes a while. Only what the folder's list names is read."""
        if not label:
            yield ""
            return
        try:
            report = _label_reports(folder).get(label)
            if report is None:
                yield drawings.problem("This result is no longer there; search the folder again.")
                return
            if report.has_report:
                yield show_report(report)
                return
            state = _records_state(report.path)
            known = self._pages.get(report.path)
            if known is None or known[0] != state:
                took = f" This takes {LONG[report.kind]} the first time." if report.kind in LONG else ""
                yield drawings.note(f"Drawing the report from its records.{took}")
                known = self._pages[report.path] = (state, show_report(report))
            yield known[1]
        except (WhenceError, OSError) as error:
            yield drawings.problem(str(error))


def add_results_tab(folder: Path, tab: Any) -> None:
    """Add the components and their events to the current tab. A result is drawn when the tab is opened."""
    import gradio as gr

    drawn = DrawnReports()
    labels, first, message = list_results(str(folder))
    shown = gr.State(None)  # the result on the page, which stays where it was scrolled to
    with gr.Row(elem_classes="toolbar"):
        place = gr.Textbox(
            str(folder), label="Folder", info="Press Enter to search it.", elem_id="results-folder", min_width=260
        )
        chosen = gr.Dropdown(
            labels, value=first, label="Result", elem_id="result", min_width=300, scale=2, interactive=True
        )
    found = gr.HTML(message, elem_id="results-message", apply_default_css=False)
    page = gr.HTML(elem_id="report", apply_default_css=False, js_on_load=None)

    def show(text: str, label: str | None) -> Iterator[Any]:
        for part in drawn.show(text, label):
            yield part, (text, label)

    def open_tab(text: str, label: str | None, before: Any) -> Iterator[Any]:
        if before == (text, label):
            yield gr.skip(), gr.skip()
        else:
            yield from show(text, label)

    def search(text: str) -> Iterator[Any]:
        labels, first, message = list_results(text)
        for part, state in show(text, first):
            yield gr.update(choices=labels, value=first), message, part, state

    events: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
    place.submit(search, place, [chosen, found, page, shown], **events)
    chosen.input(show, [place, chosen], [page, shown], **events)
    tab.select(open_tab, [place, chosen, shown], [page, shown], **events)


def list_results(folder: str) -> tuple[list[str], str | None, str]:
    """The labels of the results of a folder, the first one, and how many there are, or an error, as HTML."""
    try:
        labels = list(_label_reports(folder))
    except (WhenceError, OSError) as error:
        return [], None, drawings.problem(str(error))
    if not labels:
        return (
            [],
            None,
            drawings.note(
                "No results here. whence compare, probe, mend, discover and bench write them, build/ by default."
            ),
        )
    return labels, labels[0], drawings.note(f"{len(labels)} result{'' if len(labels) == 1 else 's'}.")


def _records_state(folder: Path) -> tuple[int, ...]:
    """What changes when records are added: the times of a folder and of its packed file."""
    packed = folder.with_name(f"{folder.name}.zip")
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in (folder, packed))


def _label_reports(folder: str) -> dict[str, FoundReport]:
    if not folder.strip():
        raise usage_error(
            "Folder", "nothing", "it must be an existing folder", "type the path of one that holds results"
        )
    place = Path(folder.strip()).expanduser()
    return {label_report(report, place): report for report in find_reports(place)}
