"""What each backend can do, as data: the choice, the refusals and the README's table all come from here."""

from __future__ import annotations

from dataclasses import dataclass

DENSE_BIAS = 1 << 22  # numbers of a bias that may be a dense mask: 16 MB in float32


@dataclass(frozen=True)
class Support:
    """One backend: the score effects it takes and what it costs."""

    name: str
    effects: frozenset[str]  # of factor, bias, content, values, sink; embed and rotate happen before any backend
    weights: bool  # can return the attention weights
    memory: str  # in the length
    devices: str
    dtypes: str
    gradients: str
    compiled: str  # under torch.compile and torch.export
    purpose: str


SUPPORT: dict[str, Support] = {
    "reference": Support(
        "reference",
        frozenset({"score_scale", "bias", "content_bias", "value_bias", "sink"}),
        True,
        "quadratic",
        "CPU, GPU",
        "fp64, fp32, fp16, bf16",
        "q, k, v and every parameter, of any order",
        "compile, export, ONNX",
        "the specification, dense; inspection and export",
    ),
    "blockwise": Support(
        "blockwise",
        frozenset({"score_scale", "bias", "content_bias", "value_bias", "sink"}),
        False,
        "linear",
        "CPU, GPU",
        "fp64, fp32, fp16, bf16",
        "q, k, v and every parameter, of any order",
        "compile, where distance tables apply",
        "training and long inputs",
    ),
    "triton": Support(
        "triton",
        frozenset({"score_scale", "bias", "sink"}),
        False,
        "linear",
        "NVIDIA GPU",
        "fp32, fp16, bf16",
        "q, k, v and every parameter",
        "compile",
        "training, long inputs and decoding on a GPU",
    ),
    "sdpa": Support(
        "sdpa",
        frozenset({"bias"}),
        False,
        "linear; quadratic with a bias, a mask beyond causal, dropout, or values of another width",
        "CPU, GPU",
        "fp64, fp32, fp16, bf16",
        "q, k, v and every parameter (dense for a bias that learns)",
        "compile, export, ONNX",
        "no score effect, or a small fixed bias",
    ),
}


@dataclass(frozen=True)
class Request:
    """What a call needs, as far as the choice of a backend goes."""

    effects: frozenset[str]
    weights: bool
    bias_learns: bool
    narrow: bool  # half precision, in which a dense mask would round a bias
    dense_numbers: int  # of a dense bias over the whole grid
    mask_numbers: int  # of the dense mask that torch's kernel would need; 0 for none or plain causality
    tables_closed: str | None  # why tables over distances cannot be used
    fused_closed: str | None  # why the fused kernels cannot run on these tensors
    compiling: bool
    exporting: bool
    transformed: bool = False  # inside torch.func or forward-mode AD

    @property
    def score_effects(self) -> frozenset[str]:
        return self.effects - {"embed", "rotate"}


def why_not(backend: str, request: Request) -> str | None:
    """Why a backend cannot run a request, as a clause; None when it can."""
    support = SUPPORT[backend]
    missing = sorted(request.score_effects - support.effects)
    if missing:
        return f"it has no {' and no '.join(missing)} effect"
    if request.weights and not support.weights:
        return "it never forms the weights that return_weights asks for"
    if backend == "sdpa" and request.transformed:
        return "torch's own kernel has no rule for torch.func and forward-mode AD"
    if backend == "triton" and (request.fused_closed or request.tables_closed) is not None:
        return request.fused_closed or request.tables_closed
    if backend == "triton" and request.exporting:
        return "its kernels do not export"
    if backend == "blockwise" and request.exporting:
        return "its loops do not export"
    if backend == "blockwise" and request.compiling and request.tables_closed is not None:
        return f"torch.compile cannot trace its recomputed rows, which are needed because {request.tables_closed}"
    return None


def prefer(request: Request) -> tuple[str, str]:
    """The backend that ``auto`` takes, and why."""
    if request.weights:
        return "reference", "the weights were asked for, and only the dense computation forms them"
    effects = request.score_effects
    fused = why_not("triton", request) is None
    torch_kernel = why_not("sdpa", request) is None
    if (
        torch_kernel
        and not effects
        and (request.mask_numbers == 0 or not fused)
        and (request.mask_numbers <= DENSE_BIAS or why_not("blockwise", request))
    ):
        return "sdpa", "no part acts on the scores, so torch's own kernel does all of it"
    if fused and not effects:
        return "triton", f"torch's own kernel would need a dense mask of {request.mask_numbers} numbers"
    if fused:
        return "triton", f"{' and '.join(sorted(effects))} of distance alone: one fused kernel reads a table"
    small = request.dense_numbers <= DENSE_BIAS
    if torch_kernel and effects == {"bias"} and not request.bias_learns and small and not request.narrow:
        return (
            "sdpa",
            f"the only effect is a fixed bias of {request.dense_numbers} numbers, small enough for a dense mask",
        )
    closed = why_not("blockwise", request)
    if closed is not None:
        return "reference", f"blockwise is closed here ({closed})"
    if not effects and request.tables_closed is None:
        return "blockwise", f"torch's own kernel would need a dense mask of {request.mask_numbers} numbers"
    shown = " and ".join(sorted(effects))
    if request.tables_closed is None:
        return "blockwise", f"{shown} of distance alone: tiles read a table, and memory stays linear in length"
    return (
        "blockwise",
        f"rows are recomputed block by block ({request.tables_closed}), and memory stays linear in length",
    )
