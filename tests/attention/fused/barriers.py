"""A mechanism whose bias is a huge finite number at some distances, as people write it for "masked"."""

import torch
from reference_comparison import check_against_reference, random_inputs

from whence import Position

VALUES = {"-1e4": -1e4, "-1e9": -1e9, "finfo.min": torch.finfo(torch.float32).min}
# the kernels store other numbers for rows beyond 512 bits, which are 354.9 nats
NEAR_LIMIT = {"-345": -345.0, "-365": -365.0}  # random scores move a row by less
BARRED = {
    "everywhere": lambda distance, head: torch.ones_like(distance + head, dtype=torch.bool),
    "near": lambda distance, head: (distance.abs() <= 20) | (head < 0),
    "differs by head": lambda distance, head: distance.abs() > 8 * head,
}


class Barrier(Position):
    """A value at some distances of some heads, a slope at the others; both learnable or both fixed."""

    def __init__(self, heads, value, barred, learnable=True):
        super().__init__()
        self.value = torch.nn.Parameter(torch.full((heads, 1), (VALUES | NEAR_LIMIT)[value]))
        self.slope = torch.nn.Parameter(torch.linspace(-0.3, -0.1, heads)[:, None])
        self.barred = BARRED[barred]
        self.requires_grad_(learnable)

    def bias(self, distance, length):
        head = torch.arange(len(self.value), device=distance.device)[:, None]
        return torch.where(self.barred(distance, head), self.value, self.slope * distance.abs())


def check_barrier(position, shape, options, dtype, scores, device="cpu"):
    """Compare with the reference; with equal scores, no precision loses them beside the bias."""
    q, k, v, grad_out = random_inputs(*shape, dtype=dtype, device=device)
    if scores == "equal":
        q, k[..., 0] = torch.zeros_like(q), 0.5
        q[..., 0] = 1.0
    return check_against_reference(position, [q, k, v], grad_out, options)
