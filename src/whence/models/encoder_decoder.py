"""``EncoderDecoder``: a transformer that reads a source and predicts a target (Vaswani et al. 2017, arXiv 1706.03762).

The encoder is bidirectional. Each layer of the decoder attends to the earlier target tokens, then to the encoded source.
Every one of the three attentions takes a Position. In cross-attention the distance is the position of the query in the target
minus the position of the key in the source, so it may be negative: a mechanism that is defined for causal attention only
cannot be used there, nor in the encoder.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from whence.attention import ProjectedMemory
from whence.attention.layout import resolve_key_mask
from whence.attention.token_positions import count_tokens
from whence.errors import CausalOnly, usage_error
from whence.models.assign_positions import AssignedPositions, PerLayer, assign_positions
from whence.models.body import Body, Layer, build_attention, build_norm
from whence.models.build import STD, initialize_linear, seeded
from whence.models.caches import Caches
from whence.models.decoder import Output
from whence.models.generation import check_beams, check_sampling, sample_sequences, search_beams
from whence.models.spec import ModelSpec
from whence.position.base import Position
from whence.torch_modes import eval_mode


@dataclass(frozen=True)
class EncodedSource:
    """An encoded source: the keys and values of cross-attention in every layer of the decoder, computed once."""

    layers: tuple[ProjectedMemory, ...]
    key_mask: Tensor | None  # [B, S], True for real tokens
    positions: Tensor  # [S], or [B, S] if there is padding

    def select(self, rows: Tensor) -> EncodedSource:
        """The sources of some rows, in any order and with repetition, as in beam search."""
        mask = None if self.key_mask is None else self.key_mask[rows]
        positions = self.positions if self.positions.ndim == 1 else self.positions[rows]
        return EncodedSource(tuple(layer.select(rows) for layer in self.layers), mask, positions)


class DecoderLayer(Layer):
    """A layer of the decoder: self-attention, cross-attention, then a feed-forward network; otherwise as ``Layer``."""

    def __init__(self, spec: ModelSpec, position: Position, cross_position: Position, backend: str = "auto") -> None:
        super().__init__(spec, position, backend, causal=True)
        self.cross_attention = build_attention(spec, cross_position, backend, causal=False)
        self.cross_norm = build_norm(spec)

    def attend_to_source(self, x: Tensor, memory: ProjectedMemory, source: EncodedSource, positions: Tensor) -> Tensor:
        """x ``[B, T, embed_dim]`` after cross-attention to a source. ``positions`` are those of x, ``[T]`` or ``[B, T]``."""
        queries = self.cross_norm(x) if self.norm == "pre" else x
        # without a position, no positions: torch's kernel then needs no offset
        needed = bool(self.cross_attention.position.effects)
        out = self.cross_attention(
            queries, memory, key_mask=source.key_mask, positions=positions if needed else None,
            memory_positions=source.positions if needed else None,
        )  # fmt: skip
        assert isinstance(out, Tensor)
        x = x + self.dropout(out)
        return x if self.norm == "pre" else self.cross_norm(x)


class DecoderBody(Body):
    """The decoder's side: embedding of the target, the layers, and a final norm if the spec has one."""

    def __init__(
        self, spec: ModelSpec, positions: AssignedPositions, cross: AssignedPositions, backend: str = "auto"
    ) -> None:
        super().__init__(spec, AssignedPositions(positions.at_input, ()), backend)
        pairs = zip(positions.layers, cross.layers, strict=True)
        self.layers = nn.ModuleList(DecoderLayer(spec, own, other, backend) for own, other in pairs)

    def decoder_layers(self) -> list[DecoderLayer]:
        """The layers with their own type."""
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]

    def decode(
        self, tokens: Tensor, source: EncodedSource, key_mask: Tensor | None = None, cache: Caches | None = None
    ) -> Tensor:
        """Target tokens ``[B, T]`` to vectors ``[B, T, embed_dim]``. A call that raises leaves the caches unchanged."""
        self.check_tokens(tokens)
        rows = source.layers[0].k.shape[0]
        if tokens.shape[0] != rows:
            raise usage_error(
                "decode(target)",
                f"{tokens.shape[0]} rows for {rows} sources",
                "each row of the target has its own source",
                "pass as many targets as sources",
            )
        if cache is None:
            return self._run_decoder(tokens, source, key_mask, None)
        self._check_caches(cache)
        before = cache.mark()
        try:
            return self._run_decoder(tokens, source, key_mask, cache)
        except Exception:
            cache.restore(before)
            raise

    def _run_decoder(
        self, tokens: Tensor, source: EncodedSource, key_mask: Tensor | None, cache: Caches | None
    ) -> Tensor:
        positions = self.count_positions(tokens, key_mask, None, cache)
        x = self._embed(tokens, positions)
        shared = _explicit_positions(positions)
        caches = cache or [None] * len(self.layers)
        for layer, memory, own in zip(self.decoder_layers(), source.layers, caches, strict=True):
            cross = functools.partial(layer.attend_to_source, memory=memory, source=source, positions=shared)
            x = self._run_layer(layer, x, own, key_mask=key_mask, between=cross)
        return self.final_norm(x)


