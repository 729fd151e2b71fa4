"""A slider that takes whatever is typed beside it: numbers outside its range become its ends."""

from __future__ import annotations

from typing import Any


def bounded_slider(low: float, high: float, *, value: float, **options: Any) -> Any:
    """A ``gradio.Slider``. An empty field counts as the first value, and a number outside as the nearest end.

    Gradio raises an error for them, which a page shows in the library's words, and the sliders that are drawn again then fail.
    """
    import gradio as gr

    slider = gr.Slider(low, high, value=value, **options)
    check = slider.preprocess

    def preprocess(payload: float | None) -> float:
        number = value if payload is None else payload
        return check(min(max(number, slider.minimum), slider.maximum))

    slider.preprocess = preprocess
    return slider
