"""The tutorials of docs/: their code runs, and it prints what they show."""

import doctest

import pytest

import tutorials


def test_outputs_are_compared_by_words_and_numbers():
    assert doctest.testmod(tutorials).failed == 0
    assert not tutorials.same_output("a 1", "a 1 2") and not tutorials.same_output("", "a")


@pytest.mark.parametrize("page", tutorials.TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_prints_what_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    shown = 0
    for match, printed in tutorials.run_blocks(page.read_text(), page.name):
        assert tutorials.same_output(printed, match["output"] or ""), f"run: python tools/tutorials.py\n{printed}"
        shown += bool(printed)
    assert shown
