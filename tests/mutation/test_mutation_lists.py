"""The lists of modules, tests and equivalent mutants name sources and tests that exist."""

import json
from pathlib import Path

import pytest
from mutation_runs import SOURCES, TEST_FOLDER
from mutation_sites import mutants_of

import mutation

EQUIVALENTS = json.loads(Path(__file__).with_name("equivalents.json").read_text())["mutants"]


def test_every_pattern_names_modules_and_tests():
    for folder, patterns in ((SOURCES, mutation.MODULES), (TEST_FOLDER, mutation.ASKED)):
        assert [pattern for pattern in patterns if not list(folder.glob(pattern))] == []
    named = {file for files in mutation.TESTS.values() for file in files} | mutation.NEVER
    assert [file for file in sorted(named) if not (TEST_FOLDER / file).is_file()] == []
    assert [file for file in mutation.LEFT_OUT if not (SOURCES / file).is_file()] == []


def test_every_module_has_tests_named_for_it():
    modules = mutation.modules([])
    assert {"plugins.py", "mend/protocol.py", "checks/hooks.py", "records/folder.py", "probe/plan.py"} <= set(modules)
    selected = set(mutation.select_files([]))
    assert [module for module in modules if not selected.intersection(mutation.files_for(module))] == []


@pytest.mark.parametrize("entry", EQUIVALENTS, ids=lambda entry: entry["id"])
def test_every_equivalent_is_a_mutant_of_the_sources(entry):
    path = SOURCES / entry["file"]
    assert path.is_file()
    result = mutants_of(entry["file"], path.read_text(), entry["function"])
    same = [m.id for m in result if all(getattr(m, k) == entry[k] for k in ("original", "mutated"))]
    assert entry["id"] in same, f"its id is now one of {same}"
