"""Small wrong changes of the sources must make tests fail.

A mutant costs half a second and more, so the suite runs every sixth of the list. ``make mutants`` runs them all.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import MUTANTS, ROOT, find_source

SHARES = 6
RUN = range(SHARES) if os.environ.get("WHENCE_ALL_MUTANTS") else [0]


@pytest.mark.parametrize("share", RUN)
def test_every_mutant_is_caught(share):
    script = Path(__file__).with_name("mutants.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(share), str(SHARES)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["unchanged"] == [0, ""], "a test fails without any change"
    survived = [m for m in outcome["mutants"] if m["exit"] != 1]
    assert not survived, json.dumps(survived, indent=1)


def test_every_mutant_names_a_line_of_the_sources_and_a_test():
    """Those that the suite does not run may not go out of date either."""
    packages = {"whence": ROOT / "src", "whence_papers": ROOT / "papers" / "src"}
    for file, old, new, tests in MUTANTS:
        path = find_source(file)
        assert old != new and old in (packages[path.parts[0]] / path).read_text(), f"{file}: {old}"
        name, _, function = tests[0].partition("::")
        assert function in (ROOT / name).read_text(), tests
