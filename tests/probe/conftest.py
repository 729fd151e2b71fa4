"""A finished probe of the tiny model."""

import pytest
from small_probe import PLAN

from whence.probe import analyses, measurement
from whence.probe.probed_model import tiny_random_model


@pytest.fixture(scope="session")
def probed(tmp_path_factory):
    base = tmp_path_factory.mktemp("probe")
    lm, said = tiny_random_model(layers=2), []
    folder, found = measurement.measure(lm, PLAN, base, lambda *about: said.append(about))
    analyses.explain(lm, PLAN, folder, lambda *about: None)
    return base, folder, found, said
