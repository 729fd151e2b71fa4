"""Planted check of ``whence.discover`` with teachers: students must learn a known curve, and it must be named.

    python benchmarks/discovery_teachers.py         # ten minutes on two cores; writes benchmarks/records/discovery_teachers.json
    python benchmarks/discovery_teachers.py --runs 2 --curves bump --out build/discovery_teachers.json
    python benchmarks/discovery_teachers.py --rename        # names the tables of the record again, without training: a minute
    python benchmarks/discovery_teachers.py --protocol benchmarks/discovery_teachers_protocol_2.toml

``discovery_teachers_protocol.toml`` fixes models, training, draws and criterion. A teacher is one attention head with random
weights and a known curve. It reads random tokens and samples next tokens; five students with a ``FreeTable`` learn from
these samples. A run recovers its curve if the family is named and every parameter is within 10 %. Without an effect, the
name must be ``no effect``. ``discovery_teachers_protocol_2.toml`` has new teachers without an effect.

Teachers and students of all runs of a curve are the heads of one call of ``attend``. They share no weights and no data.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from discovery import CASES, Case, describe_run, judge, read_protocol
from whence import Epar, FreeTable, NoPosition, Position, PowerPrior, attend, records
from whence.discover import Curves

ROOT = Path(__file__).resolve().parent.parent
PROTOCOL = ROOT / "benchmarks" / "discovery_teachers_protocol.toml"
RECORD = ROOT / "benchmarks" / "records" / "discovery_teachers.json"
WARM_UP = 50


class Bump(Position):
    """The planted bump as a mechanism."""

    def bias(self, distance: Tensor, length: object) -> Tensor:
        amplitude, centre, width = CASES["bump"].parameters.values()
        return amplitude * torch.exp(-(((distance.abs() - centre) / width) ** 2))


def plant(name: str, context: int) -> tuple[Case, Position]:
    """A known curve over the distances of an input, and the mechanism of its teacher."""
    case = CASES[name]
    if name == "EPAR":
        case = replace(case, parameters={"strength": 1.5, "s": context / 4})
        return case, Epar(beta=4.0, gamma=1.5, context=context)
    if name == "power prior":
        return case, PowerPrior(alpha=0.5, beta=0.5, learnable=False)
    return case, Bump() if name == "bump" else NoPosition()


class Heads(nn.Module):
    """Models of one attention head each: token embedding, attention, and a distribution of the next token."""

    def __init__(self, count: int, model: dict[str, Any], position: Position, generator: torch.Generator) -> None:
        super().__init__()
        tokens, width = model["vocabulary"], model["head_dim"]

        def draw(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(count, *shape, generator=generator))

        self.embedding, self.position = draw(tokens, width), position
        self.queries, self.keys, self.values = draw(width, width), draw(width, width), draw(width, tokens)
        with torch.no_grad():
            for weight in (self.queries, self.keys, self.values):
                weight /= math.sqrt(width)

    def repeat(self, times: int) -> Heads:
        """Each model several times."""
        for name, weight in list(self.named_parameters(recurse=False)):
            setattr(self, name, nn.Parameter(weight.detach().repeat_interleave(times, 0)))
        return self.requires_grad_(False)

    def forward(self, tokens_HBT: Tensor) -> Tensor:
        """Log probabilities of the next token, ``[batch, models, context, vocabulary]``."""
        one_hot = nn.functional.one_hot(tokens_HBT, self.embedding.shape[1]).to(self.embedding.dtype)
        q, k, v = (
            torch.einsum("hbtn,hnd->bhtd", one_hot, self.embedding @ weight)
            for weight in (self.queries, self.keys, self.values)
        )
        return attend(q, k, v, position=self.position, causal=True).log_softmax(-1)


def train_tables(
    case: Case, position: Position, protocol: dict[str, Any], steps: int, runs: int, first: int = 0
) -> tuple[Any, Any]:
    """The knots, and the tables ``[runs, seeds, knots]`` that students of random teachers learn, from the run ``first`` on."""
    model, training, seeds = protocol["model"], protocol["training"], protocol["seeds"]
    torch.set_num_threads(1)
    digest = hashlib.sha256(f"{protocol['draws']} {case.name} {steps} {first}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "big"))
    teachers = Heads(runs, model, position, generator)
    with torch.no_grad():
        teachers.queries *= model["content"]
        teachers.values *= model["sharpness"]
    teachers.repeat(seeds)
    table = FreeTable(runs * seeds, acts_on=case.hook, exact=model["exact"], max_distance=model["context"] - 1)
    students = Heads(runs * seeds, model, table, generator)
    own = [weight for name, weight in students.named_parameters() if not name.startswith("position")]
    with torch.no_grad():
        for weight in own:
            weight *= model["start"]
    optimizer = torch.optim.Adam(students.parameters(), lr=training["lr"], betas=(0.9, training["beta2"]))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps))
    )
    shape = (runs * seeds, training["batch"], model["context"])
    for _ in range(steps):
        tokens = torch.randint(model["vocabulary"], shape, generator=generator)
        with torch.no_grad():
            targets = sample_shares(teachers(tokens).exp(), training["samples"], generator)
        # a sum over students: each has the gradient of its own mean
        loss = -(targets * students(tokens)).sum(-1).mean((0, 2)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    learned = table.bias_table if case.hook == "bias" else table.scale_table
    assert learned is not None
    return table.knots.numpy(), learned.detach().double().numpy().reshape(runs, seeds, -1)


def sample_shares(probabilities: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """The share of each token among some samples of a distribution: one binomial draw for each token, given those before it."""
    left, rest = torch.full_like(probabilities[..., 0], samples), torch.ones_like(probabilities[..., 0])
    shares = []
    for own in probabilities.unbind(-1)[:-1]:
        shares.append(torch.binomial(left, (own / rest).clamp(0, 1), generator=generator) / samples)
        left, rest = left - shares[-1] * samples, (rest - own).clamp(min=1e-9)
    return torch.stack([*shares, left / samples], -1)


def run_part(name: str, protocol: dict[str, Any], level: str, first: int, runs: int) -> list[dict[str, Any]]:
    """Some runs of a curve: what was named, and whether the formula was recovered."""
    case, position = plant(name, protocol["model"]["context"])
    distances, tables = train_tables(case, position, protocol, protocol["levels"][level]["steps"], runs, first)
    return name_tables(case, distances, tables, protocol, first)


def rename_part(name: str, protocol: dict[str, Any], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of a record with names by this version of ``whence.discover``: the tables stay as they were learned."""
    case, model = plant(name, protocol["model"]["context"])[0], protocol["model"]
    knots = FreeTable(1, exact=model["exact"], max_distance=model["context"] - 1).knots.numpy()
    return name_tables(case, knots, np.array([run["tables"] for run in runs]), protocol, runs[0]["run"])


