"""``DirectLaunch``: launch a compiled kernel without Triton's argument binding, which costs more than the launch itself.

The first launch goes through Triton, which compiles the kernel or finds it. Later launches reuse the compiled kernel. Its
specialization is then not checked again, so the caller keeps one ``DirectLaunch`` for each combination of strides, dtypes
and compile-time arguments, and passes pointers that are aligned to 16 bytes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from whence.attention.fused.compiled_launcher import KNOWN_VERSIONS, VERSION, CompiledLauncher, find_launcher


class DirectLaunch:
    """One kernel with fixed compile-time arguments and launch options; call it with a grid and the other arguments."""

    __slots__ = ("_compiled", "_launcher", "_values", "constants", "device", "kernel", "options")

    def __init__(self, kernel: Any, constants: dict[str, Any], options: dict[str, Any], device: torch.device) -> None:
        names = kernel.arg_names  # compile-time arguments come last
        assert set(names[-len(constants) :]) == set(constants), f"{kernel.__name__} takes {names[-len(constants) :]}"
        self.kernel, self.options, self.device = kernel, options, device
        self.constants = {name: constants[name] for name in names if name in constants}
        self._compiled: Any = None
        self._launcher: CompiledLauncher | None = None
        self._values = tuple(self.constants.values())

    def __call__(self, programs: int, *arguments: Any) -> None:
        compiled = self._compiled
        if compiled is None:
            self._launch_first(programs, arguments)
            return
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        hook = triton.knobs.runtime.launch_enter_hook
        if hook is not None and hook.calls:  # a profiler listens
            compiled[(programs, 1, 1)](*arguments, *self._values, stream=stream)
            return
        if self._launcher is None:
            compiled._run(
                programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *arguments,
                *self._values,
            )  # fmt: skip
            return
        launch, head, as_sequence, slots = self._launcher
        flat = [*arguments, *self._values]
        for index, place, slot in slots:  # from the last on, so that places stay right
            descriptor = arguments[index]
            try:
                flat[place] = descriptor.maps[slot]
            except (AttributeError, KeyError):  # not kept, or not encoded yet
                flat[place] = slot.expand(descriptor)
        if as_sequence:
            launch(programs, 1, 1, stream, *head, flat)
        else:
            launch(programs, 1, 1, stream, *head, *flat)

    def _launch_first(self, programs: int, arguments: tuple[Any, ...]) -> None:
        compiled = self.kernel[(programs,)](*arguments, **self.constants, **self.options)
        if VERSION in KNOWN_VERSIONS and hasattr(compiled, "packed_metadata"):  # the interpreter returns nothing
            self._launcher = find_launcher(compiled)
            self._compiled = compiled


def wait_for_gpu(device: torch.device) -> None:
    """Wait until a tensor that a plan keeps is complete: a later call may read it in another stream."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
