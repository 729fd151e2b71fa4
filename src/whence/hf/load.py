"""``load``: a causal language model and its tokenizer, by name, by folder or by GGUF file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch

from whence.errors import usage_error
from whence.hf.convert import FETCH_SMOLLM2, convert, smollm2_folder
from whence.hf.packages import needed
from whence.hf.state_io import saved_positions
from whence.hf.store import SUMS, require_whole


class Loaded(NamedTuple):
    """A model in evaluation mode, and its tokenizer."""

    model: Any
    tokenizer: Any


def load(
    name: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    revision: str | None = None,
    device_map: str | dict[str, Any] | None = None,
) -> Loaded:
    """A causal language model, or a multimodal one, with its tokenizer.

    Args:
        name: ``"smollm2"`` (SmolLM2-135M-Instruct, from the cache that ``make smollm2`` fills), a folder that
            ``save_pretrained`` wrote, a GGUF file (converted once into the cache), or a name on the Hugging Face hub.
        dtype: of the weights.
        device: where they go.
        revision: a branch, tag or commit on the hub.
        device_map: how accelerate spreads the weights over devices, such as ``"auto"``; ``device`` then does not count.
    """
    asked = f'load("{name}")'
    transformers = needed("transformers", asked)
    source = _source(asked, name)
    options: dict[str, Any] = {}
    if revision is not None:
        if Path(source).exists():
            raise usage_error(asked, f"revision={revision}", "files on this machine have none", "leave it out")
        options["revision"] = revision
    placed: dict[str, Any] = {}
    if device_map is not None:
        needed("accelerate", f"{asked} with a device map")
        placed["device_map"] = device_map
    try:
        kind = _model_class(asked, transformers, source, **options)
        model, loaded = kind.from_pretrained(source, dtype=dtype, output_loading_info=True, **options, **placed)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
    except OSError as error:  # transformers' one error for a name it does not know and a hub it cannot reach
        raise usage_error(
            asked,
            str(error).splitlines()[0].rstrip("."),
            "a model is smollm2, a folder that save_pretrained wrote, a GGUF file or a name on the hub",
            "give one of these",
        ) from error
    if missing := sorted(loaded["missing_keys"]):
        raise usage_error(
            asked,
            f"a checkpoint without {len(missing)} weights of {type(model).__name__}, such as {missing[0]}",
            "weights that a checkpoint lacks are random",
            "give a checkpoint that was saved from a causal language model",
        )
    if Path(source).is_dir() and saved_positions(Path(source)):
        warnings.warn(
            f"{asked}: the folder holds positions, which are no part of the model until they are attached; "
            f'call whence.hf.attach_saved(model, "{name}")',
            stacklevel=2,
        )
    return Loaded((model if device_map is not None else model.to(device)).eval(), tokenizer)


def _model_class(asked: str, transformers: Any, source: str, **options: Any) -> Any:
    """The class of transformers that loads it: by its config, where there is one."""
    try:
        config = transformers.AutoConfig.from_pretrained(source, **options)
    except (OSError, ValueError):  # an adapter, which has none, or what is refused next
        return transformers.AutoModelForCausalLM
    if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING or hasattr(config, "auto_map"):
        return transformers.AutoModelForCausalLM
    if type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return transformers.AutoModelForImageTextToText
    raise usage_error(
        asked,
        f"a {config.model_type} model",
        "a causal language model is loaded, or a multimodal model with one inside",
        "use a model such as llama, qwen3 or gpt2",
    )


def _source(asked: str, name: str | Path) -> str:
    """What transformers is given: a folder that was looked at, or a name."""
    path = Path(name).expanduser()
    if str(name) == "smollm2" and not path.exists():
        path = smollm2_folder()
        if not path.exists():
            raise usage_error(asked, f"no folder {path}", "it is fetched and converted once", FETCH_SMOLLM2)
    if path.suffix == ".gguf":
        path = convert(path)
    if not path.exists() and (isinstance(name, Path) or str(name).startswith((".", "/", "~"))):
        raise usage_error(
            asked, "no such folder", "a path leads to a folder or a GGUF file that is there", "check the path"
        )
    if (path / SUMS).is_file():
        require_whole(asked, path, FETCH_SMOLLM2 if path == smollm2_folder() else "convert it again")
    return str(path) if path.exists() else str(name)
