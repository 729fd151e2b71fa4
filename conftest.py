"""Test configuration. Without a GPU, the fused kernels are tested under Triton's interpreter in the same process.

Triton decides at import, and when a kernel is decorated, whether kernels are compiled or interpreted. Another test or a
library may import it first, so it is imported here, before any test, with the variable set. The variable is then
removed, because whence reads it at each call: the other tests must see a CPU as users do, where the triton backend is
unavailable. Tests that need the interpreter use the fixture ``interpreted`` (below), which sets the variable again. On
a machine with a GPU nothing happens here, and the kernels are compiled.
"""

import functools
import gc
import importlib
import importlib.util
import multiprocessing
import os
import pkgutil
import subprocess
import sys

import numpy as np
import pytest
import torch

#: files that `whence run` loads by path; configuration has no doctests, and two files of one module name cannot be collected
collect_ignore_glob = ["papers/src/whence_papers/studies/*", "*conftest.py"]
# Gluon cannot be imported where Triton interprets its kernels, as it does here
GLUON_MODULES = ("gluon_dkdv", "gluon_dq", "gluon_forward", "gluon_roles", "gluon_tiles")
collect_ignore_glob += [f"src/whence/attention/fused/{name}.py" for name in GLUON_MODULES]

if not torch.cuda.is_available() and importlib.util.find_spec("triton") is not None:
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        importlib.import_module("triton")
        for module in pkgutil.iter_modules(importlib.import_module("whence.attention.fused").__path__):
            if module.name not in GLUON_MODULES:  # every kernel
                importlib.import_module(f"whence.attention.fused.{module.name}")
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before


def pytest_addoption(parser):
    parser.addoption(
        "--cases", type=int, help="Number of random cases of each kind (default: as many as the suite runs)."
    )


def pytest_collection_finish():
    """What is loaded by now stays until the end: searching it for garbage again and again takes 6% of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_runtest_setup():
    """Each test draws the same numbers, whichever tests ran before it in its process."""
    torch.manual_seed(20_260)


def pytest_runtest_teardown(item):
    """Return the memory of a GPU test, because several processes test on one GPU."""
    if item.get_closest_marker("gpu") is not None and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


#: random cases of each kind in the suite, by the argument of the test
CASES = {"float64_case": 200, "float32_case": 85, "history_case": 85}


def pytest_generate_tests(metafunc):
    for name in CASES.keys() & set(metafunc.fixturenames):
        count = metafunc.config.getoption("--cases")
        metafunc.parametrize(name, range(CASES[name] if count is None else count))


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of a few rows, so that short sequences need several."""
    from whence.attention import blockwise, blockwise_kernel

    monkeypatch.setattr(blockwise_kernel, "BLOCK", 3)
    monkeypatch.setattr(blockwise_kernel, "TILE", 40)
    monkeypatch.setattr(blockwise, "SCORES", 60)


@pytest.fixture
def whence_here(monkeypatch, capfd):
    """The command line in this process, where torch is loaded already; a process of its own takes seconds to start."""
    from whence.cli import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["whence", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as ending:
            code = ending.code
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run


@pytest.fixture
def forked_workers(monkeypatch):
    """Worker processes fork from one that has loaded everything; each alone takes seconds to load torch."""
    from whence.lab import executors, experiment_runs

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["whence.lab.runner", "whence.lab.training", "accelerate", "torch._dynamo"])
    for module in (executors, experiment_runs):
        monkeypatch.setattr(module, "get_context", lambda method: context)


@pytest.fixture
def no_layout(monkeypatch):
    """Figures without matplotlib's arrangement of axes and texts, which takes most of the time of drawing."""
    engine = pytest.importorskip("matplotlib.layout_engine").ConstrainedLayoutEngine
    monkeypatch.setattr(engine, "execute", lambda self, figure: None)


# Fixtures for the fused kernels without a GPU: the interpreter, and two guards that detect silent errors.
#
# A kernel may access memory out of bounds and mask the result afterwards, which is an illegal access on a GPU only
# sometimes. A kernel may also read an element that was never written, which shows only for some contents of the memory.
# Under the interpreter both are detected reliably.


