"""Whether coverage reduces repetition of a pointer-generator on synthetic texts (``whence_papers.pointer.summaries``).

As in its source (See et al. 2017), a model is first trained without coverage and then with it. The control continues
without coverage for as many steps. Both write summaries of the trained lengths and longer ones, where a model can lose its
position. Every seed has different weights and texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass

import torch

from whence.lab.experiment import ProgressCallback, Results
from whence_papers.pointer.pointer_generator import PointerGenerator, PointerGeneratorSpec
from whence_papers.pointer.summaries import Summaries, score_summaries, train

WITHOUT, WITH = "without coverage", "with coverage"
LENGTHS = ("trained", "longer")


@dataclass(frozen=True)
class CoverageSpec:
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    steps: int = 90
    extra_steps: int = 40  # further steps of both arms
    batch_size: int = 24
    lr: float = 1e-2
    max_names: int = 4  # largest number of names in training summaries
    max_names_longer: int = 10  # largest number of names in the longer summaries
    num_test_texts: int = 200  # test texts of each length
    embedding: int = 16
    hidden_size: int = 24


def compute(spec: CoverageSpec, inputs: Mapping[str, Results], progress: ProgressCallback) -> Results:
    """``arms[arm]["repeated_words, longer"][seed]`` and so on for every measure of ``SummaryScores`` and both lengths."""
    task = Summaries(max_names=spec.max_names)
    tests = dict(zip(LENGTHS, (task, Summaries(max_names=spec.max_names_longer)), strict=True))
    arms: dict[str, dict[str, list[float]]] = {WITHOUT: {}, WITH: {}}
    for seed in spec.seeds:
        for arm, model in train_both_models(spec, task, seed).items():
            for length, test in tests.items():
                scores = score_summaries(
                    model, test, test.test(spec.num_test_texts), max_length=3 * spec.max_names_longer
                )
                for measure, value in asdict(scores).items():
                    arms[arm].setdefault(f"{measure}, {length}", []).append(value)
        progress(f"coverage: seed {seed}")
    return {"arms": arms}


def train_both_models(spec: CoverageSpec, task: Summaries, seed: int) -> dict[str, PointerGenerator]:
    """Train one model, then continue once with and once without coverage, on the same texts."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = PointerGenerator(
            PointerGeneratorSpec(
                len(task.vocabulary),
                embedding=spec.embedding,
                hidden_size=spec.hidden_size,
                attention="additive",
                coverage_loss_weight=0.0,
            )
        )
        train(model, task, steps=spec.steps, batch_size=spec.batch_size, lr=spec.lr, seed=2 * seed)
        both = {WITHOUT: deepcopy(model), WITH: model.with_coverage()}
        for one in both.values():
            train(one, task, steps=spec.extra_steps, batch_size=spec.batch_size, lr=spec.lr, seed=2 * seed + 1)
    return both
