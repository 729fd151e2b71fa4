"""Whether coverage keeps a pointer-generator from saying words again, on generated texts (``whence_papers.pointer.summaries``).

As in its source (See et al. 2017), a model is trained without coverage first and goes on with it; its control goes on for
as many steps without. Both are then asked for summaries as long as those of training, and for longer ones, where a model
can lose its place. Every seed has other weights and other texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass

import torch

from whence.lab.experiment import ProgressCallback, Results
from whence_papers.pointer.pointer_generator import PointerGenerator, PointerGeneratorSpec
from whence_papers.pointer.summaries import Summaries, judge, train

WITHOUT, WITH = "without coverage", "with coverage"
LENGTHS = ("trained", "longer")


@dataclass(frozen=True)
class Coverage:
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    steps: int = 90
    more: int = 40  # steps that both go on
    batch: int = 24
    rate: float = 1e-2
    marked: int = 4  # names of a summary at most, in training
    longer: int = 10  # the same beyond it
    asked: int = 200  # texts of each length
    embedding: int = 16
    hidden_size: int = 24


def compute(spec: Coverage, given: Mapping[str, Results], progress: ProgressCallback) -> Results:
    """``arms[arm]["said_again, longer"][seed]`` and so on for every measure of ``Judgement`` and both lengths."""
    task = Summaries(marked=spec.marked)
    tests = dict(zip(LENGTHS, (task, Summaries(marked=spec.longer)), strict=True))
    arms: dict[str, dict[str, list[float]]] = {WITHOUT: {}, WITH: {}}
    for seed in spec.seeds:
        for arm, model in both_models(spec, task, seed).items():
            for length, test in tests.items():
                found = judge(model, test, test.test(spec.asked), longest=3 * spec.longer)
                for measure, value in asdict(found).items():
                    arms[arm].setdefault(f"{measure}, {length}", []).append(value)
        progress(f"coverage: seed {seed}")
    return {"arms": arms}


def both_models(spec: Coverage, task: Summaries, seed: int) -> dict[str, PointerGenerator]:
    """Two models that were one until coverage came to one of them; both see the same texts."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = PointerGenerator(
            PointerGeneratorSpec(
                len(task.vocabulary),
                embedding=spec.embedding,
                hidden_size=spec.hidden_size,
                attention="additive",
                coverage_loss=0.0,
            )
        )
        train(model, task, steps=spec.steps, batch=spec.batch, rate=spec.rate, seed=2 * seed)
        both = {WITHOUT: deepcopy(model), WITH: model.with_coverage()}
        for one in both.values():
            train(one, task, steps=spec.more, batch=spec.batch, rate=spec.rate, seed=2 * seed + 1)
    return both
