"""Provenance: what is hashed, and that git facts come from a checkout of this project alone."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import whence
from whence import records
from whence.records.environment import checkout_of

PACKAGE = Path(whence.__file__).parent
DESCRIBE = "import json, whence.records as r; print(json.dumps(r.describe_environment()))"


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *identity, "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def copy_of_the_package(folder):
    """The record store alone, importable without torch."""
    target = folder / "whence"
    shutil.copytree(PACKAGE / "records", target / "records", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE / "errors.py", target)
    (target / "__init__.py").write_text("")
    return target


def described(path, **variables):
    given = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "WHENCE_COMMIT")}
    command = [sys.executable, "-c", DESCRIBE]
    done = subprocess.run(
        command, cwd=path, env=given | {"PYTHONPATH": str(path)} | variables, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture
def project(tmp_path):
    """A checkout of this project, with the store alone as its package."""
    package = copy_of_the_package(tmp_path / "project" / "src")
    root = package.parent.parent
    (root / "pyproject.toml").write_text('[project]\nname = "whence"\n')
    (root / ".gitignore").write_text("__pycache__/\n")  # as in the project's own
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "all")
    return root


def test_a_checkout_of_this_project_has_its_commit(project):
    result = described(project / "src")
    assert result["commit"] == git(project, "rev-parse", "HEAD") and result["uncommitted_changes"] is False
    (project / "src/whence/errors.py").write_text("# changed\n" + (project / "src/whence/errors.py").read_text())
    changed = described(project / "src")
    assert changed["uncommitted_changes"] is True and changed["source_hash"] != result["source_hash"]


@pytest.mark.parametrize("place", ["site-packages", "src"])
def test_an_environment_inside_another_repository_has_no_commit(tmp_path, place):
    copy_of_the_package(tmp_path / place)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\n')
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "all")
    result = described(tmp_path / place)
    assert (result["commit"], result["uncommitted_changes"]) == (None, None) and len(result["source_hash"]) == 64


def test_unpacked_sources_inside_another_repository_have_no_commit(project):
    shutil.rmtree(project / ".git")
    git(project.parent, "init", "-q")
    assert described(project / "src")["commit"] is None


def test_the_commit_can_be_handed_over(project):
    result = described(project / "src", WHENCE_COMMIT="abc123-dirty")
    assert (result["commit"], result["uncommitted_changes"]) == ("abc123", True)
    assert described(project / "src", WHENCE_COMMIT="abc123")["uncommitted_changes"] is False


def test_the_hash_is_of_the_imported_package_wherever_it_is(project, tmp_path):
    installed = tmp_path / "site-packages"
    copy_of_the_package(installed)
    assert described(installed)["source_hash"] == described(project / "src")["source_hash"]
    total = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        total.update(path.relative_to(PACKAGE.parent).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    assert records.source_hash() == total.hexdigest()


def test_modules_outside_the_package_are_hashed_too(tmp_path, monkeypatch):
    (tmp_path / "my_task.py").write_text("A = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = records.describe_environment(sources=["my_task", "whence.lab.tasks", "my_task.inner"])
    assert result["other_source_hashes"] == {"my_task": hashlib.sha256(b"my_task.py\0A = 1\n\0").hexdigest()}
    assert "other_source_hashes" not in records.describe_environment(sources=["whence.lab.tasks"])


def test_versions_of_what_is_not_installed_are_left_out():
    result = records.describe_environment(("torch", "no-such-package"), accelerator="Some GPU")
    assert set(result["packages"]) == {"whence", "torch"} and result["machine"]["accelerator"] == "Some GPU"


def test_only_a_package_below_src_can_be_a_checkout(tmp_path):
    assert checkout_of(None) is None and checkout_of(tmp_path / "lib" / "whence") is None


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["/usr/bin/whence", "run", "a study", "--jobs", "2"], "whence run 'a study' --jobs 2"),
        (["/lib/whence/__main__.py", "compare"], "whence compare"),
        (["script.py", "--fast"], None),
        ([""], None),
    ],
)
def test_the_command_comes_from_the_command_line_of_whence_alone(monkeypatch, arguments, command):
    monkeypatch.setattr(sys, "argv", arguments)
    assert records.rerun_command() == command
    assert records.rerun_command("python mine.py") == "python mine.py"