@pytest.fixture
def interpreted(monkeypatch):
    """Run kernels in Python on CPU tensors and check every address they access."""
    pytest.importorskip("triton")
    from whence.attention.fused import backend, eager
    from whence.attention.fused.forward import forward_kernel

    if type(forward_kernel).__name__ != "InterpretedFunction":
        pytest.skip("the kernels are compiled here: a GPU is present, and test_kernels_on_gpu.py runs them there")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(
        backend, "MIN_KEYS_TO_SKIP", 0
    )  # skipping pays off for long sequences only, but is tested with short ones
    monkeypatch.setattr(eager, "ENABLED", False)  # tests of plans turn them on; the others launch by the operator
    check_addresses(monkeypatch)
    check_specialization(monkeypatch)
    patch_language_once(monkeypatch)
    check_overflow_in_numpy(monkeypatch)
    look_up_types_quickly(monkeypatch)


@pytest.fixture(autouse=True)
def tile_loads(monkeypatch):
    """Tests of the fused kernels load short sequences by TMA, too; with WHENCE_POINTER_LOADS=1, all tiles by pointers.

    The decode kernels read fewer keys than in use.
    """
    from whence.attention.fused import ops, packing, tile_configs

    ops.operator_facts.kept.clear()  # a test may change how tiles are loaded
    monkeypatch.setattr(tile_configs, "FEW_PAIRS", 0)
    monkeypatch.setattr(tile_configs, "FEW_KEYS", 16)
    if os.environ.get("WHENCE_POINTER_LOADS") == "1":
        monkeypatch.setattr(packing, "has_tma", lambda device: False)


@pytest.fixture
def fresh_compiler():
    """Nothing is compiled before the test, and nothing of it afterwards."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def deterministic():
    """Deterministic algorithms, which give dense table gradients a kernel without atomics."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def poisoned(monkeypatch):
    """Fill empty tensors with NaN, or with an integer that is no valid index."""

    def filled(make):
        def made(*arguments, **about):
            out = make(*arguments, **about)
            return out.fill_(torch.nan if out.is_floating_point() else 2**30)

        return made

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, filled(getattr(owner, name)))


def check_addresses(monkeypatch):
    """Raise if a kernel loads, stores or adds outside its tensor arguments."""
    from triton.runtime import interpreter

    starts, ends = np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    prepare = interpreter.GridExecutor._init_args_hst

    def note(executor, arguments, named):
        nonlocal starts, ends
        ready = prepare(executor, arguments, named)
        # an argument is a tensor, a TMA descriptor of one, or a tuple of tensors and numbers
        given = (*ready[0], *ready[1].values())
        flat = [x for argument in given for x in (argument if isinstance(argument, tuple) else (argument,))]
        bases = [getattr(x, "base", x) for x in flat]
        spans = sorted(extent(x) for x in bases if isinstance(x, torch.Tensor) and x.numel())
        starts, ends = (np.array(side, np.uint64) for side in zip(*spans, strict=True))
        # tensors may overlap: an address is fine when any of those that start before it reaches beyond it
        ends = np.maximum.accumulate(ends)
        return ready

    def check(pointers, mask):
        used = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
        place = np.searchsorted(starts, used, side="right").astype(np.int64) - 1
        wild = (place < 0) | (used >= ends[place])
        if wild.any():
            raise IndexError(f"{wild.sum()} of {used.size} addresses lie outside every tensor of this kernel")

    def checked(method, pointers_at, mask_at):
        original = getattr(interpreter.InterpreterBuilder, method)

        def call(builder, *arguments, **about):
            check(arguments[pointers_at], arguments[mask_at])
            return original(builder, *arguments, **about)

        monkeypatch.setattr(interpreter.InterpreterBuilder, method, call)

    monkeypatch.setattr(interpreter.GridExecutor, "_init_args_hst", note)
    checked("create_masked_load", 0, 1)
    checked("create_masked_store", 0, 2)
    checked("create_atomic_rmw", 1, 3)


