"""The fused GPU backend: Triton kernels for attention with distance tables, their gradients, and decoding.

Nothing here imports triton until a kernel runs: ``backend`` chooses tables and derivatives, ``ops`` are torch's operators;
behind them ``launch`` starts the kernels, which the other modules hold with their tiles, tables and masks.
"""
