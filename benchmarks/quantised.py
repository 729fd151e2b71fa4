"""Quantised and adapted models, with the libraries themselves: attach, capture, save, read back, split scores, probe.

    python benchmarks/quantised.py                  # writes benchmarks/records/quantised.json

Needs bitsandbytes, torchao and optimum-quanto (and peft for an adapter on 4-bit weights), which are no dependencies of
whence; each that is absent is left out of the record. The model is a tiny random llama, on the CPU.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

import whence
from whence import hf, records
from whence.probe import explaining, measuring, states
from whence.probe.plan import Asked, Plan
from whence.probe.projections import projection_matrix
from whence.probe.subject import Subject, quick_subject

ROOT = Path(__file__).resolve().parent.parent
PLAN = Plan(
    "quick", (Asked("key-value", 3, 3, {"pairs": 3}),), ("likelihood",), texts=3, tokens=48, intervened=1, chunk=2
)
TOKENS = torch.arange(2, 40)[None]


def bitsandbytes_8(folder: str) -> Any:
    return loaded(folder, transformers.BitsAndBytesConfig(load_in_8bit=True))


def bitsandbytes_4(folder: str) -> Any:
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    return loaded(folder, config)


def torchao_8(folder: str) -> Any:
    from torchao.quantization import Int8WeightOnlyConfig

    return loaded(folder, transformers.TorchAoConfig(Int8WeightOnlyConfig()))


def quanto_8(folder: str) -> Any:
    return loaded(folder, transformers.QuantoConfig(weights="int8"))


def lora_on_4(folder: str) -> Any:
    import peft

    base = bitsandbytes_4(folder)
    torch.manual_seed(0)
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj", "k_proj"]))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    return model.eval()


def loaded(folder: str, config: Any) -> Any:
    auto = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, quantization_config=config, device_map="cpu", dtype=torch.float32).eval()


KINDS: dict[str, tuple[Callable[[str], Any], tuple[str, ...]]] = {
    "bitsandbytes, 8 bits": (bitsandbytes_8, ("bitsandbytes",)),
    "bitsandbytes, 4 bits (nf4)": (bitsandbytes_4, ("bitsandbytes",)),
    "torchao, 8-bit weights": (torchao_8, ("torchao",)),
    "optimum-quanto, 8-bit weights": (quanto_8, ("optimum-quanto",)),
    "bitsandbytes, 4 bits, with a LoRA adapter": (lora_on_4, ("bitsandbytes", "peft")),
}


def installed(package: str) -> bool:
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


@torch.no_grad()
def tried(again: Callable[[], Any], plain: Subject) -> dict[str, Any]:
    """What came out, in numbers."""
    model = again()
    base = hf.adapters.base_of(model)
    query = base.model.layers[0].self_attn.q_proj
    own = plain.model.model.layers[0].self_attn.q_proj.weight
    matrix = projection_matrix(query, base.dtype, torch.device("cpu"))
    told: dict[str, Any] = {
        "projection": type(query).__name__,
        "weight": [str(query.weight.dtype).removeprefix("torch."), *query.weight.shape],
        "matrix_against_unquantised": float((matrix - own).norm() / own.norm()),
    }
    before = model(input_ids=TOKENS).logits
    told["nothing_attached_against_no_position"] = apart(before, with_position(model, whence.NoPosition())[0])
    attached, told["row_sums_off_by"] = with_position(model, whence.PowerPrior(4, alpha=0.3))
    told["a_position_changes_logits_by"] = apart(before, attached)
    told["saved_and_read_back"] = read_back(model, again)
    subject = Subject("quantised", model, plain.tokenizer, {"type": "llama"})
    texts = states.random_texts(subject, 2, 24)
    pairs = zip(explaining.score_split(subject, texts), explaining.score_split(plain, texts), strict=True)
    told["score_shares_against_unquantised"] = max(
        abs(one[part] - other[part])
        for here, there in pairs
        for one, other in zip(here["heads"], there["heads"], strict=True)
        for part in one
    )
    with tempfile.TemporaryDirectory() as place:
        folder, found = measuring.measure(subject, PLAN, Path(place), lambda *about: None)
        explaining.explain(subject, PLAN, folder, lambda *about: None)
        told["probe"] = {"measured": len(found), "explained": len(list(folder.glob("explain-*.json")))}
    return told


def with_position(model: Any, position: whence.Position) -> tuple[torch.Tensor, float]:
    seen = hf.LastRow()
    with hf.attached(model, position), hf.capture(model, seen):
        logits = model(input_ids=TOKENS).logits
    return logits, float((seen.stack().sum(-1) - 1).abs().max())


def read_back(model: Any, again: Callable[[], Any]) -> dict[str, Any]:
    """The difference of logits after saving, loading and ``attach_saved``; 0 when all came back."""
    with tempfile.TemporaryDirectory() as place, hf.attached(model, whence.Alibi(4, scale=2.0)):
        wanted = model(input_ids=TOKENS).logits
        try:
            by, _ = "save_pretrained", model.save_pretrained(place)
        except ValueError:  # transformers does not write quanto's models
            by, _ = "save_positions", hf.save_positions(model, place)
        if hf.adapters.base_of(model) is not model:
            import peft

            other = peft.PeftModel.from_pretrained(again().unload(), place).eval()
        elif by == "save_pretrained":
            other = transformers.AutoModelForCausalLM.from_pretrained(place, device_map="cpu").eval()
        else:
            other = again()
        hf.attach_saved(other, place)
        return {"by": by, "logits_off_by": apart(other(input_ids=TOKENS).logits, wanted)}


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, over the largest logit."""
    return float((one - other).abs().max() / other.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "quantised.json")
    out = parser.parse_args().out
    plain = quick_subject(width=64, layers=2)
    there = {name: made for name, (made, packages) in KINDS.items() if all(map(installed, packages))}
    used = tuple(sorted({package for name in there for package in KINDS[name][1]}))
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        plain.model.save_pretrained(folder)
        for name, made in there.items():
            found[name] = tried(partial(made, folder), plain)
            print(name, found[name], flush=True)
    about = records.describe_environment(("torch", "transformers", "accelerate", *used))
    records.write(out, {"command": "python benchmarks/quantised.py", "environment": about, "results": found})


if __name__ == "__main__":
    main()
