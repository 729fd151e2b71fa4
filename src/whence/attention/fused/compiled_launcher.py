"""What is below Triton's launcher: the C function that launches a compiled kernel, and the form in which it takes arguments.

Triton's own launcher goes through all arguments of a kernel with TMA descriptors and encodes each descriptor for the GPU, in
every launch. On the host that takes longer than everything else of a launch together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import triton

VERSION = tuple(map(int, triton.__version__.split(".")[:2]))
#: versions of Triton whose compiled kernels take their arguments as ``DirectLaunch`` passes them
KNOWN_VERSIONS = ((3, 6), (3, 7))


class Slot:
    """A descriptor among the arguments of one kernel."""

    __slots__ = ("_make", "_metadata")

    def __init__(self, make: Callable[[Any, Any], list[Any]], metadata: Any) -> None:
        self._make, self._metadata = make, metadata

    def expand(self, descriptor: Any) -> tuple[Any, ...]:
        """What the C function takes for a descriptor, kept with it if its address stays; see ``Descriptors``."""
        expanded = tuple(self._make(descriptor, self._metadata))
        maps = getattr(descriptor, "maps", None)
        if maps is not None:
            maps[self] = expanded
        return expanded


class CompiledLauncher(NamedTuple):
    """The C function of a compiled kernel. It takes the grid, the stream, ``head`` and the arguments of the kernel."""

    launch: Callable[..., None]
    head: tuple[Any, ...]
    as_sequence: bool  # whether the arguments of the kernel are one sequence
    slots: tuple[tuple[int, slice, Slot], ...]  # the descriptors by their place among the arguments, the last first


def find_launcher(compiled: Any) -> CompiledLauncher | None:
    """The launcher below Triton's, for a compiled kernel that has been launched; None if Triton is not as expected."""
    try:
        return _find_launcher(compiled)
    except (AttributeError, KeyError, ValueError):
        return None


def _find_launcher(compiled: Any) -> CompiledLauncher | None:
    run = compiled._run
    if type(run).__name__ != "CudaLauncher" or run.global_scratch_size or run.profile_scratch_size:
        return None
    flags, packed = (run.launch_cooperative_grid, run.launch_pdl), compiled.packed_metadata
    head: tuple[Any, ...] = (compiled.function, *flags)
    if VERSION == (3, 6):  # two scratch buffers; then metadata of the launch and two hooks
        head += (None, None, packed, None, None, None)
    elif VERSION == (3, 7):
        head += (packed, None, None, None, None, None, run.arg_annotations, run.kernel_signature)
    else:
        return None
    launch = run.launch
    slots: tuple[tuple[int, slice, Slot], ...] = ()
    if getattr(launch, "__name__", "") == "inner":  # Triton's wrapper, for a kernel with descriptors
        names = zip(launch.__code__.co_freevars, launch.__closure__, strict=True)
        kept = {name: cell.cell_contents for name, cell in names}
        make, indices = launch.__globals__["make_tensordesc_arg"], sorted(kept["tensordesc_indices"])
        metadata = reversed([*zip(indices, kept["tensordesc_meta"], strict=True)])
        launch = kept["launcher"]
        slots = tuple((index, slice(index, index + 1), Slot(make, one)) for index, one in metadata)
    if hasattr(launch, "__code__"):  # not a C function, so one more wrapper
        return None
    return CompiledLauncher(launch, head, VERSION == (3, 7), slots)
