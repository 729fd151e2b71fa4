"""A finished probe of the tiny model."""

import pytest
from small_probe import PLAN

from whence.probe import analyses, measurement
from whence.probe.probed_model import tiny_random_model


@pytest.fixture(scope="session")
def probed(tmp_path_factory):
    base = tmp_path_factory.mktemp("probe")
    lm, output = tiny_random_model(layers=2), []
    folder, result = measurement.measure(lm, PLAN, base, lambda *about: output.append(about))
    analyses.explain(lm, PLAN, folder, lambda *about: None)
    return base, folder, result, output
