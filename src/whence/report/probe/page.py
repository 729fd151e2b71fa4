"""The page: the gold-position curves first, then where attention goes, then what position does inside, then how it was run."""

from __future__ import annotations

import html
from importlib.resources import files
from typing import Any

from whence.errors import refusal
from whence.report.comparison.page import PAGE
from whence.report.comparison.rerun import rerun
from whence.report.probe import charts, depths, tables
from whence.report.probe.doubts import found_in
from whence.report.probe.sentences import answer, counted, detail, emphasised, headline

REGIONS = {
    "sink": "share to the first token",
    "primacy": "share to the beginning",
    "recency": "share to the end",
}


def page(findings: dict[str, Any]) -> str:
    """One self-contained HTML page about a probe, from the findings of ``whence.bias.findings``."""
    if not findings.get("tasks"):
        raise refusal("page(findings)", "no tasks", "a probe has at least one", "run a probe first")
    folder = files("whence.report.comparison")
    study = {"name": "the plan", "task": "probe", "hash": findings["hash"], "spec": findings["plan"],
             "ran": findings["ran"]}  # fmt: skip
    return PAGE.substitute(
        title=html.escape(findings["title"]),
        style=folder.joinpath("style.css").read_text("utf-8"),
        script=folder.joinpath("legend.js").read_text("utf-8"),
        verdicts=_curves(findings),
        studies="".join((_attention(findings), _inside(findings), _causes(findings), _doubts(findings))),
        rerun=rerun({**findings, "studies": [study]}),
        when=html.escape(findings["when"]),
    )


def _curves(findings: dict[str, Any]) -> str:
    model = findings["model"]
    size = f"{model['parameters'] / 1e6:,.0f} million parameters" if model["parameters"] >= 1e6 else "a tiny model"
    random = (
        " Its weights are random: this page shows that all parts run, and nothing else." if "random" in model else ""
    )
    cards = "".join(
        f'<figure class="figure"><h3>{html.escape(task["name"])}: {html.escape(headline(task))}</h3>'
        f"{charts.gold_curve(task)}<figcaption>{html.escape(task['about'])} {html.escape(detail(task))}</figcaption></figure>"
        for task in findings["tasks"]
    )
    return (
        '<section class="verdict" aria-labelledby="curves"><h2 id="curves">Is the answer found wherever it stands?</h2>'
        f"{_missing(findings)}"
        f"<p>{html.escape(model['name'])}, {html.escape(model['type'])}, {model['layers']} layers, {size}.{random} Bars are 95% "
        "intervals; dotted lines are chance, the question without any slot (closed book) and the gold alone (oracle).</p>"
        f'<div class="figures">{cards}{_lengths(findings["tasks"])}</div>{tables.curves(findings["tasks"])}'
        '<p class="small">Likeliest answer: the right one has a higher likelihood than every rival. Written answer: it '
        "stands in what the model writes. The gap is the best place less the worst, which chance makes too: how large, "
        "shuffles of each item’s places say, and p is their share that reach the gap found.</p></section>"
    )


def _missing(findings: dict[str, Any]) -> str:
    if not findings["missing"]:
        return ""
    return (
        f'<p class="warning">Not measured to the end, and left out: {html.escape("; ".join(findings["missing"]))}.</p>'
    )


