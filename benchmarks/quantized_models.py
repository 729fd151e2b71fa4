"""Functional check of quantized models and adapters with the real libraries, against the unquantized model.

    python benchmarks/quantized_models.py                  # writes benchmarks/records/quantised.json

Attach, capture, save, reload, split scores and probe. Needs bitsandbytes, torchao and optimum-quanto (and peft for an
adapter on 4-bit weights), which are not dependencies of whence; missing ones are omitted from the record. The model is a
tiny random llama on the CPU.
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
from whence.probe import analyses, hidden_states, measurement
from whence.probe.hidden_states import projection_matrix
from whence.probe.plan import Plan, TaskSpec
from whence.probe.probed_model import ProbedModel, tiny_random_model

ROOT = Path(__file__).resolve().parent.parent
PLAN = Plan(
    "quick",
    (TaskSpec("key-value", 3, 3, {"pairs": 3}),),
    ("likelihood",),
    texts=3,
    tokens=48,
    intervention_items=1,
    items_per_record=2,
)
TOKENS = torch.arange(2, 40)[None]


def bitsandbytes_8(folder: str) -> Any:
    return load_quantized(folder, transformers.BitsAndBytesConfig(load_in_8bit=True))


def bitsandbytes_4(folder: str) -> Any:
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    return load_quantized(folder, config)


def torchao_8(folder: str) -> Any:
    from torchao.quantization import Int8WeightOnlyConfig

    return load_quantized(folder, transformers.TorchAoConfig(Int8WeightOnlyConfig()))


def quanto_8(folder: str) -> Any:
    return load_quantized(folder, transformers.QuantoConfig(weights="int8"))


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


def load_quantized(folder: str, config: Any) -> Any:
    auto = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, quantization_config=config, device_map="cpu", dtype=torch.float32).eval()


QUANTIZATIONS: dict[str, tuple[Callable[[str], Any], tuple[str, ...]]] = {
    "bitsandbytes, 8 bits": (bitsandbytes_8, ("bitsandbytes",)),
    "bitsandbytes, 4 bits (nf4)": (bitsandbytes_4, ("bitsandbytes",)),
    "torchao, 8-bit weights": (torchao_8, ("torchao",)),
    "optimum-quanto, 8-bit weights": (quanto_8, ("optimum-quanto",)),
    "bitsandbytes, 4 bits, with a LoRA adapter": (lora_on_4, ("bitsandbytes", "peft")),
}


def is_installed(package: str) -> bool:
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


@torch.no_grad()
def measure_model(load: Callable[[], Any], unquantized: ProbedModel) -> dict[str, Any]:
    """The results for one quantized model."""
    model = load()
    base = hf.adapters.base_of(model)
    query = base.model.layers[0].self_attn.q_proj
    original = unquantized.model.model.layers[0].self_attn.q_proj.weight
    matrix = projection_matrix(query, base.dtype, torch.device("cpu"))
    result: dict[str, Any] = {
        "projection": type(query).__name__,
        "weight": [str(query.weight.dtype).removeprefix("torch."), *query.weight.shape],
        "matrix_against_unquantised": float((matrix - original).norm() / original.norm()),
    }
    before = model(input_ids=TOKENS).logits
    result["nothing_attached_against_no_position"] = relative_difference(
        before, with_position(model, whence.NoPosition())[0]
    )
    attached, result["row_sums_off_by"] = with_position(model, whence.PowerPrior(4, alpha=0.3))
    result["a_position_changes_logits_by"] = relative_difference(before, attached)
    result["saved_and_read_back"] = save_and_reload(model, load)
    lm = ProbedModel("quantised", model, unquantized.tokenizer, {"type": "llama"})
    texts = hidden_states.random_texts(lm, 2, 24)
    pairs = zip(analyses.score_split(lm, texts), analyses.score_split(unquantized, texts), strict=True)
    result["score_shares_against_unquantised"] = max(
        abs(one[part] - other[part])
        for mine, theirs in pairs
        for one, other in zip(mine["heads"], theirs["heads"], strict=True)
        for part in one
    )
    with tempfile.TemporaryDirectory() as place:
        folder, results = measurement.measure(lm, PLAN, Path(place), lambda *about: None)
        analyses.explain(lm, PLAN, folder, lambda *about: None)
        result["probe"] = {"measured": len(results), "explained": len(list(folder.glob("explain-*.json")))}
    return result


def with_position(model: Any, position: whence.Position) -> tuple[torch.Tensor, float]:
    last_row = hf.LastRow()
    with hf.attach(model, position), hf.capture(model, last_row):
        logits = model(input_ids=TOKENS).logits
    return logits, float((last_row.stack().sum(-1) - 1).abs().max())


def save_and_reload(model: Any, load: Callable[[], Any]) -> dict[str, Any]:
    """The difference of logits after saving, loading and ``attach_saved``; 0 if everything was restored."""
    with tempfile.TemporaryDirectory() as place, hf.attach(model, whence.Alibi(4, scale=2.0)):
        wanted = model(input_ids=TOKENS).logits
        try:
            method, _ = "save_pretrained", model.save_pretrained(place)
        except ValueError:  # transformers cannot save quanto models
            method, _ = "save_positions", hf.save_positions(model, place)
        if hf.adapters.base_of(model) is not model:
            import peft

            other = peft.PeftModel.from_pretrained(load().unload(), place).eval()
        elif method == "save_pretrained":
            other = transformers.AutoModelForCausalLM.from_pretrained(place, device_map="cpu").eval()
        else:
            other = load()
        hf.attach_saved(other, place)
        return {"by": method, "logits_off_by": relative_difference(other(input_ids=TOKENS).logits, wanted)}


def relative_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference divided by the largest logit."""
    return float((one - other).abs().max() / other.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "quantised.json")
    out = parser.parse_args().out
    unquantized = tiny_random_model(hidden_size=64, layers=2)
    available = {
        name: load_model for name, (load_model, packages) in QUANTIZATIONS.items() if all(map(is_installed, packages))
    }
    used = tuple(sorted({package for name in available for package in QUANTIZATIONS[name][1]}))
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        unquantized.model.save_pretrained(folder)
        for name, load_model in available.items():
            results[name] = measure_model(partial(load_model, folder), unquantized)
            print(name, results[name], flush=True)
    about = records.describe_environment(("torch", "transformers", "accelerate", *used))
    records.write(out, {"command": "python benchmarks/quantized_models.py", "environment": about, "results": results})


if __name__ == "__main__":
    main()
