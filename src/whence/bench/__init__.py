"""Benchmarks of pretrained models through lm-evaluation-harness, over local files.

``tasks`` declares the benchmarks. ``harness`` runs one task, ``bench_folder`` keeps its records, ``findings`` reads them.
"""

from whence.bench.tasks.catalogue import BENCHMARKS, Subset

__all__ = ["BENCHMARKS", "Subset"]
