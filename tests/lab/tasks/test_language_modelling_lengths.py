"""Evaluation lengths of language modelling on a short text."""

import pytest

from whence import WhenceError
from whence.lab import tasks


def load(folder, words, **settings):
    path = folder / "short.txt"
    path.write_text(" ".join(f"w{number % 7}" for number in range(words)) + "\n")
    return tasks.load("text_file", path=str(path), tokens="words", context=16, **settings)


def test_smaller_lengths_help_a_short_text(tmp_path):
    with pytest.raises(WhenceError, match=r"tokens of test text.*8x.*8 x 16 \+ 1 = 129; .*--lengths 1x"):
        load(tmp_path, 600)
    task = load(tmp_path, 600, lengths=[1, 2])
    assert task.split_length("2x") == 32 and "8x" not in task.splits() and task.settings["longest"] == 2
    assert all(batch.tokens.shape[1] == 32 for batch in task.evaluation("2x"))


def test_a_long_text_is_scored_on_the_same_blocks_for_all_lengths_up_to_eight(tmp_path):
    few, usual = load(tmp_path, 6000, lengths=[1]), load(tmp_path, 6000)
    assert few.starts.tolist() == usual.starts.tolist() and "longest" not in few.settings
