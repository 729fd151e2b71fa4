"""The whole ledger, judged once: reading all records takes seconds."""

import pytest

from whence_papers import FOLDER
from whence_papers.ledger.command import judge_all


@pytest.fixture(scope="session")
def judged_ledger():
    """Every claim with its verdict. To be copied before it is changed."""
    return judge_all(FOLDER / "claims", FOLDER / "results")
