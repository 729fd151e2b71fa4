"""Attention Buckets: the same weights with several rotary bases in parallel, mixed into one distribution.

Chen et al. 2023 (arXiv 2312.04455). Attention under a rotary embedding rises and falls with distance, and a fact in a trough
is overlooked. Another base has its troughs elsewhere. So each prompt runs once for every base, in one batch with a cache for
each, and the next token is drawn from a mixture of their predictions. A base that is sure of its prediction weighs more.

Bases are multiples of the model's own base. The paper's model has base 10000, so its 13000 is the multiple 1.3 here. A model
with several bases, such as Gemma 3, has all of them multiplied. Scaling for long contexts acts on the new base.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.hf.expanded_rows import expand_rows
from whence.hf.integrations import unwrap_peft
from whence.hf.interface import EDITOR
from whence.hf.layers import run_tiny_forward, tiny_input
from whence.hf.rotary_config import build_rotary
from whence.mend.cure import Cure, number_of_layers
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks.task import Prompt
from whence.validation import format_value, require_choice, require_number

RETRIEVAL = (1.0, 1.3, 1.6, 1.9, 2.2, 2.5, 2.8)  # the paper's bases for retrieved documents, over 10000
TOOLS = (1.0, 1.75, 1.8, 1.9, 2.0, 2.5)  # for calls of tools
REACH = 3  # a peak fills a trough within so many positions


class AttentionBuckets(Cure):
    """Run each prompt with several rotary bases and mix the predictions. It costs one forward pass for each base.

    Args:
        multiples: the bases as multiples of the model's own, by default the paper's for retrieval. ``search`` chooses as
            many by their peaks and troughs. (1.0,) changes nothing.
        compat: ``"paper"`` mixes the distributions, each weighted by its largest probability over the sum of these.
            ``"official"`` mixes the logits as the published code does, with the softmax of their largest logits as weights.
    """

    name = "attention-buckets"
    title = "Attention Buckets"
    paper = "Chen et al. 2023, arXiv 2312.04455"

    def __init__(self, multiples: Sequence[float] = RETRIEVAL, compat: str = "paper") -> None:
        if isinstance(multiples, str) or not isinstance(multiples, Sequence) or not multiples:
            raise usage_error(
                "AttentionBuckets(multiples=...)",
                format_value(multiples),
                "multiples is a list of numbers, one for each base",
                "pass [1.0, 1.3, 1.6], for instance",
            )
        for one in multiples:
            require_number(
                "AttentionBuckets", "multiples", one, above=0, high=1e6, remedy="pass 1.0 for the model's own base"
            )
        require_choice("AttentionBuckets", "compat", compat, ("paper", "official"))
        self.multiples, self.compat = tuple(float(one) for one in multiples), compat

    def identity(self) -> AttentionBuckets:
        return AttentionBuckets((1.0,), self.compat)

    def search(self, lm: ProbedModel, prompts: Sequence[Prompt]) -> AttentionBuckets:
        """As many bases as now, whose waves fill each other's troughs up to the length of the longest prompt.

        The model's answers play no part in it.
        """
        length = max(map(len, lm.all_tokens([prompt.text for prompt in prompts])), default=0)
        if length < 3:
            raise usage_error(
                "AttentionBuckets.search(prompts)", f"prompts of {length} tokens", "waves need a length", "pass prompts"
            )
        rotary = build_rotary("AttentionBuckets", lm.config, 0)
        head_dim = int(getattr(lm.config, "head_dim", None) or lm.config.hidden_size // lm.config.num_attention_heads)
        dim, base = rotary.resolve_rotary_dim(head_dim), float(rotary.base)
        return AttentionBuckets(search_multiples(dim, base, length, len(self.multiples)), self.compat)

    @contextmanager
    def _apply(self, model: Any) -> Iterator[None]:
        inner = unwrap_peft(model)
        config = inner.config.get_text_config()
        for layer in range(number_of_layers(inner)):
            build_rotary(
                "AttentionBuckets", config, layer
            )  # the errors of models that do not rotate, or in another way
        _require_own_rotation(inner)
        modules = _rotary_modules(inner)
        with ExitStack() as undo:
            rotations = [RowRotation(module, self.multiples) for module in modules]
            for rotation in rotations:
                undo.enter_context(rotation.apply())
            undo.enter_context(expand_rows(inner, len(self.multiples), self._mix))
            run_tiny_forward(inner, tiny_input("AttentionBuckets", inner))
            if not any(rotation.calls for rotation in rotations):
                raise _no_rotary_module(inner)
            yield

    def _mix(self, logits: Tensor) -> Tensor:
        return mix_logits(logits, self.compat)


class RowRotation:
    """The rotary embedding module of a model, with another base for each row of a sequence."""

    def __init__(self, module: Any, multiples: Sequence[float]) -> None:
        self.module, self.calls = module, 0
        self.variants: list[Callable[..., Any]] = [
            module.forward if one == 1 else with_base(module, one).forward for one in multiples
        ]

    @contextmanager
    def apply(self) -> Iterator[None]:
        before = self.module.__dict__.get("forward")
        self.module.forward = self.forward
        try:
            yield
        finally:
            if before is None:
                del self.module.forward
            else:
                self.module.forward = before

    def forward(self, x: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        self.calls += 1
        count, ids = len(self.variants), position_ids.expand(x.shape[0], -1)
        parts = [
            rotate(x[index::count], ids[index::count], *args, **kwargs) for index, rotate in enumerate(self.variants)
        ]
        return tuple(torch.stack(part, 1).flatten(0, 1) for part in zip(*parts, strict=True))


def with_base(module: Any, multiple: float) -> Any:
    """A rotary embedding module like this one, with a multiple of its base."""
    config = copy.deepcopy(module.config)
    parameters = config.rope_parameters
    for one in [parameters] if "rope_theta" in parameters else [part for part in parameters.values() if part]:
        one["rope_theta"] = one["rope_theta"] * multiple
    buffer = next(module.buffers())
    return type(module)(config=config).to(device=buffer.device, dtype=buffer.dtype)


def mix_logits(logits: Tensor, compat: str) -> Tensor:
    """One distribution from logits ``[B, N, T, V]`` of N rows, as logits ``[B, T, V]``."""
    if logits.shape[1] == 1:
        return logits[:, 0]
    rows = logits.to(torch.promote_types(logits.dtype, torch.float32))
    weights = row_weights(rows, compat)
    if compat == "official":
        return (weights[..., None] * rows).sum(1).to(logits.dtype)
    total = rows.logsumexp(-1)
    mixture = (rows - total[..., None] + weights.log()[..., None]).logsumexp(1)
    # logits have a free constant; with this one, equal rows give their own logits
    return (mixture + (weights * total).sum(1)[..., None]).to(logits.dtype)


def row_weights(logits: Tensor, compat: str) -> Tensor:
    """The weight of each row, ``[B, N, T]``; they add up to 1."""
    if compat == "official":
        return logits.amax(-1).softmax(1)
    confidence = (logits.amax(-1) - logits.logsumexp(-1)).exp()
    return confidence / confidence.sum(1, keepdim=True)


def wave(distances: Tensor, base: float, rotary_dim: int) -> Tensor:
    """How attention to equal content changes with distance: ``2 / sqrt(d) * sum_j cos(m base^(-2j/d))``."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    return 2 / math.sqrt(rotary_dim) * (distances.double()[:, None] * base**-exponents).cos().sum(-1)


