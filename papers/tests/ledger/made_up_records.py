"""Records of studies that were never run, for the tests of claims."""

from whence import records
from whence.lab.arms import Arm
from whence.lab.study_folder import study_folder, write_spec

ARMS = (Arm("sinusoidal", "Sinusoidal()"), Arm("ALiBi, 1.1", "Alibi(scale=1.1)"))

#: what every record has besides its run and its result
FACTS = {
    "parameters": 1, "wall_seconds": 1.0, "started": "2026-01-01T00:00:00+00:00", "environment": {},
    "numbers": {"before": {}, "after": {}},
}  # fmt: skip


def write_records(results, spec, values, diverged=(), split="test"):
    """A record a run, as the runner writes them; values by arm, one number or a series a seed."""
    folder = study_folder(spec, results)
    write_spec(spec, folder)
    for run in spec.runs():
        if run.seed >= len(values.get(run.arm.name, ())):
            continue
        series = values[run.arm.name][run.seed]
        series = series if isinstance(series, list) else [series]
        result = {
            "status": "done", "losses": [],
            "evaluations": [{"step": n + 1, "splits": {split: {"value": v}}} for n, v in enumerate(series)],
        }  # fmt: skip
        if run.seed in diverged:
            result = {"status": "diverged", "step": 3, "reason": "NaN", "last_good_checkpoint": None}
        records.write(
            folder / run.file_name,
            {"hash": spec.hash, "arm": run.arm.name, "seed": run.seed, "result": result, **FACTS},
        )
    return folder
