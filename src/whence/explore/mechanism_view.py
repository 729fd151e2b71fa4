"""What the tab of mechanisms shows of one expression: its effect, the example pattern, a text, and code."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from whence.attention.attend import attend
from whence.attention.module import without_embedding
from whence.errors import WhenceError, usage_error
from whence.explore import drawings
from whence.explore.controls import write_snippet
from whence.plotting.effects import (
    Effect,
    PlotInputs,
    build_plot_inputs,
    compute_attention,
    compute_effect,
    compute_weight_ratio,
)
from whence.position import catalogue
from whence.position.base import Position
from whence.position.evaluate import evaluate_clock
from whence.position.expression import ModelDims, parse_position
from whence.position.score_mod import ScoreMod
from whence.user_code import describe_user_error

MAX_WORDS = 64
#: the score of a word with itself; scores of different words are random, with a standard deviation of about 1
SAME_WORD_SCORE = 4.0
HEAD_DIM = 16


@dataclass(frozen=True)
class Settings:
    """What all views of the tab share."""

    heads: int = 4
    context: int = 64
    length: int = 96  # tokens in the figures
    head: int = 0  # of the maps
    log_distance: bool = False
    sentence: str = "the quick brown fox jumps over the lazy dog and the dog sleeps"
    word: int = 0  # of the query, counted back from the last one

    @property
    def dims(self) -> ModelDims:
        return ModelDims(self.heads, HEAD_DIM, self.heads * HEAD_DIM, self.context, max_length=max(512, self.context))


@dataclass(frozen=True)
class MechanismView:
    """HTML of the figures, HTML of the text, and Python code. After an error, the figures are its sentence."""

    figures: str
    sentence: str
    code: str


@dataclass(frozen=True)
class Measured:
    """The numbers of one mechanism that are drawn."""

    position: Position
    inputs: PlotInputs
    effect: Effect
    without: Tensor  # [T, S]
    weights: Tensor  # [H, T, S]
    ratio: Tensor  # [H, T // 2], log2 of weights with / without by distance, a mean over the queries of the second half
    sentence: str
    code: str

    @property
    def query(self) -> int:
        """The query whose row is drawn as a curve."""
        return self.inputs.length - 1 if self.inputs.causal else self.inputs.length // 2

    @property
    def distances(self) -> Tensor:
        return self.query - torch.arange(self.inputs.length).flip(0)


@dataclass(frozen=True)
class SharedAxes:
    """The ends of the axes of two mechanisms that stand side by side, so that equal heights and colors are equal numbers.

    Without ends, each drawing has its own. Different quantities become one, the change of the logit of a score of 1.
    """

    as_change: bool = False
    effect: tuple[float, ...] = ()  # of the curves
    effect_map: tuple[float, ...] = ()
    distance: tuple[float, ...] = ()
    ratio: tuple[float, ...] = ()
    ratio_distance: tuple[float, ...] = ()


def share_axes(measured: Sequence[Measured], head: int) -> SharedAxes:
    """Axes for several mechanisms; those of one alone are its own."""
    if len(measured) < 2:
        return SharedAxes()
    as_change = len({one.effect.label for one in measured}) > 1
    shown = [_quantity(one, as_change)[0] for one in measured]
    return SharedAxes(
        as_change,
        _ends(*(values[:, one.query] for values, one in zip(shown, measured, strict=True))),
        _ends(*(_select_head(values, head) for values in shown)),
        _ends(*(one.distances for one in measured)),
        _ends(*(one.ratio for one in measured)),
        _ends(*(torch.arange(one.ratio.shape[1]) for one in measured)),
    )


def _ends(*tensors: Tensor) -> tuple[float, ...]:
    """The smallest and the largest finite number; none if there is no number."""
    numbers = torch.cat([tensor[tensor.isfinite()].double() for tensor in tensors])
    return (float(numbers.min()), float(numbers.max())) if len(numbers) else ()


def _quantity(measured: Measured, as_change: bool) -> tuple[Tensor, str]:
    """What the effect's drawings show, and its name."""
    effect = measured.effect
    if as_change:
        return effect.values - effect.neutral, "change of the logit of a score of 1"
    return effect.values, effect.label.replace("\n", " ")


