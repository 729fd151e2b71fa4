"""``Decoder``: a causal transformer that predicts the next token, for whole sequences or token by token with caches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whence.attention.layout import resolve_key_mask
from whence.errors import usage_error
from whence.models.assign_positions import AssignedPositions
from whence.models.body import Body
from whence.models.caches import Caches
from whence.models.generation import check_beams, check_sampling, sample_sequences, search_beams
from whence.models.spec import ModelSpec
from whence.torch_modes import eval_mode


class Output(nn.Module):
    """A logit for each token of the vocabulary. With tied embeddings it has no weight of its own, only a bias."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        linear = nn.Linear(spec.embed_dim, spec.vocab_size, bias=spec.bias)  # for torch's initial values
        self.weight = None if spec.tie_embeddings else nn.Parameter(linear.weight)
        self.bias = nn.Parameter(linear.bias) if spec.bias else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return F.linear(x, embedding if self.weight is None else self.weight, self.bias)


class Decoder(nn.Module):
    """Embedding, causal layers, a final norm if the spec has one, an output layer. Use ``build`` to construct one."""

    def __init__(self, spec: ModelSpec, positions: AssignedPositions, backend: str = "auto") -> None:
        super().__init__()
        self.spec = spec
        self.body = Body(spec, positions, backend)
        self.output = Output(spec)

    def forward(
        self,
        tokens: Tensor,
        key_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cache: Caches | None = None,
    ) -> Tensor:
        """Next-token logits ``[B, T, vocab_size]`` for tokens ``[B, T]``.

        Args:
            tokens: with a cache, only the new tokens.
            key_mask: ``[B, T]``, True for real tokens; padding may be on either side.
            segment_ids: ``[T]`` or ``[B, T]`` segment ids of packed sequences.
            cache: the result of ``caches()``; the new tokens are appended to it.
        """
        x = self.body(tokens, key_mask=key_mask, segment_ids=segment_ids, cache=cache)
        return self.output(x, self.body.embedding.weight)

    def caches(self, *, capacity: int | None = None) -> Caches:
        """Empty caches for all layers: growing, or preallocated for ``capacity`` tokens."""
        return Caches(self.spec.layers, capacity=capacity)

    def generate(
        self,
        prompt: Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
        eos_token_id: int | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """The prompt ``[B, T]`` followed by up to ``max_new_tokens`` tokens, without dropout and gradients.

        Args:
            prompt: tokens to continue.
            max_new_tokens: maximum number of tokens after the prompt.
            temperature: divides the logits before sampling; 0 takes the most likely token (greedy decoding).
            top_k: sample among the ``top_k`` most likely tokens only.
            generator: for sampling; torch's global one by default.
            eos_token_id: a token that ends a sequence. Finished sequences are filled with it; generation stops when all
                are finished.
            key_mask: ``[B, T]``, True for real tokens of prompts that are padded on the left.
        """
        check_sampling(max_new_tokens, temperature, top_k, eos_token_id, self.spec.vocab_size)
        mask = self._check_prompt("generate", prompt, key_mask)
        caches = self.caches(capacity=prompt.shape[1] + max_new_tokens)
        with torch.no_grad(), eval_mode(self):
            new = sample_sequences(
                DecoderState(self, caches, mask), prompt.long(), max_new_tokens, temperature=temperature, top_k=top_k,
                generator=generator, eos_token_id=eos_token_id,
            )  # fmt: skip
        return torch.cat([prompt.long(), new], 1)

    def beam_search(
        self,
        prompt: Tensor,
        max_new_tokens: int,
        *,
        num_beams: int = 4,
        length_penalty: float = 1.0,
        eos_token_id: int | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """The prompt ``[B, T]`` followed by the best hypothesis of a beam search, without dropout and gradients.

        Args:
            prompt, max_new_tokens, eos_token_id, key_mask: as in ``generate``.
            num_beams: number of hypotheses for each row; 1 is greedy search.
            length_penalty: hypotheses are ranked by the sum of log-probabilities divided by ``length ** length_penalty``.
        """
        check_beams(max_new_tokens, num_beams, length_penalty, eos_token_id, self.spec.vocab_size)
        mask = self._check_prompt("beam_search", prompt, key_mask)
        with torch.no_grad(), eval_mode(self):
            new = search_beams(
                DecoderState(self, self.caches(), mask), prompt.long(), max_new_tokens, num_beams=num_beams,
                length_penalty=length_penalty, eos_token_id=eos_token_id,
            )  # fmt: skip
        return torch.cat([prompt.long(), new], 1)

    def _check_prompt(self, owner: str, prompt: Tensor, key_mask: Tensor | None) -> Tensor | None:
        self.body.check_tokens(prompt)
        mask = resolve_key_mask(None, key_mask, prompt.shape[0], prompt.shape[1], prompt.device)
        if mask is not None and not bool(mask[:, -1].all()):
            raise usage_error(
                f"{owner}(key_mask=...)",
                f"a prompt that ends with padding in row {int((~mask[:, -1]).nonzero()[0])}",
                "a prompt is continued after its last token",
                "pad prompts on the left",
            )
        return mask


class DecoderState:
    """The caches of a decoder that generates; see ``DecodingState``."""

    def __init__(self, model: Decoder, caches: Caches, key_mask: Tensor | None) -> None:
        self.model, self.caches = model, caches
        self.prompt_mask = key_mask  # of the first call, which has the prompt

    def next_logits(self, tokens: Tensor) -> Tensor:
        mask, self.prompt_mask = self.prompt_mask, None
        return self.model(tokens, key_mask=mask, cache=self.caches)[:, -1]

    def reorder(self, index: Tensor) -> None:
        self.caches.reorder(index)
