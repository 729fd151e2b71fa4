"""What holds for every task that needs no files: the interface a trainer relies on, and the same batches everywhere."""

import hashlib
import json
import os
import subprocess
import sys
import time
from importlib.metadata import EntryPoint

import pytest
import torch

from whence import WhenceError
from whence.lab.tasks import IGNORE_INDEX, TASKS, load

EMBEDDED = [name for name, entry in TASKS.items() if entry.is_bundled]
WITH_LENGTHS = EMBEDDED[:5]  # evaluated beyond the trained length too


@pytest.fixture(scope="module")
def tasks():
    """All of them, each loaded quickly. In processor time: what others do on the machine does not count."""
    loaded = {}
    for name in EMBEDDED:
        began = time.process_time()
        loaded[name] = load(name)
        assert time.process_time() - began < 2, name
    return loaded


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def fingerprint(task):
    """One hash over training and evaluation batches."""
    total = hashlib.sha256()
    generator = seeded(5)
    batches = [task.train_batch(8, generator) for _ in range(2)]
    if task.kind != "retrieve":
        batches.append(next(iter(task.epoch(8, generator))))
    batches += [batch for split in task.splits() for batch in task.evaluation(split)]
    for batch in batches:
        total.update(batch.tokens.numpy().tobytes() + batch.targets.numpy().tobytes())
    return total.hexdigest()


def test_the_tasks_that_need_no_files():
    assert EMBEDDED == ["retrieval", "copy", "recall", "topics", "sources", "questions", "reports", "paraphrases"]


@pytest.mark.parametrize("name", WITH_LENGTHS)
def test_interface(tasks, name):
    task = tasks[name]
    assert task.name == name
    assert task.kind in ("classify", "lm", "retrieve")
    assert task.metric == ("perplexity" if task.kind == "lm" else "accuracy")
    assert task.higher_is_better is (task.kind != "lm")
    assert (task.num_classes is not None) is (task.kind == "classify")
    lengths = task.splits()
    assert list(lengths)[:3] == ["test", "2x", "4x"]
    assert lengths["test"] == task.context
    assert json.loads(json.dumps(task.settings, allow_nan=False)) == task.settings
    assert task.settings["task"] == name and len(task.settings["data_hash"]) == 16
    batches = [(task.context, task.train_batch(8, seeded(0)))]
    batches += [(length, batch) for split, length in lengths.items() for batch in task.evaluation(split)]
    for length, batch in batches:
        assert batch.tokens.dtype == batch.targets.dtype == torch.int64
        assert batch.tokens.shape == (len(batch.tokens), length)
        assert batch.targets.shape == (batch.tokens.shape[:1] if task.num_classes else batch.tokens.shape)
        assert batch.tokens.min() >= 0 and batch.tokens.max() < task.vocab_size
        asked = batch.targets[batch.targets != IGNORE_INDEX]
        assert len(asked) and asked.min() >= 0 and asked.max() < (task.num_classes or task.vocab_size)


@pytest.mark.parametrize("name", EMBEDDED)
def test_examples_are_test_inputs_that_can_be_read(tasks, name):
    task = tasks[name]
    test_rows = {tuple(row) for batch in task.evaluation("test") for row in batch.tokens.tolist()}
    examples = task.examples(3)
    assert len(examples) == 3
    for example in examples:
        assert tuple(example.tokens[0].tolist()) in test_rows
        texts = task.decode(example.tokens[0])
        assert len(texts) == example.tokens.shape[1] <= task.context
        assert all(text and "\n" not in text for text in texts)


@pytest.mark.parametrize("name", WITH_LENGTHS)
def test_baselines_are_a_floor_and_a_ceiling(tasks, name):
    task = tasks[name]
    found = task.baselines()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    kinds = [entry["kind"] for entry in found.values()]
    assert "constant" in kinds and "rule" in kinds and set(kinds) <= {"constant", "rule", "ceiling"}
    sign = 1 if task.higher_is_better else -1
    for split in task.splits():
        values = {
            kind: [e["splits"][split][task.metric] for e in found.values() if e["kind"] == kind] for kind in set(kinds)
        }
        assert max(sign * v for v in values["constant"]) < max(sign * v for v in values["rule"])
        assert all(value == 1 for value in values.get("ceiling", [])) or name == "sources"
    assert json.loads(json.dumps(task.describe_data())) == task.describe_data() and task.describe_data()["items"]


