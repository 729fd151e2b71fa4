"""The tab of mechanisms: choose one or a sum, move its parameters, see what it does, compare two, take the code."""

from __future__ import annotations

import html
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whence.explore import drawings
from whence.explore.bounded_slider import bounded_slider
from whence.explore.controls import Control, combine, find_controls, set_argument, term_names
from whence.explore.mechanism_view import Settings, describe_error, view_mechanism
from whence.explore.onnx_file import export_onnx
from whence.position import catalogue
from whence.position.expression import ModelDims

FIRST, SECOND = "Alibi()", "Rotary()"
#: events of sliders that move: the latest value wins, and nothing flickers
LIVE: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
CLICK: dict[str, Any] = {"show_progress": "minimal", "api_visibility": "private"}


def add_mechanisms_tab() -> None:
    """Add the components and their events to the current tab."""
    import gradio as gr

    with gr.Row(elem_classes="toolbar"):
        heads = bounded_slider(1, 12, value=4, step=1, label="Heads", min_width=150)
        head = bounded_slider(0, 11, value=0, step=1, label="Head in maps", min_width=150)
        length = bounded_slider(16, 256, value=96, step=8, label="Tokens", min_width=150)
        context = bounded_slider(16, 1024, value=64, step=16, label="Context", min_width=150)
        with gr.Column(min_width=190, elem_classes="checks"):
            logarithmic = gr.Checkbox(False, label="Logarithmic distance")
            compare = gr.Checkbox(False, label="Compare two", elem_id="compare")
    with gr.Row(elem_classes="toolbar"):
        sentence = gr.Textbox(
            Settings.sentence,
            label="Your text; equal words attract each other",
            lines=1,
            max_lines=4,
            scale=4,
            min_width=300,
        )
        word = bounded_slider(0, 40, value=0, step=1, label="Words back", scale=1, min_width=200)
    shared = [heads, context, length, head, logarithmic, sentence, word]
    with gr.Row(elem_classes="sides", equal_height=False):
        with gr.Column(min_width=340):
            redraw_first = _add_side(FIRST, "A", shared)
        with gr.Column(min_width=340, visible=False) as other:
            redraw_second = _add_side(SECOND, "B", shared)
    compare.change(lambda on: gr.update(visible=on), compare, other, **LIVE)
    for one in shared:
        for redraw in (redraw_first, redraw_second):
            redraw(one.change)


def make_settings(
    heads: float, context: float, length: float, head: float, logarithmic: bool, sentence: str, word: float
) -> Settings:
    """Settings out of the values of the shared components."""
    return Settings(int(heads), int(context), int(length), int(head), bool(logarithmic), sentence or "", int(word))


def view_side(text: str, *values: Any) -> tuple[str, str, str]:
    """Figures, text and code of one side."""
    view = view_mechanism(text, make_settings(*values))
    return view.figures, view.sentence, view.code


def load_own(reference: str, text: str) -> tuple[str, str]:
    """The expression with one's own class added, and an error as HTML. The file runs: that is what loading means."""
    reference = reference.strip()
    if not reference:
        return text, drawings.problem("Type the path of a file and a class, such as ./bell.py:Bell.")
    try:
        term_names(reference)
    except Exception as error:  # the file is the user's code
        return text, drawings.problem(describe_error(error))
    return reference if text.strip() in ("", "NoPosition()") else f"{text} + {reference}", ""


def picked_names(text: str) -> list[str]:
    """The built-in mechanisms of an expression; none of an expression with an error.

    >>> picked_names("Rotary() + alibi"), picked_names("nonsense")
    (['Rotary', 'Alibi'], [])
    """
    try:
        return [name for name in term_names(text) if name in catalogue.__all__]
    except Exception:  # the figures show the error
        return []


