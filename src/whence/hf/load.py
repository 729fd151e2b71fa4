"""``load``: a causal language model and its tokenizer, by name, by folder or by GGUF file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from whence.errors import require_package, usage_error
from whence.hf.gguf import CHECKSUMS, FETCH_SMOLLM2, convert, smollm2_folder, verify_folder
from whence.hf.state_io import saved_position_names


class LoadedModel(NamedTuple):
    """A model in evaluation mode and its tokenizer."""

    model: Any
    tokenizer: Any


class LogitsModel(nn.Module):
    """A pretrained model with the call signature of the lab's training loop.

    ``LogitsModel(model)(tokens, key_mask=mask)`` returns logits ``[B, T, vocab_size]`` without a cache.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, key_mask: Tensor | None = None) -> Tensor:
        return self.model(input_ids=tokens, attention_mask=key_mask, use_cache=False).logits


def load(
    name: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    revision: str | None = None,
    device_map: str | dict[str, Any] | None = None,
) -> LoadedModel:
    """Load a causal language model, or a multimodal one, with its tokenizer.

    Args:
        name: ``"smollm2"`` (SmolLM2-135M-Instruct, from the cache that ``make smollm2`` fills), a folder written by
            ``save_pretrained``, a GGUF file (converted once into the cache), or a name on the Hugging Face hub.
        dtype: of the weights.
        device: of the weights.
        revision: a branch, tag or commit on the hub.
        device_map: how accelerate distributes the weights, such as ``"auto"``; ``device`` is then ignored.
    """
    subject = f'load("{name}")'
    transformers = require_package("transformers", subject, "hf")
    source = _resolve_source(subject, name)
    hub_options: dict[str, Any] = {}
    if revision is not None:
        if Path(source).exists():
            raise usage_error(subject, f"revision={revision}", "local files have no revisions", "omit revision")
        hub_options["revision"] = revision
    device_options: dict[str, Any] = {}
    if device_map is not None:
        require_package("accelerate", f"{subject} with a device map", "hf")
        device_options["device_map"] = device_map
    try:
        model_class = _model_class(subject, transformers, source, **hub_options)
        model, loading_info = model_class.from_pretrained(
            source, dtype=dtype, output_loading_info=True, **hub_options, **device_options
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **hub_options)
    except OSError as error:  # transformers raises it for an unknown name and for an unreachable hub
        raise usage_error(
            subject,
            str(error).splitlines()[0].rstrip("."),
            "a model is smollm2, a folder written by save_pretrained, a GGUF file or a name on the hub",
            "pass one of these",
        ) from error
    if missing := sorted(loading_info["missing_keys"]):
        raise usage_error(
            subject,
            f"a checkpoint without {len(missing)} weights of {type(model).__name__}, such as {missing[0]}",
            "missing weights would be random",
            "pass a checkpoint that was saved from a causal language model",
        )
    if Path(source).is_dir() and saved_position_names(Path(source)):
        warnings.warn(
            f"{subject}: the folder contains positions, which are not part of the model until they are attached; "
            f'call whence.hf.attach_saved(model, "{name}")',
            stacklevel=2,
        )
    return LoadedModel((model if device_map is not None else model.to(device)).eval(), tokenizer)


def _model_class(subject: str, transformers: Any, source: str, **hub_options: Any) -> Any:
    """The class of transformers that loads a model, chosen by its config."""
    try:
        config = transformers.AutoConfig.from_pretrained(source, **hub_options)
    except (OSError, ValueError):  # an adapter without a config, or a name that from_pretrained will report
        return transformers.AutoModelForCausalLM
    if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING or hasattr(config, "auto_map"):
        return transformers.AutoModelForCausalLM
    if type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return transformers.AutoModelForImageTextToText
    raise usage_error(
        subject,
        f"a {config.model_type} model",
        "load takes causal language models, and multimodal models that contain one",
        "use a model such as llama, qwen3 or gpt2",
    )


def _resolve_source(subject: str, name: str | Path) -> str:
    """The argument for from_pretrained: a folder that was checked, or a name."""
    path = Path(name).expanduser()
    if str(name) == "smollm2" and not path.exists():
        path = smollm2_folder()
        if not path.exists():
            raise usage_error(
                subject, f"no folder {path}", "SmolLM2 must be downloaded and converted once", FETCH_SMOLLM2
            )
    if path.suffix == ".gguf":
        path = convert(path)
    if not path.exists() and (isinstance(name, Path) or str(name).startswith((".", "/", "~"))):
        raise usage_error(
            subject, "no such folder", "a path must lead to an existing folder or GGUF file", "check the path"
        )
    if (path / CHECKSUMS).is_file():
        verify_folder(subject, path, FETCH_SMOLLM2 if path == smollm2_folder() else "convert it again")
    return str(path) if path.exists() else str(name)
