"""Charts as inline SVG for the page, and as figures for image files, from the same drawing functions."""

from __future__ import annotations

import html
import io
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from whence.errors import require_package, usage_error
from whence.report.probe import charts, explanation_charts, growth_charts
from whence.report.probe.charts import COLORS, Chart
from whence.report.probe.sentences import few_items_note, format_count
from whence.report.probe.tables import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LETTERS = 68  # characters that fit below a panel
NO_FIGURES = 'Numbers instead of figures, because matplotlib is not installed: pip install "whence[plot]".'
#: numbered ids of matplotlib to which nothing refers
_GROUP_ID = re.compile(
    r' id="(?:figure|axes|patch|line2d|text|matplotlib\.axis|xtick|ytick|legend|\w*Collection|\w+)_\d+"'
)


def has_figures() -> bool:
    """Whether charts can be drawn here."""
    return find_spec("matplotlib") is not None


def chart_html(chart: Chart) -> str:
    """A chart for the page: inline SVG, or its table where matplotlib is not installed."""
    return svg(chart) if has_figures() else table(chart.description.partition(". ")[0], chart.head, chart.rows)


def svg(chart: Chart) -> str:
    """A chart as inline SVG: the same bytes each time, text as text, colors as CSS variables of the page."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.hashsalt": "whence",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "path.simplify": False,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=chart.size, layout="constrained")
        figure.patch.set_visible(False)
        draw_axes(figure.add_subplot(), chart.draw, chart.legend_above)
        out = io.StringIO()
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(out.getvalue(), chart)


def _inline(text: str, chart: Chart) -> str:
    """The SVG element of a file as a part of a page: no ids that clash, no fixed size, and a description."""
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.S)
    text = _GROUP_ID.sub("", text)
    prefix = re.sub(r"[^A-Za-z0-9]+", "-", chart.name)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    for name, value in COLORS.items():
        text = text.replace(value, f"var(--{name})")
    text = re.sub(r"#000000\b", "var(--ink)", text)
    text = re.sub(r"#ffffff\b", "var(--raised)", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px; fill: var(--ink)", text)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)  # that of the page
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r"\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}", text)
    text = re.sub(r">\s+<", "><", text)
    box = re.search(r'viewBox="[^"]+"', text)
    assert box is not None
    title, description = html.escape(chart.description.partition(". ")[0]), html.escape(chart.description)
    start = f'<svg class="chart" role="img" aria-label="{description}" {box[0]}><title>{title}</title>'
    return re.sub(r"<svg[^>]*>", lambda _: start, text, count=1).replace("\n", " ").strip()


def draw_axes(axes: Axes, draw: Callable[[Axes], None], legend_above: bool = False) -> None:
    """Draw one chart in the common style."""
    draw(axes)
    axes.set_facecolor("none")
    axes.tick_params(labelsize=7, color=COLORS["faint"], labelcolor=COLORS["ink"])
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(COLORS["faint"])
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(7.5)
        label.set_color(COLORS["ink"])
    if axes.get_legend_handles_labels()[0]:
        place: dict[str, Any] = (
            {"loc": "lower left", "bbox_to_anchor": (0, 1.02), "ncols": 3, "borderaxespad": 0} if legend_above else {}
        )
        axes.legend(fontsize=6.5, frameon=not legend_above, framealpha=0.85, edgecolor="none", facecolor=COLORS["raised"],
                    labelcolor=COLORS["ink"], handlelength=2.6, **place)  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """A chart of a figure with its title; ``note`` describes the data, below the figure."""

    title: str
    chart: Chart
    note: str = ""


def curves_figure(findings: dict[str, Any]) -> Figure:
    """A panel for each task: every measure by the slot of the gold with 95% intervals, chance and the two baselines."""
    panels = [
        Panel(
            f"{task['name']}, {format_count(task['items'], 'item')}{' (few)' if few_items_note(task['items']) else ''}",
            charts.gold_curve(task),
        )
        for task in findings["tasks"]
    ]
    return draw_panels(findings["title"], panels, columns=2)


def explanations_figure(findings: dict[str, Any]) -> Figure:
    """A panel for each explanation in the records, and a description of the data below them."""
    panels = _explanation_panels(findings)
    if not panels:
        raise usage_error(
            "explanations_figure(findings)",
            "no explanations",
            "a figure needs at least one",
            "run the probe without --only",
        )
    return draw_panels(f"{findings['title']}: why", panels, columns=3, with_letters=True)


def draw_panels(title: str, panels: Sequence[Panel], columns: int, with_letters: bool = False) -> Figure:
    """Panels in rows under one title, with letters and the notes on their data below if wanted."""
    require_package("matplotlib", "a figure of a probe", "plot")
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    width, height = (3.9, 3.0) if with_letters else (4.6, 3.1)
    figure = Figure(figsize=(width * columns, height * rows + 0.4), facecolor="white", dpi=160, layout="constrained")
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, index + 1)
        letter = f"{_letter(index)}  " if with_letters else ""
        axes.set_title(
            f"{letter}{panel.title}", fontsize=8.5, loc="left", fontweight="bold" if with_letters else "normal"
        )
        draw_axes(axes, panel.chart.draw)
    notes: dict[str, list[str]] = {}
    for index, panel in enumerate(panels):
        if panel.note:
            notes.setdefault(panel.note, []).append(_letter(index))
    if notes:
        below = "; ".join(f"{', '.join(letters)}: {words}" for words, letters in notes.items()) + "."
        figure.supxlabel(textwrap.fill(below, LETTERS * columns), fontsize=7.5, x=0.01, ha="left")
    return figure


def _letter(index: int) -> str:
    return chr(ord("a") + index)


def emphasis_parts(explanation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The recorded emphases by what they multiply: the weight, the score."""
    return {name: part for name in ("weight", "score") if (part := explanation.get(f"emphasis-{name}"))}


