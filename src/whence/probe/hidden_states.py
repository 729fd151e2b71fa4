"""Hidden states of a model over texts of one length, unchanged or with other positions and another mask.

``projection_matrix`` reads the matrix of a linear projection in any storage format. A quantized layer keeps packed integers under the name ``weight``, an adapter adds a product of two matrices, and an
offloaded layer has its weights elsewhere. The matrix is therefore computed with the forward
pass: the outputs for unit vectors are its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.lab.data.python_texts import topics
from whence.probe.likelihood import additive_mask
from whence.probe.probed_model import ProbedModel

#: a token whose states in every layer are kept takes the room of so many
STATES = 4


def random_texts(lm: ProbedModel, count: int, tokens: int, seed: int = 0) -> Tensor:
    """Texts of random tokens, ``[count, tokens]``: no meaning, so whatever a position has in common is position alone."""
    size = lm.model.get_input_embeddings().weight.shape[0]
    special = {token for token in lm.tokenizer.all_special_ids if token is not None}
    usable = torch.tensor([token for token in range(min(size, len(lm.tokenizer))) if token not in special])
    generator = torch.Generator().manual_seed(seed)
    return usable[torch.randint(len(usable), (count, tokens), generator=generator)]


def plain_texts(lm: ProbedModel, count: int, tokens: int) -> Tensor:
    """Pieces of the help topics of Python, ``[count, tokens]``, one after the other; they overlap where there is too little."""
    parts = topics("plain_texts")
    text = "\n".join({**parts.train, **parts.test}.values())[: 12 * count * tokens]
    found = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    step = min(tokens, (len(found) - tokens) // max(1, count - 1))
    if step < 1:
        raise usage_error(
            "plain_texts", f"{count} texts of {tokens} tokens", f"there are {len(found)}", "ask for fewer"
        )
    return torch.tensor([found[start : start + tokens] for start in range(0, count * step, step)])


def causal(tokens: int) -> Tensor:
    """Which keys a query sees, ``[tokens, tokens]``."""
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


@torch.inference_mode()
def iterate_states(
    lm: ProbedModel, texts: Tensor, positions: Tensor | None = None, visible: Tensor | None = None
) -> Iterator[Tensor]:
    """The states that enter each layer, ``[layers, tokens, width]`` on the model's device, of one text after the other.

    Several are read together. The mask is always given in full: without it transformers takes positions that go back for
    packed texts.
    """
    tokens = texts.shape[1]
    lm.require_context("each_text", tokens)
    if visible is None and positions is None:
        inputs: dict[str, Any] = {}
    elif lm.supports_branching:
        seen = additive_mask(causal(tokens) if visible is None else visible, lm.model.dtype)
        at = torch.arange(tokens) if positions is None else positions
        inputs = {"attention_mask": seen[None, None].to(lm.device), "position_ids": at[None].to(lm.device)}
    else:
        raise usage_error(
            "each_text(positions=..., visible=...)",
            f"{lm.name}, a model with windows or without explicit positions",
            "both are handed to the model",
            "take one with full attention in every layer",
        )
    for some in lm.batches([STATES * tokens] * len(texts)):
        out = lm.model(
            input_ids=texts[some.start : some.stop].to(lm.device),
            output_hidden_states=True,
            use_cache=False,
            logits_to_keep=1,
            **inputs,
        )
        # the last of them stands behind the final norm, where no layer works
        for row in range(len(some)):
            yield torch.stack([layer[row] for layer in out.hidden_states[:-1]]).float()


def mean_states(lm: ProbedModel, texts: Tensor, **inputs: Tensor | None) -> Tensor:
    """The mean over texts, ``[layers, tokens, width]`` in float64, on the CPU, where curves are fitted to it."""
    total = None
    for states in iterate_states(lm, texts, **inputs):
        total = states.double() if total is None else total + states.double()
    if total is None:
        raise usage_error("mean_states", "no texts", "a mean has at least one", "give some")
    return (total / len(texts)).cpu()


def normalize_states(states: Tensor) -> Tensor:
    """States brought to length 1, in float64, as a layer's norm does before it reads them.

    A few tokens of most models have states hundreds of times longer than all others, and would be every variance.
    """
    return nn.functional.normalize(states.double(), dim=-1)


def has_projections(lm: ProbedModel) -> bool:
    """Whether queries, keys and values have projections of their own, as ``attention_modules`` asks."""
    return bool(_find_projecting_modules(lm))


def attention_modules(lm: ProbedModel) -> dict[int, nn.Module]:
    """The attention modules by layer, of a model whose queries and keys have projections of their own."""
    found = _find_projecting_modules(lm)
    if not found:
        raise usage_error(
            "attention_modules",
            f"a {lm.about.get('type', 'model')}",
            "queries, keys and values have projections of their own",
            "take a model such as llama, qwen3 or mistral",
        )
    return dict(sorted(found.items()))


def _find_projecting_modules(lm: ProbedModel) -> dict[int, nn.Module]:
    """Of the language model alone: the image encoder of a multimodal one has layers of the same numbers."""
    found: dict[int, nn.Module] = {}
    text = lm.model.get_decoder() if hasattr(lm.model, "get_decoder") else lm.model
    for module in text.modules():
        if all(is_projection(getattr(module, name, None)) for name in ("q_proj", "k_proj", "v_proj")):
            found[int(getattr(module, "layer_idx", len(found)))] = module
    return found


@contextmanager
def attention_inputs(lm: ProbedModel, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """What enters the query projection of some layers, after the norm: ``[batch, tokens, width]`` of the latest forward."""
    seen: dict[int, Tensor] = {}
    modules = attention_modules(lm)

    def keep(layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            seen[layer] = given[0].detach().float().cpu()

        return hook

    hooks = [getattr(modules[layer], "q_proj").register_forward_pre_hook(keep(layer)) for layer in layers]  # noqa: B009
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


VECTORS = 512  # unit vectors in one forward
LINEAR = 0.05  # how far, of an output's length, a projection may be from linear: 8-bit inputs stay within 0.02


def is_projection(module: object) -> bool:
    """Whether it is a linear layer, or stands for one."""
    return isinstance(module, nn.Module) and hasattr(module, "in_features") and hasattr(module, "out_features")


@torch.no_grad()
def projection_matrix(projection: nn.Module, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The matrix ``[out, in]`` that a projection multiplies its input by, in float32 on the CPU; its bias is left out.

    Args:
        projection: a linear layer: plain, quantised, offloaded or with an adapter.
        dtype: of the inputs that its model gives it.
        device: where they are.
    """
    weight: Any = getattr(projection, "weight", None)
    # a subclass may compute something else, and so may a tensor that is no plain one (torchao, quanto)
    plain = type(projection) is nn.Linear and type(weight) is nn.Parameter and type(weight.data) is Tensor
    if plain and weight.is_floating_point() and not weight.is_meta and not hasattr(projection, "_hf_hook"):
        return weight.detach().float().cpu()
    width = int(projection.in_features)  # type: ignore[arg-type]
    zero = projection(torch.zeros(1, width, dtype=dtype, device=device)).float()
    columns = []
    for start in range(0, width, VECTORS):
        units = torch.zeros(min(VECTORS, width - start), width, dtype=dtype, device=device)
        units[torch.arange(len(units)), torch.arange(start, start + len(units))] = 1
        columns.append((projection(units).float() - zero).cpu())
    matrix = torch.cat(columns).T.contiguous()
    _require_linear(projection, matrix, zero, dtype, device)
    return matrix


def _require_linear(projection: Any, matrix: Tensor, zero: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(4, matrix.shape[1], generator=torch.Generator().manual_seed(0)).to(dtype)
    wanted = x.float() @ matrix.T
    got = (projection(x.to(device)).float() - zero).cpu()
    if not bool(((got - wanted).norm(dim=1) <= LINEAR * wanted.norm(dim=1)).all()):
        raise usage_error(
            f"projection_matrix({type(projection).__name__})",
            "outputs that are not linear in the input",
            "scores are split through the matrix of a projection",
            "use a model whose weights alone are quantised",
        )
