"""Log-n temperature: the published numbers, and the checks of every cure."""

import cure_checks as checks
import pytest
import torch

from whence import WhenceError
from whence.mend.log_n import LogN, query_factor


def test_published_factors():
    def factor(form, trained, *positions):
        return [round(float(query_factor(torch.tensor(float(p)), trained, form)), 4) for p in positions]

    assert factor("llama4", 8192, 8190, 8191, 131071) == [1, 1.0693, 1.2833]
    assert factor("ministral3", 16384, 16383, 16384) == [1, 1.0693]
    assert factor("inkling", 8192, 16383, 131071) == [1.0693, 1.2773]
    assert factor("log", 1024, 1022, 1024**2 - 1) == [1, 2]


@pytest.mark.parametrize("family", checks.FAMILIES)
def test_every_check(family):
    checks.check_cure(LogN(trained=4), family, identity=LogN(trained=4, strength=0))


def test_bad_settings():
    with pytest.raises(WhenceError, match="form"):
        LogN(form="cube")
    with pytest.raises(WhenceError, match="trained"):
        LogN(trained=1)
