"""The study of the prior: its arms and sizes, a small form that runs without data, its figure, and exact cached generation."""

import json
import runpy
from dataclasses import replace

import pytest
import torch

from whence import records
from whence.errors import WhenceError
from whence.lab.runner import run_study
from whence.lab.study_task import load_task
from whence.lab.training import build_optimizer
from whence.models import build, qwen3_134m
from whence.models.spec import ModelSpec
from whence.position.expression import ModelDims
from whence_papers import FOLDER
from whence_papers.prior import figure
from whence_papers.prior.__main__ import write_figures
from whence_papers.prior.task import PretrainingText, find_prior

pytest.importorskip("tokenizers")
FILE = runpy.run_path(str(FOLDER / "studies/prior.py"))
ARMS = {arm.name: arm for arm in FILE["ARMS"]}


@pytest.mark.parametrize("scale", FILE["SCALES"])
def test_arms_seeds_and_budget(scale):
    first, *others = FILE["studies"](scale)
    assert list(ARMS) == [arm.name for arm in first.arms] and len(ARMS) == 8
    assert len(first.seeds) == (2 if scale == "small" else 5) and first.decision.baseline == "rotary"
    for study in (first, *others):
        assert study.budget.decay_matrices_only and study.task_settings["lengths"] == [1, 2, 4, 8, 16]
        on_gpu = scale in ("gpu", "source")
        assert study.budget.compile is on_gpu and (study.budget.mixed_precision == "bf16") is on_gpu
    for study in others:
        assert [arm.name for arm in study.arms] == ["rotary", "rotary + prior"]
        assert study.name == f"prior-{scale}-{'main' if scale == 'small' else '134m'}"
    assert bool(others) is (scale != "cpu")


def test_the_large_arms_are_the_preset_and_train_on_enough_tokens():
    for scale, least in (("gpu", 100e6), ("source", 2.6e9)):
        study = FILE["studies"](scale)[1]
        budget = study.budget
        assert budget.steps * budget.batch_size * study.task_settings["context"] >= least
        assert ModelSpec("decoder", **study.model) == qwen3_134m()


@pytest.mark.parametrize("name", ["rotary + prior", "rotary + wide prior", "prior", "wide prior"])
def test_every_head_has_its_own_parameters_without_weight_decay(name):
    dims = ModelDims(4, 8, 32, 64, True)
    spec = ModelSpec("decoder", 50, **FILE["shrink"](embed_dim=32, heads=4, num_kv_heads=2, head_dim=8, layers=1))
    model = build(spec, lambda layer: ARMS[name].build(dims), seed=0)
    prior = find_prior(model.body.stack()[0].attention.position)
    start = 0.1 if "wide" in name else 1.0
    torch.testing.assert_close(prior.alpha.flatten(), torch.full((4,), start))
    torch.testing.assert_close(prior.beta().flatten(), torch.ones(4))
    groups = build_optimizer(model, FILE["studies"]("small")[0].budget).param_groups
    own = {id(parameter) for parameter in prior.parameters()}
    assert len(own) == 2 and all(p["weight_decay"] == 0 for p in groups if own & {id(one) for one in p["params"]})


