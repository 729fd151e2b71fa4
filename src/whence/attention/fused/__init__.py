"""The fused GPU backend: Triton kernels for attention with distance tables, their gradients, and split-k decode.

triton is imported when a kernel first runs. ``backend`` evaluates a mechanism to tables, ``ops`` holds the torch
operators, ``launch`` starts the kernels: ``forward``, ``backward_dq``, ``backward_dkdv``, ``backward_tables`` and
``decode``.
"""
