"""Run a small case of every kernel, forward and backward, for compute-sanitizer: compute-sanitizer python sanitizer_case.py"""

import torch

import whence
from whence.attention.fused import tile_configs


def steps(position: whence.Position | None, tokens: int) -> torch.Tensor | None:
    """Steps of a clock for two sequences, where the position has one."""
    if position is None or "clock" not in position.effects:
        return None
    return position.clock(torch.randn(2, tokens, 8, device="cuda"))


def main() -> None:
    torch.manual_seed(0)
    positions = [
        None,
        whence.Alibi(4, learnable=True),
        whence.Epar(4, learnable=True, context=64),
        whence.T5Bias(4),
        whence.Epar(4, learnable=True, context=64) + whence.T5Bias(4) + whence.Sink(4),
        whence.PowerPrior(4),
        whence.Fire(4),
        whence.Epar(4, learnable=True, length="query"),
        whence.ForgetGate(8, 4),
        whence.ForgetGate(8, 4) + whence.T5Bias(4) + whence.Sink(4),
        whence.SwinBias(4, (8, 9)),
        whence.Shaw(64),
        whence.Cope(64, positions=16),
        whence.Dape(4),
        whence.QueryTable(4, 64, extent=40) + whence.T5Bias(4),
    ]
    masks = [{}, {"window": 9}, {"lengths": torch.tensor([111, 60], device="cuda")}]
    for position in positions:
        position = None if position is None else position.cuda()
        for options in masks:
            q, k, v = (
                torch.randn(2, h, 111, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for h in (4, 2, 2)
            )
            out = whence.attend(
                q, k, v, position=position, clock=steps(position, 111), causal=True, backend="triton", **options
            )
            out.square().sum().backward()
    places = torch.arange(300, device="cuda")
    q, k, v = (torch.randn(2, h, n, 64, device="cuda", dtype=torch.bfloat16) for h, n in ((4, 3), (2, 300), (2, 300)))
    for position in positions:
        with torch.no_grad():
            whence.attend(
                q, k, v, position=position, clock=steps(position, 300), causal=True, q_positions=places[-3:],
                k_positions=places, backend="triton",
            )  # fmt: skip
    torch.use_deterministic_algorithms(True, warn_only=True)
    q, k, v = (torch.randn(2, h, 111, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for h in (4, 2, 2))
    for position in (positions[4], positions[-1]):
        whence.attend(q, k, v, position=position, causal=True, backend="triton").square().sum().backward()
    tile_configs.FEW_PAIRS = 0  # as for long sequences: the warp-specialised kernels of Hopper
    scale_and_bias = whence.Epar(4, learnable=True, context=64) + whence.T5Bias(4)
    for head_dim in (64, 128):
        for position in (*positions[:4], scale_and_bias.cuda(), positions[5]):
            q, k, v = (
                torch.randn(1, h, 300, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                for h in (4, 2, 2)
            )
            whence.attend(q, k, v, position=position, causal=True, backend="triton").square().sum().backward()
    torch.cuda.synchronize()
    print("every kernel ran")


if __name__ == "__main__":
    main()
