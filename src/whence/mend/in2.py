"""IN2, information-intensive training: weights that were fine-tuned on answers anywhere in a long context.

An et al. 2024 (arXiv 2404.16811). The examples are those of ``whence.mend.in2_data``. ``whence.mend.in2_training.train_in2``
fine-tunes a model on them and writes a folder: an adapter in the format of peft, or all weights. The cure loads the folder.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import require_package, usage_error
from whence.hf.integrations import unwrap_peft
from whence.mend.cure import Cure
from whence.records import read
from whence.validation import format_value, require_number

NAME = "in2"  # of the adapter on a model
ABOUT = "in2.json"  # written last, so a folder with it is complete
ADAPTER = "adapter_model.safetensors"  # peft's name
WEIGHTS = "weights.safetensors"
PREFIX = "base_model.model."  # peft's prefix in saved adapters


class IN2(Cure):
    """Load weights or an adapter that ``train_in2`` made for this model.

    Args:
        adapter: the folder that ``train_in2`` wrote.
        strength: 1 for the trained weights, 0 for the model's own; between them, weights are interpolated.
        sha256: of the file with the weights, read from it by default. Another file is an error.
    """

    name = "in2"
    title = "IN2 training"
    paper = "An et al. 2024, arXiv 2404.16811"
    path_settings = ("adapter",)

    def __init__(self, adapter: str | None = None, strength: float = 1.0, sha256: str | None = None) -> None:
        if adapter is not None and not isinstance(adapter, str | Path):
            raise usage_error(
                "IN2(adapter=...)", format_value(adapter), "adapter is the path of a folder", "pass a text"
            )
        require_number("IN2", "strength", strength, low=0, high=2, remedy="pass 1 for the trained weights")
        self.adapter, self.strength = None if adapter is None else str(adapter), float(strength)
        self.sha256 = sha256
        self._verified: weakref.ref[Any] | None = None  # the model whose weights the adapter was trained on
        if adapter is not None:
            found = hashlib.sha256(_weights_file(Path(adapter)).read_bytes()).hexdigest()
            if sha256 not in (None, found):
                raise usage_error(
                    "IN2(sha256=...)",
                    f"{str(sha256)[:12]} for a file with {found[:12]}",
                    "the adapter must be the one that was meant",
                    "pass the folder of that adapter, or omit sha256",
                )
            self.sha256 = found

    def identity(self) -> IN2:
        return IN2(self.adapter, 0.0, self.sha256)

    @contextmanager
    def _apply(self, model: Any) -> Iterator[None]:
        if self.adapter is None:
            raise usage_error(
                "IN2(adapter=...)",
                "no adapter",
                "the cure loads fine-tuned weights",
                "train them with whence.mend.in2_training.train_in2(model, tokenizer, text, folder)",
            )
        model, path = unwrap_peft(model), Path(self.adapter)
        self._require_trained_on(model, path)
        tensors = require_package("safetensors.torch", "IN2", "hf").load_file(_weights_file(path))
        if (path / WEIGHTS).exists():
            with replaced_weights(model, tensors, self.strength):
                yield
            return
        peft = require_package("peft", "IN2", "peft")
        with adapter_layers(model, peft.LoraConfig.from_pretrained(str(path))) as layers:
            tensors = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
            peft.set_peft_model_state_dict(model, tensors, adapter_name=NAME)
            for layer in layers:
                layer.scale_layer(self.strength)
            yield

    def _require_trained_on(self, model: Any, path: Path) -> None:
        if self._verified is not None and self._verified() is model:
            return
        from whence.mend.recipe import model_checksum  # recipes list the cures

        if read(path / ABOUT).get("model") != model_checksum(model):
            raise usage_error(
                "IN2(adapter=...)",
                f"{path.name} for a {type(model).__name__} with other weights",
                "an adapter belongs to the model that it was trained on",
                "load that model, or train an adapter for this one with train_in2",
            )
        self._verified = weakref.ref(model)


@contextmanager
def adapter_layers(model: Any, config: Any) -> Iterator[list[Any]]:
    """Put layers of peft into a model inside the block; afterwards the model is as before."""
    tuners = require_package("peft.tuners.tuners_utils", "IN2", "peft")
    if any(isinstance(part, tuners.BaseTunerLayer) for part in model.modules()):
        raise usage_error(
            "IN2", "a model with an adapter of peft", "one adapter is loaded at a time", "call merge_and_unload() first"
        )
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    before = dict(model.__dict__)
    try:
        require_package("peft", "IN2", "peft").inject_adapter_in_model(config, model, adapter_name=NAME)
        yield [part for part in model.modules() if isinstance(part, tuners.BaseTunerLayer)]
    finally:
        for name, part in [*model.named_modules()]:
            if isinstance(part, tuners.BaseTunerLayer):
                parent, _, child = name.rpartition(".")
                setattr(model.get_submodule(parent), child, part.get_base_layer())
        for name in set(model.__dict__) - set(before):
            del model.__dict__[name]
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


@contextmanager
def replaced_weights(model: nn.Module, tensors: dict[str, Tensor], strength: float = 1.0) -> Iterator[None]:
    """Other values of a model's parameters inside the block."""
    parameters = dict(model.named_parameters())
    if set(tensors) != set(parameters):
        raise usage_error(
            "IN2(adapter=...)",
            f"weights for {len(tensors)} parameters, of which {len(set(tensors) & set(parameters))} are the model's",
            "they must be those of the model",
            "train them on this model with train_in2",
        )
    before = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            own = before[name]
            parameter.data = torch.lerp(own, tensors[name].to(own), strength)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = before[name]


def _weights_file(path: Path) -> Path:
    for name in (WEIGHTS, ADAPTER):
        if (path / ABOUT).exists() and (path / name).exists():
            return path / name
    raise usage_error(
        "IN2(adapter=...)",
        str(path),
        f"the folder must hold {ABOUT} and {ADAPTER} or {WEIGHTS}",
        "pass the folder that train_in2 wrote, after it finished",
    )
