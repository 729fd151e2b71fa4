"""Hidden states of a model over texts of one length, as it is or with other positions and another mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.lab.data.python_texts import topics
from whence.probe.likelihood import additive
from whence.probe.projections import is_projection
from whence.probe.subject import Subject

#: a token whose states in every layer are kept takes the room of so many
STATES = 4


def random_texts(subject: Subject, count: int, tokens: int, seed: int = 0) -> Tensor:
    """Texts of random tokens, ``[count, tokens]``: no meaning, so whatever a position has in common is position alone."""
    size = subject.model.get_input_embeddings().weight.shape[0]
    special = {token for token in subject.tokenizer.all_special_ids if token is not None}
    usable = torch.tensor([token for token in range(min(size, len(subject.tokenizer))) if token not in special])
    generator = torch.Generator().manual_seed(seed)
    return usable[torch.randint(len(usable), (count, tokens), generator=generator)]


def plain_texts(subject: Subject, count: int, tokens: int) -> Tensor:
    """Pieces of the help topics of Python, ``[count, tokens]``, one after the other; they overlap where there is too little."""
    parts = topics("plain_texts")
    text = "\n".join({**parts.train, **parts.test}.values())[: 12 * count * tokens]
    found = subject.tokenizer(text, add_special_tokens=False)["input_ids"]
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
def each_text(
    subject: Subject, texts: Tensor, positions: Tensor | None = None, visible: Tensor | None = None
) -> Iterator[Tensor]:
    """The states that enter each layer, ``[layers, tokens, width]`` on the model's device, of one text after the other.

    Several are read together. The mask is always given in full: without it transformers takes positions that go back for
    packed texts.
    """
    tokens = texts.shape[1]
    subject.require_room("each_text", tokens)
    if visible is None and positions is None:
        told: dict[str, Any] = {}
    elif subject.takes_branches:
        seen = additive(causal(tokens) if visible is None else visible, subject.model.dtype)
        at = torch.arange(tokens) if positions is None else positions
        told = {"attention_mask": seen[None, None].to(subject.device), "position_ids": at[None].to(subject.device)}
    else:
        raise usage_error(
            "each_text(positions=..., visible=...)",
            f"{subject.name}, a model with windows or without explicit positions",
            "both are handed to the model",
            "take one with full attention in every layer",
        )
    for some in subject.batches([STATES * tokens] * len(texts)):
        out = subject.model(
            input_ids=texts[some.start : some.stop].to(subject.device),
            output_hidden_states=True,
            use_cache=False,
            logits_to_keep=1,
            **told,
        )
        # the last of them stands behind the final norm, where no layer works
        for row in range(len(some)):
            yield torch.stack([layer[row] for layer in out.hidden_states[:-1]]).float()


def mean_states(subject: Subject, texts: Tensor, **told: Tensor | None) -> Tensor:
    """The mean over texts, ``[layers, tokens, width]`` in float64, on the CPU, where curves are fitted to it."""
    total = None
    for states in each_text(subject, texts, **told):
        total = states.double() if total is None else total + states.double()
    if total is None:
        raise usage_error("mean_states", "no texts", "a mean has at least one", "give some")
    return (total / len(texts)).cpu()


def as_read(states: Tensor) -> Tensor:
    """States brought to length 1, in float64, as a layer's norm does before it reads them.

    A few tokens of most models have states hundreds of times longer than all others, and would be every variance.
    """
    return nn.functional.normalize(states.double(), dim=-1)


def has_projections(subject: Subject) -> bool:
    """Whether queries, keys and values have projections of their own, as ``attention_modules`` asks."""
    return bool(_projecting(subject))


def attention_modules(subject: Subject) -> dict[int, nn.Module]:
    """The attention modules by layer, of a model whose queries and keys have projections of their own."""
    found = _projecting(subject)
    if not found:
        raise usage_error(
            "attention_modules",
            f"a {subject.about.get('type', 'model')}",
            "queries, keys and values have projections of their own",
            "take a model such as llama, qwen3 or mistral",
        )
    return dict(sorted(found.items()))


def _projecting(subject: Subject) -> dict[int, nn.Module]:
    """Of the language model alone: the image encoder of a multimodal one has layers of the same numbers."""
    found: dict[int, nn.Module] = {}
    text = subject.model.get_decoder() if hasattr(subject.model, "get_decoder") else subject.model
    for module in text.modules():
        if all(is_projection(getattr(module, name, None)) for name in ("q_proj", "k_proj", "v_proj")):
            found[int(getattr(module, "layer_idx", len(found)))] = module
    return found


@contextmanager
def attention_inputs(subject: Subject, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """What enters the query projection of some layers, after the norm: ``[batch, tokens, width]`` of the latest forward."""
    seen: dict[int, Tensor] = {}
    modules = attention_modules(subject)

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
