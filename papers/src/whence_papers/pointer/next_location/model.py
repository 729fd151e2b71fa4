"""The pointer-generator transformer for the next place.

    x_i      = norm( E_place + E_user + E_time + ... + E_from_end )       one embedding a thing that is read, summed
    h        = encoder(x)                                                 looks both ways: all of it lies in the past
    copy     = pointer from the last visit over all visits, changed by any Position, summed by place
    generate = softmax(W h_last)
    P        = p_gen generate + (1 - p_gen) copy,    p_gen = sigmoid(gate(h_last))

``from_end`` counts visits from the end: the last visit is 1, as in the source.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.attention.additive import AdditiveAttention
from whence.attention.pointer import Gate, PointerAttention, last_item, mix, onto_vocabulary
from whence.lab.arms import Arm
from whence.models import ModelSpec
from whence.models.assign_positions import assign_positions
from whence.models.body import Layer
from whence.position.base import Position
from whence.position.expression import ModelDims
from whence_papers.pointer.next_location.histories import PADDING
from whence_papers.pointer.next_location.reading import Answer, NextPlaceModel
from whence_papers.pointer.next_location.spec import NextPlaceSpec


class AdditivePointer(nn.Module):
    """Additive attention as a pointer: it asks from the last visit as ``PointerAttention`` does."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.attention = AdditiveAttention(embed_dim, embed_dim, embed_dim)

    def forward(self, encoded: Tensor, *, key_mask: Tensor) -> Tensor:
        memory = self.attention.remember(encoded, key_mask=key_mask)
        return self.attention(memory, last_item(encoded, key_mask=key_mask)).log_weights


class NextPlace(NextPlaceModel):
    """Made by ``build_next_place``."""

    def __init__(self, spec: NextPlaceSpec, encoder: Arm, position: Position) -> None:
        super().__init__(spec)
        inside = ModelSpec(
            "encoder", vocab_size=spec.places, num_classes=spec.places, embed_dim=spec.embed_dim, heads=spec.heads,
            layers=max(1, spec.layers), ffn_dim=spec.ffn_dim, dropout=spec.dropout,
        )  # fmt: skip
        dims = ModelDims(spec.heads, inside.head_dim, spec.embed_dim, spec.context, causal=False)
        positions = assign_positions(inside, lambda layer: encoder.build(dims))
        self.at_input = nn.ModuleList(positions.at_input)
        self.layers = nn.ModuleList(Layer(inside, one) for one in positions.layers[: spec.layers])
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.attention.dropout = 0.0  # dropped weights would need them dense, at twice the time on a CPU
        self.last_norm = nn.LayerNorm(spec.embed_dim)
        if spec.answers != "generate":
            self.pointer = (
                AdditivePointer(spec.embed_dim)
                if spec.pointer == "additive"
                else PointerAttention(spec.embed_dim, position)
            )
        if spec.answers != "copy":
            self.generator = nn.Linear(spec.embed_dim, spec.places)
        if spec.answers == "gate":
            self.gate = Gate(spec.embed_dim, hidden_dim=max(1, spec.embed_dim // 2))

    def answer(self, tokens: Tensor, *, key_mask: Tensor | None, extras: Mapping[str, Tensor]) -> Answer:
        key_mask = torch.ones_like(tokens, dtype=torch.bool) if key_mask is None else key_mask
        encoded = self.encoded(tokens, key_mask, extras)
        last = last_item(encoded, key_mask=key_mask)
        if self.spec.answers == "generate":
            return Answer(F.log_softmax(self._generated(last), -1), None, last.new_ones(len(last)))
        log_weights = self.pointer(encoded, key_mask=key_mask)
        copied = onto_vocabulary(log_weights, tokens, self.spec.places)
        if self.spec.answers == "copy":
            return Answer(copied, log_weights, last.new_zeros(len(last)))
        gate = self.gate(last) if self.spec.answers == "gate" else last.new_zeros(len(last))
        return Answer(mix(self._generated(last), copied, gate), log_weights, gate.sigmoid())

    def _generated(self, last: Tensor) -> Tensor:
        """Scores of all places; padding is none."""
        return self.generator(last).index_fill(1, torch.tensor([PADDING], device=last.device), -torch.inf)

    def encoded(self, tokens: Tensor, key_mask: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
        x = self.vectors(tokens, key_mask, extras)
        if len(self.at_input):
            places = torch.arange(tokens.shape[1], device=tokens.device)[None]
            for part in self.at_input:
                assert isinstance(part, Position)
                x = part.embed(x, places)
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, key_mask=key_mask)
        return self.last_norm(x)


@torch.no_grad()
def shape_of(model: nn.Module, most: int) -> dict[str, list[float]]:
    """What the pointer's position multiplies and adds at each visit from the end, where it does either."""
    pointer = getattr(model, "pointer", None)
    if not isinstance(pointer, PointerAttention):
        return {}
    device = next(model.parameters()).device
    distance = torch.arange(most, dtype=torch.float32, device=device)
    found: dict[str, list[float]] = {"from_end": (distance + 1).tolist()}
    for part in pointer.position.parts:
        length = part.context if part.length == "context" else None
        for hook, start, joined in (("score_scale", 1.0, torch.mul), ("bias", 0.0, torch.add)):
            if hook in part.effects and part.length in (None, "context"):
                so_far = torch.tensor(found.get(hook, [start] * most), device=device)
                found[hook] = joined(so_far, getattr(part, hook)(distance, length).flatten()).tolist()
    return found if len(found) > 1 else {}
