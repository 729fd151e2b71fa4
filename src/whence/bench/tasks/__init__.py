"""The declared benchmarks: where their files are, how they are read, and how answers are scored."""
