"""Whether control tokens on a spline replace an encoding of position: small autoencoders, trained here in a minute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from whence.models import SplineAutoencoder
from whence.position.alibi import Alibi

SIZE: dict[str, Any] = {"control_points": 6, "embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 32}
FEATURES, WAVES = 2, 2
LR = 1e-2
HELD_OUT = 1024


class LinearWithPositions(nn.Linear):
    """A linear input layer with a learned vector for each position."""

    def __init__(self, features: int, embed_dim: int, length: int) -> None:
        super().__init__(features, embed_dim)
        self.positions = nn.Parameter(0.1 * torch.randn(length, embed_dim))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.positions[: x.shape[1]]


def spline_reconstruction(steps: int, batch: int, length: int, seeds: list[int]) -> dict[str, Any]:
    """Held-out squared error over the variance of three autoencoders, for each seed.

    ``without_order``: no encoding and no bias, so the encoder reads a set. ``with_bias``: a bias by distance in the encoder.
    ``with_positions``: a learned vector for each position is added to the input. ``times_learned_error`` is the first over
    the last, for each seed. ``change_of_shuffled`` is the largest change of an output of the first when its input is shuffled.
    """
    errors: dict[str, list[float]] = {"without_order": [], "with_bias": [], "with_positions": []}
    shuffled = 0.0
    with torch.random.fork_rng():
        for seed in seeds:
            for arm, own in errors.items():
                model = train_autoencoder(arm, seed, steps, batch, length)
                x = draw_waves(HELD_OUT, length, torch.Generator().manual_seed(10_000 + seed))
                with torch.inference_mode():
                    own.append(float((model(x) - x).square().mean() / x.square().mean()))
                    if arm == "without_order":
                        order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
                        shuffled = max(shuffled, float((model(x[:, order]) - model(x)).abs().max()))
    ratios = [a / b for a, b in zip(errors["without_order"], errors["with_positions"], strict=True)]
    with_bias = [a / b for a, b in zip(errors["with_bias"], errors["with_positions"], strict=True)]
    words = (
        f"Error over variance: {_mean(errors['without_order']):.3f} without any term of order, "
        f"{_mean(errors['with_bias']):.3f} with a relative bias, {_mean(errors['with_positions']):.3f} with learned positions. "
        "Without a term of order the encoder is invariant under permutations: it cannot know the order."
    )
    return {**errors, "times_learned_error": ratios, "times_learned_error_with_bias": with_bias,
            "change_of_shuffled": shuffled, "words": words}  # fmt: skip


def train_autoencoder(arm: str, seed: int, steps: int, batch: int, length: int) -> SplineAutoencoder:
    """One autoencoder. All arms of a seed see the same sequences."""
    torch.manual_seed(seed)
    bias = Alibi(SIZE["heads"], form="symmetric") if arm == "with_bias" else None
    model = SplineAutoencoder(FEATURES, position=bias, **SIZE)
    if arm == "with_positions":
        model.into = LinearWithPositions(FEATURES, SIZE["embed_dim"], length)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        x = draw_waves(batch, length, generator)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def draw_waves(count: int, length: int, generator: torch.Generator) -> Tensor:
    """Sums of cosines with random amplitudes, ``[count, length, FEATURES]``. The set of points does not tell their order."""
    times = torch.linspace(0, torch.pi, length)
    waves = torch.stack([((number + 1) * times).cos() for number in range(WAVES)])
    return (torch.randn(count, FEATURES, WAVES, generator=generator) @ waves).transpose(1, 2)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


COMPUTATIONS = (spline_reconstruction,)