@pytest.mark.parametrize("name", ARMS)
def test_cached_generation_equals_uncached(name):
    dims = ModelDims(4, 8, 32, 64, True)
    spec = ModelSpec("decoder", 60, **FILE["shrink"](embed_dim=32, heads=4, num_kv_heads=2, head_dim=8, layers=2))
    model = build(spec, lambda layer: ARMS[name].build(dims), seed=1).double().eval()
    with torch.no_grad():  # move the parameters away from their start, as training does
        for layer in model.body.stack():
            if (prior := find_prior(layer.attention.position)) is not None:
                prior.alpha.mul_(torch.tensor([0.2, 0.5, 1.5, 3.0], dtype=torch.float64).reshape(prior.alpha.shape))
        tokens = torch.randint(60, (2, 20), generator=torch.Generator().manual_seed(0))
        whole, caches = model(tokens), model.caches()
        steps = [model(part, cache=caches) for part in tokens.split([5, *[1] * 15], 1)]
        torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-10, atol=1e-10)
        text = tokens[:, :5]
        for _ in range(6):
            text = torch.cat([text, model(text)[:, -1:].argmax(-1)], 1)
    assert torch.equal(model.generate(tokens[:, :5], 6, temperature=0), text)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """The small study with three arms and one seed, in an empty folder without WHENCE_DATA."""
    folder = tmp_path_factory.mktemp("prior")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("WHENCE_DATA", raising=False)
        (study, _) = FILE["studies"]("small")
        arms = tuple(ARMS[name] for name in ("rotary", "rotary + prior", "wide prior"))
        study = replace(study, arms=arms, seeds=(0,))
        outcome = run_study(study, folder / "results", jobs=1)
    return folder, study, outcome


def test_the_small_form_trains_without_data_and_records_what_was_learned(small_run):
    folder, study, outcome = small_run
    assert len(outcome.completed) == 3 and (folder / "tokens/topics-512/tokens.json").is_file()
    for run in study.runs():
        record = records.read(outcome.folder / run.file_name)
        last = record["result"]["evaluations"][-1]["splits"]
        assert list(last) == ["test", "2x", "4x", "8x", "16x", "validation"]
        assert len(record["result"]["losses"]) == 2
        priors = record["notes"]["prior"]
        assert len(priors) == (0 if run.arm.name == "rotary" else 2)
        for layer in priors:
            start = 0.1 if "wide" in run.arm.name else 1.0
            assert len(layer["alpha"]) == len(layer["beta"]) == 2 and layer["alpha"] != [start] * 2  # learned
        assert str(folder) not in json.dumps(record["spec"])


def test_the_figure_is_drawn_from_the_records(small_run, tmp_path):
    from matplotlib.image import imread

    folder, _, outcome = small_run
    (image,) = write_figures(folder / "results")
    assert image.name == f"{outcome.folder.name}.png"
    pixels = imread(image)
    assert pixels.shape[0] > 500 and pixels.std() > 0.05
    (tmp_path / "other").mkdir()
    with pytest.raises(WhenceError, match=r"whence run prior"):
        write_figures(tmp_path)


@pytest.mark.parametrize("name", ["prior-gpu-134m", "prior-gpu"])
def test_the_ticks_of_perplexity_enclose_the_values(name, monkeypatch, tmp_path):
    """From the committed records: the ticks ended at 100 below a perplexity of 186."""
    reader = records.RecordReader()
    (folder,) = (
        path for path in reader.find_folders(FOLDER / "results", "study.json") if path.name.rpartition("-")[0] == name
    )
    drawn = []
    monkeypatch.setattr(figure, "save", lambda drawing, *rest: drawn.append(drawing))
    figure.draw_prior(figure.read_runs(reader.folder(folder)), tmp_path / "unused.png")
    axes = drawn[0].axes[1]
    low, high = axes.dataLim.intervaly
    ticks = axes.get_yticks()
    assert ticks[0] <= low and high <= ticks[-1] and 4 <= len(ticks) <= 10
    assert [text.get_text() for text in axes.get_yticklabels()] == [f"{tick:g}" for tick in ticks]


def test_a_folder_of_other_tokens_is_refused_and_one_can_be_named(small_run, monkeypatch):
    folder, _, _ = small_run
    monkeypatch.chdir(folder)
    (folder / "tokens/books-600").symlink_to(folder / "tokens/topics-512")
    with pytest.raises(WhenceError, match=r"topics and a vocabulary of 512.*books.*600.*--tokens"):
        PretrainingText("books", 600, context=16, blocks=4)
    (study, _) = FILE["studies"]("small", tokens="tokens/books-600")
    assert load_task(study).vocab_size == 512
