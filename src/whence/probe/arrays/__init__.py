"""Measures of position in captured arrays. All are functions of tensors and need no model."""
