"""The tab of mechanisms: choose one or a sum, move its parameters, see what it does, compare two, take the code."""

from __future__ import annotations

import html
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence.explore import drawings
from whence.explore.bounded_slider import bounded_slider
from whence.explore.controls import Control, combine, find_controls, set_argument, term_names
from whence.explore.mechanism_view import Settings, describe_error, view_mechanism, view_mechanisms
from whence.explore.onnx_file import export_onnx
from whence.position import catalogue
from whence.position.expression import ModelDims

FIRST, SECOND = "Alibi()", "Rotary()"
#: events of sliders that move: the latest value wins, and nothing flickers
LIVE: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
CLICK: dict[str, Any] = {"show_progress": "minimal", "api_visibility": "private"}


@dataclass(frozen=True)
class Side:
    """The components of one mechanism."""

    name: str
    picked: Any
    text: Any
    shown: Any  # the text of which the sliders show the values, and a count, so that the same text is shown anew
    sliders: Any
    own: Any
    load: Any
    own_error: Any
    views: list[Any]  # figures, words and code
    export: Any
    file: Any
    export_error: Any


def add_mechanisms_tab() -> None:
    """Add the components and their events to the current tab."""
    import gradio as gr

    with gr.Row(elem_classes="toolbar"):
        heads = bounded_slider(1, 12, value=4, step=1, label="Heads", min_width=150)
        head = bounded_slider(0, 3, value=0, step=1, label="Head in maps", min_width=150, elem_id="head-in-maps")
        length = bounded_slider(16, 256, value=96, step=8, label="Tokens", min_width=150)
        context = bounded_slider(16, 1024, value=64, step=16, label="Context", min_width=150)
        with gr.Column(min_width=190, elem_classes="checks"):
            logarithmic = gr.Checkbox(False, label="Logarithmic distance")
            compare = gr.Checkbox(False, label="Compare two", info="On the same axes.", elem_id="compare")
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
    first = [one.value for one in shared]
    with gr.Row(elem_classes="sides", equal_height=False):
        with gr.Column(min_width=340):
            left = _add_side(FIRST, "A", first)
        with gr.Column(min_width=340, visible=False) as other:
            right = _add_side(SECOND, "B", first)
    views, inputs = [*left.views, *right.views], [left.text, right.text, compare, *shared]
    for side in (left, right):
        _add_events(side, views, inputs)
    compare.change(lambda on: gr.update(visible=on), compare, other, **LIVE)
    heads.change(limit_head, [heads, head], head, **LIVE)
    for one in (compare, *shared):
        one.change(view_sides, inputs, views, **LIVE)


def make_settings(
    heads: float, context: float, length: float, head: float, logarithmic: bool, sentence: str, word: float
) -> Settings:
    """Settings out of the values of the shared components."""
    return Settings(int(heads), int(context), int(length), int(head), bool(logarithmic), sentence or "", int(word))


def limit_head(heads: float, head: float) -> Any:
    """The slider of the head in maps, which ends at the last head."""
    import gradio as gr

    last = int(heads) - 1
    return gr.update(maximum=max(1, last), value=min(int(head), last), interactive=last > 0)


def view_sides(left: str, right: str, compare: bool, *values: Any) -> tuple[Any, ...]:
    """Figures, text and code of both sides on the same axes; the right side is skipped if it is not compared."""
    import gradio as gr

    views = view_mechanisms([left, right] if compare else [left], make_settings(*values))
    shown = [part for view in views for part in (view.figures, view.sentence, view.code)]
    return *shown, *([] if compare else [gr.skip()] * 3)


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


def _add_side(initial: str, name: str, values: list[Any]) -> Side:
    """The components of one mechanism: its controls and figures."""
    import gradio as gr

    view = view_mechanism(initial, make_settings(*values))
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
            figures = gr.HTML(view.figures, elem_id=f"figures-{name}", js_on_load=None, apply_default_css=False)
            words = gr.HTML(view.sentence, elem_id=f"words-{name}", js_on_load=None, apply_default_css=False)
            with gr.Accordion("Code and ONNX", open=False):
                code = gr.Code(view.code, language="python", label="Python", interactive=False, elem_id=f"code-{name}")
                export = gr.Button("Export an attention layer as ONNX", size="sm")
                file = gr.File(label="ONNX file", visible=False, elem_id=f"onnx-{name}")
                export_error = gr.HTML(apply_default_css=False)
    views = [figures, words, code]
    return Side(name, picked, text, shown, sliders, own, load, own_error, views, export, file, export_error)


