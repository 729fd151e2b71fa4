"""A ``Rotary`` that rotates as a layer of a pretrained model does, from the model's config."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from whence.errors import usage_error
from whence.position.rotary import Rotary
from whence.position.rotary_scaling import Linear, Llama3, Proportional, Scaling, Yarn

YARN_OPTIONS = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")


def build_rotary(subject: str, config: Any, layer: int, *, layout: str = "half") -> Rotary:
    """The rotation of a layer.

    Args:
        subject: the call that needs it, for errors.
        config: the text config of a model of transformers.
        layer: the layer's index; layers of Gemma 3 have two kinds of rotation.
        layout: which columns form a pair; see ``Rotary``.
    """
    parameters = getattr(config, "rope_parameters", None)
    if parameters and "rope_theta" not in parameters:
        parameters = parameters.get(config.layer_types[layer])
    if not parameters:
        raise usage_error(
            subject,
            f"a {config.model_type} model, whose layer {layer} does not rotate queries and keys",
            "it changes rotary positions",
            "use a model with rotary positions, such as llama or qwen3",
        )
    scaling = _scaling(subject, config, parameters)
    share, rotary_dim = parameters.get("partial_rotary_factor", 1.0), None
    if share != 1 and not isinstance(scaling, Proportional):
        head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        rotary_dim = int(head_dim * share)
    return Rotary(base=float(parameters["rope_theta"]), layout=layout, rotary_dim=rotary_dim, scaling=scaling)


def _scaling(subject: str, config: Any, parameters: dict[str, Any]) -> Scaling | None:
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        return None
    original = int(parameters.get("original_max_position_embeddings") or config.max_position_embeddings)
    if kind == "linear":
        return Linear(factor=float(parameters["factor"]))
    if kind == "llama3":
        low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
        return Llama3(factor=float(parameters["factor"]), low=low, high=high, original=original)
    if kind == "proportional":
        share = float(parameters.get("partial_rotary_factor", 1.0))
        return Proportional(partial_rotary_factor=share, factor=float(parameters.get("factor", 1.0)))
    if kind == "yarn":
        options = {name: parameters[name] for name in YARN_OPTIONS if parameters.get(name) is not None}
        return Yarn(factor=float(parameters["factor"]), original=original, **options)
    raise usage_error(
        subject,
        f"a {config.model_type} model with rotary scaling {kind}",
        "the scalings default, linear, llama3, proportional and yarn are supported",
        "use a model with one of them",
    )


def rotate_at(rotary: Rotary, x: Tensor, positions: Tensor) -> Tensor:
    """Rotate ``x`` ``[B, H, n, D]`` to positions ``[B or 1, H or 1, n]``, separate for each head if they have heads."""
    batch, heads, count, dim = x.shape
    flat = x.reshape(batch * heads, 1, count, dim)
    where = positions.expand(batch, heads, count).reshape(batch * heads, count)
    rotated, _ = rotary.rotate(flat, flat[:, :, :0], where, where[:, :0])
    return rotated.reshape(batch, heads, count, dim)
