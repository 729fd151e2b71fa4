"""IN2: gold segments anywhere, loss on the answer only, training that resumes, and a cure that loads its result."""

import collections
import shutil
from pathlib import Path

import cure_checks as checks
import pytest
import torch
from scipy.stats import chisquare
from tiny_models import everything_of, same, tokens

from whence import WhenceError
from whence.mend.in2 import IN2
from whence.mend.in2_data import IGNORED, IN2Examples
from whence.mend.in2_training import answer_loss, train_in2
from whence.mend.recipe import load_recipe_cure, name_intervention, relative_paths
from whence.probe.probed_model import byte_tokenizer

TEXT = "".join(f"Line {number} says nothing of interest to anyone. " for number in range(400))
SMALL = {"segment_tokens": 64, "min_segments": 2, "max_segments": 4}


@pytest.fixture(scope="module")
def examples():
    data = IN2Examples(byte_tokenizer(), TEXT, segment_tokens=64, min_segments=3, max_segments=7, seed=1)
    return data, [data.example(index) for index in range(1500)]


def test_gold_places_and_lengths_are_uniform(examples):
    _, made = examples
    long = [one for one in made if one.segments >= 3]
    lengths = collections.Counter(one.segments for one in long)
    assert set(lengths) == {3, 4, 5, 6, 7} and chisquare(list(lengths.values())).pvalue > 1e-3
    for count in (3, 7):
        for hop in (0, 1):
            places = collections.Counter(one.gold[hop] for one in long if one.segments == count and len(one.gold) > hop)
            assert set(places) == set(range(count)) and chisquare(list(places.values())).pvalue > 1e-3
    short = [one for one in made if one.segments < 3]
    assert 0.07 < len(short) / len(made) < 0.13
    assert all(one.segments == len(one.gold) for one in short)
    assert 0.45 < sum(len(one.gold) == 2 for one in made) / len(made) < 0.55


def test_every_needed_segment_is_there_once(examples):
    data, made = examples
    for one in made[:200]:
        text = data.tokenizer.decode(one.tokens)
        context = text.partition("\n\nQuestion:")[0].partition("question.\n\n")[2]
        segments = [segment for segment in context.split("\n") if segment]
        assert len(segments) == one.segments
        assert {len(data.tokenizer(segment)["input_ids"]) for segment in segments} == {64}
        assert len(set(one.gold)) == len(one.gold)
        name = one.question.rstrip("?").rpartition(" ")[2]
        if len(one.gold) == 2:
            fact = f"The keeper of {name} is "
            assert text.count(fact) == 1 and fact in segments[one.gold[0]]
            name = segments[one.gold[0]].partition(fact)[2].partition(".")[0]
        fact = f"The code of {name} is {one.answer}."
        assert text.count(fact) == 1 and fact in segments[one.gold[-1]]


def test_labels_are_the_answer(examples):
    data, made = examples
    for one in made[:50]:
        labels = [label for label in one.labels if label != IGNORED]
        assert data.tokenizer.decode(labels, skip_special_tokens=True) == f" {one.answer}"
        assert labels[-1] == data.tokenizer.eos_token_id
        assert list(one.tokens[-len(labels) :]) == labels and len(one.tokens) == len(one.labels)
        assert set(one.labels[: -len(labels)]) == {IGNORED}
    assert data.example(3) == made[3]


@torch.no_grad()
def test_loss_ignores_everything_but_the_answer(examples):
    model, (_, made) = _model(), examples
    batch = made[:2]
    ours = float(answer_loss(model, batch))
    sums, count = 0.0, 0
    for one in batch:
        answer = sum(label != IGNORED for label in one.labels)
        logits = model(torch.tensor([one.tokens])).logits[0]
        rows = logits[-answer - 1 : -1].log_softmax(-1)
        sums -= float(rows[torch.arange(answer), torch.tensor(one.tokens[-answer:])].sum())
        count += answer
    assert ours == pytest.approx(sums / count, rel=1e-5)


