"""Whether information in a trough of rotary position's oscillation gets less attention and is overlooked.

The score of two equal vectors at distance d is the sum of cos(d * angle) over the pairs of a head: a curve that falls and
oscillates. A fact stands at every distance of a range, one token apart, in texts of one length. The trend over distance is
removed from the oscillation, from the attention and from the answer, and what remains is correlated over distances.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from whence import hf
from whence.probe.hidden_states import plain_texts
from whence.probe.probed_model import ProbedModel
from whence.statistics import summary
from whence_papers.ledger.claims import MissingEvidence

COLORS = (" red", " blue", " green", " white", " black", " yellow", " brown", " pink")
NAMES = ("lamp", "door", "boat", "house", "horse", "shirt", "table", "chair", "flag", "stone", "cup", "car")
DISTRACTORS = 3
TREND = 3  # degree of the polynomial in distance that is removed
ROWS = 8  # prompts in one forward pass
LEVEL = 0.95


def rotary_wave(angles: Tensor, distances: Tensor) -> Tensor:
    """The score of two equal vectors by distance, relative to distance 0: the mean of cos(distance * angle).

    >>> rotary_wave(torch.tensor([1.0, 0.0]), torch.tensor([0.0, torch.pi])).round(decimals=6).tolist()
    [1.0, 0.0]
    """
    return (distances.double()[:, None] * angles.double()).cos().mean(1)


def model_angles(lm: ProbedModel) -> Tensor:
    """The angles by which the model rotates the pairs of a head."""
    for module in lm.model.modules():
        angles = getattr(module, "inv_freq", None)
        if isinstance(angles, Tensor):
            return angles.detach().cpu()
    raise MissingEvidence(f"a model with rotary position; {lm.name} has none")


def rotary_trough(lm: ProbedModel, items: int, near: int, far: int, seed: int) -> dict[str, Any]:
    """Correlations of the oscillation with the score, the attention and the answer, as means over items with 95% t intervals.

    ``score``: the logarithm of the attention of the last token to the token of the answer, as a mean over layers and
    heads; it is the score up to a constant. ``attention``: the same without the logarithm. ``answer``: the log-probability of the
    answer among eight colors. The fact is ``near`` to ``far`` - 1 tokens before the last token.
    """
    distances = torch.arange(near, far)
    measured = [measure_distances(lm, tokens, distances) for tokens in build_facts(lm, items, far, seed)]
    wave = remove_trend(rotary_wave(model_angles(lm), distances), distances)
    figures: dict[str, Any] = {}
    for name in ("score", "attention", "answer"):
        rows = torch.stack([remove_trend(one[name], distances) for one in measured])
        correlations = (rows * wave).sum(1) / (rows.norm(dim=1) * wave.norm()).clamp_min(1e-300)
        own = summary(correlations.tolist(), LEVEL)
        low, high = (own.interval.low, own.interval.high) if own.interval else (own.mean, own.mean)
        figures |= {f"{name}_correlation": own.mean, f"{name}_correlation_low": low, f"{name}_correlation_high": high}
    means = {name: torch.stack([one[name] for one in measured]).mean(0) for name in ("score", "attention", "answer")}
    troughs, peaks = find_turns(wave)
    gain = {name: float(curve[peaks].mean() - curve[troughs].mean()) for name, curve in means.items()}
    correct = float(torch.stack([one["correct"] for one in measured]).mean())
    return {
        **figures,
        "distances": [near, far],
        "wave": _rounded(rotary_wave(model_angles(lm), distances)),
        "curves": {name: _rounded(curve) for name, curve in means.items()},
        "words": (
            f"{items} facts at {far - near} distances, {100 * correct:.0f} % answered correctly. The oscillation without its trend has "
            f"{len(troughs)} troughs and {len(peaks)} peaks. At its peaks the score is {gain['score']:+.3f} higher than in its troughs "
            f"and the log-probability of the answer {gain['answer']:+.3f}."
        ),
    }


def build_facts(lm: ProbedModel, items: int, far: int, seed: int) -> list[dict[str, Any]]:
    """The tokens of each item: a beginning with other facts, filler, the fact with the answer as its last token but one, and a
    question that ends where the answer is due."""
    draw = random.Random(seed)
    fillers = plain_texts(lm, items, far)
    choices = [tokens[0] for tokens in lm.all_tokens(COLORS, special=False)]
    facts = []
    for index in range(items):
        things, colors = draw.sample(NAMES, DISTRACTORS + 1), draw.sample(range(len(COLORS)), DISTRACTORS + 1)
        sentences = [f" The color of the {thing} is" for thing in things]
        begin = "".join(
            f"{text}{COLORS[color]}." for text, color in zip(sentences[1:], colors[1:], strict=True)
        ).strip()
        before, fact, end, question = (
            lm.all_tokens([text], special=position == 0)[0]
            for position, text in enumerate(
                (begin, sentences[0], ".", f"\nQuestion: What is the color of the {things[0]}?\nAnswer:{sentences[0]}")
            )
        )
        facts.append({
            "begin": before, "fact": [*fact, choices[colors[0]], *end], "end": len(end), "filler": fillers[index].tolist(),
            "question": question, "choices": choices, "gold": colors[0],
        })  # fmt: skip
    return facts


def place_fact(fact: dict[str, Any], distance: int) -> tuple[list[int], int]:
    """The prompt with the answer ``distance`` tokens before its last token, and the index of the answer."""
    between = distance - fact["end"] - len(fact["question"])
    filler = fact["filler"]
    if not 0 <= between <= len(filler):
        raise MissingEvidence(
            f"room for a fact {distance} tokens before the end; the question takes {len(fact['question'])}"
        )
    cut = len(filler) - between
    tokens = [*fact["begin"], *filler[:cut], *fact["fact"], *filler[cut:], *fact["question"]]
    return tokens, len(tokens) - 1 - distance


@torch.inference_mode()
def measure_distances(lm: ProbedModel, fact: dict[str, Any], distances: Tensor) -> dict[str, Tensor]:
    """Score, attention, log-probability of the answer and correctness at every distance, ``[distances]`` each."""
    columns: dict[str, list[Tensor]] = {"score": [], "attention": [], "answer": [], "correct": []}
    for part in distances.split(ROWS):
        prompts, answers = zip(*(place_fact(fact, distance) for distance in part.tolist()), strict=True)
        last_row = hf.LastRow()
        with hf.capture(lm.model, last_row):
            logits = lm.model(
                input_ids=torch.tensor(prompts, device=lm.device), use_cache=False, logits_to_keep=1
            ).logits
        rows = last_row.stack().double().cpu()  # [layers, prompts, heads, tokens]
        weights = torch.stack([rows[:, index, :, answer] for index, answer in enumerate(answers)])
        among = logits[:, -1, fact["choices"]].double().cpu().log_softmax(-1)
        columns["score"].append(weights.clamp_min(1e-30).log().mean((1, 2)))
        columns["attention"].append(weights.mean((1, 2)))
        columns["answer"].append(among[:, fact["gold"]])
        columns["correct"].append((among.argmax(-1) == fact["gold"]).double())
    return {name: torch.cat(parts) for name, parts in columns.items()}


def remove_trend(curve: Tensor, at: Tensor) -> Tensor:
    """A curve minus its least-squares cubic in the logarithm of the distance."""
    x = at.double().log()
    powers = ((x - x.mean()) / (x.max() - x.min()))[:, None] ** torch.arange(TREND + 1)
    return curve.double() - powers @ torch.linalg.lstsq(powers, curve.double()[:, None]).solution[:, 0]


def find_turns(curve: Tensor) -> tuple[list[int], list[int]]:
    """The indices of the local minima and of the local maxima of a curve.

    >>> find_turns(torch.tensor([2.0, 1.0, 3.0, 0.0, 5.0]))
    ([1, 3], [2])
    """
    inner, left, right = curve[1:-1], curve[:-2], curve[2:]
    minima, maxima = (inner < left) & (inner < right), (inner > left) & (inner > right)
    return (torch.nonzero(minima).flatten() + 1).tolist(), (torch.nonzero(maxima).flatten() + 1).tolist()


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
