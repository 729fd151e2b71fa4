"""``SplineAutoencoder``: a transformer that encodes a sequence as the control points of a curve (Chandran et al. 2024, arXiv
2504.02797).

No encoding of position is added to any token. The encoder reads the sequence together with n learned control tokens. The
control tokens' outputs are control points p_i of a B-spline of degree k in the latent space,

    s(t) = sum over i of N_ik(t) p_i,   t from 0 to 1,

and the decoder turns points s(t) into the sequence: where a token stands is where its point lies on the curve. The number
of points is free, so a sequence can be decoded at another length.

What the encoder knows of the order depends on ``position``, which acts on its attention. Without one the encoder is
invariant under permutations of the input: it cannot tell a sequence from a shuffled copy, and reconstructs the mean. With
one, the control tokens stand before the sequence, so even a bias of the absolute distance tells the two ends apart.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.models.body import Layer
from whence.models.spec import ModelSpec
from whence.position.base import Position
from whence.position.no_position import NoPosition
from whence.validation import require_integer


def bspline_basis(times: Tensor, points: int, degree: int = 3) -> Tensor:
    """The basis ``[T, points]`` of a uniform B-spline at times from 0 to 1, by the recursion of Cox and de Boor.

    The knots are the integers from ``-degree`` to ``points``, and time 1 is knot ``points - degree``. Rows are non-negative
    and sum to 1.

    >>> bspline_basis(torch.tensor([0.0, 1.0]), 4) * 6
    tensor([[1., 4., 1., 0.],
            [0., 1., 4., 1.]])
    """
    require_integer("bspline_basis", "degree", degree, low=1, remedy="pass 3 for a cubic spline")
    require_integer("bspline_basis", "points", points, low=degree + 1, remedy=f"pass at least {degree + 1}")
    if times.ndim != 1 or not bool(((times >= 0) & (times <= 1)).all()):
        raise usage_error("bspline_basis(times=...)", f"shape {list(times.shape)}", "times are a row of numbers from 0 to 1",
                          "pass torch.linspace(0, 1, n)")  # fmt: skip
    segments = points - degree
    x = times * segments
    knots = torch.arange(-degree, points + 1, dtype=times.dtype, device=times.device)
    first = x.floor().clamp(max=segments - 1)[:, None]  # time 1 belongs to the last segment
    basis = (knots[:-1] == first).to(times.dtype)  # degree 0: one interval between neighbouring knots
    for order in range(1, degree + 1):
        rising = (x[:, None] - knots[: -order - 1]) / order
        falling = (knots[order + 1 :] - x[:, None]) / order
        basis = rising * basis[:, :-1] + falling * basis[:, 1:]
    return basis


class SplineAutoencoder(nn.Module):
    """Encode a sequence of vectors as control points, and decode points of the curve.

    Args:
        features: numbers of a token, such as 2 for points in the plane.
        control_points: n, above the degree.
        degree: of the spline.
        position: acts on the attention of the encoder; each layer has its own copy. None for no order at all.
        embed_dim, heads, layers, ffn_dim, dropout: of encoder and decoder.

    >>> model = SplineAutoencoder(features=2, control_points=6, embed_dim=16, heads=2, layers=1)
    >>> model(torch.zeros(3, 20, 2)).shape, model.encode(torch.zeros(3, 20, 2)).shape
    (torch.Size([3, 20, 2]), torch.Size([3, 6, 16]))
    """

    def __init__(
        self,
        features: int,
        control_points: int = 8,
        *,
        degree: int = 3,
        position: Position | None = None,
        embed_dim: int = 64,
        heads: int = 4,
        layers: int = 2,
        ffn_dim: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_integer("SplineAutoencoder", "features", features, remedy="pass the numbers of a token")
        remedy = f"pass at least {degree + 1} for degree {degree}"
        require_integer("SplineAutoencoder", "control_points", control_points, low=degree + 1, remedy=remedy)
        sizes = {"embed_dim": embed_dim, "heads": heads, "layers": layers, "ffn_dim": ffn_dim, "dropout": dropout}
        spec = ModelSpec("encoder", vocab_size=1, num_classes=1, **sizes)  # type: ignore[arg-type]
        self.degree = degree
        self.into = nn.Linear(features, embed_dim)
        self.control_tokens = nn.Parameter(torch.randn(control_points, embed_dim) / embed_dim**0.5)
        positions = [NoPosition() if position is None else copy.deepcopy(position) for _ in range(layers)]
        self.encoder = nn.ModuleList(Layer(spec, one) for one in positions)
        self.decoder = nn.ModuleList(Layer(spec, NoPosition()) for _ in range(layers))
        self.latent_norm = nn.LayerNorm(embed_dim)
        self.output_norm = nn.LayerNorm(embed_dim)
        self.out = nn.Linear(embed_dim, features)

    def encode(self, x: Tensor) -> Tensor:
        """Sequences ``[B, T, features]`` to control points ``[B, n, embed_dim]``."""
        if x.ndim != 3 or x.shape[2] != self.into.in_features or 0 in x.shape:
            raise usage_error(
                "SplineAutoencoder(x)",
                f"shape {list(x.shape)}",
                f"x must be [batch, length, {self.into.in_features}]",
                "pass sequences of vectors",
            )
        controls = self.control_tokens.expand(x.shape[0], -1, -1)
        states = torch.cat((controls, self.into(x)), 1)
        for layer in self.encoder:
            states = layer(states)
        return self.latent_norm(states[:, : controls.shape[1]])

    def curve(self, control_points: Tensor, times: Tensor) -> Tensor:
        """Points of the curve ``[B, T, embed_dim]`` at times from 0 to 1."""
        return bspline_basis(times.to(control_points.dtype), control_points.shape[1], self.degree) @ control_points

    def decode(self, control_points: Tensor, times: Tensor) -> Tensor:
        """Control points to sequences ``[B, T, features]``, one token for each time."""
        states = self.curve(control_points, times)
        for layer in self.decoder:
            states = layer(states)
        return self.out(self.output_norm(states))

    def forward(self, x: Tensor) -> Tensor:
        """The reconstruction of sequences ``[B, T, features]``, at evenly spaced times."""
        times = torch.linspace(0, 1, x.shape[1], device=x.device, dtype=x.dtype)
        return self.decode(self.encode(x), times)
