"""The command line in this process, in an empty folder."""

import pytest


@pytest.fixture
def run_whence(tmp_path, monkeypatch, whence_here):
    """Run a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return whence_here
