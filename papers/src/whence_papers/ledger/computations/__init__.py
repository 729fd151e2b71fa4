"""Computations that need no stored model. Each is a pure function of the arguments in the ledger, under the ledger's name."""

from collections.abc import Callable
from typing import Any

from whence_papers.ledger.computations import arithmetic, counts, epar, mechanisms, pointer, spline

COMPUTATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for module in (arithmetic, counts, epar, mechanisms, pointer, spline)
    for function in module.COMPUTATIONS
}
