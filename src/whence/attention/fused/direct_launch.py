"""``DirectLaunch``: launch a compiled kernel without Triton's argument binding, which costs more than the launch itself.

The first launch goes through Triton, which compiles the kernel or finds it. Later launches reuse the compiled kernel. Its
specialization is then not checked again, so the caller keeps one ``DirectLaunch`` for each combination of strides, dtypes
and compile-time arguments, and passes pointers that are aligned to 16 bytes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

#: versions of Triton whose compiled kernels take their arguments as ``DirectLaunch`` passes them
KNOWN_VERSIONS = ((3, 6), (3, 7))


class DirectLaunch:
    """One kernel with fixed compile-time arguments and launch options; call it with a grid and the other arguments."""

    __slots__ = ("_compiled", "_values", "constants", "device", "kernel", "options")

    def __init__(self, kernel: Any, constants: dict[str, Any], options: dict[str, Any], device: torch.device) -> None:
        names = kernel.arg_names  # compile-time arguments come last
        assert set(names[-len(constants) :]) == set(constants), f"{kernel.__name__} takes {names[-len(constants) :]}"
        self.kernel, self.options, self.device = kernel, options, device
        self.constants = {name: constants[name] for name in names if name in constants}
        self._compiled: Any = None
        self._values = tuple(self.constants.values())

    def __call__(self, programs: int, *arguments: Any) -> None:
        compiled = self._compiled
        if compiled is None:
            self._launch_first(programs, arguments)
            return
        hooks = triton.knobs.runtime
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        if hooks.launch_enter_hook is None or not hooks.launch_enter_hook.calls:
            compiled._run(
                programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *arguments,
                *self._values,
            )  # fmt: skip
        else:  # a profiler listens
            compiled[(programs, 1, 1)](*arguments, *self._values, stream=stream)

    def _launch_first(self, programs: int, arguments: tuple[Any, ...]) -> None:
        compiled = self.kernel[(programs,)](*arguments, **self.constants, **self.options)
        known = tuple(map(int, triton.__version__.split(".")[:2])) in KNOWN_VERSIONS
        if known and hasattr(compiled, "packed_metadata"):  # the interpreter returns nothing
            self._compiled = compiled


def wait_for_gpu(device: torch.device) -> None:
    """Wait until a tensor that a plan keeps is complete: a later call may read it in another stream."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
