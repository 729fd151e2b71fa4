"""The C function of a compiled kernel gets exactly what Triton's own launcher would pass to it, but descriptors are encoded once."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from whence.attention.fused import compiled_launcher, descriptors
from whence.attention.fused.direct_launch import DirectLaunch

driver = pytest.importorskip("triton.backends.nvidia.driver")

pytestmark = pytest.mark.skipif(
    compiled_launcher.VERSION not in compiled_launcher.KNOWN_VERSIONS, reason="an unknown version of Triton"
)
CUDA = torch.device("cuda", 0)
NAMES = ("Q", "Q_REST", "K", "LSE", "TABLE", "heads", "scale", "OUT", "BLOCK", "FLAG")
SIGNATURE = {
    "Q": "tensordesc<bf16[1, 1, 64, 64]>", "Q_REST": "constexpr", "K": "tensordesc<bf16[1, 1, 64, 64],layout>", "LSE": "*fp32",
    "TABLE": ("*fp32", "i32"), "heads": "i32", "scale": "fp32", "OUT": "tensordesc<fp32[1, 64]>", "BLOCK": "constexpr",
    "FLAG": "constexpr",
}  # fmt: skip
BF16, FP32 = 10, 7  # of Triton's elem_type
META = [
    {"swizzle": 3, "elem_size": size, "elem_type": kind, "block_size": block, "fp4_padded": False}
    for size, kind, block in ((2, BF16, [1, 1, 64, 64]), (2, BF16, [1, 1, 32, 64]), (4, FP32, [1, 64]))
]


class Recorder:
    """A C function: it has no code."""

    def __init__(self):
        self.calls = []

    def __call__(self, *arguments):
        self.calls.append(tuple(tuple(x) if isinstance(x, list) else x for x in arguments))


class Compiled:
    def __init__(self, meta):
        self.launched, self.with_hook = Recorder(), []
        run = object.__new__(driver.CudaLauncher)
        run.launch = driver.wrap_handle_tensordesc(self.launched, SIGNATURE, meta)
        run.num_ctas, run.launch_cooperative_grid, run.launch_pdl = 1, False, True
        run.global_scratch_size = run.profile_scratch_size = 0
        run.global_scratch_align = run.profile_scratch_align = 1
        run.arg_annotations, run.kernel_signature = ["annotations"], b"signature"
        self._run, self.function, self.packed_metadata = run, 1234, (4, 1, 9000)

    def __getitem__(self, grid):
        return lambda *arguments, stream: self.with_hook.append((grid, arguments, stream))


class Kernel:
    __name__ = "kernel"
    arg_names = NAMES

    def __init__(self, compiled):
        self.compiled, self.first = compiled, []

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.first.append((grid, arguments, options))
            return self.compiled

        return launch


@pytest.fixture
def encoded(monkeypatch):
    """The descriptors that the driver encodes; the result of each is a new object equal to its arguments."""
    calls = []

    def fill(*arguments):
        calls.append(arguments)
        return ("map", *(tuple(x) if isinstance(x, list) else x for x in arguments))

    utils = SimpleNamespace(fill_tma_descriptor=fill, fill_tma_descriptor_tiled=fill)
    monkeypatch.setattr(triton.runtime.driver, "_active", SimpleNamespace(utils=utils), raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 77 + index, raising=False)
    return calls


def describe_rows(x, rows):
    """A Gluon kernel's descriptor of rank 2."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, rows])


def tensors():
    q = torch.zeros(2, 40, 3, 64, dtype=torch.bfloat16).transpose(1, 2)
    k = torch.zeros(1, 1, 70, 64, dtype=torch.bfloat16)
    return q, k, torch.zeros(6, 128)


def describe_all(made, q, k, out):
    blocks, rows = made
    table = (torch.zeros(4), 5)
    return (
        blocks.describe(q, 64, 64),
        None,
        blocks.describe(k, 32, 64),
        torch.zeros(8),
        table,
        3,
        0.5,
        rows.describe(out, 64),
    )


def make_descriptors():
    return descriptors.Descriptors(CUDA), descriptors.Descriptors(CUDA, describe_rows)


def make_launch(meta=META):
    compiled = Compiled(meta)
    kernel = Kernel(compiled)
    return DirectLaunch(kernel, {"BLOCK": 64, "FLAG": True}, {"num_warps": 4}, CUDA), compiled, kernel


def own_arguments(compiled, programs, arguments):
    """What Triton's launcher passes to the C function."""
    compiled._run(
        programs, 1, 1, 77, compiled.function, compiled.packed_metadata, None, None, None, *arguments, 64, True
    )
    return compiled.launched.calls.pop()


