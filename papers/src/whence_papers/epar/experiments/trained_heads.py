"""One attention head, untrained and after training on a task with a known answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.attention import attend
from whence.lab.experiment import ProgressCallback, Results
from whence.position.epar import Epar
from whence.position.parameter import BoundedParameter
from whence_papers.epar.experiments.setup import FORMS, Setup, make_tokens, round_values, target_attention
from whence_papers.epar.theory import PATTERNS, attention_weights, make_pattern, random_position_vectors

#: what is trained: the forms with the source's parameters, and the enhanced form with learnable parameters
TRAINED = (*FORMS, "learned")


@dataclass(frozen=True)
class Training(Setup):
    """The training of a head."""

    steps: int = 150
    rows: int = 2  # sequences of each pattern in a batch
    lr: float = 0.03
    payload: int = 8  # dimension of the gathered vectors


class Head(nn.Module):
    """Projects tokens to queries and keys. The values are the payloads themselves, so attention alone must solve the task."""

    def __init__(self, setup: Setup, seed: int, form: str) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)  # the same initial weights for every form
            self.to_queries = nn.Linear(setup.head_dim, setup.head_dim)
            self.to_keys = nn.Linear(setup.head_dim, setup.head_dim, bias=False)
        self.position = None
        if form != "none":
            self.position = Epar(
                form="enhanced" if form == "learned" else form, learnable=form == "learned", context=setup.length,
                alpha=setup.alpha, beta=setup.beta, gamma=setup.gamma,
            )  # fmt: skip

    def forward(self, x: Tensor, payload: Tensor) -> Tensor:
        q, k = self.to_queries(x), self.to_keys(x)
        return attend(q[:, None], k[:, None], payload[:, None], position=self.position)[:, 0]


def make_batch(setup: Training, seed: int) -> tuple[Tensor, Tensor]:
    """Importances and tokens of ``rows`` sequences of every pattern."""
    batches = [make_pattern(name, setup.length, 10 * seed + n, rows=setup.rows) for n, name in enumerate(PATTERNS)]
    importance = torch.cat(batches)
    return importance, make_tokens(importance, setup, seed)


def train(setup: Training, seed: int, form: str) -> dict[str, Any]:
    """Train a head; return its weights, its parameters if they are learned, and the mean error of every ten steps.

    The error is the squared difference from the target output divided by the square of that output: 1 for an output of zeros.
    """
    head = Head(setup, seed, form)
    optimizer = torch.optim.Adam(head.parameters(), lr=setup.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, setup.steps)
    errors = []
    for step in range(setup.steps):
        data = (
            seed * setup.steps + step
        ) % 90_000  # disjoint from the seeds of the sequences that heads are evaluated on
        importance, x = make_batch(setup, data)
        drawing = torch.Generator().manual_seed(data + 500_000)  # not the seed of the tokens
        payload = torch.randn(*importance.shape, setup.payload, generator=drawing)
        want = target_attention(importance, setup).float() @ payload
        error = (head(x.float(), payload) - want).square().mean() / want.square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        schedule.step()
        errors.append(float(error.detach()))
    means = [sum(errors[n : n + 10]) / len(errors[n : n + 10]) for n in range(0, len(errors), 10)]
    return {"errors": round_values(means), **head_weights(head), **epar_parameters(head)}


def head_weights(head: Head) -> dict[str, Any]:
    """A head's weights as lists with all digits of single precision."""
    named = {
        "to_queries": head.to_queries.weight,
        "bias": head.to_queries.bias,
        "to_keys": head.to_keys.weight,
    }
    return {name: round_values(weight.detach(), 9) for name, weight in named.items()}


def epar_parameters(head: Head) -> dict[str, float]:
    if head.position is None:
        return {}
    parameters = {name: getattr(head.position, name, None) for name in ("alpha", "beta", "gamma")}
    return {name: round_values(x().detach()) for name, x in parameters.items() if isinstance(x, BoundedParameter)}


def compute(setup: Training, inputs: Mapping[str, Results], progress: ProgressCallback) -> Results:
    """Train every form with every seed: ``results["heads"][form][index of the seed]``; ``start`` holds the untrained heads."""
    heads: dict[str, list[dict[str, Any]]] = {}
    for form in TRAINED:
        heads[form] = []
        for seed in setup.seeds:
            heads[form].append(train(setup, seed, form))
            progress(f"trained heads: {form}, seed {seed}, error {heads[form][-1]['errors'][-1]:.3g}")
    heads["start"] = [head_weights(Head(setup, seed, "none")) for seed in setup.seeds]
    return {"heads": heads}


def project_head(x: Tensor, weights: str, form: str, number: int, heads: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Queries and keys ``[B, L, D]`` of tokens under one of WEIGHTS, for the head with an index, in double precision."""
    saved = heads[form if weights == "trained" else "start"][number]
    if weights == "random_positions":
        x = x + random_position_vectors(x.shape[-2], x.shape[-1], seed=number)
    to_queries, bias, to_keys = (
        torch.tensor(saved[name], dtype=torch.float64) for name in ("to_queries", "bias", "to_keys")
    )
    return x @ to_queries.mT + bias, x @ to_keys.mT


def compute_attention(
    x: Tensor, weights: str, form: str, number: int, heads: Mapping[str, Any], setup: Setup
) -> Tensor:
    """The attention ``[B, L, L]`` of tokens ``[B, L, D]`` under one of WEIGHTS and one of FORMS."""
    q, k = project_head(x, weights, form, number, heads)
    setting = setup.setting(form)
    return attention_weights(q, k, None if setting is None else setting.position(setup.length))[:, 0]
