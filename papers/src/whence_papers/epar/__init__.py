"""The EPAR framework: theory, experiments, adaptive attention, and when it helps."""