def _explanation_panels(findings: dict[str, Any]) -> list[Panel]:
    """A panel for each explanation in the records; attention is that of the first task."""
    parts, names = findings["explanation"], {task["task"]: task["name"] for task in findings["tasks"]}
    panels: list[Panel] = []
    if parts["attention"]:
        task, attention = next(iter(parts["attention"].items()))
        items = f"{names[task]}, {format_count(findings['plan']['attention_items'], 'item')} at each slot"
        free = (parts.get("content-free") or {}).get(task)
        panels += [
            Panel("attention to the gold as it moves",
                  explanation_charts.slot_attention(task, names[task], attention, free), items),
            Panel("where each head’s attention goes",
                  explanation_charts.region_grids(attention["regions"], attention.get("layers")), items),
        ]  # fmt: skip
    if part := parts.get("distance"):
        texts = "all queries of plain texts, whose first token is among the farthest"
        panels.append(Panel("attention by distance", explanation_charts.attention_by_distance(part), texts))
    if part := parts.get("geometry"):
        texts = f"{part['texts']} plain texts"
        panels.append(
            Panel("variance of hidden states due to position", explanation_charts.position_variance(part), texts)
        )
    if part := parts.get("channels"):
        texts = f"{part['texts']} random texts"
        if "curve" in part:
            panels.append(Panel("the smoothest positional channel", explanation_charts.positional_channel(part), texts))
        panels.append(Panel("monotone channels, by fit", explanation_charts.channel_counts(part), texts))
    if part := parts.get("growth"):
        texts = f"{part['texts']} random texts"
        panels.append(Panel("position in channels, by layer", growth_charts.share_by_layer(part), texts))
    if part := parts.get("mask-or-encoding"):
        texts = f"{part['texts']} random texts"
        panels.append(Panel("is it the mask, or the encoding?", explanation_charts.mask_or_encoding(part), texts))
    if part := parts.get("ablation"):
        items = f"{names.get(part['task'], part['task'])}, {format_count(part['items'], 'item')} at each slot"
        panels.append(
            Panel("the answer without positional vectors", explanation_charts.ablation(part, "probability"), items)
        )
    if emphasis := emphasis_parts(parts):
        part = next(iter(emphasis.values()))
        task = names.get(part["task"], part["task"])
        items = f"{task}, {format_count(part['items'], 'item')}, the gold in slot {part['gold_slot'] + 1}"
        panels.append(Panel("does the answer follow the attention?", explanation_charts.slot_emphasis(emphasis), items))
    return panels
