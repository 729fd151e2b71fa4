"""The fused GPU backend: Triton kernels for attention with distance tables, their gradients, and decoding.

Nothing here imports triton until a kernel runs: ``backend`` and ``ops`` are plain torch, the other modules hold kernels.
"""
