"""``train_in2``: fine-tune a model on IN2 examples, with LoRA or in full, resumably."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import require_package, usage_error
from whence.hf.integrations import unwrap_peft
from whence.lab import checkpoints
from whence.mend.answer_loss import logits_at
from whence.mend.in2 import ABOUT, ADAPTER, IN2, NAME, PREFIX, WEIGHTS, adapter_layers, replaced_weights
from whence.mend.in2_data import IGNORED, IN2Example, IN2Examples
from whence.mend.recipe import model_checksum
from whence.records import make_folder, read, write, write_bytes
from whence.torch_modes import eval_mode
from whence.validation import require_choice, require_integer, require_number

CHECKPOINT = "checkpoint.safetensors"
RATES = {"lora": 1e-4, "full": 1e-5}


def train_in2(
    model: Any,
    tokenizer: Any,
    text: str,
    folder: str | Path,
    *,
    method: str = "lora",
    steps: int = 200,
    batch_size: int = 4,
    lr: float | None = None,
    rank: int = 8,
    checkpoint_every: int = 25,
    report: Callable[[int, float], None] | None = None,
    **examples: Any,
) -> IN2:
    """Fine-tune a model on IN2 examples and write the result into a folder. The model itself stays as it was.

    The run is determined by its seed. After an interruption the same call resumes from the last checkpoint. Dropout is off.

    Args:
        model: a causal language model of transformers, on any device.
        tokenizer: of the model.
        text: a text from which contexts are made.
        folder: of the result, which ``IN2(adapter=folder)`` loads.
        method: ``"lora"`` trains an adapter of peft on all linear layers, ``"full"`` all weights.
        steps: of the optimizer.
        batch_size: examples in a step.
        lr: learning rate of AdamW, 1e-4 for LoRA and 1e-5 in full by default. It rises over the first tenth of the steps.
        rank: of the adapter.
        checkpoint_every: so many steps.
        report: called with every step and its loss.
        examples: further arguments of ``IN2Examples``: ``max_segments``, ``seed`` and others.
    """
    require_choice("train_in2", "method", method, tuple(RATES))
    for name, value in {
        "steps": steps,
        "batch_size": batch_size,
        "rank": rank,
        "checkpoint_every": checkpoint_every,
    }.items():
        require_integer("train_in2", name, value)
    lr = require_number("train_in2", "lr", RATES[method] if lr is None else lr, above=0)
    data, path, inner = IN2Examples(tokenizer, text, **examples), Path(folder), unwrap_peft(model)
    record = {
        "method": method, "steps": steps, "batch_size": batch_size, "lr": lr, "rank": rank if method == "lora" else None,
        "examples": examples, "text_sha256": hashlib.sha256(text.encode()).hexdigest(), "model": model_checksum(inner),
    }  # fmt: skip
    if (path / ABOUT).exists():
        _require_same(read(path / ABOUT), record)
        return IN2(str(path))
    make_folder(path)
    with _trainable(inner, method, rank, data.seed) as parameters:
        losses = _train(inner, parameters, data, path / CHECKPOINT, record, checkpoint_every, report)
        _save(inner, method, parameters, path)
    write(path / ABOUT, {**record, "losses": losses})
    checkpoints.remove(path / CHECKPOINT)
    return IN2(str(path))


def _train(
    model: Any,
    parameters: dict[str, nn.Parameter],
    data: IN2Examples,
    checkpoint: Path,
    record: dict[str, Any],
    every: int,
    report: Callable[[int, float], None] | None,
) -> list[float]:
    """The loss of every step."""
    steps, size, warmup = record["steps"], record["batch_size"], max(1, record["steps"] // 10)
    optimizer = torch.optim.AdamW(parameters.values(), lr=record["lr"], weight_decay=0.0)
    trained = nn.ParameterDict({name.replace(".", "/"): parameter for name, parameter in parameters.items()})
    progress = checkpoints.load(checkpoint, trained, optimizer) or {"record": record, "losses": []}
    _require_same(progress["record"], record)
    losses: list[float] = progress["losses"]
    with eval_mode(model), torch.enable_grad():
        for step in range(len(losses), steps):
            for group in optimizer.param_groups:
                group["lr"] = record["lr"] * min(1.0, (step + 1) / warmup)
            batch = [data.example(step * size + index) for index in range(size)]
            optimizer.zero_grad()
            loss = answer_loss(model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters.values(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
            if report is not None:
                report(step, losses[-1])
            if (step + 1) % every == 0 and step + 1 < steps:
                checkpoints.save(checkpoint, trained, optimizer, {"record": record, "losses": losses})
    return losses


def answer_loss(model: Any, examples: list[IN2Example]) -> Tensor:
    """The mean cross-entropy of the tokens of the answers."""
    device, longest = model.get_input_embeddings().weight.device, max(len(one.tokens) for one in examples)
    tokens = torch.zeros(len(examples), longest, dtype=torch.long, device=device)
    labels, mask = torch.full_like(tokens, IGNORED), torch.zeros_like(tokens)
    for row, one in enumerate(examples):
        tokens[row, : len(one.tokens)] = torch.tensor(one.tokens)
        labels[row, : len(one.tokens)] = torch.tensor(one.labels)
        mask[row, : len(one.tokens)] = 1
    columns = (labels[:, 1:] != IGNORED).any(0).nonzero()[:, 0]  # those before the tokens of an answer, in any example
    logits = logits_at(model, columns, input_ids=tokens, attention_mask=mask, use_cache=False)
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels[:, 1:][:, columns].flatten(), ignore_index=IGNORED
    )


@contextmanager
def _trainable(model: Any, method: str, rank: int, seed: int) -> Iterator[dict[str, nn.Parameter]]:
    """The parameters that are trained, by name. The model is restored after the block."""
    if method == "full":
        flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
        copies = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        try:
            with replaced_weights(model, copies):
                model.requires_grad_(True)
                yield dict(model.named_parameters())
        finally:
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(flags[name])
                parameter.grad = None
        return
    peft = require_package("peft", "train_in2", "peft")
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]), adapter_layers(model, config) as layers:
        parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}
        assert layers and parameters
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in parameters.items():  # the first matrix is random, the second zero
            parameter.data = parameter.data.float()
            if "lora_A" in name:
                bound = parameter.shape[-1] ** -0.5
                parameter.data.copy_((torch.rand(parameter.shape, generator=generator) * 2 - 1) * bound)
        yield parameters


def _save(model: Any, method: str, parameters: dict[str, nn.Parameter], path: Path) -> None:
    safetensors = require_package("safetensors.torch", "train_in2", "hf")
    if method == "full":
        tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in parameters.items()}
        write_bytes(path / WEIGHTS, safetensors.save(tensors))
        return
    peft = require_package("peft", "train_in2", "peft")
    state = peft.get_peft_model_state_dict(model, adapter_name=NAME)
    tensors = {PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    model.peft_config[NAME].save_pretrained(str(path))
    write_bytes(path / ADAPTER, safetensors.save(tensors))


def _require_same(found: dict[str, Any], record: dict[str, Any]) -> None:
    different = [name for name, value in record.items() if found.get(name) != value]
    if different:
        raise usage_error(
            "train_in2(folder=...)",
            f"a folder with a run of other {', '.join(different)}",
            "a folder holds one run",
            "pass another folder, or the settings of that run",
        )
