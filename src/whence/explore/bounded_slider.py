"""A slider that takes whatever is typed beside it: numbers outside its range become its ends."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any


def bounded_slider(low: float, high: float, *, value: float, **options: Any) -> Any:
    """A ``gradio.Slider``. An empty field counts as the first value, and a number outside as the nearest end.

    Gradio raises an error for them, which a page shows in the library's words, and the sliders that are drawn again then fail.
    """
    return _slider_class()(low, high, value=value, **options)


def _slider_class() -> Any:
    """A subclass, because an update of a slider's range makes another instance of its class."""
    import gradio as gr
    from gradio.component_meta import ComponentMeta

    def preprocess(slider: Any, payload: float | None) -> float:
        number = slider.value if payload is None else payload
        return float(gr.Slider.preprocess(slider, min(max(number, slider.minimum), slider.maximum)))

    # a template is drawn as its base; Gradio's own constructor of classes would write a .pyi file beside this one
    return ABCMeta.__new__(ComponentMeta, "Slider", (gr.Slider,), {"preprocess": preprocess, "is_template": True})
