"""``whence doctor`` and ``whence show``."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_doctor_knows_what_each_extra_has(run_whence, monkeypatch):
    from whence.cli import doctor

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = [f"{line}; extra == '{extra}'" for extra, packages in declared.items() for line in packages]
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: lines)
    assert set(declared) - {"dev", "all"} == set(doctor.PURPOSES)
    assert {"accelerate", "datasets", "pooch", "scipy"} <= set(doctor.list_extras()["lab"])
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "datasets" else "1")
    output = run_whence("doctor").stdout
    assert 'studies: missing datasets; run: pip install "whence[lab]"' in output and "models: complete" in output


def test_doctor_and_show(run_whence, tmp_path):
    assert "extra lab, for tasks, training and studies: " in run_whence("doctor").stdout
    done = run_whence("show", "alibi")
    assert done.returncode == 0 and (tmp_path / "position.png").stat().st_size > 1000