def view_mechanism(text: str, settings: Settings) -> MechanismView:
    """Everything that is shown of an expression. An error becomes a sentence."""
    return view_mechanisms([text], settings)[0]


def view_mechanisms(texts: Sequence[str], settings: Settings) -> list[MechanismView]:
    """Everything that is shown of expressions side by side, on the same axes. An error becomes a sentence."""
    found = [_measure(text, settings) for text in texts]
    axes = share_axes([one for one in found if isinstance(one, Measured)], settings.head)
    return [
        MechanismView(_draw(one, axes, settings), one.sentence, one.code)
        if isinstance(one, Measured)
        else MechanismView(drawings.problem(one), "", "")
        for one in found
    ]


@torch.no_grad()
def _measure(text: str, settings: Settings) -> Measured | str:
    """The numbers of an expression, or an error as a sentence."""
    try:
        position = build(text, settings.dims)
        inputs = build_plot_inputs(position, settings.length, settings.heads, HEAD_DIM, seed=0)
        without, weights = compute_attention(inputs)
        ratio = compute_weight_ratio(without, weights).log2()
        sentence, code = _draw_sentence(position, settings), write_snippet(text, settings.dims)
        return Measured(position, inputs, compute_effect(inputs), without, weights, ratio, sentence, code)
    except Exception as error:  # the user's class may raise anything
        return describe_error(error)


def describe_error(error: Exception) -> str:
    """An error as a sentence: of whence, of the user's code with its file and line, or of anything else."""
    if isinstance(error, WhenceError):
        return str(error)
    return describe_user_error(error) or f"{type(error).__name__}: {error}"


