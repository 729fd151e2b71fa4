import pytest

from whence.attention.fused import backend


@pytest.fixture(autouse=True)
def short_texts_skip_too(monkeypatch):
    """Skipping pays for long texts only, and is tested with short ones."""
    monkeypatch.setattr(backend, "SKIPS_BEYOND", 0)
