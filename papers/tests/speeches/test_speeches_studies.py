"""The studies of the speeches assignment have the settings that its report names, and both ways with padding."""

import base64

import numpy as np
import pytest

from whence.lab.study_files import load_study_file
from whence.models import ModelSpec
from whence.position.catalogue import SHORT_NAMES
from whence.position.expression import ModelDims
from whence_papers import FOLDER
from whence_papers.speeches.figure import decode_map
from whence_papers.speeches.panels import training_panels

STUDIES = FOLDER / "studies"
ENCODER = ModelDims(heads=2, head_dim=32, embed_dim=64, context=32, causal=False)


def load_studies(name):
    return {study.name: study for study in load_study_file(STUDIES / f"speeches_{name}.py")}


@pytest.mark.parametrize(
    "name, budget",
    [
        ("encoder", {"epochs": 15, "steps": None, "lr": 1e-3, "optimizer": "Adam", "weight_decay": 0.0}),
        ("decoder", {"epochs": None, "steps": 500, "lr": 1e-3, "optimizer": "Adam", "weight_decay": 0.0}),
        ("alibi", {"epochs": 100, "steps": None, "lr": 1e-4, "optimizer": "AdamW", "weight_decay": 0.1}),
    ],
)
def test_the_reports_own_numbers(name, budget):
    for study in load_studies(name).values():
        model = {"kind": "decoder", "vocab_size": 5755} | dict(study.model)
        spec = ModelSpec(**model)
        assert (spec.embed_dim, spec.heads, spec.layers, spec.ffn_dim, spec.dropout) == (64, 2, 4, 100, 0.1)
        assert {key: getattr(study.budget, key) for key in budget} == budget
        assert (study.budget.batch_size, study.budget.max_grad_norm, study.budget.schedule) == (16, None, "constant")
        assert study.seeds == (0, 1, 2, 3, 4) and study.decision.baseline == "sinusoidal"
        assert study.task == ("speeches_lm" if name == "decoder" else "speeches_classify")


def test_with_the_mask_that_was_forgotten_and_without():
    for name in ("encoder", "alibi"):
        masks = {study.task_settings["mask_padding"]: study for study in load_studies(name).values()}
        assert set(masks) == {"none", "keys"}
        assert masks["none"].arms == masks["keys"].arms and masks["none"].budget == masks["keys"].budget


def test_alibi_has_the_reports_scale_and_the_maps_their_three():
    for study in load_studies("alibi").values():
        assert [arm.build(ENCODER).scale for arm in study.arms if "Alibi" in arm.position] == [1.1]
    for study in load_studies("all").values():
        assert [arm.build(ENCODER).scale for arm in study.arms if "Alibi" in arm.position] == [0.5, 1.0, 2.0]


def test_evaluations_fall_where_the_report_has_figures():
    budgets = {name: next(iter(load_studies(name).values())).budget for name in ("encoder", "decoder", "alibi")}
    assert [budgets[name].evaluate_every for name in budgets] == [1, 100, 10]


def test_printed_has_one_slope_for_all_heads_beside_the_published_ones():
    encoder, decoder, alibi = load_studies("printed").values()
    slopes = {arm.name: arm.build(ENCODER).bias_slope().flatten().tolist() for arm in alibi.arms if "ALiBi" in arm.name}
    assert slopes == {
        "ALiBi, published slopes times 1.1": pytest.approx([-1.1 / 16, -1.1 / 256]),
        **{f"ALiBi, s = {s}": pytest.approx([-s, -s]) for s in (1.1, 2.0, 1.0, 0.5)},
    }
    (described,) = [study for study in load_studies("alibi").values() if study.name.endswith("none")]
    changed = {"evaluate_every": 5}
    assert vars(alibi.budget) == vars(described.budget) | changed and alibi.budget.epochs % 5 == 0
    for study, other in ((encoder, "encoder"), (decoder, "decoder")):
        same = next(iter(load_studies(other).values()))
        assert (study.budget, study.arms, study.model) == (same.budget, same.arms, same.model)
    assert all(study.task_settings["training_scores"] for study in (encoder, decoder, alibi))


def test_training_scores_are_drawn_in_both_ways():
    def run(seed, running, train):
        splits = {"test": {"value": 0.4}, "train": {"value": train}}
        rows = [{"step": step, "splits": splits, "training": {"value": running}} for step in (5, 10)]
        return {"seed": seed, "result": {"status": "done", "evaluations": rows}}

    charts = training_panels({"a": [run(0, 0.5, 0.6), run(1, 0.7, 0.8)]}, "accuracy")
    running, evaluated, table = charts
    assert running["lines"]["a"]["1"] == [[5, 70.0], [10, 70.0]] and evaluated["lines"]["a"]["0"][0] == [5, 60.0]
    assert table["rows"] == [["a", "60.00", "70.00", "40.00"]] and "with dropout" in table["note"]
    old = run(0, 0.5, 0.6)
    del old["result"]["evaluations"][0]["training"]
    assert training_panels({"a": [old]}, "accuracy") == [] == training_panels({}, "accuracy")


def test_maps_show_the_last_layer_with_queries_as_rows():
    def head(weights):
        return base64.b64encode(bytes(weights)).decode()

    maps = [[head([0, 0, 0, 0])] * 2, [head([255, 0, 51, 204]), head([255, 0, 153, 102])]]
    assert decode_map({"tokens": ["a", "b"], "maps": maps}) == pytest.approx(np.array([[1.0, 0.0], [0.4, 0.6]]))


def test_all_has_one_arm_for_every_mechanism_that_a_text_alone_can_use():
    """Recency is for pointers over a history, and a sink alone carries no position. ALiBi has three scales.

    The study is fixed: a mechanism that was added to the catalogue later is not part of it.
    """
    encoder, decoder, decided = load_studies("all").values()
    positions = {arm.position for arm in decoder.arms}
    assert {name for name, text in SHORT_NAMES.items() if text in positions} == {
        "none", "sinusoidal", "learned", "rotary", "shaw", "xl", "t5", "kerple", "fire", "cope", "sandwich", "epar",
        "power", "stablemask",
    }  # fmt: skip
    past_only = {"fire", "cope", "stablemask"}
    assert {arm.name for arm in decoder.arms} - {arm.name for arm in encoder.arms} == past_only
    assert (decided.arms, decided.budget) == (decoder.arms, decoder.budget)
    assert not set(decided.seeds) & set(decoder.seeds)  # what was looked at does not decide
