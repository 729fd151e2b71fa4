"""The variants of the kernels that the trial compares."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
    """A variant of one of the kernels."""

    kernel: str  # dq or dkdv
    stages: int  # buffers of each input of the inner loop
    keys: int = 64  # of a step, in the dq kernel
    turns: bool = False  # the consumers begin their products in turn
    prefetch: bool = False  # tables, for the next step
    held: int = 0  # of the left operands q and do, how many the dq kernel holds in registers
    ahead: bool = False  # the dq kernel begins the next step's scores before this step's gradients

    @property
    def name(self) -> str:
        keys = [f"{self.keys} keys"] if self.kernel == "dq" else []
        held = [f"{self.held} held"] if self.held else []
        others = [name for name in ("turns", "ahead", "prefetch") if getattr(self, name)]
        return ", ".join([self.kernel, *keys, f"{self.stages} stages", *held, *others])


CONFIGS = (
    Config("dkdv", 2),
    Config("dkdv", 3),
    Config("dkdv", 3, turns=True),
    Config("dkdv", 3, prefetch=True),
    Config("dq", 3, ahead=True),
    Config("dq", 3, ahead=True, prefetch=True),
    Config("dq", 3, held=2),
    Config("dq", 3, held=2, turns=True),
    Config("dq", 2, keys=128),
    Config("dq", 2, keys=128, turns=True),
)
