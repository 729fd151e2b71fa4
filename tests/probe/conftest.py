"""A finished probe of the tiny model."""

import pytest
from small_probe import PLAN, load_findings

from whence.probe import analyses, measurement
from whence.probe.probed_model import tiny_random_model
from whence.report.probe import figures, page


@pytest.fixture(scope="session")
def probed(tmp_path_factory):
    base = tmp_path_factory.mktemp("probe")
    lm, output = tiny_random_model(layers=2), []
    folder, result = measurement.measure(lm, PLAN, base, lambda *about: output.append(about))
    analyses.explain(lm, PLAN, folder, lambda *about: None)
    return base, folder, result, output


@pytest.fixture(scope="session")
def probe_findings(probed):
    """Its findings. They carry the minute at which they were loaded, so tests that compare pages load them once."""
    return load_findings(probed)


@pytest.fixture(scope="session")
def drawn_page(probe_findings):
    """Its page, with all figures."""
    return page(probe_findings)


@pytest.fixture
def no_figures(monkeypatch):
    """Pages have tables instead of figures, and no image files are written: drawing takes longer than measuring."""
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    monkeypatch.setattr("whence.cli.probe_report.write_figures", lambda *about: None)
