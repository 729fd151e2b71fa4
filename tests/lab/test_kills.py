"""A study that is killed at random moments and resumed ends with the records of an undisturbed one."""

import subprocess
import sys
from pathlib import Path

from whence import records

ROOT = Path(__file__).resolve().parents[2]


def test_killed_and_resumed_records_equal_undisturbed_ones(tmp_path):
    order = [sys.executable, ROOT / "benchmarks" / "kills.py", "--kills", "6", "--seed", "3", "--out"]
    done = subprocess.run([*order, tmp_path / "kills.json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = records.read(tmp_path / "kills.json")
    assert result["kills"] == 6 and result["different"] == [] and result["files_compared"] >= 12


def test_the_committed_record_has_kills_in_every_phase():
    result = records.read(ROOT / "benchmarks" / "records" / "kills.json")
    assert result["kills"] >= 100 and result["kills"] == sum(result["by_phase"].values())
    assert result["different"] == [] and min(result["by_phase"].values()) >= 1
    assert result["files_compared"] >= 12 * result["studies"]
