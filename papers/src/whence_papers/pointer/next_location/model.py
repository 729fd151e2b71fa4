"""The pointer-generator transformer for the next location, and its LSTM predecessor.

    x_i      = norm( E_place + E_user + E_time + ... + E_from_end )       one embedding per input feature, summed
    h        = encoder(x)                                                 bidirectional: the whole history is in the past
    copy     = pointer from the last visit over all visits, changed by any Position, summed by place
    generate = softmax(W h_last)
    P        = p_gen generate + (1 - p_gen) copy,    p_gen = sigmoid(gate(h_last))

``position_from_end`` counts visits from the end: the last visit is 1, as in the source.

An ablation is another ``NextPlaceSpec``, never a switch inside the model's code:

    no pointer                    answers="generate"
    no gate                       answers="halves"
    no bias                       the pointer's position is NoPosition()
    no position-from-end          reads without "from_end"
    additive attention            pointer="additive"
    the predecessor as a whole    body="lstm", pointer="additive"
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.attention.additive import AdditiveAttention
from whence.attention.pointer import Gate, PointerAttention, last_item, mix, scatter_to_vocabulary
from whence.errors import usage_error
from whence.lab.arms import Arm, parse_arm
from whence.models import ModelSpec
from whence.models.assign_positions import assign_positions
from whence.models.body import Layer
from whence.position.base import Position
from whence.position.expression import ModelDims
from whence.position.no_position import NoPosition
from whence_papers.pointer.next_location.histories import DURATIONS, PADDING, TIMES
from whence_papers.pointer.pointer_generator import PointerGeneratorSpec
from whence_papers.pointer.pointer_generator.model import (
    AttentionDecoder,
    BidirectionalEncoder,
    DecoderState,
    EncodedSources,
)

#: input features of a visit besides its place; the model sums one embedding for each. ``ago`` counts days back from the
#: day of the next visit, as in the source
READS = ("user", "time", "weekday", "duration", "ago", "from_end")
#: all features: ``before_last`` counts days back from the last visit, for a model that does not know the day of the next one
FEATURES = (*READS, "before_last")
CHOICES = {
    "body": ("transformer", "lstm"),
    # how the output is formed: a gate mixes generation and copying, each has half, or only one of them exists
    "answers": ("gate", "halves", "generate", "copy"),
    "pointer": ("dot", "additive"),
}


@dataclass(frozen=True)
class NextPlaceSpec:
    """Everything about a next-location model except the position of its pointer, validated at construction.

    Args:
        places: number of place ids, padding and unknown included.
        users: number of known users; one more id is for unknown users.
        days: length of a history in days.
        context: longest history with positions of its own; older visits share the last position.
        embed_dim, heads, layers, ffn_dim, dropout: of the encoder; an LSTM has ``ffn_dim`` units, no heads and one layer.
        reads: input features of a visit besides its place, some of ``FEATURES``.
        answers: ``"gate"``, ``"halves"``, ``"generate"`` or ``"copy"``.
        pointer: ``"dot"``, which takes a Position, or ``"additive"``, which takes none.
        encoder: mechanism inside the encoder, as text.
        body: ``"transformer"``, or ``"lstm"``: the LSTM pointer-generator, whose pointer is additive.

    >>> NextPlaceSpec(places=10, users=2, days=7, context=20).sizes()["ago"]
    9
    """

    places: int
    users: int
    days: int
    context: int
    embed_dim: int = 64
    heads: int = 4
    layers: int = 2
    ffn_dim: int = 128
    dropout: float = 0.15
    reads: tuple[str, ...] = READS
    answers: str = "gate"
    pointer: str = "dot"
    encoder: str = "NoPosition()"
    body: str = "transformer"

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", tuple(self.reads))  # JSON has only lists
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                got = repr(getattr(self, name))
                raise usage_error(
                    f"NextPlaceSpec({name}=...)", got, f"{name} is one of {', '.join(choices)}", "choose one of them"
                )
        if self.body == "lstm" and (
            self.pointer != "additive" or self.answers not in ("gate", "generate") or self.encoder != "NoPosition()"
        ):
            raise usage_error(
                'NextPlaceSpec(body="lstm")',
                f"pointer={self.pointer!r}, answers={self.answers!r}, encoder={self.encoder!r}",
                "the LSTM pointer-generator has an additive pointer, answers='gate' or 'generate', and no position",
                'pass pointer="additive" and leave the other settings out',
            )
        if not set(self.reads) <= set(FEATURES) or len(set(self.reads)) < len(self.reads):
            raise usage_error(
                "NextPlaceSpec(reads=...)",
                repr(self.reads),
                f"reads holds some of {', '.join(FEATURES)}, each once",
                "correct the list",
            )

    def sizes(self) -> dict[str, int]:
        """Number of ids of each input feature; 0 is padding or unknown."""
        every = {
            "user": self.users + 1, "time": TIMES + 1, "weekday": 8, "duration": DURATIONS + 1, "ago": self.days + 2,
            "from_end": self.context + 1, "before_last": self.days + 2,
        }  # fmt: skip
        return {name: every[name] for name in self.reads}


INIT_STD = 0.05  # of the embeddings: a place that never occurs in training must not stand out by its initial vector


class NextPlaceOutput(NamedTuple):
    """Output of a model for a batch of histories."""

    log_p: Tensor  # [B, places]
    log_weights: Tensor | None  # [B, T] pointer weights, -inf on padding; None without a pointer
    generated_share: Tensor  # [B], probability mass that is generated rather than copied


class NextPlaceModel(nn.Module, ABC):
    """Base class: visits as the normalized sum of one embedding per input feature. Built by ``build_next_place``."""

    def __init__(self, spec: NextPlaceSpec) -> None:
        super().__init__()
        self.spec = spec
        self.place = nn.Embedding(spec.places, spec.embed_dim, padding_idx=PADDING)
        self.reads = nn.ModuleDict({name: nn.Embedding(size, spec.embed_dim) for name, size in spec.sizes().items()})
        for embedding in (self.place, *self.reads.values()):
            assert isinstance(embedding, nn.Embedding)
            nn.init.normal_(embedding.weight, std=INIT_STD)
        self.norm, self.dropout = nn.LayerNorm(spec.embed_dim), nn.Dropout(spec.dropout)

    def forward(self, tokens: Tensor, *, key_mask: Tensor | None, extras: Mapping[str, Tensor]) -> Tensor:
        """Log-probabilities ``[B, places]`` of the next place after histories ``[B, T]``."""
        return self.predict(tokens, key_mask=key_mask, extras=extras).log_p

    @abstractmethod
    def predict(self, tokens: Tensor, *, key_mask: Tensor | None, extras: Mapping[str, Tensor]) -> NextPlaceOutput:
        """Log-probabilities with the pointer weights and the generated share."""

    def embed_visits(self, tokens: Tensor, key_mask: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
        """Embed each visit, ``[B, T, embed_dim]``."""
        x = self.place(tokens)
        for name, embedding in self.reads.items():
            if name == "from_end":
                numbers = position_from_end(key_mask, self.spec.context)
            else:
                numbers = extras[name][:, None] if name == "user" else extras[name]
            x = x + embedding(numbers)
        return self.norm(x)


def position_from_end(key_mask: Tensor, most: int) -> Tensor:
    """Positions from the end: 1 for the last visit, at most ``most``, 0 on padding.

    >>> import torch
    >>> position_from_end(torch.tensor([[True, True, True], [True, False, False]]), 2).tolist()
    [[2, 2, 1], [1, 0, 0]]
    """
    left = key_mask.flip(1).cumsum(1).flip(1)
    return (left * key_mask).clamp(max=most)


class AdditivePointer(nn.Module):
    """Additive attention as a pointer. The query is the last visit, as in ``PointerAttention``."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.attention = AdditiveAttention(embed_dim, embed_dim, embed_dim)

    def forward(self, encoded: Tensor, *, key_mask: Tensor) -> Tensor:
        memory = self.attention.build_memory(encoded, key_mask=key_mask)
        return self.attention(memory, last_item(encoded, key_mask=key_mask)).log_weights


