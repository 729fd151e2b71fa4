"""Context-parallel attention, and its gradients, in four processes against one. The groups are all four, and the first two.

The processes are forks of one that has loaded torch; they find each other through a file.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from whence import Alibi, Epar, ForgetGate, Position, QueryTable, Rotary, Shaw, Sink, T5Bias, attend, parallel
from whence.errors import WhenceError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "context-parallelism.md"
BATCH, HEADS, TOKENS, DIM = 2, 4, 16, 8
MECHANISMS = {
    "none": lambda: None,
    "Alibi": lambda: Alibi(HEADS, learnable=True),
    "Epar + Rotary + Sink": lambda: (
        Epar(HEADS, context=16, learnable=True, alpha=[0.5, 1.0, 1.5, 2.0]) + Rotary() + Sink(HEADS)
    ),
    "T5Bias": lambda: T5Bias(HEADS, form="bidirectional", std=1.0),
    "Epar of all tokens": lambda: Epar(None, length="sequence", learnable=True),
    "Shaw": lambda: Shaw(DIM, clip=6),
    "ForgetGate + QueryTable": lambda: (
        ForgetGate(HEADS * DIM, HEADS)
        + Sink(HEADS)
        + QueryTable(HEADS, DIM, source="input", embed_dim=HEADS * DIM, rank=2, extent=9, std=1.0)
    ),
}
OPTIONS = {"causal": {"causal": True}, "both sides": {}, "window": {"causal": True, "window": 5}}


def from_input(position, q):
    """The arguments made of the layer input, which the queries stand for."""
    if position is None or not position.reads_input:
        return {}
    x = q.transpose(1, 2).flatten(2)
    return {"clock": position.clock(x), "q_input": x}


def run_alone(make, tensors, grad_out, options):
    torch.manual_seed(1)
    position = make()
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = attend(*leaves, position=position, backend="reference", **from_input(position, leaves[0]), **options)
    out.backward(grad_out)
    return [out.detach(), *(x.grad for x in leaves)], position


def run_together(make, tensors, grad_out, options, method, layout, group):
    torch.manual_seed(1)
    position = make()
    part = {"layout": layout, "group": group}
    leaves = [parallel.shard(x, 2, **part).clone().requires_grad_() for x in tensors]
    options = dict(options)
    if "segment_ids" in options:
        options["segment_ids"] = parallel.shard(options["segment_ids"], -1, **part)
    options |= from_input(position, leaves[0])
    out = parallel.attend(*leaves, position=position, method=method, **part, **options)
    out.backward(parallel.shard(grad_out, 2, **part))
    if position is not None:
        parallel.all_reduce_gradients(position, group=group)
    return [parallel.unshard(x.detach(), 2, **part) for x in (out, *(x.grad for x in leaves))], position


def compare(name, options, method, layout, group, kv_heads=HEADS):
    generator = torch.Generator().manual_seed(0)
    shapes = [(BATCH, HEADS, TOKENS, DIM), (BATCH, kv_heads, TOKENS, DIM), (BATCH, kv_heads, TOKENS, DIM)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    grad_out = torch.randn(shapes[0], generator=generator, dtype=torch.float64)

    def make():
        position = MECHANISMS[name]()
        return None if position is None else position.double()

    alone, whole = run_alone(make, tensors, grad_out, options)
    together, shared = run_together(make, tensors, grad_out, options, method, layout, group)
    for expected, actual in zip(alone, together, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    if whole is not None:
        for one, other in zip(whole.parameters(), shared.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-10, atol=1e-10)


def refuse(call, *words):
    try:
        call()
    except WhenceError as error:
        text = str(error)
    else:
        text = "no error"
    assert all(word in text for word in words), text


def check(group, names):
    for method in ("ulysses", "all_gather"):
        for name, layout in zip(names, 3 * ("contiguous", "zigzag"), strict=False):
            compare(name, OPTIONS["causal"], method, layout, group)
        compare("T5Bias", OPTIONS["both sides"] | {"temperature": 1.3}, method, "zigzag", group)
        compare("T5Bias", OPTIONS["window"], method, "contiguous", group)
        compare("Alibi", OPTIONS["causal"], method, "zigzag", group, kv_heads=2)
        compare("ForgetGate + QueryTable", OPTIONS["causal"], method, "zigzag", group, kv_heads=2)
        ids = torch.arange(TOKENS) // 5
        compare("T5Bias", OPTIONS["causal"] | {"segment_ids": ids}, method, "zigzag", group)
    compare("Alibi", OPTIONS["causal"], "all_gather", "zigzag", group, kv_heads=1)
    q = torch.zeros(1, 3, 8, 4)
    refuse(lambda: parallel.attend(q, q, q, group=group), "3 query heads", "all_gather")
    refuse(lambda: parallel.shard(torch.zeros(2, 7), 1, group=group), "7 tokens", "pad")
    rank = dist.get_rank(group)
    longer = torch.zeros(1, 4, 8 if rank else 4, 4)
    refuse(lambda: parallel.attend(longer, longer, longer, group=group), "equal shape", "parallel.shard")
    tokens = parallel.shard(torch.arange(16), 0, layout="zigzag", group=group)
    assert torch.equal(parallel.positions(len(tokens), layout="zigzag", group=group), tokens)


class Turn(Position):
    """A rotation by head, which ulysses cannot divide."""

    def rotate(self, q, k, q_positions, k_positions):
        return q * torch.ones(self.heads)[:, None, None].to(q), k


def run_page(rank, meeting):
    """The program of the documentation, whose processes meet through a file instead of torchrun's variables."""
    start = dist.init_process_group
    dist.init_process_group = lambda backend: start(backend, init_method=f"file://{meeting}", rank=rank, world_size=4)
    program = PAGE.read_text().partition("```python\n")[2].partition("```")[0]
    names = {}
    exec(compile(program, PAGE, "exec"), names)
    dist.init_process_group = start
    torch.manual_seed(0)
    layer, tokens = torch.nn.Linear(64, 3 * 64), names["tokens"]
    layer.load_state_dict(names["layer"].state_dict())
    position = Rotary() + Epar(heads=4, learnable=True)
    q, k, v = layer(tokens).view(2, -1, 3, 4, 16).permute(2, 0, 3, 1, 4)
    attend(q, k, v, position=position, causal=True).square().sum().backward()
    for module, own in ((layer, names["layer"]), (position, names["position"])):
        for one, other in zip(module.parameters(), own.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-3, atol=1e-3)


def main(rank, meeting):
    run_page(rank, f"{meeting} of the page")
    refuse(lambda: parallel.attend(*torch.zeros(3, 1, 4, 8, 4)), "process group", "torchrun")
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=4)
    first_two = dist.new_group([0, 1])
    check(None, list(MECHANISMS))
    if dist.get_rank() < 2:
        check(first_two, ["T5Bias"])
    refuse(lambda: parallel.attend(*torch.zeros(3, 1, 4, 8, 4), position=Turn(heads=4)), "Turn", "all_gather")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.multiprocessing.start_processes(main, (sys.argv[1],), nprocs=4, start_method="fork")
    print("all equal")
