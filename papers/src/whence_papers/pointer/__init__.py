"""Pointer-generator models, coverage, and next-location prediction."""
