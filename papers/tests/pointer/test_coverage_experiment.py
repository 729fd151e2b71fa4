"""The experiment on coverage: two models that were one, judged on texts of two lengths, and a figure from the record."""

import torch

from whence.lab.experiment import run_experiment
from whence_papers.pointer.coverage import COVERAGE
from whence_papers.pointer.coverage.experiment import WITH, WITHOUT, CoverageSpec, train_both_models
from whence_papers.pointer.summaries import Summaries

TINY = CoverageSpec(seeds=(0, 1), steps=2, extra_steps=1, num_test_texts=4)


def test_both_come_from_one_model_and_see_the_same_texts():
    task = Summaries()
    without, covered = train_both_models(CoverageSpec(steps=2, extra_steps=0), task, 3).values()
    theirs = dict(covered.named_parameters())
    assert all(torch.equal(weight, theirs[name]) for name, weight in without.named_parameters())
    assert not theirs["decoder.attention.coverage_proj.weight"].any() and covered.spec.coverage_loss_weight == 1.0
    seen = []
    draw = task.draw
    task.draw = lambda rows, generator: seen.append(draw(rows, generator)) or seen[-1]
    train_both_models(TINY, task, 3)
    first, second, ours, theirs = seen
    assert ours == theirs != second and first != second
    seen.clear()
    train_both_models(TINY, task, 4)
    assert seen[0] != first and seen[2] != ours


def test_the_record_has_every_seed_and_the_figure_is_drawn_from_it(tmp_path):
    from dataclasses import replace

    from whence import records

    tiny_experiment = replace(COVERAGE, spec=TINY)
    folder = run_experiment(tiny_experiment, tmp_path)
    arms = records.read(tiny_experiment.record_path(tmp_path))["results"]["arms"]
    assert set(arms) == {WITH, WITHOUT} and set(arms[WITH]) == set(arms[WITHOUT])
    assert {"repeated_words, trained", "repeated_words, longer", "coverage_loss, longer", "exact, trained"} <= set(
        arms[WITH]
    )
    assert all(len(values) == 2 for arm in arms.values() for values in arm.values())
    assert arms[WITH]["coverage_loss, longer"] != arms[WITHOUT]["coverage_loss, longer"]
    assert (folder / "coverage.png").stat().st_size > 20_000
