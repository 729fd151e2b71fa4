"""Positions on top of the real SmolLM2 learn, with the lab's loop and with transformers' own."""

import pytest
import torch
import transformers

import whence
from whence import hf
from whence.hf import gguf
from whence.lab.study import Budget
from whence.lab.tasks.language_modelling import OwnText
from whence.lab.training import train

pytestmark = pytest.mark.skipif(
    not (gguf.smollm2_folder() / "model.safetensors").exists(), reason="SmolLM2 is not here; run: make smollm2"
)
TEXT = "Where a word stands says how much the next one has to do with it. " * 30
POSITIONS = {
    "prior": lambda: whence.PowerPrior(9, alpha=0.05),
    "epar": lambda: whence.Epar(9, learnable=True, context=64),
}


def with_position(kind):
    """The model with a position that alone learns, the tokenizer, and the numbers that learn, as they are."""
    model, tokenizer = hf.load("smollm2")
    hf.attach(model, POSITIONS[kind]())
    for name, weight in model.named_parameters():
        weight.requires_grad_(".whence." in name)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}
    assert len({name.split(".")[2] for name in before}) == 30  # in every layer
    return model, tokenizer, before


def require_learnt(model, before):
    learnt = dict(model.named_parameters())
    assert all(torch.isfinite(learnt[name]).all() and learnt[name].ne(old).any() for name, old in before.items())


def test_the_labs_loop(tmp_path):
    model, tokenizer, before = with_position("prior")
    task = OwnText(tokenizer, TEXT, TEXT, context=16, blocks=1)
    curves = train(hf.LogitsModel(model), task, Budget(steps=2, batch_size=2, lr=5e-2), 0, tmp_path / "state")
    require_learnt(model, before)
    assert len(curves["losses"]) == 1 and curves["losses"][0]["loss"] < 8  # chance is 10.8


def test_transformers_trainer(tmp_path):
    model, tokenizer, before = with_position("epar")
    row = torch.tensor(tokenizer(TEXT)["input_ids"][:32])
    about = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=1, learning_rate=5e-2, report_to=[],
        save_strategy="no", disable_tqdm=True, logging_steps=1, use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = transformers.Trainer(model, about, train_dataset=[{"input_ids": row, "labels": row}] * 3)
    trainer.train()
    require_learnt(model, before)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3 and losses[-1] < losses[0] < 8
