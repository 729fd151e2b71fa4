"""Layers compile in one graph, export with a dynamic length, and run in ONNX Runtime, all equal to eager.

Every mechanism of the catalogue exports to ONNX, but for those whose operators all occur in others (``ALIKE``); these are
exported without ONNX, below or in ``tests/position``. The custom operator ``whence::tiled_attention`` is what the
blockwise backend compiles to; an export takes the dense reference or torch's own kernel, because its loops do not export.
"""

import itertools

import pytest
import torch

from whence import Alibi, Attention, Cope, Dape, Epar, Fire, Rotary, Shaw, Sink, SwinBias, T5Bias, WhenceError, attend
from whence.position.catalogue import CATALOGUE

WIDTH, HEADS, HEAD_WIDTH = 16, 4, 4

COMPILED = {
    "Epar": lambda: Epar(HEADS, learnable=True, context=64),
    "Shaw + Fire": lambda: Shaw(HEAD_WIDTH, clip=3, std=0.5) + Fire(HEADS),
    "T5Bias, whose answer is a transposed view": lambda: T5Bias(HEADS, std=1.0),
    "Rotary + Epar + Sink": lambda: Rotary() + Epar(HEADS, learnable=True, context=64) + Sink(HEADS),
}


pytestmark = pytest.mark.usefixtures("fresh_compiler")


def build(position, **about):
    torch.manual_seed(0)
    return Attention(WIDTH, HEADS, position, num_kv_heads=2, **{"causal": True} | about).double()


def tokens(length=7):
    torch.manual_seed(1)
    return torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)


def assert_same(compiled, eager, x, **arguments):
    """Outputs and all gradients."""
    wanted = [x, *eager.parameters()]
    results = []
    for function in (compiled, eager):
        out = function(x, **arguments)
        grads = torch.autograd.grad(out.square().sum(), wanted, allow_unused=True)
        results.append([out, *(torch.zeros_like(p) if g is None else g for p, g in zip(wanted, grads, strict=True))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mechanism", [name for name in COMPILED if name != "Epar"])  # it is a part of the last
def test_compiled_in_one_graph_it_is_what_it_is_eagerly(mechanism):
    layer = build(COMPILED[mechanism]())
    assert_same(torch.compile(layer, fullgraph=True, backend="aot_eager"), layer, tokens())


MASKS = {
    "lengths": {"lengths": torch.tensor([4, 7])},
    "left padding": {"key_mask": torch.arange(7) >= torch.tensor([[2], [0]])},
    "segment_ids": {"segment_ids": torch.tensor([0, 0, 0, 1, 1, 1, 1])},
    "positions": {"positions": torch.tensor([0, 1, 2, 5, 6, 7, 9])},
}


@pytest.mark.parametrize("mask", MASKS)
def test_compiled_with_masks_and_positions(mask):
    # no check may ask for a tensor's numbers while a compiler looks
    layer = build(Rotary() + Epar(HEADS, learnable=True, context=64), window=5)
    assert_same(torch.compile(layer, fullgraph=True, backend="aot_eager"), layer, tokens(), **MASKS[mask])


def test_epar_compiles_to_the_tiled_operator():
    seen = []

    def spy(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    layer = build(COMPILED["Epar"]())
    torch.compile(layer, fullgraph=True, backend=spy)(tokens())
    assert any("whence.tiled_attention" in name for name in seen)


@pytest.mark.parametrize("mechanism", ["Epar", "Shaw + Fire"])
def test_the_graph_never_breaks(mechanism):
    layer = build(COMPILED[mechanism]())
    report = torch._dynamo.explain(layer)(tokens())
    assert (report.graph_break_count, report.graph_count) == (0, 1)


def test_one_graph_serves_all_lengths():
    layer = build(COMPILED["Rotary + Epar + Sink"](), backend="blockwise")
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=count)
    for length in (7, 9, 30, 140):  # 140: more than one block of rows
        x = tokens(length)
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-10, atol=1e-12)
    assert len(graphs) == 1


def test_a_compiled_layer_does_not_check_tensors_that_it_does_not_read():
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    layer = build(COMPILED["Epar"]())
    layer.position.register_buffer("notes", torch.zeros(2))
    compiled = torch.compile(layer, fullgraph=True, backend=count)
    compiled(tokens())
    layer.position.notes = torch.zeros(3, dtype=torch.int64)
    compiled(tokens())
    assert len(graphs) == 1


def test_a_compiled_layer_on_two_devices_is_an_error():
    layer = build(COMPILED["Epar"]())
    layer.position.to("meta")
    with pytest.raises(RuntimeError, match="meta and cpu"):
        torch.compile(layer, fullgraph=True, backend="aot_eager")(tokens())


@pytest.mark.parametrize(
    ("mechanism", "backend"),
    [
        *((name, "triton") for name in ("Alibi", "Sink", "SwinBias", "Cope", "Dape")),
        *((name, "reference") for name in ("Alibi", "Sink", "SwinBias", "Cope", "Dape")),
        *((name, "auto") for name in ("Alibi", "Sink", "SwinBias", "Cope", "Dape")),
        ("Alibi", "blockwise"), ("Sink", "blockwise"), ("Alibi", "sdpa"),
    ],
)  # fmt: skip
def test_a_compiled_call_on_two_devices_is_an_error(mechanism, backend, request):
    if backend == "triton":
        request.getfixturevalue("interpreted")
    position = {
        "Alibi": Alibi(HEADS), "Sink": Sink(HEADS), "SwinBias": SwinBias(HEADS, (4, 6)), "Cope": Cope(16), "Dape": Dape(HEADS),
    }[mechanism].to("meta")  # fmt: skip
    q = torch.randn(1, HEADS, 24, 16, dtype=torch.bfloat16)

    @torch.compile(fullgraph=True, backend="eager")
    def run(q):
        return attend(q, q, q, position=position, causal=True, backend=backend)

    with pytest.raises((RuntimeError, WhenceError), match=r"device='?meta|meta and cpu|cpu and meta|on meta"):
        run(q)


def test_dropout_is_drawn_anew_in_a_compiled_layer():
    layer = build(COMPILED["Epar"](), dropout=0.5)
    compiled, x = torch.compile(layer, fullgraph=True, backend="aot_eager"), tokens()
    assert not torch.equal(compiled(x), compiled(x))
    layer.eval()
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-10, atol=1e-12)


