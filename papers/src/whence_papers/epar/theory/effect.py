"""EPAR's numbers in double precision, with gradients: the formula itself stays in ``whence.position.epar``.

A ``Setting`` is one choice of the numbers. ``epar`` takes them as a tensor, so that autograd reaches them and a grid of
many settings is one attention with as many heads.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.position.epar import Epar

#: the numbers of each form, in the order of a tensor's last axis
NUMBERS = {"basic": ("alpha", "beta"), "enhanced": ("alpha", "beta", "gamma")}


@dataclass(frozen=True)
class Setting:
    """One choice of EPAR's numbers. The basic form has no gamma and leaves it unread.

    >>> Setting().numbers(), Setting().basic().numbers()
    (tensor([1.0000, 1.0000, 0.5000], dtype=torch.float64), tensor([1., 1.], dtype=torch.float64))
    """

    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 0.5
    form: str = "enhanced"

    def __post_init__(self) -> None:
        Epar(**asdict(self))  # for its refusals

    def numbers(self) -> Tensor:
        return torch.tensor([getattr(self, name) for name in NUMBERS[self.form]], dtype=torch.float64)

    def basic(self) -> Setting:
        return replace(self, form="basic")

    def enhanced(self) -> Setting:
        return replace(self, form="enhanced")

    def position(self, length: int) -> Epar:
        """The mechanism with these numbers, in double precision; L is the given length."""
        return epar(self.numbers(), length, self.form)

    @property
    def floor(self) -> float:
        """What the factor tends to as the distance grows without end."""
        if self.beta == 0:
            return self.alpha
        return 0.0 if self.form == "basic" else self.alpha / (1 + self.gamma)

    @property
    def steepness(self) -> float:
        """The slope of the factor at distance 0, in units of 1 / L, without its sign: its largest anywhere."""
        share = 1.0 if self.form == "basic" else self.gamma / (1 + self.gamma)
        return self.alpha * self.beta * share


#: the source's class signature; its text and its protocol file say ``Setting()``
_code = Epar.CODE_DEFAULTS
CODE_DEFAULTS = Setting(alpha=_code["alpha"], beta=_code["beta"], gamma=_code["gamma"])


def epar(numbers: Tensor, length: int, form: str = "enhanced") -> Epar:
    """The mechanism whose numbers are ``[2 or 3]``, or ``[n, 2 or 3]`` for n heads; gradients reach the tensor.

    >>> epar(torch.tensor([1.0, 1.0, 0.5]), 100).score_scale(torch.tensor([100.0]).double(), 100)
    tensor([0.7893], dtype=torch.float64)
    """
    names = NUMBERS.get(form, ())
    if numbers.ndim not in (1, 2) or numbers.shape[-1] != len(names):
        raise usage_error(
            "epar(numbers, form)",
            f"shape {tuple(numbers.shape)} for form {form!r}",
            "the last axis holds (alpha, beta) for 'basic' and (alpha, beta, gamma) for 'enhanced'",
            "give these numbers, or one row of them a head",
        )
    numbers = numbers.to(torch.float64)
    heads = None if numbers.ndim == 1 else numbers.shape[0]
    made = Epar(heads, form=form, context=length).to(numbers.device)
    for column, name in enumerate(names):
        # a Quantity holds what it is given in single precision; the numbers themselves take its place
        getattr(made, name).fixed = numbers[..., column] if heads is None else numbers[:, column, None]
    return made


def factor(distance: Tensor, length: int, setting: Setting) -> Tensor:
    """The position effect at distances of any shape, in double precision."""
    flat = distance.to(torch.float64).reshape(-1)
    return setting.position(length).score_scale(flat, length).reshape(distance.shape)
