"""Computations that need no training, each a pure function of what the ledger gives it, by the name the ledger uses."""

from collections.abc import Callable
from typing import Any

from whence_papers.ledger.computations import (
    epar_attention,
    epar_factor,
    optimal_position,
    order,
    parameters,
    pointing,
    prior,
    rotary,
    slopes,
    speeches_data,
    tables,
)

COMPUTATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for module in (
        tables, epar_factor, epar_attention, optimal_position, parameters, pointing, prior, rotary, order, slopes,
        speeches_data,
    )
    for function in module.COMPUTATIONS
}  # fmt: skip
