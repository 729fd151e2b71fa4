"""Emulation of the warp-specialised kernels on a CPU: results and barriers, with threads for roles.

The same kernel functions run with other meanings of their names. Copies arrive late, into buffers that hold NaN in between, and
matrix products either run when they begin or only when they are waited for. So a buffer that is read too early or overwritten too
early changes the result, and a wrong phase or count of a barrier ends in a time limit.
"""

from __future__ import annotations

import threading
import time
import types
from typing import Any

import pytest
import torch
from torch import Tensor

with pytest.MonkeyPatch.context() as environment:
    if not torch.cuda.is_available():  # where the tests interpret Triton's kernels, its parts must be imported alike
        environment.setenv("TRITON_INTERPRET", "1")
    from triton.experimental.gluon import language as gl

    from whence.attention.fused import gluon_dkdv, gluon_dq, gluon_forward, gluon_roles, gluon_tiles

KERNEL_MODULES = (gluon_tiles, gluon_roles, gluon_forward, gluon_dkdv, gluon_dq)


class Emulator:
    SECONDS = 20.0  # until a wait counts as a deadlock

    def __init__(self, late: bool, seed: int) -> None:
        self.late, self.generator, self.role = late, torch.Generator().manual_seed(seed), threading.local()
        self.changed = threading.Condition()
        self.failed = False
        gl_functions = {
            "arange": lambda first, end, layout=None: torch.arange(first, end), "where": self.where,
            "zeros": lambda shape, dtype, layout=None: torch.zeros(shape, dtype=dtype), "static_range": range,
            "sum": lambda x, axis: x.sum(axis), "reshape": lambda x, shape: x.reshape(shape),
            "convert_layout": lambda x, layout, assert_trivial=False: x, "load": lambda p: p.read(),
            "store": lambda p, x: p.write(x), "program_id": lambda axis: torch.tensor(self.program),
            "num_programs": lambda axis: torch.tensor(self.programs), "inline_asm_elementwise": self.assembly,
            "allocate_shared_memory": self.allocate, "SliceLayout": lambda *a: None, "BlockedLayout": lambda *a: None,
            "warp_specialize": self.specialize, "int32": torch.int32,
            "float32": torch.float32, "int64": torch.int64, "full": lambda shape, x, dtype, layout=None: torch.full(shape, x),
            "max": lambda x, axis: x.amax(axis), "maximum": self.maximum, "abs": torch.abs, "log2": torch.log2,
        }  # fmt: skip
        barriers = {
            "MBarrierLayout": lambda: None, "init": lambda bar, count: bar.init(count), "wait": self.wait_barrier,
            "expect": lambda bar, size: self.arrive(bar, 1, size), "arrive": lambda bar, count: self.arrive(bar, count, 0),
        }  # fmt: skip
        copies = {
            "async_copy_global_to_shared": self.copy_in, "async_copy_shared_to_global": self.copy_out,
            "store_wait": self.wait_stores,
        }  # fmt: skip
        self.names: dict[str, Any] = {
            "gl": types.SimpleNamespace(**gl_functions), "mbarrier": types.SimpleNamespace(**barriers),
            "tma": types.SimpleNamespace(**copies), "warpgroup_mma": self.multiply, "warpgroup_mma_init": lambda x: x,
            "warpgroup_mma_wait": self.wait_products, "fence_async_shared": lambda: None, "role_barrier": lambda: None,
        }  # fmt: skip
        for name, value in (x for module in KERNEL_MODULES for x in vars(module).items()):
            if hasattr(value, "fn") and not name.endswith("_layout"):
                self.names[name] = types.FunctionType(value.fn.__code__, self.names, name)
            elif isinstance(value, gl.constexpr):
                self.names[name] = value.value
            elif name.endswith("_layout"):
                self.names[name] = lambda *a: None

    def launch(self, kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        self.programs = programs
        places = [
            Pointer(x) if isinstance(x, Tensor) else torch.tensor(x) if isinstance(x, int) else x for x in arguments
        ]
        for program in range(programs):
            self.program = program
            self.names[kernel.fn.__name__](*places, **constants)

    # tensors

    @staticmethod
    def where(condition: Tensor, x: Any, y: Any) -> Tensor:
        return torch.where(condition, torch.as_tensor(x), torch.as_tensor(y))

    @staticmethod
    def maximum(x: Any, y: Any) -> Tensor:
        return torch.maximum(torch.as_tensor(x), torch.as_tensor(y))

    @staticmethod
    def assembly(text: str, constraints: str, arguments: list[Any], dtype: Any, is_pure: bool, pack: int) -> Any:
        if text.startswith("ex2"):
            return torch.exp2(arguments[0])
        results = [(arguments[0] + i).read() for i in range(len(dtype) if isinstance(dtype, tuple) else 1)]
        return tuple(results) if isinstance(dtype, tuple) else results[0]

    def allocate(self, dtype: torch.dtype, shape: list[int], layout: Any) -> Any:
        if dtype == torch.int64:
            return Barriers(shape[0])
        return Buffer(torch.full(shape, torch.nan, dtype=dtype))

    # roles

    def specialize(self, roles: list[Any], *_: Any) -> None:
        errors: list[Exception] = []

        def run(function: Any, arguments: tuple[Any, ...]) -> None:
            self.role.products, self.role.stores = [], []
            try:
                function(*arguments)
                assert not self.role.products and not self.role.stores
            except Exception as error:
                errors.append(error)
                self.failed = True

        threads = [threading.Thread(target=run, args=role, daemon=True) for role in roles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def arrive(self, bar: Any, count: int, size: int) -> None:
        with self.changed:
            bar.pending -= count
            bar.bytes += size
            assert bar.pending >= 0, "more arrivals than the barrier counts"
            bar.turn()
            self.changed.notify_all()

    def wait_barrier(self, bar: Any, parity: Any) -> None:
        with self.changed:
            ready = self.changed.wait_for(lambda: self.failed or (bar.phases & 1) != int(parity), self.SECONDS)
            if not ready or self.failed:
                raise TimeoutError("a barrier's phase does not end")

    def copy_in(self, source: Any, place: list[Any], bar: Any, buffer: Any) -> None:
        place, target = [int(x) for x in place], buffer.x.view(-1, buffer.x.shape[-1])
        target.fill_(torch.nan)
        delay = torch.rand((), generator=self.generator).item() * 0.002

        def finish() -> None:
            time.sleep(delay)
            target.copy_(source.tile(place))
            with self.changed:
                bar.bytes -= target.numel() * target.element_size()
                bar.turn()
                self.changed.notify_all()

        threading.Thread(target=finish, daemon=True).start()

    def copy_out(self, target: Any, place: list[Any], buffer: Any) -> None:
        self.role.stores.append(lambda: target.store([int(x) for x in place], buffer.x))

    def wait_stores(self, left: int) -> None:
        for store in self.role.stores:
            store()
        self.role.stores = []

    def multiply(self, a: Any, b: Any, accumulator: Any, use_acc: bool = True, is_async: bool = False) -> Any:
        product = Product(a, b, accumulator, use_acc)
        if not self.late:
            product.run()
        self.role.products.append(product)
        return product

    def wait_products(self, num_outstanding: int, deps: tuple[Any, ...]) -> Any:
        while len(self.role.products) > num_outstanding:
            product = self.role.products.pop(0)
            product.run()
            product.is_finished = True
        results = []
        for x in deps:
            if isinstance(x, Product):
                assert x.is_finished, "a product is used before its end"
                x = x.result
            results.append(x)
        return results[0] if len(results) == 1 else tuple(results)


class Pointer:
    def __init__(self, x: Tensor, offset: Any = 0) -> None:
        self.x, self.offset = x.view(-1), offset

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.x, self.offset + other)

    def to(self, dtype: Any) -> Pointer:
        return self

    def read(self) -> Tensor:
        assert int(torch.as_tensor(self.offset).min()) >= 0, "before the beginning of a tensor"
        return self.x[self.offset]

    def write(self, x: Tensor) -> None:
        assert int(torch.as_tensor(self.offset).min()) >= 0, "before the beginning of a tensor"
        self.x[self.offset] = x


class Buffer:
    """Shared memory."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.dtype = x, x.dtype

    def index(self, i: Any) -> Buffer:
        return Buffer(self.x[int(i)])

    def reshape(self, shape: list[int]) -> Buffer:
        return Buffer(self.x.view(shape))

    def permute(self, order: tuple[int, ...]) -> Buffer:
        return Buffer(self.x.permute(order))

    def load(self, layout: Any) -> Tensor:
        return self.x.clone()

    def store(self, x: Tensor) -> None:
        self.x.copy_(x)


class Barriers:
    def __init__(self, n: int) -> None:
        self.all = [self] if n == 1 else [Barriers(1) for _ in range(n)]

    def index(self, i: Any) -> Barriers:
        return self.all[int(i)]

    def init(self, count: int) -> None:
        self.count = self.pending = count
        self.bytes = self.phases = 0

    def turn(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.pending, self.phases = self.count, self.phases + 1


class Product:
    """A matrix product that runs beside other work."""

    def __init__(self, a: Any, b: Any, accumulator: Any, use_acc: bool) -> None:
        self.operands, self.use_acc, self.result, self.is_finished = (a, b, accumulator), use_acc, None, False

    def run(self) -> None:
        if self.result is None:
            a, b, accumulator = self.operands
            a, b = (x.x if isinstance(x, Buffer) else x for x in (a, b))
            self.result = a.float() @ b.float()
            if self.use_acc:
                self.result += accumulator.result if isinstance(accumulator, Product) else accumulator


class EmulatedDescriptor:
    def __init__(self, x: Tensor, rows: int) -> None:
        self.x, self.rows, self.dtype, self.layout = x, rows, x.dtype, None

    def tile(self, place: list[int]) -> Tensor:
        if self.x.ndim == 3:  # numbers of queries
            assert place[1] + self.rows <= self.x.shape[2]
            return self.x.flatten(0, 1)[place[0], place[1] : place[1] + self.rows][None]
        b, h, start, _ = place
        tile = torch.zeros(self.rows, self.x.shape[3], dtype=self.dtype)
        rows = self.x[b, h, start : start + self.rows]
        tile[: rows.shape[0]] = rows
        return tile

    def store(self, place: list[int], tile: Tensor) -> None:
        b, h, start, _ = place
        rows = self.x[b, h, start : start + self.rows]
        rows.copy_(tile.view(-1, tile.shape[-1])[: rows.shape[0]])


class EmulatedDescriptors:
    describe = EmulatedDescriptor
