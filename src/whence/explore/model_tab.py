"""The tab of models: a text through a pretrained model, its attention, and what a mechanism or a cure changes."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from whence.explore import drawings
from whence.explore.mechanism_view import describe_error
from whence.explore.model_view import (
    NOTHING,
    SMALLEST,
    draw_next,
    draw_reading,
    generate,
    load_model,
    needle_probability,
    read,
    simple_cures,
)
from whence.hf import LoadedModel

TEXT = "Position decides where a model looks. The first token often receives attention that no other token needs."
PLACES = 12


class ModelSession:
    """The model of a page, loaded on first use; one at a time, because a model is large."""

    def __init__(self) -> None:
        self.name = ""
        self.loaded: LoadedModel | None = None

    def get(self, name: str) -> LoadedModel:
        if self.loaded is None or name != self.name:
            self.loaded = None
            self.loaded = load_model(name)
            self.name = name
        return self.loaded


def view_text(lm: LoadedModel, text: str, layer: int, head: int, back: int, change: str) -> tuple[str, str]:
    """Figures and next tokens of a text. With a change, the figures show the changed model."""
    layer = min(layer, lm.model.config.num_hidden_layers - 1)
    plain = read(lm, text, layer)
    other = None if change in (NOTHING, "") else read(lm, text, layer, change)
    return draw_reading(other or plain, layer, head, back), draw_next(lm, plain, other)


def view_generation(lm: LoadedModel, text: str, change: str) -> str:
    """Continuations of a text as it is and with the change, as HTML."""
    lines = [("as it is", generate(lm, text, NOTHING))]
    if change not in (NOTHING, ""):
        lines.append((change, generate(lm, text, change)))
    return "".join(
        f'<p class="generated"><span class="given">{html.escape(name)}: …</span>{html.escape(line)}</p>'
        for name, line in lines
    )


def view_needle(lm: LoadedModel, needle: str, question: str, answer: str, place: int, change: str) -> str:
    """The probability of the answer with the needle at a place."""
    share = needle_probability(lm, needle, question, answer, place, PLACES, change)
    return drawings.tiles(
        (f"probability of “{answer}”, needle after {place} of {PLACES} sentences", f"{100 * share:.2f} %")
    )


def add_model_tab() -> None:
    """Add the components and their events to the current tab."""
    import gradio as gr

    session = ModelSession()
    private: dict[str, Any] = {"api_visibility": "private"}
    with gr.Row(elem_classes="side", equal_height=False):
        with gr.Column(scale=2, min_width=300, elem_classes="controls"):
            name = gr.Dropdown(
                ["smollm2", SMALLEST], value="smollm2", label="Model", info="Or the path of a folder.", allow_custom_value=True,
                elem_id="model",
            )  # fmt: skip
            text = gr.Textbox(TEXT, label="Text, up to 512 tokens", lines=4, max_lines=10, elem_id="model-text")
            change = gr.Dropdown(
                [NOTHING, "Alibi(scale=0.1)", "PowerPrior(alpha=0.05)", *simple_cures()], value=NOTHING, label="Change",
                info="A mechanism as text, or a cure.", allow_custom_value=True, elem_id="change",
            )  # fmt: skip
            layer = gr.Slider(0, 29, value=0, step=1, label="Layer")
            head = gr.Slider(0, 15, value=0, step=1, label="Head")
            back = gr.Slider(0, 511, value=0, step=1, label="Tokens back from the last")
            run = gr.Button("Read the text", variant="primary", elem_id="read")
            continue_ = gr.Button("Continue the text", size="sm", elem_id="continue")
            with gr.Accordion("Needle", open=False):
                needle = gr.Textbox("The secret word of the day is lantern.", label="Needle")
                question = gr.Textbox("The secret word of the day is", label="Question")
                answer = gr.Textbox("lantern", label="Answer")
                place = gr.Slider(0, PLACES, value=6, step=1, label="Sentences before the needle", elem_id="place")
                found = gr.HTML(apply_default_css=False, elem_id="needle")
        with gr.Column(scale=5, min_width=420, elem_classes="figures"):
            error = gr.HTML(apply_default_css=False, elem_id="model-error")
            following = gr.HTML(apply_default_css=False, elem_id="next")
            continued = gr.HTML(apply_default_css=False, elem_id="generated")
            figures = gr.HTML(
                drawings.note("Press “Read the text”. The first time, the model is loaded."), apply_default_css=False,
                elem_id="attention", js_on_load=None,
            )  # fmt: skip

    def guard(count: int, view: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
        """A handler whose errors are sentences in the first output; the others stay as they are."""

        def handle(model_name: str, *values: Any) -> tuple[Any, ...]:
            try:
                shown = view(session.get(model_name), *values)
            except Exception as problem:  # a model, a folder and a user's class may raise anything
                return drawings.problem(describe_error(problem)), *(gr.skip() for _ in range(count))
            return "", *(shown if isinstance(shown, tuple) else (shown,))

        return handle

    def show(lm: LoadedModel, written: str, layer: float, head: float, back: float, change: str) -> tuple[str, str]:
        return view_text(lm, written, int(layer), int(head), int(back), change)

    def look(lm: LoadedModel, needle: str, question: str, answer: str, place: float, change: str) -> str:
        return view_needle(lm, needle, question, answer, int(place), change)

    inputs = [name, text, layer, head, back, change]
    run.click(guard(2, show), inputs, [error, figures, following], show_progress="full", **private)
    for one in (layer, head, back):
        one.release(
            guard(2, show),
            inputs,
            [error, figures, following],
            show_progress="hidden",
            trigger_mode="always_last",
            **private,
        )
    change.input(guard(2, show), inputs, [error, figures, following], **private)
    continue_.click(
        guard(1, view_generation), [name, text, change], [error, continued], show_progress="full", **private
    )
    place.release(
        guard(1, look),
        [name, needle, question, answer, place, change],
        [error, found],
        show_progress="minimal",
        **private,
    )