def name_tables(case: Case, distances: Any, tables: Any, protocol: dict[str, Any], first: int) -> list[dict[str, Any]]:
    """What is named from the tables ``[runs, seeds, knots]``, and whether it is the planted formula."""
    truth = Curves(distances, case.curve(distances.astype(float))[None], case.hook).mean[0]
    extent, found = float(np.ptp(truth)) or 1.0, []
    for run, values in enumerate(tables, first):
        curves = Curves(distances, values, case.hook)
        found.append(
            {
                **describe_run(case, curves, protocol["largest_error"], run),
                # in ranges of the curve: the largest error of the mean over students, and the spread of one student
                "shared_error": float(np.abs(curves.mean[0] - truth).max()) / extent,
                "spread": float(np.sqrt(curves.variance).mean()) / extent,
                "tables": values.round(4).tolist(),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, help="runs of each curve (default: those of the protocol)")
    parser.add_argument("--curves", nargs="*", choices=list(CASES), help="default: those of the protocol, or all")
    parser.add_argument("--protocol", type=Path, default=PROTOCOL)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--rename", action="store_true", help="name the tables of the committed record again; train nothing"
    )
    parser.add_argument("--out", type=Path, help="default: the record of the protocol")
    arguments = parser.parse_args()
    protocol = read_protocol(arguments.protocol)
    record_path = RECORD.with_stem(arguments.protocol.stem.replace("_protocol", ""))
    curves = arguments.curves or protocol.get("curves", list(CASES))
    total, together = arguments.runs or protocol["runs"], protocol["together"]
    results: dict[str, Any] = {}
    earlier = records.read(record_path) if arguments.rename else {}
    if earlier and earlier["protocol"] != protocol:
        raise SystemExit("--rename: the record follows another protocol; train again")
    with ProcessPoolExecutor(arguments.jobs) as pool:
        parts = {
            (level, name): [
                pool.submit(
                    rename_part, name, protocol, earlier["results"][level][name]["runs"][first : first + together]
                )
                if earlier
                else pool.submit(run_part, name, protocol, level, first, min(together, total - first))
                for first in range(0, total, together)
            ]
            for level in protocol["levels"]
            for name in curves
        }
        for (level, name), futures in parts.items():
            case, _ = plant(name, protocol["model"]["context"])
            runs = [run for future in futures for run in future.result()]
            recovered = sum(run["recovered"] for run in runs)
            results.setdefault(level, {})[name] = {
                "family": case.family, "parameters": case.parameters, "recovered": recovered, "seeds": protocol["seeds"], "runs": runs,
            }  # fmt: skip
            print(f"{level}, {name}: {recovered} of {len(runs)} recovered", flush=True)
    verdicts = judge(protocol, results)
    options = "" if arguments.protocol == PROTOCOL else f" --protocol benchmarks/{arguments.protocol.name}"
    record = {
        "command": records.rerun_command(f"python benchmarks/discovery_teachers.py{options}"),
        "environment": records.describe_environment(("numpy", "scipy")),
        # where the tables were trained, if not here: --rename changes their names alone
        **({"trained": earlier.get("trained", earlier["environment"])} if earlier else {}),
        "protocol": protocol,
        "protocol_sha256": hashlib.sha256(arguments.protocol.read_bytes()).hexdigest(),
        "results": results,
        "met": verdicts,
    }
    records.write(arguments.out or record_path, record)
    for level, met in verdicts.items():
        print(f"{level}: {'met' if met else 'not met'}")


if __name__ == "__main__":
    main()
