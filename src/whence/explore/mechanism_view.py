"""What the tab of mechanisms shows of one expression: its effect, the example pattern, a text, and code."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.attention.attend import attend
from whence.attention.module import without_embedding
from whence.errors import WhenceError, usage_error
from whence.explore import drawings
from whence.explore.controls import write_snippet
from whence.plotting.effects import build_plot_inputs, compute_attention, compute_effect, compute_weight_ratio
from whence.position import catalogue
from whence.position.base import Position
from whence.position.evaluate import evaluate_clock
from whence.position.expression import ModelDims, parse_position
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


def view_mechanism(text: str, settings: Settings) -> MechanismView:
    """Everything that is shown of an expression. An error becomes a sentence."""
    try:
        position = build(text, settings.dims)
        with torch.no_grad():
            figures = _draw(position, settings)
            sentence = _draw_sentence(position, settings)
        return MechanismView(figures, sentence, write_snippet(text, settings.dims))
    except Exception as error:  # the user's class may raise anything
        return MechanismView(drawings.problem(describe_error(error)), "", "")


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


def _draw(position: Position, settings: Settings) -> str:
    inputs = build_plot_inputs(position, settings.length, settings.heads, HEAD_DIM, seed=0)
    effect = compute_effect(inputs)
    without, weights = compute_attention(inputs)
    head = min(settings.head, inputs.heads - 1)
    query = inputs.length - 1 if inputs.causal else inputs.length // 2
    distance = query - torch.arange(inputs.length).flip(0)
    curves = drawings.head_curves(distance, effect.values[:, query].flip(-1), effect.shared)
    which = "" if position.relative else f", for the query at {query}"
    label = effect.label.replace("\n", " ")
    later = torch.ones(inputs.length, inputs.length, dtype=torch.bool).triu(1)
    shown = 0 if effect.shared else head
    name = "every head" if effect.shared else f"head {head}"
    panels = [
        drawings.line_chart(
            "Effect over distance",
            curves,
            f"distance to the key (tokens){which}",
            label,
            log_distance=settings.log_distance,
            extent="wide",
        ),
        drawings.heatmap(f"Effect by query and key, {name}", effect.values[min(shown, len(effect.values) - 1)], label),
        drawings.heatmap(
            "Attention without position", without.masked_fill(later, torch.nan), "attention weight", weights=True
        ),
        drawings.heatmap(
            f"The same content with it, head {head}",
            weights[head].masked_fill(later, torch.nan),
            "attention weight",
            weights=True,
        ),
        _draw_ratio(without, weights, settings),
    ]
    return f'{_headline(position)}<div class="panels">{"".join(panels)}</div>'


def _headline(position: Position) -> str:
    ideas = {entry.name.partition(",")[0]: (entry.idea, entry.source) for entry in reversed(catalogue.CATALOGUE)}
    parts = []
    for part in position.parts:
        name = type(part).__name__
        idea, source = ideas.get(name, ("your own mechanism", type(part).__module__.partition(".")[0]))
        parts.append(f"<li><b>{html.escape(name)}</b> {html.escape(idea)} <small>{html.escape(source)}</small></li>")
    learned = sum(parameter.numel() for parameter in position.parameters())
    acts = ", ".join(_EFFECTS[effect] for effect in _EFFECTS if effect in position.effects) or "nothing"
    note = f"Acts on {acts}. " + (
        f"{learned} learnable numbers, shown as initialized." if learned else "Nothing is learned."
    )
    return f'<ul class="ideas">{"".join(parts)}</ul>{drawings.note(note)}'


_EFFECTS = {
    "embed": "the input embedding", "rotate": "queries and keys", "score_scale": "scores, as a factor", "bias": "scores, as a bias",
    "content_bias": "scores, through content", "value_bias": "values", "sink": "each row, through an extra logit", "clock": "scores, through steps of the input",
}  # fmt: skip


def _draw_ratio(without: Tensor, weights: Tensor, settings: Settings) -> str:
    """The change of the example pattern by distance, as a geometric mean over the queries of the second half."""
    ratio = compute_weight_ratio(without, weights).log2()
    distance = torch.arange(ratio.shape[1])
    shared = bool(torch.allclose(ratio, ratio[:1], atol=1e-9))
    curves = drawings.head_curves(distance, ratio, shared)
    return drawings.line_chart(
        "Change by distance", curves, "distance to the key (tokens)", "log2 of weight with / without",
        log_distance=settings.log_distance,
    )  # fmt: skip


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
    embedded = embedded.unflatten(2, (heads, -1)).transpose(1, 2)
    value_dim = max(getattr(part, "value_dim", None) or 1 for part in inputs.position.parts)
    values = torch.zeros(1, heads, len(words), value_dim, dtype=torch.float64)
    _, plain = attend(content, content, values, causal=True, backend="reference", return_weights=True)
    _, weights = attend(
        embedded, embedded, values, position=without_embedding(inputs.position), clock=steps, causal=True,
        backend="reference", return_weights=True,
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
