"""The tab of models: a text through a pretrained model, its attention, and what a mechanism or a cure changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from whence.explore import drawings
from whence.explore.bounded_slider import bounded_slider
from whence.explore.mechanism_view import describe_error
from whence.explore.model_reading import (
    MAX_TOKENS,
    NEW_TOKENS,
    NOTHING,
    SMALLEST,
    Reading,
    generate,
    needle_probability,
    ready_cures,
)
from whence.explore.model_session import ModelSession, ReadText
from whence.explore.model_view import draw_continuations, draw_next, draw_reading
from whence.hf import LoadedModel

TEXT = "Position decides where a model looks. The first token often receives attention that no other token needs."
PLACES = 12
FAILED = "Nothing is shown, because the text could not be read so."
UNREAD = "Press “Read the text”. The first time, the model is loaded."


def view_text(
    session: ModelSession,
    before: ReadText | None,
    name: str,
    text: str,
    change: str,
    layer: int,
    head: int,
    back: int,
) -> Iterator[tuple[str | None, str, ReadText | None]]:
    """Figures, next tokens and what was read, while it is read: the chosen layer is drawn as soon as it has run."""
    yield None, drawings.progress("Loading the model" if session.name != name else "Reading", 0, 1), None
    drawn = None
    for done in session.read(before, name, text, change):
        if isinstance(done, ReadText):
            lm, changed = session.get(name), done.change != NOTHING
            following = draw_next(lm, done.readings[NOTHING], done.shown if changed else None)
            yield draw_reading(done.shown, layer, head, back), following, done
        elif isinstance(done, Reading) and done.next_probabilities is None:
            figures = None
            ready = min(layer, done.layers - 1) in done.attention.sources
            if ready and drawn is not done.attention:
                figures, drawn = draw_reading(done, layer, head, back), done.attention
            ran = len(done.attention.sources)
            yield figures, drawings.progress(f"Layer {ran} of {done.layers}", ran, done.layers), None


def view_generation(
    session: ModelSession, name: str, text: str, change: str, before: ReadText | None = None
) -> Iterator[str]:
    """Continuations of a text as it is and with the change, as HTML. What ``before`` has read is not read again."""
    lines: list[tuple[str, str]] = []
    same = before is not None and before.model == name == session.name
    known = before.readings[NOTHING].known if before is not None and same else None
    yield drawings.progress("Loading the model" if session.name != name else "Reading", 0, 1)
    for one in dict.fromkeys((NOTHING, change.strip() or NOTHING)):
        label = "as it is" if one == NOTHING else one
        for done in session.run(name, partial(generate, text=text, change=one, known=known)):
            if isinstance(done, str):
                lines.append((label, done))
                yield draw_continuations(lines)
            else:
                bar = drawings.progress(f"{label}: token {done} of {NEW_TOKENS}", done, NEW_TOKENS)
                yield draw_continuations(lines) + bar


def view_needle(
    session: ModelSession, name: str, needle: str, question: str, answer: str, place: int, change: str
) -> str:
    """The probability of the answer with the needle at a place."""

    def work(lm: LoadedModel, report: object) -> float:
        share, session.needle = needle_probability(lm, needle, question, answer, place, PLACES, change, session.needle)
        return share

    *_, share = session.run(name, work)
    shown = f"probability of “{answer}”, needle after {place} of {PLACES} sentences"
    return drawings.tiles((shown, f"{100 * share:.2f} %"))


def add_model_tab() -> None:
    """Add the components and their events to the current tab."""
    import gradio as gr

    session = ModelSession()
    #: the latest value wins, and nothing flickers
    live: dict[str, Any] = {
        "show_progress": "hidden",
        "trigger_mode": "always_last",
        "api_visibility": "private",
    }
    was_read = gr.State(None)
    with gr.Row(elem_classes="side", equal_height=False):
        with gr.Column(scale=2, min_width=300, elem_classes="controls"):
            name = gr.Dropdown(
                ["smollm2", SMALLEST], value="smollm2", label="Model", info="Or the path of a folder.", allow_custom_value=True,
                elem_id="model",
            )  # fmt: skip
            text = gr.Textbox(
                TEXT, label=f"Text, up to {MAX_TOKENS} tokens", lines=4, max_lines=10, elem_id="model-text",
                info="Paragraphs with an empty line between them are documents for cures; the last is the question.",
            )  # fmt: skip
            change = gr.Dropdown(
                [NOTHING, "Alibi(scale=0.1)", "PowerPrior(alpha=0.05)", *ready_cures()], value=NOTHING, label="Change",
                info="A mechanism as text, or a cure. A rotary one replaces the model's own.", allow_custom_value=True, elem_id="change",
            )  # fmt: skip
            run = gr.Button("Read the text", variant="primary", elem_id="read")
            error = gr.HTML(apply_default_css=False, elem_id="model-error")
            layer = bounded_slider(0, 29, value=0, step=1, label="Layer", elem_id="layer")
            head = bounded_slider(0, 8, value=0, step=1, label="Head", elem_id="head")
            back = bounded_slider(0, 16, value=0, step=1, label="Tokens back from the last", elem_id="back")
            continue_ = gr.Button("Continue the text", size="sm", elem_id="continue")
            with gr.Accordion("Needle", open=False):
                needle = gr.Textbox("The secret word of the day is lantern.", label="Needle")
                question = gr.Textbox("The secret word of the day is", label="Question")
                answer = gr.Textbox("lantern", label="Answer")
                place = bounded_slider(0, PLACES, value=6, step=1, label="Sentences before the needle", elem_id="place")
                found = gr.HTML(apply_default_css=False, elem_id="needle")
        with gr.Column(scale=5, min_width=420, elem_classes="figures"):
            following = gr.HTML(apply_default_css=False, elem_id="next")
            continued = gr.HTML(apply_default_css=False, elem_id="generated")
            figures = gr.HTML(
                drawings.note(UNREAD), apply_default_css=False, elem_id="attention", js_on_load=None
            )  # fmt: skip

    def show(written: str, model_name: str, change: str, before: ReadText | None, *places: float) -> Iterator[Any]:
        layer, head, back = map(int, places)
        for drawn, next_tokens, done in view_text(session, before, model_name, written, change, layer, head, back):
            sliders = [gr.skip()] * 3
            if done is not None:
                ends = zip(slider_ends(done), (layer, head, back), strict=True)
                sliders = [gr.update(maximum=max(1, high), value=min(value, high)) for high, value in ends]
            state = gr.skip() if done is None else done
            yield gr.skip() if drawn is None else drawn, next_tokens, "", state, *sliders

    def redraw(before: ReadText | None, *places: float) -> str:
        layer, head, back = map(int, places)
        return drawings.note(UNREAD) if before is None else draw_reading(before.shown, layer, head, back)

    def look(*values: Any) -> Iterator[Any]:
        name, needle, question, answer, place, change = values
        yield (drawings.progress("Loading the model" if session.name != name else "Reading", 0, 1),)
        yield (view_needle(session, name, needle, question, answer, int(place), change),)

    reading = [error, figures, following, continued, was_read, layer, head, back]
    inputs = [text, name, change, was_read, layer, head, back]
    shown = guard(show, (drawings.note(FAILED), "", "", None, None, None, None))
    run.click(shown, inputs, reading, **live)
    change.input(shown, inputs, reading, **live)
    for one in (layer, head, back):
        one.input(redraw, [was_read, layer, head, back], figures, **live)
    continue_.click(
        guard(lambda *values: ((one,) for one in view_generation(session, *values)), ("",)),
        [name, text, change, was_read],
        [error, continued],
        **live,
    )
    for event in (place.input, needle.submit, question.submit, answer.submit):
        event(guard(look, ("",)), [name, needle, question, answer, place, change], [error, found], **live)
    for one in (name, change):  # the probability belongs to another model or change
        one.input(lambda: "", None, found, **live)


def slider_ends(done: ReadText) -> tuple[int, int, int]:
    """The largest layer, head and number of tokens back of what was read."""
    shown = done.shown
    return shown.layers - 1, len(shown.attention[0][0]) - 1, len(shown.tokens) - 1


def guard(view: Callable[..., Iterator[Any]], after_error: tuple[Any, ...]) -> Callable[..., Iterator[Any]]:
    """A handler whose errors are sentences in the first output. ``after_error`` are the others then; None leaves one."""
    import gradio as gr

    def handle(*values: Any) -> Iterator[Any]:
        try:
            for shown in view(*values):
                yield "", *shown
        except Exception as problem:  # a model, a folder and a user's class may raise anything
            rest = [gr.skip() if one is None else one for one in after_error]
            yield drawings.problem(describe_error(problem)), *rest

    return handle
