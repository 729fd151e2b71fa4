"""Without a GPU the fused kernels are tested under Triton's interpreter, in the same process as everything else.

Triton decides while it is imported, and while a kernel is decorated, whether kernels are compiled or interpreted. Some
other test or a library may import it first, so it is imported here, before any test, with the variable set. The variable
then goes again, because whence reads it at each call: the rest of the suite must see a CPU as users see it, where the
triton backend is closed. Tests that want the interpreter ask for the fixture ``interpreted`` (tests/attention/fused),
which sets it back. On a machine with a GPU nothing happens here, and the kernels are compiled.
"""

import importlib
import importlib.util
import os

import torch

if not torch.cuda.is_available() and importlib.util.find_spec("triton") is not None:
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        importlib.import_module("whence.attention.fused.launch")  # triton itself, and every kernel
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before