def _add_side(initial: str, name: str, shared: list[Any]) -> Callable[[Any], None]:
    """One mechanism with its controls and figures. Returns a function that redraws it on an event."""
    import gradio as gr

    view = view_side(initial, *(one.value for one in shared))
    # the text of which the sliders show the values, and a count, so that the same text is shown anew
    shown = gr.State((initial, 0))
    with gr.Row(elem_classes="side", equal_height=False):
        with gr.Column(scale=2, min_width=300, elem_classes="controls"):
            picked = gr.Dropdown(
                list(catalogue.__all__), value=term_names(initial), multiselect=True, max_choices=4, label=f"Mechanism {name}",
                info="Several make a sum.", elem_id=f"mechanism-{name}",
            )  # fmt: skip
            text = gr.Textbox(
                initial,
                label="As text",
                info="Edit it and press Enter.",
                elem_classes="code",
                elem_id=f"text-{name}",
                max_lines=3,
            )
            sliders = gr.Column(elem_classes="sliders")
            with gr.Accordion("Your own class", open=False):
                own = gr.Textbox(
                    label="file.py:Class",
                    placeholder="./bell.py:Bell",
                    info="Loading runs the file.",
                    elem_id=f"own-{name}",
                )
                load = gr.Button("Load and add to the sum", size="sm")
                own_error = gr.HTML(apply_default_css=False)
        with gr.Column(scale=5, min_width=420, elem_classes="figures"):
            figures = gr.HTML(view[0], elem_id=f"figures-{name}", js_on_load=None, apply_default_css=False)
            words = gr.HTML(view[1], elem_id=f"words-{name}", js_on_load=None, apply_default_css=False)
            with gr.Accordion("Code and ONNX", open=False):
                code = gr.Code(view[2], language="python", label="Python", interactive=False, elem_id=f"code-{name}")
                export = gr.Button("Export an attention layer as ONNX", size="sm")
                file = gr.File(label="ONNX file", visible=False, elem_id=f"onnx-{name}")
                export_error = gr.HTML(apply_default_css=False)
    outputs = [figures, words, code]

    def show_text(written: str, previous: tuple[str, int], *values: Any) -> tuple[Any, ...]:
        return written, picked_names(written), (written, previous[1] + 1), *view_side(written, *values)

    def show_picked(names: list[str], written: str, previous: tuple[str, int], *values: Any) -> tuple[Any, ...]:
        return show_text(combine(names, written), previous, *values)

    def show_own(reference: str, written: str, previous: tuple[str, int], *values: Any) -> tuple[Any, ...]:
        combined, error = load_own(reference, written)
        return error, *show_text(combined, previous, *values)

    text.submit(show_text, [text, shown, *shared], [text, picked, shown, *outputs], **CLICK)
    picked.input(show_picked, [picked, text, shown, *shared], [text, picked, shown, *outputs], **CLICK)
    load.click(show_own, [own, text, shown, *shared], [own_error, text, picked, shown, *outputs], **CLICK)
    own.submit(show_own, [own, text, shown, *shared], [own_error, text, picked, shown, *outputs], **CLICK)

    def export_file(written: str, *values: Any, progress: Any = gr.Progress()) -> tuple[Any, str]:  # noqa: B008
        progress(0.1, desc="Exporting; this takes a few seconds")
        try:
            path = export_onnx(written, make_settings(*values).dims, Path(tempfile.mkdtemp(prefix="whence-onnx-")))
        except Exception as error:  # the exporter and the user's class may raise anything
            return gr.update(visible=False), drawings.problem(describe_error(error))
        return gr.update(value=str(path), visible=True), ""

    export.click(export_file, [text, *shared], [file, export_error], show_progress="full", api_visibility="private")

    with sliders:

        @gr.render(inputs=[shown, shared[0], shared[1]], show_progress="hidden")
        def draw_controls(state: tuple[str, int], heads: float, context: float) -> None:
            dims: ModelDims = Settings(heads=int(heads), context=int(context)).dims
            try:
                groups = find_controls(state[0], dims)
            except Exception:  # the figures show the error
                return
            for group_name, controls in zip(term_names(state[0]), groups, strict=True):
                if controls:
                    gr.HTML(f'<h3 class="term">{html.escape(group_name)}</h3>', apply_default_css=False)
                for control in controls:
                    _add_control(control, text, picked, shown, shared, outputs, show_text)

    def redraw(event: Any) -> None:
        event(view_side, [text, *shared], outputs, **LIVE)

    return redraw


def _add_control(
    control: Control,
    text: Any,
    picked: Any,
    shown: Any,
    shared: list[Any],
    outputs: list[Any],
    show_text: Callable[..., Any],
) -> None:
    """One control inside a render; it rewrites the text and redraws."""
    import gradio as gr

    def change(value: Any, written: str, *values: Any) -> tuple[Any, ...]:
        if control.kind == "integer":
            value = int(value)
        changed = set_argument(written, control.path, value, logarithmic=control.logarithmic)
        return changed, *view_side(changed, *values)

    def choose(value: Any, written: str, previous: tuple[str, int], *values: Any) -> tuple[Any, ...]:
        return show_text(set_argument(written, control.path, value), previous, *values)

    if control.kind in ("flag", "choice"):  # what is accepted for the other arguments may change
        component = (
            gr.Checkbox(control.value, label=control.label, interactive=True)
            if control.kind == "flag"
            else gr.Dropdown(list(control.choices), value=control.value, label=control.label, interactive=True)
        )
        component.input(choose, [component, text, shown, *shared], [text, picked, shown, *outputs], **CLICK)
    else:
        slider = bounded_slider(
            control.low, control.high, value=control.value, step=control.step, label=control.label, interactive=True
        )
        slider.input(change, [slider, text, *shared], [text, *outputs], **LIVE)