def _model(family="llama"):
    """A tiny model with the vocabulary of the byte tokenizer."""
    return checks.tiny(family, vocab_size=len(byte_tokenizer()), max_position_embeddings=2048)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Adapters and weights of one model, after three steps."""
    folder, model = tmp_path_factory.mktemp("in2"), _model()
    before = everything_of(model)
    cures = {
        method: train_in2(
            model, byte_tokenizer(), TEXT, folder / method, method=method, steps=3, batch_size=1, lr=0.03, **SMALL
        )
        for method in ("lora", "full")
    }
    assert same(before, everything_of(model))
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    return cures


@pytest.mark.parametrize("method", ("lora", "full"))
def test_every_check(trained, method):
    cure = trained[method]
    checks.check_cure(cure, "llama", identity=cure.identity(), documents=None, model=_model())
    model, ids = _model(), tokens(1, 20)
    before = checks.logits(model, ids)
    with cure.identity().apply(model):
        assert torch.equal(checks.logits(model, ids), before)
    assert IN2(**cure.settings()).settings() == cure.settings()


def test_a_recipe_finds_its_adapter_from_its_own_folder(trained, tmp_path, monkeypatch):
    """The adapter was named relative to another folder than the recipe's, and both are moved together."""
    shutil.copytree(trained["lora"].adapter, tmp_path / "work" / "adapters" / "mine")
    monkeypatch.chdir(tmp_path / "work")
    cure, folder = IN2("adapters/mine"), Path("out/trial")
    settings = {**cure.settings(), **relative_paths(cure, folder)}
    assert settings["adapter"] == "../../adapters/mine"
    recipe = {"cure": name_intervention(cure, settings)}
    (tmp_path / "work").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    found = load_recipe_cure("apply_recipe(path)", tmp_path / "moved" / folder / "recipe.json", recipe)
    assert found.sha256 == cure.sha256 and Path(found.adapter).resolve() == tmp_path / "moved" / "adapters" / "mine"
    assert relative_paths(found, folder) == {}  # an absolute path stays


def test_peft_reads_the_adapter(trained):
    import peft

    model, ids = _model(), tokens(1, 20)
    with trained["lora"].apply(model):
        ours = checks.logits(model, ids)
    theirs = checks.logits(peft.PeftModel.from_pretrained(model, trained["lora"].adapter), ids)
    checks.equal(ours, theirs)


@pytest.mark.parametrize("method", ("lora", "full"))
def test_an_interrupted_run_resumes(trained, tmp_path, method):
    def interrupt(step, loss):
        if step == 1:
            raise KeyboardInterrupt

    model = _model()
    before = everything_of(model)
    options = {"method": method, "steps": 3, "batch_size": 1, "lr": 0.03, "checkpoint_every": 1, **SMALL}
    with pytest.raises(KeyboardInterrupt):
        train_in2(model, byte_tokenizer(), TEXT, tmp_path, report=interrupt, **options)
    assert same(before, everything_of(model)) and (tmp_path / "checkpoint.safetensors").exists()
    with pytest.raises(WhenceError, match=r"folder=.*lr.*another folder"):
        train_in2(model, byte_tokenizer(), TEXT, tmp_path, **{**options, "lr": 0.01})
    steps = []
    cure = train_in2(model, byte_tokenizer(), TEXT, tmp_path, report=lambda step, loss: steps.append(step), **options)
    assert steps == [1, 2] and not (tmp_path / "checkpoint.safetensors").exists()
    ids = tokens(1, 20)
    with cure.apply(model):
        resumed = checks.logits(model, ids)
    with trained[method].apply(model):
        checks.equal(resumed, checks.logits(model, ids), 1e-6)
    assert cure.sha256 == trained[method].sha256
    assert train_in2(model, byte_tokenizer(), TEXT, tmp_path, **options).settings() == cure.settings()


@pytest.mark.parametrize("family", checks.ALL_FAMILIES)
def test_every_family_can_be_trained(family, tmp_path):
    model, ids = _model(family), tokens(1, 20)
    before, everything = checks.logits(model, ids), everything_of(model)
    cure = train_in2(model, byte_tokenizer(), TEXT, tmp_path, steps=1, batch_size=1, lr=0.05, **SMALL)
    with cure.apply(model):
        assert float((checks.logits(model, ids) - before).abs().max()) > 1e-4
    assert torch.equal(checks.logits(model, ids), before) and same(everything, everything_of(model))


def test_errors(trained, tmp_path):
    assert "train_in2" in IN2().unavailable(_model())
    with pytest.raises(WhenceError, match=r"adapter=\.\.\.\) got .*in2\.json"):
        IN2(str(tmp_path))
    with pytest.raises(WhenceError, match=r"sha256=.*omit sha256"):
        IN2(trained["lora"].adapter, sha256="0" * 64)
    other = _model()
    other.get_input_embeddings().weight.data += 1
    assert "other weights" in trained["lora"].unavailable(other)
    with pytest.raises(WhenceError, match=r"text=\.\.\.\).*longer text"):
        IN2Examples(byte_tokenizer(), "short", **SMALL)
    with pytest.raises(WhenceError, match=r"segment_tokens=\.\.\.\) got 16.*larger"):
        IN2Examples(byte_tokenizer(), TEXT, segment_tokens=16).example(0)
    with pytest.raises(WhenceError, match=r"method=\.\.\.\) got 'qlora'"):
        train_in2(other, byte_tokenizer(), TEXT, tmp_path, method="qlora")