def test_rules_of_the_generated_tasks(tasks):
    retrieval = load("retrieval", pairs=1, keys=8, values=4, items=16).baselines()
    assert retrieval["a value of the input"]["splits"]["test"] == {"accuracy": 1.0}  # there is one value
    assert retrieval["chance"]["splits"]["8x"] == {"accuracy": 0.25, "perplexity": 4.0}
    copying = load("copy", string=1, symbols=4, items=16).baselines()
    assert copying["a successor of the symbol"]["splits"]["test"] == {"accuracy": 1.0}
    # by hand: of A' b C' d the marks up to b are A (1 of 1), up to d A and C (1 of 2)
    from whence.lab.tasks.base import Batch
    from whence.lab.tasks.generated import _share_of_marks

    marks = Batch(torch.tensor([[4, 1, 6, 3]]), torch.tensor([[IGNORE_INDEX, 0, IGNORE_INDEX, 2]]))
    assert _share_of_marks(marks, symbols=4).tolist() == [1.0, 0.5]
    # by hand: of a b a c, the first target is a (2 of 4), b and c follow a (1 of 2 each), a follows b (1 of 1)
    from whence.lab.tasks.generated import _share_of_successors

    string = torch.tensor([[0, 1, 0, 2]])
    targets = torch.cat([torch.full_like(string, IGNORE_INDEX), string], dim=1)
    assert _share_of_successors(Batch(targets, targets)).tolist() == [0.5, 0.5, 1.0, 0.5]


@pytest.mark.parametrize("name", EMBEDDED)
def test_batches_follow_the_generator(tasks, name):
    task = tasks[name]
    generator = seeded(3)
    first, second = task.train_batch(8, generator), task.train_batch(8, generator)
    assert torch.equal(first.tokens, task.train_batch(8, seeded(3)).tokens)
    assert not torch.equal(first.tokens, second.tokens)
    torch.manual_seed(0)  # the global generator has no part in it
    assert torch.equal(first.targets, task.train_batch(8, seeded(3)).targets)


def test_another_process_draws_the_same(tasks):
    here = os.path.dirname(__file__)
    code = (
        f"import sys; sys.path.insert(0, {here!r})\n"
        "from test_every_task import EMBEDDED, fingerprint, load\n"
        "for name in EMBEDDED: task = load(name); print(task.settings['data_hash'], fingerprint(task))"
    )
    # with another order of sets and dicts of strings, where one could have slipped in
    environment = {**os.environ, "PYTHONHASHSEED": "77", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [
        f"{task.settings['data_hash']} {fingerprint(task)}" for task in tasks.values()
    ]


def test_unknown_names_and_settings():
    with pytest.raises(WhenceError) as error:
        load("topic")
    said = str(error.value)
    assert (
        "'topic'" in said
        and "retrieval, copy, recall, topics, sources, questions" in said
        and "did you mean topics?" in said
    )
    with pytest.raises(WhenceError, match=r"'nonesuch'.*module:Class"):
        load("nonesuch")
    with pytest.raises(WhenceError) as error:
        load("copy", length=3)
    assert "length" in str(error.value) and "string, symbols, items, seed" in str(error.value)


def test_unknown_split(tasks):
    with pytest.raises(WhenceError) as error:
        tasks["topics"].evaluation("16x")
    assert "'16x'" in str(error.value) and "test, 2x, 4x, 8x" in str(error.value)


def test_a_registered_task_whose_import_fails_says_so(monkeypatch):
    point = EntryPoint("broken", "nonesuch_package.tasks:Broken", "whence.tasks")
    monkeypatch.setattr("whence.plugins.entry_points", lambda group: {"broken": point})
    with pytest.raises(WhenceError) as error:
        load("broken")
    said = str(error.value)
    assert "'broken'" in said and "nonesuch_package" in said and "unknown" not in said
