"""Hidden states of a model over texts of one length, unchanged or with other positions and another mask.

``projection_matrix`` reads the matrix of a linear projection in any storage format. A quantized layer stores packed
integers under the name ``weight``, an adapter adds a product of two matrices, and an offloaded layer has its weights
elsewhere. The matrix is therefore computed with the forward pass: the outputs for unit vectors are its columns.
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

#: memory of a token whose states are stored for every layer, as a multiple of a token in a plain forward pass
STATES = 4


def random_texts(lm: ProbedModel, count: int, tokens: int, seed: int = 0) -> Tensor:
    """Texts of random tokens, ``[count, tokens]``. They have no meaning, so what texts share at a position is due to position."""
    size = lm.model.get_input_embeddings().weight.shape[0]
    special = {token for token in lm.tokenizer.all_special_ids if token is not None}
    usable = torch.tensor([token for token in range(min(size, len(lm.tokenizer))) if token not in special])
    generator = torch.Generator().manual_seed(seed)
    return usable[torch.randint(len(usable), (count, tokens), generator=generator)]


def plain_texts(lm: ProbedModel, count: int, tokens: int) -> Tensor:
    """Consecutive pieces of the help topics of Python, ``[count, tokens]``; they overlap if the text is too short."""
    parts = topics("plain_texts")
    text = "\n".join({**parts.train, **parts.test}.values())[: 12 * count * tokens]
    token_ids = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    step = min(tokens, (len(token_ids) - tokens) // max(1, count - 1))
    if step < 1:
        raise usage_error(
            "plain_texts",
            f"{count} texts of {tokens} tokens",
            f"there are {len(token_ids)}",
            "pass fewer texts or tokens",
        )
    return torch.tensor([token_ids[start : start + tokens] for start in range(0, count * step, step)])


def causal(tokens: int) -> Tensor:
    """Which keys a query sees, ``[tokens, tokens]``."""
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


@torch.inference_mode()
def iterate_states(
    lm: ProbedModel, texts: Tensor, positions: Tensor | None = None, visible: Tensor | None = None
) -> Iterator[Tensor]:
    """The states that enter each layer, ``[layers, tokens, hidden_size]`` on the model's device, for one text after the other.

    Texts are read in batches. With ``positions`` or ``visible`` the full mask is passed, because without it transformers
    reads positions that decrease as packed texts.
    """
    tokens = texts.shape[1]
    lm.require_context("iterate_states(texts)", tokens)
    if visible is None and positions is None:
        inputs: dict[str, Any] = {}
    elif lm.supports_branching:
        mask = additive_mask(causal(tokens) if visible is None else visible, lm.model.dtype)
        position_ids = torch.arange(tokens) if positions is None else positions
        inputs = {"attention_mask": mask[None, None].to(lm.device), "position_ids": position_ids[None].to(lm.device)}
    else:
        raise usage_error(
            "iterate_states(positions=..., visible=...)",
            f"{lm.name}, a model with windows or without explicit positions",
            "the model must accept positions and a mask",
            "use a model with full attention in every layer",
        )
    for batch in lm.batches([STATES * tokens] * len(texts)):
        out = lm.model(
            input_ids=texts[batch.start : batch.stop].to(lm.device),
            output_hidden_states=True,
            use_cache=False,
            logits_to_keep=1,
            **inputs,
        )
        # the last one follows the final norm and is the input of no layer
        for row in range(len(batch)):
            yield torch.stack([layer[row] for layer in out.hidden_states[:-1]]).float()


def mean_states(lm: ProbedModel, texts: Tensor, **inputs: Tensor | None) -> Tensor:
    """The mean over texts, ``[layers, tokens, hidden_size]`` in float64 on the CPU."""
    total = None
    for states in iterate_states(lm, texts, **inputs):
        total = states.double() if total is None else total + states.double()
    if total is None:
        raise usage_error("mean_states", "no texts", "a mean needs at least one", "pass texts")
    return (total / len(texts)).cpu()


def normalize_states(states: Tensor) -> Tensor:
    """States normalized to length 1, in float64, as by the norm at the input of a layer.

    In most models a few tokens have states hundreds of times longer than all others, which would dominate every variance.
    """
    return nn.functional.normalize(states.double(), dim=-1)


def has_projections(lm: ProbedModel) -> bool:
    """Whether the model has separate projections of queries, keys and values, which ``attention_modules`` requires."""
    return bool(_find_projecting_modules(lm))


def attention_modules(lm: ProbedModel) -> dict[int, nn.Module]:
    """The attention modules by layer, of a model with separate projections of queries, keys and values."""
    modules = _find_projecting_modules(lm)
    if not modules:
        raise usage_error(
            "attention_modules",
            f"a {lm.about.get('type', 'model')}",
            "queries, keys and values must have separate projections",
            "use a model such as llama, qwen3 or mistral",
        )
    return dict(sorted(modules.items()))


def _find_projecting_modules(lm: ProbedModel) -> dict[int, nn.Module]:
    """Modules of the language model only: the image encoder of a multimodal model has layers with the same numbers."""
    modules: dict[int, nn.Module] = {}
    text = lm.model.get_decoder() if hasattr(lm.model, "get_decoder") else lm.model
    for module in text.modules():
        if all(is_projection(getattr(module, name, None)) for name in ("q_proj", "k_proj", "v_proj")):
            modules[int(getattr(module, "layer_idx", len(modules)))] = module
    return modules


@contextmanager
def attention_inputs(lm: ProbedModel, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """The input of the query projection, after the norm, in some layers: ``[batch, tokens, hidden_size]`` of the last forward."""
    captured: dict[int, Tensor] = {}
    modules = attention_modules(lm)

    def build_hook(layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            captured[layer] = args[0].detach().float().cpu()

        return hook

    hooks = [getattr(modules[layer], "q_proj").register_forward_pre_hook(build_hook(layer)) for layer in layers]  # noqa: B009
    try:
        yield captured
    finally:
        for hook in hooks:
            hook.remove()


VECTORS = 512  # unit vectors in one forward
LINEAR = 0.05  # largest deviation from linearity, relative to the norm of an output; 8-bit inputs stay within 0.02


def is_projection(module: object) -> bool:
    """Whether it is a linear layer or a replacement of one."""
    return isinstance(module, nn.Module) and hasattr(module, "in_features") and hasattr(module, "out_features")


@torch.no_grad()
def projection_matrix(projection: nn.Module, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The matrix ``[out, in]`` that a projection multiplies its input by, in float32 on the CPU; its bias is left out.

    Args:
        projection: a linear layer: plain, quantized, offloaded or with an adapter.
        dtype: of the inputs.
        device: of the inputs.
    """
    weight: Any = getattr(projection, "weight", None)
    # a subclass of Linear or of Tensor (torchao, quanto) may compute something else
    plain = type(projection) is nn.Linear and type(weight) is nn.Parameter and type(weight.data) is Tensor
    if plain and weight.is_floating_point() and not weight.is_meta and not hasattr(projection, "_hf_hook"):
        return weight.detach().float().cpu()
    in_features = int(projection.in_features)  # type: ignore[arg-type]
    zero = projection(torch.zeros(1, in_features, dtype=dtype, device=device)).float()
    columns = []
    for start in range(0, in_features, VECTORS):
        units = torch.zeros(min(VECTORS, in_features - start), in_features, dtype=dtype, device=device)
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
            "the decomposition of scores needs linear projections",
            "use a model in which only the weights are quantized",
        )