def build(text: str, dims: ModelDims) -> Position:
    """The mechanism of an expression. Random tables are the same each time."""
    if not text.strip():
        raise usage_error(
            "The expression", "nothing", "it names a mechanism or a sum", "type for example Alibi(scale=2)"
        )
    expression = parse_position(text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return expression.build(dims)


def _draw(measured: Measured, axes: SharedAxes, settings: Settings) -> str:
    inputs, effect, query = measured.inputs, measured.effect, measured.query
    values, label = _quantity(measured, axes.as_change)
    head = min(settings.head, inputs.heads - 1)
    curves = drawings.head_curves(measured.distances, values[:, query].flip(-1), effect.shared)
    which = "" if measured.position.relative else f", for the query at {query}"
    later = torch.ones(inputs.length, inputs.length, dtype=torch.bool).triu(1)
    name = "" if effect.shared else f", head {head}"
    ratio, shared = measured.ratio, bool(torch.allclose(measured.ratio, measured.ratio[:1], atol=1e-9))
    panels = [
        drawings.line_chart(
            "Effect over distance",
            curves,
            f"distance to the key (tokens){which}",
            label,
            log_distance=settings.log_distance,
            extent="wide",
            x_ends=axes.distance,
            y_ends=axes.effect,
        ),
        drawings.heatmap(f"Effect by query and key{name}", _select_head(values, head), label, ends=axes.effect_map),
        drawings.heatmap(
            "Attention without position",
            measured.without.masked_fill(later, torch.nan),
            "attention weight",
            weights=True,
        ),
        drawings.heatmap(
            f"Attention with it, head {head}",
            measured.weights[head].masked_fill(later, torch.nan),
            "attention weight",
            weights=True,
        ),
        drawings.line_chart(
            "Change by distance",
            drawings.head_curves(torch.arange(ratio.shape[1]), ratio, shared),
            "distance to the key (tokens)",
            "log2 of weight with / without",
            log_distance=settings.log_distance,
            x_ends=axes.ratio_distance,
            y_ends=axes.ratio,
        ),
    ]
    return f'{_headline(measured.position)}<div class="panels">{"".join(panels)}</div>'


def _select_head(values: Tensor, head: int) -> Tensor:
    """The matrix of a head, of values that have one for each head or one for all."""
    return values[min(head, len(values) - 1)]


def _headline(position: Position) -> str:
    ideas = {entry.name.partition(",")[0]: (entry.idea, entry.source) for entry in reversed(catalogue.CATALOGUE)}
    parts = []
    for part in position.parts:
        name, file = _name_part(part)
        idea, source = ("your own mechanism", file) if file else ideas.get(name, ("", ""))
        parts.append(f"<li><b>{html.escape(name)}</b> {html.escape(idea)} <small>{html.escape(source)}</small></li>")
    learned = sum(parameter.numel() for parameter in position.parameters())
    acts = ", ".join(_EFFECTS[effect] for effect in _EFFECTS if effect in position.effects) or "nothing"
    note = f"Acts on {acts}. " + (
        f"{learned} learnable numbers, shown as initialized." if learned else "Nothing is learned."
    )
    return f'<ul class="ideas">{"".join(parts)}</ul>{drawings.note(note)}'


def _name_part(part: Position) -> tuple[str, str]:
    """The name of a part's class or function, and of the file or module that it is from, empty for whence's own."""
    source = part.fn if isinstance(part, ScoreMod) else type(part)
    if source.__module__.split(".")[0] == "whence":
        return type(part).__name__, ""
    try:
        file = Path(inspect.getfile(source)).name  # the module of a file has a name of its own making
    except (TypeError, OSError):
        file = source.__module__
    return getattr(source, "__name__", type(source).__name__), file


_EFFECTS = {
    "embed": "the input embedding", "rotate": "queries and keys", "score_scale": "scores, as a factor", "bias": "scores, as a bias",
    "content_bias": "scores, through content", "value_bias": "values", "sink": "each row, through an extra logit", "clock": "scores, through steps of the input",
}  # fmt: skip


def split_words(sentence: str) -> list[str]:
    """Words and punctuation of a text.

    >>> split_words("Who, me?")
    ['Who', ',', 'me', '?']
    """
    return re.findall(r"\w+(?:['’-]\w+)*|[^\w\s]", sentence)


def word_weights(position: Position, words: list[str], heads: int) -> tuple[Tensor, Tensor]:
    """Causal attention over words, without the mechanism ``[H, T, T]`` and with it.

    Each distinct word is one random vector per head, so equal words attract each other.
    """
    inputs = build_plot_inputs(position, max(8, len(words)), heads, HEAD_DIM, seed=0)
    head_dim = inputs.direction.shape[1]
    generator = torch.Generator().manual_seed(0)
    vectors: dict[str, Tensor] = {}
    for word in words:
        if word.lower() not in vectors:
            signs = torch.randint(0, 2, (heads, head_dim), generator=generator).double() * 2 - 1
            vectors[word.lower()] = signs * (SAME_WORD_SCORE / head_dim**0.5) ** 0.5
    content = torch.stack([vectors[word.lower()] for word in words], 1)[None]  # [1, H, T, D]
    embedded = content.transpose(1, 2).flatten(2)
    for part in inputs.position.at_input():
        embedded = part.embed(embedded, torch.arange(len(words))[None])
    steps = evaluate_clock(inputs.position, embedded, heads) if "clock" in inputs.position.effects else None
    q_input = embedded if inputs.position.reads_input else None
    embedded = embedded.unflatten(2, (heads, -1)).transpose(1, 2)
    value_dim = max(getattr(part, "value_dim", None) or 1 for part in inputs.position.parts)
    values = torch.zeros(1, heads, len(words), value_dim, dtype=torch.float64)
    _, plain = attend(content, content, values, causal=True, backend="reference", return_weights=True)
    _, weights = attend(
        embedded, embedded, values, position=without_embedding(inputs.position), clock=steps, q_input=q_input,
        causal=True, backend="reference", return_weights=True,
    )  # fmt: skip
    return plain[0], weights[0]


def _draw_sentence(position: Position, settings: Settings) -> str:
    words = split_words(settings.sentence)[:MAX_WORDS]
    if len(words) < 2:
        return drawings.note("Type at least two words.")
    plain, weights = word_weights(position, words, settings.heads)
    query = max(0, len(words) - 1 - settings.word)
    head = min(settings.head, settings.heads - 1)
    shown = [
        drawings.shaded_words(f"From “{words[query]}” without position", words, plain[head, query].tolist(), query),
        drawings.shaded_words(
            f"From “{words[query]}” with it, head {head}", words, weights[head, query].tolist(), query
        ),
    ]
    return "".join(shown)