@pytest.mark.parametrize("meta", [META, None], ids=["encoded", "not encoded"])
def test_the_arguments_are_those_of_triton(encoded, meta):
    launch, compiled, kernel = make_launch(meta)
    inputs, made = tensors(), make_descriptors()
    arguments = describe_all(made, *inputs)
    launch(6, *arguments)  # through Triton
    assert kernel.first == [((6,), arguments, {"BLOCK": 64, "FLAG": True, "num_warps": 4})]
    assert not compiled.launched.calls
    assert launch._launcher is not None
    for _ in range(3):
        launch(6, *arguments)
    expected = own_arguments(compiled, 6, arguments)
    assert compiled.launched.calls == [expected] * 3
    fresh = describe_all(
        (SimpleNamespace(describe=descriptors.build_descriptor), SimpleNamespace(describe=describe_rows)), *inputs
    )
    if meta is not None:  # the same for descriptors that hold their tensors, which are encoded each time
        same = (*fresh[:3], *arguments[3:7], fresh[7])
        assert own_arguments(compiled, 6, same) == expected
        launch(6, *same)
        assert compiled.launched.calls[-1] == expected


def test_a_descriptor_is_encoded_once_per_address_and_kernel(encoded):
    launch, _, _ = make_launch()
    made, inputs = make_descriptors(), tensors()
    for _ in range(3):
        launch(6, *describe_all(made, *inputs))
    assert len(encoded) == 3
    assert {call[0] for call in encoded} == {x.data_ptr() for x in inputs}
    other, _, _ = make_launch([{**one, "swizzle": 1} for one in META])  # another kernel may want another layout
    for _ in range(3):
        other(6, *describe_all(made, *inputs))
    assert [call[1] for call in encoded] == [3, 3, 3, 1, 1, 1]
    moved = tensors()
    launch(6, *describe_all(made, *moved))
    assert {call[0] for call in encoded[6:]} == {x.data_ptr() for x in moved}


def test_the_same_address_with_another_form_is_another_descriptor(encoded):
    made = descriptors.Descriptors(CUDA)
    x = torch.zeros(1, 2, 64, 64, dtype=torch.bfloat16)
    forms = [
        made.describe(x, 64, 64), made.describe(x, 32, 64), made.describe(x[:, :, :63], 64, 64), made.describe(x[:, :1], 64, 64),
        made.describe(x.view(torch.float16), 64, 64), made.describe(x.view(1, 1, 128, 64), 64, 64),
        made.describe(x.view(1, 64, 2, 64).transpose(1, 2), 64, 64),
    ]  # fmt: skip
    assert len({x.base.data_ptr() for x in forms}) == 1
    assert len(set(map(id, forms))) == len(forms)
    assert made.describe(x, 64, 64) is forms[0]


def test_kept_descriptors_hold_no_tensor_and_are_bounded(encoded):
    made, x = descriptors.Descriptors(CUDA), torch.zeros(1, 2, 16, 16, dtype=torch.bfloat16)
    kept, alive = made.describe(x, 16, 16), weakref.ref(x)
    assert kept.base.data_ptr() == x.data_ptr() and kept.base.dtype == x.dtype
    del x
    gc.collect()
    assert alive() is None
    whole = torch.zeros(1, 1, descriptors.MAX_KEPT + 50, 16, dtype=torch.bfloat16)
    for start in range(descriptors.MAX_KEPT + 40):
        made.describe(whole[:, :, start : start + 1], 16, 16)
    assert len(made._kept) <= descriptors.MAX_KEPT


def test_descriptors_of_gluon_keep_their_layout():
    @dataclass
    class WithLayout:  # Gluon's own class is not there while kernels are interpreted
        base: torch.Tensor
        shape: list[int]
        layout: str

    def build(x, rows):
        return WithLayout(x, list(x.shape), f"{rows} rows")

    x = torch.zeros(1, 2, 256, 128, dtype=torch.bfloat16)
    kept = descriptors.Descriptors(CUDA, build).describe(x, 64)
    assert type(kept) is WithLayout
    assert vars(kept) | {"base": None} == vars(build(x, 64)) | {"base": None, "maps": {}}


def test_a_profiler_gets_the_launch_through_triton(encoded, monkeypatch):
    launch, compiled, _ = make_launch()
    arguments = describe_all(make_descriptors(), *tensors())
    launch(6, *arguments)
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", SimpleNamespace(calls=[print]))
    launch(6, *arguments)
    assert compiled.with_hook == [((6, 1, 1), (*arguments, 64, True), 77)]
    assert not compiled.launched.calls


def test_without_known_internals_triton_launches(encoded, monkeypatch):
    def scratch(run):
        run.global_scratch_size = 16

    def another_wrapper(run):
        inner = run.launch
        run.launch = lambda *arguments: inner(*arguments)

    def renamed(run):
        def inner(*arguments):
            return original(*arguments)

        original, run.launch = run.launch, inner

    for change in (another_wrapper, renamed):
        launch, compiled, _ = make_launch()
        change(compiled._run)
        arguments = describe_all(make_descriptors(), *tensors())
        launch(6, *arguments)
        assert launch._launcher is None
        launch(6, *arguments)
        calls = list(compiled.launched.calls)
        assert calls == [own_arguments(compiled, 6, arguments)]
    compiled = Compiled(META)
    scratch(compiled._run)
    assert compiled_launcher.find_launcher(compiled) is None
    monkeypatch.setattr(compiled_launcher, "VERSION", (3, 5))
    assert compiled_launcher.find_launcher(Compiled(META)) is None