# --- the operator -------------------------------------------------------------------------------------------------------


def arguments(
    *, score_scale=True, bias=True, sink=True, clock=True, masks=False, causal=True, window=None, dropout=0.0, grad=True
):
    torch.manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)

    q, k, v = random(2, 4, 5, 3), random(2, 2, 7, 3), random(2, 2, 7, 2)
    tables = (
        random(4, 11) if score_scale else None,
        random(4, 11) if bias else None,
        random(2, 4, 5) if sink else None,
        random(2, 4, 5) if clock else None,
        random(2, 4, 7) if clock else None,
    )
    hidden = (None, None, None)
    if masks:
        hidden = (torch.rand(2, 7) > 0.3, torch.tensor([[0, 0, 0, 1, 1]]), torch.tensor([[0, 0, 0, 0, 0, 1, 1]]))
    seed = torch.tensor(3) if dropout else None
    return (q, k, v, *tables, *hidden, 2, causal, window, 0.5, 1.3, dropout, seed)


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"score_scale": False},
        {"bias": False, "sink": False, "clock": False},
        {"masks": True, "window": 3},
        {"causal": False, "grad": False},
    ],
    ids=["all tables", "no score_scale", "score_scale only", "masks and a window", "no gradient"],
)
def test_the_tiled_operator_keeps_torchs_rules(about):
    # schema, autograd registration, fake tensors with the right strides, and dynamic shapes
    results = torch.library.opcheck(torch.ops.whence.tiled_attention.default, arguments(**about))
    assert set(results.values()) == {"SUCCESS"}


def test_the_tiled_operator_draws_the_same_dropout_for_its_gradient():
    q, k, v, *rest = arguments(dropout=0.4, masks=True)
    inputs = [q, k, v, *rest[:5]]

    def run(*given):
        return torch.ops.whence.tiled_attention(*given, *rest[5:])[0]

    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize("layout", ["contiguous", "heads last", "stretched"])