def _lengths(tasks: list[dict[str, Any]]) -> str:
    """For each kind of task that was asked at several lengths, all its curves in one figure."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for task in tasks:
        kinds.setdefault(task["kind"], []).append(task)
    return "".join(
        _figure(
            f"{kind}: by depth and length", depths.depth_by_length(own), "The same curves, one row for each length."
        )
        for kind, own in kinds.items()
        if len(own) > 1
    )


def _attention(findings: dict[str, Any]) -> str:
    found = findings["explanation"]["attention"]
    if not found:
        return ""
    free = findings["explanation"].get("content-free") or {}
    figures = "".join(
        _figure(task["name"], charts.slot_attention(task, found[task["task"]], free.get(task["task"])),
                "Mean over layers and heads. All alike: every slot holds the same words, so what is left is position.")
        for task in findings["tasks"] if task["task"] in found
    )  # fmt: skip
    name, first = next(iter(found.items()))
    heads = {title: first["regions"][region] for region, title in REGIONS.items()}
    heads["difference between slots due to position"] = first["shares"]["position"]
    grids = "".join(f'<figure class="figure">{charts.head_grid(rows, title)}</figure>' for title, rows in heads.items())
    distance = findings["explanation"].get("distance")
    far = (
        _figure(
            "By distance",
            charts.by_distance(distance),
            "Mean over all queries of plain texts. One position: all tokens are told the same, so that the mask alone tells near from far.",
        )
        if distance
        else ""
    )
    return _section(
        "attention", "Where does the answering token look?",
        f'<div class="figures">{figures}{far}</div>'
        f"<h3>Every head</h3><p>Task {html.escape(name)}. The first three grids divide a row of attention (beginning and end "
        "are a tenth of the tokens each); the last says how much of the differences between slots is their place alone, "
        f'under the model position + relevance of the gold + rest; with few items, what a slot happens to hold counts as its place.</p><div class="figures">{grids}</div>'
        + _gold_by_head(name, first),
    )  # fmt: skip


def _gold_by_head(name: str, attention: dict[str, Any]) -> str:
    """Which heads look at the gold, and whether they still do when it moves: a grid for its first, middle and last slot."""
    gold, places = attention["gold"], attention["places"]
    most = max(value for layer in gold for head in layer for value in head)
    if not most > 0:
        return ""
    shown = sorted({0, len(places) // 2, len(places) - 1})
    grids = "".join(
        f'<figure class="figure">{charts.head_grid(rows, f"the gold in slot {places[at] + 1}")}</figure>'
        for at in shown
        for rows in [[[head[at] / most for head in layer] for layer in gold]]
    )
    return (
        f"<h3>Heads that find the gold</h3><p>Task {html.escape(name)}: attention to the gold in a slot, as a share of the largest "
        f'that any head gives it in any slot ({1000 * most:.3g} thousandths a token).</p><div class="figures">{grids}</div>'
    )


def _inside(findings: dict[str, Any]) -> str:
    geometry, channels = (findings["explanation"].get(name) for name in ("geometry", "channels"))
    if not geometry or not channels:
        return ""
    rows = {
        "all": [100 * layer["beyond_chance"] for layer in geometry["layers"]],
        "no outliers": [100 * layer["beyond_chance_without_outliers"] for layer in geometry["layers"]],
    }
    share = charts.over_layers(rows, "variance due to position (%)", "Share of position by layer.")
    sizes = {name: geometry["vectors"][name] for name in ("moving", "content")}
    norms = charts.over_layers(sizes, "mean length", "Length of the positional vectors and of the content by layer.")
    curve = charts.channel_curve(channels["curve"]) if "curve" in channels else ""
    return _section(
        "inside", "How much of the hidden states is position?",
        '<div class="figures">'
        + _figure("Position among all that varies", share,
                  "Mean, position, context and residual of plain texts, less the noise that few texts leave.")
        + _figure("Positional vectors", norms, "What texts have in common at a position, and what is their own.")
        + _figure("The smoothest channel", curve, "Its mean over random texts, the first tenth of the tokens left out.")
        + f"</div>{tables.channels(channels)}"
        '<p class="small">A fit that finds as many channels in a shuffled order as in the true one says nothing.</p>'
        + tables.scores(geometry["scores"])
        + f"<details><summary>Every layer in numbers</summary>{tables.layers(geometry)}"
        + f'<p class="small">{html.escape(tables.BOTH_HALVES)}</p></details>',
    )  # fmt: skip


def _causes(findings: dict[str, Any]) -> str:
    explanation = findings["explanation"]
    arms = explanation.get("mask-or-encoding")
    if not arms:
        return ""
    return _section(
        "causes", "Is it the mask, or the encoding?",
        f"{tables.arms(arms)}"
        '<p class="small">Mask alone: all positions equal, so that order is known from the causal mask only. Encoding '
        "alone: a mask that hides nothing. Neither: no source of order is left, and the share is zero but for noise.</p>"
        + _ablated(findings)
        + _followed(explanation),
    )  # fmt: skip


def _followed(explanation: dict[str, Any]) -> str:
    """What became of a slot's answer with its weight multiplied, and with its score."""
    found = [part for name in ("follows", "follows-score") if (part := explanation.get(name))]
    if not found:
        return ""
    told = "".join(
        f'{tables.followed(part)}<p class="small">{html.escape(emphasised(part["short"]))}</p>' for part in found
    )
    return f"<h3>Does the answer follow the attention?</h3>{told}"


def _ablated(findings: dict[str, Any]) -> str:
    """The curves with parts of the positional vectors taken out of what attention reads."""
    found = findings["explanation"].get("ablation")
    task = next((one for one in findings["tasks"] if found and one["task"] == found["task"]), None)
    if not found or not task:
        return ""
    share = charts.ablated(found, task["slots"], "share", "probability of the answer (%)",
                           "The probability of the answer by the slot of the gold, with parts taken out.")  # fmt: skip
    gold = charts.ablated(found, task["slots"], "gold", "attention to the gold (thousandths)",
                          "Attention to the gold by its slot, with parts taken out.")  # fmt: skip
    about = (
        f"{counted(found['items'], 'item')} of {task['name']} at each place; vectors from {found['texts']} plain texts of "
        f"{found['tokens']} tokens."
    )
    return (
        "<h3>Does the curve rest on positional vectors?</h3><p>What attention reads in every layer is a positional vector, "
        "the mean over texts, and a text’s own content; moving is what of the vector differs between positions. The "
        "first four tokens, where sinks are, stay as they are. Shuffled takes out the moving part of another position: an arm that "
        "does no more than this one shows the noise of few texts.</p>"
        f'<div class="figures">{_figure("The answer", share, about)}{_figure("Attention to the gold", gold, about)}</div>'
    )


def _doubts(findings: dict[str, Any]) -> str:
    if not findings["doubts"]:
        return ""
    cards = "".join(
        f'<article class="card"><p class="kicker">{html.escape(doubt["doubt"])}</p><h3>That {html.escape(doubt["claim"])} '
        f"{answer(doubt['answer'])}.</h3><p>{html.escape(found_in(doubt))}</p>"
        f'<p class="small">The rule: {html.escape(doubt["rule"])}.</p></article>'
        for doubt in findings["doubts"]
    )
    return _section("doubts", "Three doubts, tested on this model", f'<div class="cards">{cards}</div>')


def _section(name: str, title: str, inside: str) -> str:
    return (
        f'<section class="study" aria-labelledby="{name}"><h2 id="{name}">{html.escape(title)}</h2>{inside}</section>'
    )


def _figure(title: str, chart: str, caption: str) -> str:
    if not chart:
        return ""
    under = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="figure"><h3>{html.escape(title)}</h3>{chart}{under}</figure>'
