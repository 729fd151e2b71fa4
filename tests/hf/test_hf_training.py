"""Positions inside a pretrained model learn, with the lab's loop and with transformers' own."""

import pytest
import torch
import transformers
from tiny_models import tiny, tokens
from tokenizers import Tokenizer, models, pre_tokenizers

import whence
from whence import hf
from whence.lab.study import Budget
from whence.lab.tasks.language_modelling import OwnText
from whence.lab.training import train

LETTERS = "abcdefghijklmnopqrstuvwxyz .,"


def positions(kind):
    return {
        "prior": lambda: whence.PowerPrior(4, alpha=0.3),
        "epar": lambda: whence.Epar(4, learnable=True, context=16),
    }[kind]()


def tokenizer():
    numbers = {"?": 0, "!": 1, "#": 2} | {letter: 3 + n for n, letter in enumerate(LETTERS)}
    letters = Tokenizer(models.WordLevel(numbers, unk_token="?"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="?", pad_token="!")


def only_positions_learn(model):
    for name, weight in model.named_parameters():
        weight.requires_grad_(".whence." in name)


@pytest.mark.parametrize("kind", ["prior", "epar"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_labs_loop_trains_and_resumes(kind, tied, tmp_path):
    text = "the quick brown fox jumps over the lazy dog, and then it sleeps. " * 8
    task = OwnText(tokenizer(), text, text, context=16, blocks=4)
    assert task.decode(task.train[:3]) == ["t", "h", "e"]
    model = tiny("llama", tie_word_embeddings=tied)
    attachment = hf.attach(model, positions(kind))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    budget = Budget(steps=4, batch_size=4, lr=1e-2, evaluate_every=2)
    state = tmp_path / "state"
    curves = train(hf.LogitsModel(model), task, budget, 0, state, save_every=0.0)
    moved = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == set(before)
    assert curves["losses"][-1]["loss"] < curves["losses"][0]["loss"]
    again = tiny("llama", tie_word_embeddings=tied)
    hf.attach(again, positions(kind))
    assert (
        train(hf.LogitsModel(again), task, budget, 0, state)["evaluations"] == curves["evaluations"]
    )  # nothing left to do
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    attachment.detach()
    assert not [name for name in model.state_dict() if "whence" in name]


def test_the_labs_loop_trains_positions_alone(tmp_path):
    task = OwnText(tokenizer(), "abcdefgh" * 40, "abcdefgh" * 40, context=16, blocks=2)
    model = tiny("llama")
    hf.attach(model, positions("epar"), layers=[1])
    only_positions_learn(model)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    train(hf.LogitsModel(model), task, Budget(steps=2, batch_size=2, lr=1e-2), 0, tmp_path / "state", save_every=0.0)
    moved = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == {f"model.layers.1.self_attn.whence.{name}.raw" for name in ("alpha", "beta", "gamma")}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["prior", "epar"])
def test_transformers_trainer(kind, checkpointing, tmp_path):
    model = tiny("llama")
    hf.attach(model, positions(kind))
    rows = tokens(batch=1, length=12).expand(16, -1)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    about = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, learning_rate=1e-2, report_to=[],
        gradient_checkpointing=checkpointing, save_strategy="no", disable_tqdm=True, logging_steps=1, use_cpu=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = transformers.Trainer(model, about, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
    trainer.train()
    moved = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == set(before)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3 and losses[-1] < losses[0]


def test_gradients_match_the_dense_reference():
    model, ids = tiny("llama").double(), tokens()
    hf.attach(
        model, lambda layer: (whence.PowerPrior(4, alpha=0.3) + whence.Epar(4, learnable=True, context=16)).double()
    )
    learnt = [weight for name, weight in model.named_parameters() if ".whence." in name]
    gradients = []
    for with_weights in (False, True):  # the weights are formed by the dense reference alone
        loss = model(ids, labels=ids, output_attentions=with_weights, use_cache=False).loss
        gradients.append(torch.autograd.grad(loss, learnt))
    for fast, dense in zip(*gradients, strict=True):
        assert dense.abs().max() > 0
        torch.testing.assert_close(fast, dense, rtol=1e-9, atol=1e-12)
