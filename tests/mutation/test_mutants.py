"""Small wrong changes of the sources must make tests fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARES = 2  # each starts a process, and CI has two cores


@pytest.mark.parametrize("share", range(SHARES))
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
