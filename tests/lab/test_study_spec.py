"""Specifications of studies: what is refused, and what the hash covers."""

import dataclasses

import pytest
from small_study import ARMS, build_study

from whence import WhenceError
from whence.lab import runner
from whence.lab.arms import Arm, parse_arm
from whence.lab.run_keys import run_key, training_key
from whence.lab.study import Budget, Decision, Study
from whence.position.expression import ModelDims


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"arms": ()}, r"Study\(arms"),
        ({"seeds": (1, 1)}, r"Study\(seeds"),
        ({"seeds": 3}, r"Study\(seeds=...\) got 3.*pass a tuple such as \(0, 1, 2\)"),
        ({"seeds": (0, "1")}, r"Study\(seeds=...\) got \(0, '1'\).*integers"),
        ({"name": "a/b c"}, r"Study\(name=...\) got 'a/b c'.*no path separator"),
        ({"decision": Decision(baseline="rotary")}, "baseline 'rotary'"),
        ({"decision": Decision(baseline="none", comparisons=1)}, "comparisons=2"),
        ({"decision": Decision(baseline="none", comparisons=1000)}, "alpha=0.05 for 1000.*reduce comparisons"),
    ],
)
def test_an_invalid_study_raises_at_construction(changes, message):
    with pytest.raises(WhenceError, match=message):
        build_study(**changes)


def test_a_bad_spec_fails_before_anything_is_trained(tmp_path):
    for study, message in (
        (build_study(decision=Decision(baseline="none", split="9x")), "split '9x'"),
        (build_study(model={"embed_dim": 15, "heads": 2}), "embed_dim"),
        (build_study(model={"widht": 16}), "the setting widht"),
        (build_study(task="nothing"), "nothing"),
        (build_study(arms=(*ARMS, Arm("twin", "Epar( learnable = True )"))), "'EPAR' and 'twin'"),
    ):
        with pytest.raises(WhenceError, match=message):
            runner.run_study(study, tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(WhenceError, match="the file"):
        runner.run_study(build_study(), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "given",
    [
        {"alpha": 5.0}, {"alpha": 0.0}, {"alpha": "0.05"}, {"metric": "beauty"}, {"family": "pair"}, {"margin": 0.0},
        {"margin": "1"}, {"looks": (5, 3)}, {"looks": (1, 3)},
    ],
)  # fmt: skip
def test_invalid_decisions_raise(given):
    with pytest.raises(WhenceError, match=rf"Decision\({next(iter(given))}"):
        Decision(baseline="none", **given)


@pytest.mark.parametrize(
    "given",
    [{}, {"steps": 1, "epochs": 1}, {"steps": 0}, {"steps": 1, "schedule": "linear"}, {"steps": 1, "lr": "x"}],
)
def test_invalid_budgets_raise(given):
    with pytest.raises(WhenceError):
        Budget(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_lr_ratio": 1.5, "schedule": "cosine"}, r"min_lr_ratio=\.\.\.\) got 1\.5.*set 0\.1"),
        ({"min_lr_ratio": 0.1}, r"min_lr_ratio=\.\.\.\) got 0\.1 with a constant schedule.*set schedule to cosine"),
        ({"min_lr_ratio": "x", "schedule": "cosine"}, r"min_lr_ratio=\.\.\.\) got 'x'.*number"),
        ({"adam_beta2": 1.0}, r"adam_beta2=\.\.\.\) got 1\.0.*set 0\.95"),
        ({"adam_beta2": float("nan")}, r"adam_beta2=\.\.\.\) got nan.*set 0\.95"),
        ({"decay_matrices_only": 1}, r"decay_matrices_only=\.\.\.\) got 1.*true or false"),
        ({"compile": "yes"}, r"compile=\.\.\.\) got 'yes'.*true or false"),
        ({"warmup_steps": True}, r"warmup_steps=\.\.\.\) got True"),
    ],
)
def test_invalid_settings_of_the_optimizer_are_named(given, message):
    with pytest.raises(WhenceError, match=message):
        Budget(steps=1, **given)


def test_hashes_of_older_records_stay():
    """Computed before ModelSpec and Budget had head_dim, norm_type, qk_norm, gated_ffn, min_lr_ratio and adam_beta2."""
    study = build_study()
    assert study.hash == "508902cfef2f"
    assert run_key(study.runs()[0]) == "7078e8616e44e046" and training_key(study.runs()[0]) == "925e4203029cfb51"
    older = study.spec()
    for name in ("min_lr_ratio", "adam_beta2", "decay_matrices_only"):
        del older["budget"][name]
    assert Study.from_spec(older) == study


def test_the_hash_names_all_that_decides():
    assert build_study().hash == build_study(about="other words").hash
    assert (
        build_study().hash
        == build_study(budget=Budget(steps=6, batch_size=8, evaluate_every=2, grad_accum_steps=1)).hash
    )
    assert (
        build_study().hash
        != build_study(budget=Budget(steps=6, batch_size=8, evaluate_every=2, grad_accum_steps=2)).hash
    )
    assert build_study().hash != build_study(seeds=(0, 2)).hash != build_study(seeds=(0, 1), task_settings={}).hash
    assert (
        Study(**{f.name: getattr(build_study(), f.name) for f in dataclasses.fields(Study)}).hash == build_study().hash
    )


def test_arms_fit_the_model_they_are_built_for():
    dims = ModelDims(4, 16, 64, 32, causal=False)
    assert parse_arm("alibi").build(dims).form == "symmetric" and parse_arm("t5").build(dims).form == "bidirectional"
    assert parse_arm("epar").build(dims).context == 32 and parse_arm("Epar(context=99)").build(dims).context == 99
    for text, message in (("flurb", "flurb"), ("Alibi(2)", "name each"), ("Alibi(x=1)", "rename x")):
        with pytest.raises(WhenceError, match=message):
            parse_arm(text)


def test_a_folder_may_be_a_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = runner.run_study(build_study(), "results", select=lambda runs: [])
    assert outcome.folder.parent.name == "results" and (outcome.folder / "study.json").exists()
