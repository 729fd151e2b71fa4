"""The learnable power-law prior in a Qwen-style model: its training text and its figure. The study is ``whence run prior``."""