def search_multiples(rotary_dim: int, base: float, length: int, count: int) -> list[float]:
    """Multiples of a base, 1 first, found greedily.

    Each step adds the candidate, from 1 to 3 in steps of 0.05, whose peaks fill the most troughs of the bases so far that no
    peak fills yet. The smallest of several equal candidates wins.
    """
    candidates = [round(1 + 0.05 * step, 2) for step in range(41)]
    distances = torch.arange(length)
    extrema = {one: _extrema(wave(distances, base * one, rotary_dim)) for one in candidates}
    chosen = [1.0]
    while len(chosen) < min(count, len(candidates)):
        peaks = torch.cat([extrema[one][0] for one in chosen])
        troughs = torch.cat([extrema[one][1] for one in chosen]).unique()
        open_troughs = troughs[~_near(troughs, peaks)]
        rest = [one for one in candidates if one not in chosen]
        chosen.append(max(rest, key=lambda one: int(_near(open_troughs, extrema[one][0]).sum())))
    return sorted(chosen)


def _extrema(values: Tensor) -> tuple[Tensor, Tensor]:
    """The places of the local maxima and minima."""
    before, here, after = values[:-2], values[1:-1], values[2:]
    peaks, troughs = ((here > before) & (here > after), (here < before) & (here < after))
    return peaks.nonzero()[:, 0] + 1, troughs.nonzero()[:, 0] + 1


def _near(places: Tensor, others: Tensor) -> Tensor:
    if not len(others):
        return torch.zeros(len(places), dtype=torch.bool)
    return (places[:, None] - others).abs().amin(-1) <= REACH


def _rotary_modules(model: Any) -> list[nn.Module]:
    modules = [
        part
        for part in model.get_decoder().modules()
        if type(part).__name__.endswith("RotaryEmbedding") and hasattr(part, "config") and [*part.buffers()]
    ]
    if not modules:
        raise _no_rotary_module(model)
    return modules


def _no_rotary_module(model: Any) -> Exception:
    return usage_error(
        "AttentionBuckets",
        f"{type(model).__name__} ({model.config.model_type}), which does not rotate in one module for all layers",
        "it changes the base of the rotary embedding",
        "use a model of another family, such as llama or qwen3",
    )


def _require_own_rotation(model: nn.Module) -> None:
    if any(getattr(part.__dict__.get(EDITOR), "rotary", None) is not None for part in model.modules()):
        raise usage_error(
            "AttentionBuckets",
            "a model with another cure that chooses positions",
            "queries and keys are rotated once",
            "apply one of them",
        )