def _add_events(side: Side, views: list[Any], inputs: list[Any]) -> None:
    """The events of one side. They draw both sides, whose axes are the same.

    Args:
        views: figures, words and code of both sides.
        inputs: the arguments of ``view_sides``.
    """
    import gradio as gr

    place = "AB".index(side.name)
    written = [side.text, side.picked, side.shown, *views]

    def show(text: str, previous: tuple[str, int], values: Sequence[Any]) -> tuple[Any, ...]:
        """A new text of this side, with sliders of its own."""
        texts = list(values[:2])
        texts[place] = text
        return text, picked_names(text), (text, previous[1] + 1), *view_sides(*texts, *values[2:])

    def show_text(previous: tuple[str, int], *values: Any) -> tuple[Any, ...]:
        return show(values[place], previous, values)

    def show_picked(names: list[str], previous: tuple[str, int], *values: Any) -> tuple[Any, ...]:
        return show(combine(names, values[place]), previous, values)

    def show_own(reference: str, previous: tuple[str, int], *values: Any) -> tuple[Any, ...]:
        combined, error = load_own(reference, values[place])
        return error, *show(combined, previous, values)

    side.text.submit(show_text, [side.shown, *inputs], written, **CLICK)
    side.picked.input(show_picked, [side.picked, side.shown, *inputs], written, **CLICK)
    for event in (side.load.click, side.own.submit):
        event(show_own, [side.own, side.shown, *inputs], [side.own_error, *written], **CLICK)

    def export_file(text: str, *values: Any, progress: Any = gr.Progress()) -> tuple[Any, str]:  # noqa: B008
        progress(0.1, desc="Exporting; this takes a few seconds")
        try:
            path = export_onnx(text, make_settings(*values).dims, Path(tempfile.mkdtemp(prefix="whence-onnx-")))
        except Exception as error:  # the exporter and the user's class may raise anything
            return gr.update(visible=False), drawings.problem(describe_error(error))
        return gr.update(value=str(path), visible=True), ""

    side.export.click(
        export_file,
        [side.text, *inputs[3:]],
        [side.file, side.export_error],
        show_progress="full",
        api_visibility="private",
    )

    def add_control(control: Control) -> None:
        """One control; it rewrites the text and redraws."""

        def change(value: Any, *values: Any) -> tuple[Any, ...]:
            value = int(value) if control.kind == "integer" else value
            texts = list(values[:2])
            texts[place] = set_argument(texts[place], control.path, value, logarithmic=control.logarithmic)
            return texts[place], *view_sides(*texts, *values[2:])

        def choose(value: Any, previous: tuple[str, int], *values: Any) -> tuple[Any, ...]:
            return show(set_argument(values[place], control.path, value), previous, values)

        if control.kind in ("flag", "choice"):  # what is accepted for the other arguments may change
            component = (
                gr.Checkbox(control.value, label=control.label, interactive=True)
                if control.kind == "flag"
                else gr.Dropdown(list(control.choices), value=control.value, label=control.label, interactive=True)
            )
            component.input(choose, [component, side.shown, *inputs], written, **CLICK)
        else:
            slider = bounded_slider(
                control.low, control.high, value=control.value, step=control.step, label=control.label, interactive=True
            )
            slider.input(change, [slider, *inputs], [side.text, *views], **LIVE)

    with side.sliders:
        # one render after the other: Gradio's list of components must not change while another render reads it
        @gr.render(
            inputs=[side.shown, *inputs[3:5]], show_progress="hidden", concurrency_limit=1, concurrency_id="controls"
        )
        def draw_controls(state: tuple[str, int], heads: float, context: float) -> None:
            dims: ModelDims = Settings(heads=int(heads), context=int(context)).dims
            try:
                groups = find_controls(state[0], dims)
            except Exception:  # the figures show the error
                return
            for name, controls in zip(term_names(state[0]), groups, strict=True):
                if controls:  # of a class of one's own, its name without the file
                    name = html.escape(name.rpartition(":")[2])
                    gr.HTML(f'<h3 class="term">{name}</h3>', apply_default_css=False)
                for control in controls:
                    add_control(control)