def _explicit_positions(positions: Tensor) -> Tensor:
    """Counted positions ``[B or 1, T]`` as attention takes them: ``[T]`` if all rows share them, and none below 0, which only
    left padding has."""
    positions = positions.clamp(min=0)
    return positions[0] if positions.shape[0] == 1 else positions


class EncoderDecoder(nn.Module):
    """An encoder over the source and a decoder over the target. Use ``build_encoder_decoder`` to construct one.

    Source and target have embeddings of their own over one vocabulary. With ``tie_embeddings`` the output layer shares the
    weights of the target's embedding.
    """

    def __init__(
        self,
        spec: ModelSpec,
        encoder: AssignedPositions,
        decoder: AssignedPositions,
        cross: AssignedPositions,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.spec = spec
        self.encoder = Body(spec, encoder, backend, causal=False)
        self.decoder = DecoderBody(spec, decoder, cross, backend)
        self.output = Output(spec)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Next-token logits ``[B, T, vocab_size]`` for target tokens ``[B, T]``, given source tokens ``[B, S]``.

        The masks are ``[B, S]`` and ``[B, T]``, True for real tokens; padding may be on either side and takes no position.
        """
        return self.decode(target, self.encode(source, source_mask), target_mask)

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> EncodedSource:
        """Encode source tokens ``[B, S]`` once, for any number of calls of ``decode``."""
        states = self.encoder(source, key_mask=source_mask)
        mask = resolve_key_mask(None, source_mask, source.shape[0], source.shape[1], source.device)
        layers = tuple(layer.cross_attention.project_memory(states) for layer in self.decoder.decoder_layers())
        return EncodedSource(
            layers, mask, _explicit_positions(count_tokens(mask, None, source.shape[1], source.device))
        )

    def decode(
        self,
        target: Tensor,
        source: EncodedSource,
        target_mask: Tensor | None = None,
        cache: Caches | None = None,
    ) -> Tensor:
        """Next-token logits ``[B, T, vocab_size]``. With a cache from ``caches()``, the target has the new tokens only."""
        if not isinstance(source, EncodedSource):
            raise usage_error(
                "decode(source)", type(source).__name__, "source must be an EncodedSource", "pass model.encode(source)"
            )
        x = self.decoder.decode(target, source, target_mask, cache)
        return self.output(x, self.decoder.embedding.weight)

    def caches(self, *, capacity: int | None = None) -> Caches:
        """Empty caches for the decoder's self-attention: growing, or preallocated for ``capacity`` tokens."""
        return Caches(self.spec.layers, capacity=capacity)

    def generate(
        self,
        source: Tensor,
        max_new_tokens: int,
        *,
        bos_token_id: int,
        eos_token_id: int | None = None,
        source_mask: Tensor | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Up to ``max_new_tokens`` target tokens ``[B, N]`` for source tokens ``[B, S]``, without dropout and gradients.

        Args:
            source: tokens to encode.
            max_new_tokens: maximum number of target tokens.
            bos_token_id: the token before the first one of a target; the result does not contain it.
            eos_token_id: a token that ends a target. Finished rows are filled with it; generation stops when all are
                finished.
            source_mask: ``[B, S]``, True for real tokens.
            temperature: divides the logits before sampling; 0 takes the most likely token (greedy decoding).
            top_k: sample among the ``top_k`` most likely tokens only.
            generator: for sampling; torch's global one by default.
        """
        check_sampling(max_new_tokens, temperature, top_k, eos_token_id, self.spec.vocab_size)
        with torch.no_grad(), eval_mode(self):
            state = EncoderDecoderState(
                self, self.encode(source, source_mask), self.caches(capacity=max_new_tokens or 1)
            )
            return sample_sequences(
                state, self._first_tokens(source, bos_token_id), max_new_tokens, temperature=temperature, top_k=top_k,
                generator=generator, eos_token_id=eos_token_id,
            )  # fmt: skip

    def beam_search(
        self,
        source: Tensor,
        max_new_tokens: int,
        *,
        bos_token_id: int,
        eos_token_id: int | None = None,
        source_mask: Tensor | None = None,
        num_beams: int = 4,
        length_penalty: float = 1.0,
    ) -> Tensor:
        """The best target ``[B, N]`` of a beam search for source tokens ``[B, S]``, without dropout and gradients.

        Args:
            source, max_new_tokens, bos_token_id, eos_token_id, source_mask: as in ``generate``.
            num_beams: number of hypotheses for each row; 1 is greedy search.
            length_penalty: hypotheses are ranked by the sum of log-probabilities divided by ``length ** length_penalty``.
        """
        check_beams(max_new_tokens, num_beams, length_penalty, eos_token_id, self.spec.vocab_size)
        with torch.no_grad(), eval_mode(self):
            state = EncoderDecoderState(self, self.encode(source, source_mask), self.caches())
            return search_beams(
                state, self._first_tokens(source, bos_token_id), max_new_tokens, num_beams=num_beams,
                length_penalty=length_penalty, eos_token_id=eos_token_id,
            )  # fmt: skip

    def _first_tokens(self, source: Tensor, bos_token_id: int) -> Tensor:
        if (
            isinstance(bos_token_id, bool)
            or not isinstance(bos_token_id, int)
            or not 0 <= bos_token_id < self.spec.vocab_size
        ):
            raise usage_error(
                "generate(bos_token_id=...)",
                repr(bos_token_id),
                f"bos_token_id must be a token, 0 to {self.spec.vocab_size - 1}",
                "pass the token before the first one of a target in training",
            )
        return torch.full((source.shape[0], 1), bos_token_id, device=source.device)


class EncoderDecoderState:
    """The encoded source and the caches of a model that generates; see ``DecodingState``."""

    def __init__(self, model: EncoderDecoder, source: EncodedSource, caches: Caches) -> None:
        self.model, self.source, self.caches = model, source, caches

    def next_logits(self, tokens: Tensor) -> Tensor:
        return self.model.decode(tokens, self.source, cache=self.caches)[:, -1]

    def reorder(self, index: Tensor) -> None:
        self.source = self.source.select(index)
        self.caches.reorder(index)


def build_encoder_decoder(
    spec: ModelSpec,
    position: PerLayer | None = None,
    *,
    encoder_position: PerLayer | None = None,
    cross_position: PerLayer | None = None,
    backend: str = "auto",
    seed: int | None = None,
) -> EncoderDecoder:
    """An encoder-decoder transformer in which every attention has its own Position.

    Args:
        spec: of kind ``"encoder-decoder"``.
        position: of self-attention: a Position, which is copied for each layer, or a function ``make(layer)``, as in ``build``.
            Parts that act on embeddings act once, at the input of each stack.
        encoder_position: that of the encoder, if it differs, such as the symmetric form of a causal mechanism.
        cross_position: of cross-attention; none by default, as in most such models. Its distance is the position of the
            query in the target minus that of the key in the source. Parts that act on embeddings have no effect there.
        backend, seed: as in ``build``.

    >>> from whence.position import Rotary
    >>> model = build_encoder_decoder(ModelSpec("encoder-decoder", vocab_size=50, layers=2), Rotary(), seed=0)
    >>> model(torch.tensor([[3, 1, 4, 1]]), torch.tensor([[0, 5]])).shape
    torch.Size([1, 2, 50])
    """
    if not isinstance(spec, ModelSpec) or spec.kind != "encoder-decoder":
        raise usage_error(
            "build_encoder_decoder(spec)",
            f"kind={spec.kind!r}" if isinstance(spec, ModelSpec) else type(spec).__name__,
            "spec must be a ModelSpec of kind 'encoder-decoder'",
            "pass ModelSpec('encoder-decoder', ...), or call build for the other kinds",
        )
    with seeded(seed) as restart:
        decoder = assign_positions(spec, position, causal=True)
        encoder = _assign_bidirectional(
            spec, position if encoder_position is None else encoder_position, "encoder_position", "the encoder"
        )
        cross = _assign_bidirectional(spec, cross_position, "cross_position", "cross-attention")
        restart()  # so that random numbers drawn by a mechanism do not change the weights
        model = EncoderDecoder(spec, encoder, decoder, cross, backend)
        if spec.init == "scaled":
            _initialize_scaled(model)
        return model


def _assign_bidirectional(spec: ModelSpec, position: PerLayer | None, name: str, place: str) -> AssignedPositions:
    try:
        return assign_positions(spec, position, causal=False)
    except CausalOnly as error:
        mechanism = str(error).partition("position=")[2].partition(")")[0]
        raise usage_error(
            f"build_encoder_decoder({name}=...)",
            f"{mechanism}, which is defined for causal attention",
            f"{place} also has keys at negative distances",
            f"pass another {name}, such as the symmetric form of the mechanism",
            kind=CausalOnly,
        ) from error


def _initialize_scaled(model: EncoderDecoder) -> None:
    """The initialization of ``build(init="scaled")``. Three sublayers of a decoder layer add to the residual stream."""
    for body, sublayers in ((model.encoder, 2), (model.decoder, 3)):
        nn.init.normal_(body.embedding.weight, std=STD)
        depth = (sublayers * len(body.layers)) ** 0.5
        for layer in body.stack():
            attentions = [layer.attention, *([layer.cross_attention] if isinstance(layer, DecoderLayer) else [])]
            for part in (*attentions, layer.feed_forward):
                for name, linear in part.named_children():
                    if isinstance(linear, nn.Linear):
                        initialize_linear(linear, STD / depth if name == "out" else STD)
    if model.output.weight is not None:
        nn.init.normal_(model.output.weight, std=STD)
    if model.output.bias is not None:
        nn.init.zeros_(model.output.bias)