def test_gradients_of_the_tiled_operator_have_the_strides_it_announces(layout):
    # a compiler lays out memory by what the fake operator says; q comes transposed from every projection
    instance = arguments()
    q, k, v = instance[:3]
    if layout == "heads last":
        q, k, v = (t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in (q, k, v))
    score_scale, bias, sink = instance[3:6]
    if layout == "stretched":
        score_scale, bias = (t.detach()[:1].clone().requires_grad_().expand(4, -1) for t in (score_scale, bias))
    given = [
        t.detach() if isinstance(t, torch.Tensor) else t for t in (q, k, v, score_scale, bias, sink, *instance[6:])
    ]
    out, tops, totals = torch.ops.whence.tiled_attention(*given)
    given = [torch.ones_like(out), out, tops, totals, *given]
    real = torch.ops.whence.tiled_attention_backward(*given, [True] * 5)
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in given]
        announced = torch.ops.whence.tiled_attention_backward(*fakes, [True] * 5)
    assert [(t.shape, t.stride()) for t in real] == [(t.shape, t.stride()) for t in announced]


# --- export -------------------------------------------------------------------------------------------------------------


# these use no operator that others in the catalogue do not use; a conversion costs two seconds each
ALIKE = (
    "Rotary, YaRN", "Rotary, proportional", "Kerple, log", "Kerple, power", "Epar, basic", "Epar", "Alibi", "PowerPrior", "Sink", "LogTemperature",
    "ScalableSoftmax",
    "LearnedRotary", "XPos", "DataDependentAlibi", "Fope", "AxialRotary", "SwinBias", "Pope", "Dape", "GrapeA", "QueryTable",
    "DualChunkRotary", "StringRotary",
)  # fmt: skip


class Chain(torch.nn.Module):
    """One residual layer a mechanism of the catalogue, so that one export covers them all."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        entries = [entry for entry in CATALOGUE if entry.name not in ALIKE]
        self.layers = torch.nn.ModuleList(Attention(8, 2, entry.make(2, 4), causal=True) for entry in entries)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_every_mechanism_exports_and_runs_in_onnx_runtime_at_any_length(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model = Chain().eval().requires_grad_(False)
    # two heads, and a length that may be two: no check may tie the length to the number of heads
    length = torch.export.Dim("length", min=2, max=256)
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(1, 6, 8),), dynamic_shapes=({1: length},))
        exported = program.module()
        for n in (2, 6, 11, 40):
            x = torch.randn(1, n, 8)
            torch.testing.assert_close(exported(x), model(x), rtol=1e-5, atol=1e-5)
        torch.onnx.export(program, dynamo=True, optimize=False, verbose=False).save(str(tmp_path / "chain.onnx"))
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(tmp_path / "chain.onnx"), options, providers=["CPUExecutionProvider"])
    for n in (2, 6, 11, 40):
        x = torch.randn(1, n, 8)
        (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(actual), model(x), rtol=1e-5, atol=1e-5)


def test_an_export_takes_lengths_and_positions():
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.position = Rotary() + Epar(2, context=64) + Alibi(2) + Sink(2)

        def forward(self, q, lengths, positions):
            both = {"q_positions": positions, "k_positions": positions}
            return attend(q, q, q, position=self.position, causal=True, lengths=lengths, **both)

    model = Masked().requires_grad_(False)
    rows, length = torch.export.Dim("rows", min=2), torch.export.Dim("length", min=2)

    def example(batch, n):
        torch.manual_seed(n)
        return torch.randn(batch, 2, n, 4), torch.randint(1, n, (batch,)), torch.arange(n).expand(batch, -1) * 2

    shapes = ({0: rows, 2: length}, {0: rows}, {0: rows, 1: length})
    program = torch.export.export(model, example(3, 6), dynamic_shapes=shapes).module()
    # a batch as large as the length, and one as large as the heads: ranks, not numbers, tell positions apart
    for batch, n in itertools.product((2, 3, 5), (2, 5, 9)):
        torch.testing.assert_close(program(*example(batch, n)), model(*example(batch, n)), rtol=1e-5, atol=1e-6)
