"""The tokenizer of a GGUF file, made from what the file says.

What transformers makes of it differs between its versions: 5.17 took the first special token for the end of a text, and
had none for padding. So byte-level tokenizers are put together here; of others the special tokens are compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.hf.packages import needed

#: names of special tokens in transformers, and of their numbers in the file
SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
BYTE_LEVEL = "gpt2"
CONTROL = 3  # the type of a token that no text spells


def tokenizer_of(gguf: Path) -> Any:
    """The tokenizer in a GGUF file, for transformers."""
    asked = f"convert({gguf.name})"
    transformers = needed("transformers", asked)
    said = _said(gguf, asked)
    special = {name: said["tokens"][said[number]] for name, number in SPECIAL.items() if number in said}
    if said.get("model") == BYTE_LEVEL:
        made = transformers.PreTrainedTokenizerFast(
            tokenizer_object=byte_level(said, asked), clean_up_tokenization_spaces=False, **special
        )
    else:
        made = transformers.AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    wrong = [f"{name} {getattr(made, name)!r}" for name, token in special.items() if getattr(made, name) != token]
    if wrong:
        raise usage_error(
            asked,
            f"{', '.join(wrong)} from transformers {transformers.__version__}",
            f"the file says {', '.join(f'{name} {token!r}' for name, token in special.items())}",
            "install another version of transformers",
        )
    if "chat_template" in said:
        made.chat_template = said["chat_template"]
    return made


def byte_level(said: dict[str, Any], asked: str) -> Any:
    """Byte-pair encoding over bytes, with the vocabulary and the merges of the file; control tokens are never split."""
    tokenizers = needed("tokenizers", asked)
    vocabulary = {token: number for number, token in enumerate(said["tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in said["merges"]]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=bool(said.get("add_space_prefix")))
    made.decoder = tokenizers.decoders.ByteLevel()
    types = said.get("token_type", [])
    made.add_special_tokens([token for token, kind in zip(said["tokens"], types, strict=False) if kind == CONTROL])
    return made


def _said(gguf: Path, asked: str) -> dict[str, Any]:
    """What the file says about its tokenizer, by short name."""
    fields = needed("gguf", asked).GGUFReader(gguf).fields
    said = {name.removeprefix("tokenizer.").removeprefix("ggml."): field.contents() for name, field in fields.items()
            if name.startswith("tokenizer.")}  # fmt: skip
    missing = [name for name in ("model", "tokens") if name not in said]
    if said.get("model") == BYTE_LEVEL and "merges" not in said:
        missing.append("merges")
    if missing:
        raise usage_error(asked, f"a file without {', '.join(missing)}", "it holds its tokenizer", "take a whole model")
    return said