class NextPlace(NextPlaceModel):
    """The transformer, built by ``build_next_place``."""

    def __init__(self, spec: NextPlaceSpec, encoder: Arm, position: Position) -> None:
        super().__init__(spec)
        inside = ModelSpec(
            "encoder", vocab_size=spec.places, num_classes=spec.places, embed_dim=spec.embed_dim, heads=spec.heads,
            layers=max(1, spec.layers), ffn_dim=spec.ffn_dim, dropout=spec.dropout,
        )  # fmt: skip
        dims = ModelDims(spec.heads, inside.effective_head_dim, spec.embed_dim, spec.context, causal=False)
        positions = assign_positions(inside, lambda layer: encoder.build(dims))
        self.at_input = nn.ModuleList(positions.at_input)
        self.layers = nn.ModuleList(Layer(inside, one) for one in positions.layers[: spec.layers])
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.attention.dropout = 0.0  # dropout on weights needs dense weights, twice the time on a CPU
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

    def predict(self, tokens: Tensor, *, key_mask: Tensor | None, extras: Mapping[str, Tensor]) -> NextPlaceOutput:
        key_mask = torch.ones_like(tokens, dtype=torch.bool) if key_mask is None else key_mask
        encoded = self.encode(tokens, key_mask, extras)
        last = last_item(encoded, key_mask=key_mask)
        if self.spec.answers == "generate":
            return NextPlaceOutput(F.log_softmax(self._generated(last), -1), None, last.new_ones(len(last)))
        log_weights = self.pointer(encoded, key_mask=key_mask)
        copied = scatter_to_vocabulary(log_weights, tokens, self.spec.places)
        if self.spec.answers == "copy":
            return NextPlaceOutput(copied, log_weights, last.new_zeros(len(last)))
        gate = self.gate(last) if self.spec.answers == "gate" else last.new_zeros(len(last))
        return NextPlaceOutput(mix(self._generated(last), copied, gate), log_weights, gate.sigmoid())

    def _generated(self, last: Tensor) -> Tensor:
        """Scores of all places; padding has -inf."""
        return self.generator(last).index_fill(1, torch.tensor([PADDING], device=last.device), -torch.inf)

    def encode(self, tokens: Tensor, key_mask: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
        x = self.embed_visits(tokens, key_mask, extras)
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
def learned_shape(model: nn.Module, most: int) -> dict[str, list[float]]:
    """The score scale and the bias of the pointer's position at each visit from the end, if it has them."""
    pointer = getattr(model, "pointer", None)
    if not isinstance(pointer, PointerAttention):
        return {}
    return position_shape(pointer.position, most, next(model.parameters()).device)


@torch.no_grad()
def position_shape(position: Position, most: int, device: torch.device | str = "cpu") -> dict[str, list[float]]:
    """The score scale and the bias of a position at each visit from the end, if it has them."""
    distance = torch.arange(most, dtype=torch.float32, device=device)
    shape: dict[str, list[float]] = {"from_end": (distance + 1).tolist()}
    for part in position.parts:
        length = part.context if part.length == "context" else None
        for hook, start, joined in (("score_scale", 1.0, torch.mul), ("bias", 0.0, torch.add)):
            if hook in part.effects and part.length in (None, "context"):
                so_far = torch.tensor(shape.get(hook, [start] * most), device=device)
                shape[hook] = joined(so_far, getattr(part, hook)(distance, length).flatten()).tolist()
    return shape if len(shape) > 1 else {}


class NextPlaceLstm(NextPlaceModel):
    """The predecessor: the LSTM pointer-generator (See et al. 2017, arXiv 1704.04368) with one decoder step.

        states  = bidirectional LSTM over the same vectors as the transformer reads
        context = additive attention of the decoder's first state over them; its weights are the pointer
        P       = p_gen generate + (1 - p_gen) copy,    p_gen from context, state and input

    A next location is one word, so the decoder takes one step after a start vector. There are no earlier steps, so the
    attention has no coverage. ``ffn_dim`` is the number of units of each direction and of the decoder.
    """

    def __init__(self, spec: NextPlaceSpec) -> None:
        super().__init__(spec)
        inside = PointerGeneratorSpec(
            spec.places, embedding=spec.embed_dim, hidden_size=spec.ffn_dim, attention="additive", coverage_loss_weight=0.0,
            output="generator" if spec.answers == "generate" else "pointer",
        )  # fmt: skip
        self.encoder = BidirectionalEncoder(spec.embed_dim, spec.ffn_dim)
        self.decoder = AttentionDecoder(inside)
        self.start = nn.Parameter(torch.zeros(spec.embed_dim))

    def predict(self, tokens: Tensor, *, key_mask: Tensor | None, extras: Mapping[str, Tensor]) -> NextPlaceOutput:
        key_mask = torch.ones_like(tokens, dtype=torch.bool) if key_mask is None else key_mask
        x = self.dropout(self.embed_visits(tokens, key_mask, extras))
        states, h, c = self.encoder(x, key_mask.sum(1))
        states = self.dropout(states)
        batch, length, embed_dim = states.shape
        first = DecoderState(h, c, states.new_zeros(batch, embed_dim), states.new_zeros(batch, length))
        memory = self.decoder.attention.build_memory(states, key_mask=key_mask)
        step, _ = self.decoder(self.start.expand(batch, -1), first, EncodedSources(memory, tokens, self.spec.places))
        # padding is not a place: its generated probability is redistributed, which lowers the generated share
        padded = step.log_p[:, PADDING].exp()
        generated_share = (step.gate.sigmoid() - padded) / (1 - padded)
        log_p = step.log_p.index_fill(1, torch.tensor([PADDING], device=tokens.device), -torch.inf).log_softmax(-1)
        return NextPlaceOutput(log_p, None if self.spec.answers == "generate" else step.weights.log(), generated_share)


def build_next_place(spec: NextPlaceSpec, arm: Arm, seed: int | None = None) -> NextPlaceModel:
    """Build a model whose pointer has the arm's position. Arms of one seed share the initial weights of common parts."""
    dims = ModelDims(1, spec.embed_dim, spec.embed_dim, spec.context, causal=True)
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        position = arm.build(dims)
        takes_none = spec.pointer == "additive" or spec.answers == "generate"
        if takes_none and not isinstance(position, NoPosition):
            raise usage_error(
                "build_next_place",
                f"position {arm.position} with pointer={spec.pointer!r}, answers={spec.answers!r}",
                "only a dot-product pointer takes a position",
                "use NoPosition()",
            )
        if seed is not None:
            torch.default_generator.manual_seed(
                seed
            )  # again, so that random draws of a mechanism do not change the weights
        return NextPlaceLstm(spec) if spec.body == "lstm" else NextPlace(spec, parse_arm(spec.encoder), position)