def check_specialization(monkeypatch):
    """Raise if a launch is reused for arguments for which Triton would compile another kernel; ``DirectLaunch`` does not check."""
    from whence.attention.fused.direct_launch import DirectLaunch

    call, seen = DirectLaunch.__call__, {}

    def compiled_for(x, specialize=True):
        if isinstance(x, torch.Tensor):
            return x.dtype, x.data_ptr() % 16
        if isinstance(x, tuple):
            return tuple(compiled_for(item) for item in x)
        if isinstance(x, int):
            return abs(x) >= 2**31, specialize and (x == 1, x % 16 == 0)
        return (x.base.dtype, tuple(x.block_shape)) if hasattr(x, "block_shape") else getattr(x, "value", type(x))

    def check(launch, programs, *arguments):
        unspecialized = launch.kernel.kwargs.get("do_not_specialize") or ()
        named = zip(launch.kernel.arg_names, arguments, strict=False)
        facts = {name: compiled_for(x, name not in unspecialized) for name, x in named}
        assert seen.setdefault(launch, facts) == facts, f"{launch.kernel.__name__} needs another compiled kernel"
        call(launch, programs, *arguments)

    monkeypatch.setattr(DirectLaunch, "__call__", check)


def patch_language_once(monkeypatch):
    """Patch ``triton.language`` once per launch instead of at every call of a helper.

    The interpreter inspects hundreds of attributes each time, which would be a third of the time of these tests.
    """
    from triton.runtime import interpreter

    patch, launch, done = interpreter._patch_lang, interpreter.GridExecutor.__call__, set()

    def fresh(executor, *arguments, **named):
        done.clear()  # the end of the last launch has taken everything back
        return launch(executor, *arguments, **named)

    def once(function):
        if function.__module__ in done:
            return interpreter._LangPatchScope()
        done.add(function.__module__)  # what is exchanged depends on the names its module can see
        return patch(function)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", fresh)
    monkeypatch.setattr(interpreter, "_patch_lang", once)


def check_overflow_in_numpy(monkeypatch):
    """Check integer sums and products for overflow in numpy; the interpreter needs a dozen interpreted steps."""
    from triton.language import semantic

    def check(self, left, right, operation):
        bits = left.type.scalar.int_bitwidth
        if bits < 64:
            exact = getattr(np, NUMPY[operation.__name__])(*(x.handle.data.astype(np.int64) for x in (left, right)))
            low, high = left.type.scalar.get_int_min_value(), left.type.scalar.get_int_max_value()
            assert (low <= exact).all() and (exact <= high).all(), f"int{bits} overflow in {operation.__name__}"

    monkeypatch.setattr(semantic.TritonSemantic, "binary_op_sanitize_overflow_impl", check)


def look_up_types_quickly(monkeypatch):
    """Types and shapes without new tables at every operation, which is a quarter of the interpreter's time."""
    from triton.language import core
    from triton.runtime import interpreter

    of_scalar, unwrap = functools.cache(interpreter._get_np_dtype), core._unwrap_if_constexpr
    make_block, blocks, make_tensor, tensors = core.block_type.__init__, {}, core.tensor.__init__, {}
    plain = {core.tensor, core.dtype, int, float, bool, str, type(None)}

    def unwrap_quickly(value):
        kind = type(value)
        return value.value if kind is core.constexpr else value if kind in plain else unwrap(value)

    def numpy_type(kind):
        return POINTER if kind.scalar.is_ptr() else of_scalar(kind.scalar)  # pointer types cannot be hashed

    def initialize_block(block, element_type, shape):
        key = element_type.name, *map(unwrap_quickly, unwrap_quickly(shape))
        if key not in blocks:
            make_block(block, element_type, shape)
            blocks[key] = dict(block.__dict__)
        block.__dict__ |= blocks[key]

    def initialize_tensor(tensor, handle, kind):
        if kind.name not in tensors:
            make_tensor(tensor, handle, kind)
            tensors[kind.name] = dict(tensor.__dict__)
        tensor.__dict__ |= tensors[kind.name] | {"handle": handle, "type": kind}

    monkeypatch.setattr(interpreter, "_get_np_dtype", numpy_type)
    monkeypatch.setattr(core, "_unwrap_if_constexpr", unwrap_quickly)
    monkeypatch.setattr(core.block_type, "__init__", initialize_block)
    monkeypatch.setattr(core.tensor, "__init__", initialize_tensor)


POINTER = np.dtype(np.uint64)
NUMPY = {"add": "add", "sub": "subtract", "mul": "multiply"}


def extent(x):
    """The first address of the elements of a tensor and one past the last."""
    reach = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (reach + 1) * x.element_size()
