"""The tab of results: choose a report of a folder and read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence.errors import WhenceError
from whence.explore import drawings
from whence.explore.results import FoundReport, find_reports, label_report, show_report


def add_results_tab(folder: Path) -> None:
    """Add the components and their events to the current tab."""
    import gradio as gr

    labels, first, message = list_results(str(folder))
    with gr.Row(elem_classes="toolbar"):
        place = gr.Textbox(
            str(folder), label="Folder", info="Press Enter to search it.", elem_id="results-folder", min_width=260
        )
        chosen = gr.Dropdown(
            labels, value=first, label="Result", elem_id="result", min_width=300, scale=2, interactive=True
        )
    found = gr.HTML(message, elem_id="results-message", apply_default_css=False)
    page = gr.HTML(show_result(str(folder), first), elem_id="report", apply_default_css=False, js_on_load=None)

    def search(text: str) -> tuple[Any, ...]:
        labels, first, message = list_results(text)
        return gr.update(choices=labels, value=first), message, show_result(text, first)

    place.submit(search, place, [chosen, found, page], api_visibility="private")
    chosen.input(show_result, [place, chosen], page, api_visibility="private")


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


def show_result(folder: str, label: str | None) -> str:
    """The chosen result. Only what the folder's list names is read."""
    if not label:
        return ""
    try:
        report = _label_reports(folder).get(label)
        return (
            drawings.problem("This result is no longer there; search the folder again.")
            if report is None
            else show_report(report)
        )
    except (WhenceError, OSError) as error:
        return drawings.problem(str(error))


def _label_reports(folder: str) -> dict[str, FoundReport]:
    place = Path(folder).expanduser()
    return {label_report(report, place): report for report in find_reports(place)}
