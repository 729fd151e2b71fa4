"""Scaling of one positional channel of the hidden states, for the answering rows only (Yu et al. 2024, arXiv 2406.02536).

Some channels of the residual stream rise or fall with position. With x the input of the query and key projections, after
the norm, x_bar is x with one such channel multiplied by s. The rows of the prompt are unchanged. The last row of the
prompt and the generated rows use the queries and keys of x_bar; values are never scaled. In terms of keys this is
``k_bar = k + (s - 1) x_p W_k[:, p]``, before the rotation and before any norm of the keys. The cache holds both keys,
because rows of the prompt that are read later still need the model's own.

Published choices are in ``PUBLISHED``. According to the paper, s above 1 moves attention to the beginning, s from -1 to
0.5 balances it, and s below -1 moves it to the end; ``attention_by_scale`` measures this for a model.

The search: candidate channels are monotone in position over random texts and smooth (``whence.probe.arrays.channels``);
of these, the channel and the scale with the least cross-entropy of the answers on validation prompts are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.hf.edits import AttentionEdit, EditedCall
from whence.hf.intervene import intervene
from whence.mend.answer_loss import answer_losses
from whence.mend.cure import Cure, number_of_layers
from whence.probe import hidden_states, likelihood
from whence.probe.arrays.attention_rows import slot_means
from whence.probe.arrays.channels import FITS, positional_channels
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks.task import Prompt
from whence.validation import require_choice, require_integer, require_list, require_number

#: (channel, scale) of the paper by model; of Qwen1.5 the official code scales by 0 instead
PUBLISHED = {
    "Llama-2-7b-chat": (2393, -1.0),
    "Vicuna-7b-16k": (2393, 0.0),
    "Mistral-7B-v0.2": (213, 0.0),
    "Gemma-1.1-7b": (1665, 0.0),
    "Qwen1.5-7b": (1081, 0.2),
    "MPT-30b": (6926, 0.0),
}
CURVE_SCALES = (2.0, 1.0, 0.5, 0.0, -1.0, -2.0)
EFFECT_PROMPTS = 4  # over which the attention by scale is averaged in a report


class ScaleChannel(Cure):
    """Scale one channel of the input of queries and keys, for the answering rows.

    Args:
        channel: the channel of the hidden states; None until ``search`` has chosen one.
        scale: multiplies the channel; 1 changes nothing.
        layers: the layers that scale it; by default the share of the paper, layers 10 to 25 of 32. No layers change
            nothing.
        fit: the search: how a trend is fitted through a channel: ``"cubic"`` (official code), ``"window"`` (paper) or
            ``"segmented"``.
        candidates: the search: the smoothest monotone channels that are tried.
        scales: the search: the scales that are tried.
        compat: the search: ``"paper"`` tries every channel with every scale, and takes channels that are monotone in more
            than a quarter of the layers that it examines. ``"official"`` chooses the channel at scale 0 and then its scale,
            which takes far fewer forward passes, and asks for more than a quarter of all layers of the model.
        texts: the search: random texts over which hidden states are averaged.
        tokens: the search: the length of each text.
        samples: the search: at most so many prompts are used, spread over those given.
    """

    name = "scale-channel"
    title = "Scaling one positional channel"
    paper = "Yu et al. 2024, arXiv 2406.02536"

    def __init__(
        self,
        channel: int | None = None,
        scale: float = 0.0,
        layers: Sequence[int] | None = None,
        *,
        fit: str = "cubic",
        candidates: int = 10,
        scales: Sequence[float] = (0.5, 0.0, -0.5, -1.0),
        compat: str = "paper",
        texts: int = 200,
        tokens: int = 1000,
        samples: int = 100,
    ) -> None:
        owner = "ScaleChannel"
        if channel is not None:
            require_integer(owner, "channel", channel, low=0, remedy="pass the index of a channel of the hidden states")
        require_number(owner, "scale", scale, remedy="pass 1 for no change")
        require_choice(owner, "fit", fit, FITS)
        require_choice(owner, "compat", compat, ("paper", "official"))
        if layers is not None:
            layers = require_list(
                owner, "layers", layers, empty=True, remedy="pass indices of layers, such as [10, 11]"
            )
        scales = require_list(owner, "scales", scales, remedy="pass numbers such as [0.5, 0]")
        for number in scales:
            require_number(owner, "scales", number, remedy="pass numbers such as 0.5 and 0")
        for name, value in (("candidates", candidates), ("texts", texts), ("tokens", tokens), ("samples", samples)):
            require_integer(owner, name, value)
        self.channel, self.scale, self.layers = channel, float(scale), layers
        self.fit, self.candidates, self.scales, self.compat = fit, candidates, [float(s) for s in scales], compat
        self.texts, self.tokens, self.samples = texts, tokens, samples

    def _with(self, **changes: Any) -> ScaleChannel:
        return ScaleChannel(**{**self.settings(), **changes})

    def identity(self) -> ScaleChannel:
        return self._with(scale=1.0)

    def edits(self, model: Any) -> dict[int, AttentionEdit]:
        channels = int(model.config.get_text_config().hidden_size)
        channel = 0 if self.channel is None and self.scale == 1 else self.channel
        if channel is None:
            raise usage_error(
                "ScaleChannel.apply(model)",
                "no channel",
                "one channel is scaled",
                "pass channel=..., or choose one with search(lm, prompts)",
            )
        if channel >= channels:
            raise usage_error(
                "ScaleChannel(channel=...)",
                str(channel),
                f"the model has the channels 0 to {channels - 1}",
                "pass one of them",
            )
        layers = default_layers(number_of_layers(model)) if self.layers is None else self.layers
        return dict.fromkeys(layers, ChannelScaling(channel, self.scale))

    @contextmanager
    def _apply(self, model: Any) -> Iterator[None]:
        edits = self.edits(model)
        if not edits:
            yield
            return
        with intervene(model, edits):
            yield

    def unavailable(self, model: Any) -> str | None:
        return Cure.unavailable(self._with(channel=self.channel or 0), model)  # before the search any channel will do

    def search(self, lm: ProbedModel, prompts: Sequence[Prompt]) -> ScaleChannel:
        """The same cure with the channel and the scale of the least loss; the identity if no channel is monotone.

        If a channel was given, its scale alone is chosen.
        """
        trials = self.search_losses(lm, prompts)
        if not trials:
            return self.identity()
        best = min(trials, key=lambda trial: trial["loss"])
        return self._with(channel=best["channel"], scale=best["scale"])

    def describe_effect(self, lm: ProbedModel, prompts: Sequence[Prompt]) -> dict[str, Any] | None:
        """The attention to each slot for scales above 1, between and below 0; None without a channel or layers."""
        if self.channel is None or self.layers == [] or lm.capture_error:
            return None
        curves = attention_by_scale(
            lm, spread_prompts(prompts, min(EFFECT_PROMPTS, self.samples)), self.channel, layers=self.layers
        )
        return {"setting": "scale", "values": curves["scales"], "slots": curves["slots"]}

    def search_losses(self, lm: ProbedModel, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        """Every channel and scale that the search tries, in order, with the mean cross-entropy of the answers."""
        chosen = spread_prompts(prompts, self.samples)

        def try_all(channels: Sequence[int], scales: Sequence[float]) -> list[dict[str, Any]]:
            trials = []
            for channel in channels:
                for scale in scales:
                    with self._with(channel=channel, scale=scale).apply(lm.model):
                        loss = float(answer_losses(lm, chosen).mean())
                    trials.append({"channel": channel, "scale": scale, "loss": loss})
            return trials

        channels = self.find_channels(lm) if self.channel is None else [self.channel]
        if self.compat == "paper" or len(channels) < 2:
            return try_all(channels, self.scales)
        trials = try_all(channels, [0.0])
        best = min(trials, key=lambda trial: trial["loss"])
        return trials + try_all([best["channel"]], [scale for scale in self.scales if scale != 0])

    def find_channels(self, lm: ProbedModel) -> list[int]:
        """The smoothest channels that are monotone in position, over random texts."""
        tokens = self.tokens if lm.longest is None else min(self.tokens, lm.longest)
        means = hidden_states.mean_states(lm, hidden_states.random_texts(lm, self.texts, tokens))
        fewest = lm.layers // 4 if self.compat == "official" else None
        return [one.channel for one in positional_channels(means, self.fit, self.candidates, min_layers=fewest)]


class ChannelScaling(AttentionEdit):
    """One channel of the input of queries and keys times a number, for the answering rows."""

    def __init__(self, channel: int, scale: float) -> None:
        self.channel, self.scale = channel, scale

    def affected_rows(self, call: EditedCall) -> Tensor:
        return call.answering_rows()

    def change_input(self, x: Tensor) -> Tensor:
        changed = x.clone()
        changed[..., self.channel] *= self.scale
        return changed


def default_layers(layers: int) -> list[int]:
    """The layers in the middle of a model, in the proportion of the paper.

    >>> default_layers(32) == list(range(10, 26)), default_layers(4)
    (True, [1, 2, 3])
    """
    return list(range(layers * 10 // 32, layers * 25 // 32 + 1))


def spread_prompts(prompts: Sequence[Prompt], most: int) -> list[Prompt]:
    """At most so many prompts, evenly spread over those given, so that every position of the gold stays represented."""
    count = min(most, len(prompts))
    return [prompts[index * len(prompts) // count] for index in range(count)]


def attention_by_scale(
    lm: ProbedModel,
    prompts: Sequence[Prompt],
    channel: int,
    scales: Sequence[float] = CURVE_SCALES,
    layers: Sequence[int] | None = None,
) -> dict[str, Any]:
    """The effect of the scale on attention, as the data of a figure: one curve over the slots for each scale.

    Args:
        prompts: with the same number of slots, as the model reads them.
        channel: the channel that is scaled.
        scales: above 1, between and below 0.
        layers: the layers that scale it, which are also those whose attention is averaged.

    Returns:
        ``scales``, and ``slots``: for each scale the mean attention of the last token of the prompt to a token of each
        slot, over prompts, layers and heads. ``share_first`` is the share of the first half of the slots in it.
    """
    chosen = default_layers(lm.layers) if layers is None else list(layers)
    captured = replace(lm, capture_layers=tuple(chosen))
    curves = []
    for scale in scales:
        with ScaleChannel(channel, scale, chosen).apply(lm.model):
            rows = [likelihood.last_attention_row(captured, lm.tokens(prompt.text)) for prompt in prompts]
        means = [
            slot_means(row, lm.token_spans(prompt.text, prompt.slots))
            for row, prompt in zip(rows, prompts, strict=True)
        ]
        curves.append(torch.stack(means).double().mean((0, 1, 2)))
    table = torch.stack(curves)
    half = table.shape[1] // 2
    shares = table[:, :half].sum(1) / (table[:, :half].sum(1) + table[:, -half:].sum(1))
    return {
        "channel": channel,
        "layers": chosen,
        "scales": [float(scale) for scale in scales],
        "slots": table.tolist(),
        "share_first": shares.tolist(),
    }
