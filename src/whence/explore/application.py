"""The page of ``whence explore``: one tab per subject."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from whence.explore.mechanisms_tab import add_mechanisms_tab
from whence.explore.model_tab import add_model_tab
from whence.explore.results_tab import add_results_tab

STYLE = Path(__file__).with_name("style.css")
TITLE = "whence explore"


def build_theme() -> Any:
    """Fonts of the system alone, so that nothing is loaded."""
    import gradio as gr

    sans = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif")
    mono = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
    return gr.themes.Base(
        primary_hue="blue",
        neutral_hue="gray",
        radius_size="sm",
        spacing_size="sm",
        text_size="md",
        font=sans,
        font_mono=mono,
    )


def build_application(results: Path) -> Any:
    """All tabs."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import gradio as gr

    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as application:
        gr.HTML(
            '<header class="masthead"><h1>whence</h1><p>See what position does to attention. '
            "Everything runs on this machine.</p></header>",
            apply_default_css=False,
        )
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab("Mechanisms", id="mechanisms"):
                add_mechanisms_tab()
            with gr.Tab("Model", id="model"):
                add_model_tab()
            with gr.Tab("Results", id="results") as tab:
                add_results_tab(results, tab)
    return application
