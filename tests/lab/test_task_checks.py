"""A task of the user is checked once before training, with an error that names the task."""

import dataclasses

import pytest
import torch
from small_study import build_study

from whence import WhenceError
from whence.lab import runner, tasks, training
from whence.lab.study import Budget
from whence.lab.tasks import Batch, Task


class Parity(Task):
    """The example of docs/extending.md, with one wrong part in each subclass."""

    name, kind, metric, vocab_size, num_classes = "parity", "classify", "accuracy", 2, 2

    def __init__(self):
        self.context, self.settings = 6, {"task": self.name}

    def draw(self, rows):
        tokens = torch.randint(2, (rows, self.context), generator=torch.Generator().manual_seed(1))
        return Batch(tokens, tokens.sum(1) % 2)

    def train_batch(self, size, generator):
        return self.draw(size)

    def splits(self):
        return {"test": self.context}

    def evaluation(self, split):
        return [self.draw(4)]

    def decode(self, tokens):
        return [str(int(token)) for token in tokens]


def deficient(name, **parts):
    return type(name, (Parity,), parts)


def without_settings(self):
    self.context = 6


def with_a_tensor(self):
    self.context, self.settings = 6, {"length": torch.tensor(6)}


WRONG = {
    "NoSettings": ({"__init__": without_settings}, r"NoSettings without settings.*set self\.settings"),
    "TensorSettings": ({"__init__": with_a_tensor}, r"settings got .*Tensor.*JSON"),
    "NoSplits": ({"splits": lambda self: {}}, r"splits\(\) got \{\}.*at least one"),
    "ListedSplits": ({"splits": lambda self: ["test"]}, r"splits\(\) got .*test.*return \{'test'"),
    "Empty": ({"evaluation": lambda self, split: []}, r"evaluation\('test'\) got an empty list"),
    "OneBatch": ({"evaluation": lambda self, split: self.draw(4)}, r"evaluation\('test'\) got a Batch, but every split"),
    "Pair": ({"train_batch": lambda self, size, generator: (1, 2)}, r"train_batch got a tuple.*Batch\(tokens, targets\)"),
    "Kind": ({"kind": "clasify"}, r"kind='clasify'.*classify, lm, retrieve"),
    "NoClasses": ({"num_classes": None}, r"no num_classes"),
    "Metric": ({"metric": "f1"}, r"metric='f1'.*macro_f1, mcc, binary_f1"),
    "Shape": (
        {"evaluation": lambda self, split: [Batch(self.draw(4).tokens, self.draw(4).tokens)]},
        r"evaluation\('test'\) got targets of shape \[4, 6\].*'classify' are \[B\]",
    ),
    "LmShape": ({"kind": "lm", "num_classes": None}, r"train_batch got targets of shape \[8\].*'lm' are \[B, T\]"),
    "Class": (
        {"train_batch": lambda self, size, generator: Batch(self.draw(size).tokens, self.draw(size).targets + 1)},
        r"train_batch got the target 2.*from 0 to 1 with num_classes=2",
    ),
    "Token": (
        {"evaluation": lambda self, split: [Batch(self.draw(4).tokens + 5, self.draw(4).targets)]},
        r"evaluation\('test'\) got the token [56].*from 0 to 1 with vocab_size=2",
    ),
    "Floats": (
        {"train_batch": lambda self, size, generator: Batch(self.draw(size).tokens, self.draw(size).targets.float())},
        r"train_batch got targets of torch.float32",
    ),
    "GlobalDraw": (
        {"train_batch": lambda self, size, generator: Batch(torch.randint(2, (size, 6)), torch.zeros(size).long())},
        r"train_batch got other batches in a second call.*draw with the generator",
    ),
    "GlobalEvaluation": (
        {"evaluation": lambda self, split: [Batch(torch.randint(2, (8, 6)), torch.zeros(8).long())]},
        r"evaluation\('test'\) got other batches in a second call.*a fixed seed",
    ),
    "FloatMask": (
        {"train_batch": lambda self, size, generator: Batch(self.draw(size).tokens, self.draw(size).targets, torch.ones(size, 6))},
        r"train_batch got key_mask of torch.float32.*boolean mask",
    ),
    "Unscored": (
        {"evaluation": lambda self, split: [Batch(self.draw(4).tokens, torch.full((4,), tasks.IGNORE_INDEX))]},
        r"evaluation\('test'\) got no target that is scored",
    ),
}  # fmt: skip
#: wrong epochs, of studies that train so many passes over the data
EPOCHS = {
    "NoEpoch": ({}, r"^parity\.epoch got a task that generates its inputs.*Budget\(steps"),
    "EmptyEpoch": ({"epoch": lambda self, size, generator: iter(())}, r"EmptyEpoch'.*, epoch got no batch"),
    "PairEpoch": ({"epoch": lambda self, size, generator: iter([(1, 2)])}, r"PairEpoch'.*, epoch got a tuple"),
    "RightEpoch": ({"epoch": lambda self, size, generator: iter([self.draw(size)])}, ""),
}
for _name, (_parts, _) in (WRONG | EPOCHS).items():
    globals()[_name] = deficient(_name, __module__=__name__, **_parts)


@pytest.fixture
def no_training(monkeypatch):
    def train(*arguments, **others):
        raise AssertionError("training began")

    monkeypatch.setattr(training, "train", train)


def of(name):
    return build_study(task=f"{__name__}:{name}", task_settings={})


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_task_is_one_error_before_training(no_training, name):
    for check in (runner.validate_study, lambda study: runner.check_studies([study])):
        with pytest.raises(WhenceError, match=rf"^task '[^']*:{name}'.*{WRONG[name][1]}"):
            check(of(name))


@pytest.mark.parametrize("name", EPOCHS)
def test_a_study_of_epochs_is_checked_by_its_epochs(no_training, name):
    study = dataclasses.replace(of(name), budget=Budget(epochs=1, batch_size=8))
    if not EPOCHS[name][1]:
        runner.validate_study(study)
        return
    with pytest.raises(WhenceError, match=EPOCHS[name][1]):
        runner.validate_study(study)


def test_the_example_of_the_docs_passes(no_training):
    runner.validate_study(of("Parity"))
