"""The rows of benchmarks/gpu.py run end to end without a GPU, at tiny sizes, and a record keeps what was measured."""

import json
import signal
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import gpu_rows

    if gpu_rows.DEVICE != "cpu":
        pytest.skip("a dry run is for machines without a GPU")
    return gpu_rows


def test_a_dry_run_checks_times_and_records(rows, monkeypatch, tmp_path, capsys):
    import gpu
    import gpu_measure
    import gpu_models

    monkeypatch.setattr(gpu_models, "POSITIONS", {name: gpu_models.POSITIONS[name] for name in ("sdpa", "epar")})
    broken = gpu_measure.relative_errors
    monkeypatch.setattr(
        gpu_measure,
        "relative_errors",
        lambda name, shape: broken(name, shape) | ({"out": 1.0} if name == "shaw" else {}),
    )
    out = tmp_path / "rows.json"
    names = ["query length", "content", "model prefill"]
    gpu.main(["--rows", *names, "--dry-run", "--budget", "0.001", "--out", str(out)])
    record = json.loads(out.read_text())
    assert list(record["rows"]) == names
    timed = {
        result["variant"]: "milliseconds" in result for row in record["rows"].values() for result in row["variants"]
    }
    assert all(timed[name] for name in ("flash", "fire", "fire, frozen", "epar, query", "cope", "sdpa", "epar"))
    assert not timed["shaw"]  # its comparison failed, so it has no time
    printed = capsys.readouterr().out
    assert "Shaw's relative keys and values                   wrong: the comparison with float64 failed" in printed
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    import gpu_row_tables

    (head, lengths), (_, content), (_, models) = gpu_row_tables.row_tables(record)
    assert head[0] == "1 x 4/2 heads, 24 tokens, head dim 16"
    assert lengths[0][2].endswith(" ms") and lengths[2][2].endswith(
        "x"
    )  # eager: the first line in ms, others as ratios
    assert ["Shaw's relative keys and values", "wrong: the comparison with float64 failed", "", ""] in content
    assert models[1][0] == "EPAR attached, learnable" and models[1][1].endswith("x")


def test_a_row_over_its_time_limit_keeps_what_was_measured(rows, monkeypatch):
    def slow(results, budget, report_progress):
        results[0]["milliseconds"] = {}
        time.sleep(5)

    monkeypatch.setattr(rows, "measure", slow)
    results = [{"variant": "flash"}, {"variant": "epar"}]
    rows.measure_row("short", rows.ROWS["short"], results, 0.1, 0.05)
    assert results == [
        {"variant": "flash", "milliseconds": {}},
        {"variant": "epar", "left_out": "over the time limit of 0.05 s"},
    ]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_targets_are_compared_with_the_largest_ratio(rows, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    import gpu_targets

    def timed(name, device, eager=1.0):
        return {"variant": name, "milliseconds": {"both": {"device": [device], "eager": [eager]}}}

    clocks = {
        "clock 64": [timed("alibi", 2.0), timed("clock", 2.1)],
        "clock 128": [timed("alibi", 2.0), timed("clock", 2.6)],
    }
    rotated = {
        "rotary 512": [
            timed("alibi", 1.0),
            timed("rotary + alibi", 1.1),
            timed("epar", 1.0),
            {"variant": "rotary + epar"},
        ]
    }
    spec = {"variants": {"clock": "clock: gates"}, "models": {}}
    record = {"spec": spec, "rows": {name: {"variants": variants} for name, variants in (clocks | rotated).items()}}
    table = {cells[0]: cells[2:] for cells in gpu_targets.target_table(record)[1]}
    assert table["a clock, over ALiBi"] == ["1.30, clock: gates (clock 128)", "missed", "clock: gates (clock grouped)"]
    assert table["rotary and a bias, over the same bias alone"][:2] == [
        "1.10, rotary + alibi (rotary 512)",
        "met so far",
    ]
    assert table["head dim 256, over flash"][:2] == ["-", "not measured"]
    for target in gpu_targets.TARGETS:  # every row and variant of a target is measured by the benchmark
        for row in map(rows.ROWS.get, target.rows):
            measured = set(row.variants) if row.variants else set(rows.gpu_models.POSITIONS)
            assert measured >= set(target.variants) and (target.base in measured or target.base.endswith(" "))
