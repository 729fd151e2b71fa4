"""``whence mend``: all cures on the tiny model, cures by file, a spent budget, recipes, and errors in the options."""

import json

import pytest

from whence import WhenceError
from whence.cli.mend import (
    describe_short_searches,
    find_cure,
    load_cures,
    name_model,
    rebuild_cure,
    require_recipe_name,
)
from whence.hf import apply_recipe
from whence.mend import CURES, LogN, identify_intervention
from whence.mend.trial import distinguish_names, label_cure
from whence.probe import tiny_random_model
from whence.probe.probed_model import load

SMALL = ("--task", "key-value", "--items", "4", "--slots", "2")


@pytest.fixture
def mend_quick(run_whence):
    def run(*options):
        return run_whence("mend", "quick", *SMALL, "--out", "out", *options)

    return run


def test_a_cure_of_a_file_and_a_recipe(mend_quick, run_whence, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from whence.mend import LogN\n\nclass Mine(LogN):\n    name, title = 'mine', 'My cure'\n"
    )
    done = mend_quick("--cure", "./mine.py:Mine(trained=16)", "--recipe", "mine", "--json")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    recipe = json.loads((folder / "recipe.json").read_text())
    assert recipe["cure"] == "./cure_source/mine.py:Mine(form='log', strength=1.0, trained=16)"
    found = json.loads(done.stdout)
    assert [cure["verdict"] for cure in found["cures"]] == ["undecided"] and found["answer"]
    assert found["recipe"] == str(folder.relative_to(tmp_path) / "recipe.json")
    assert "recipe (undecided)" in done.stderr and "My cure" in (folder / "report.html").read_text()
    again = mend_quick("--cure", "log-n", "--cure", "./mine.py:Mine(trained=16)", "--budget", "1h")
    assert again.stderr.count("already measured") == 11 and "no recipe" in again.stdout
    assert "of an earlier command: ./cure_source/mine.py:Mine" in again.stdout  # it stays, and its verdict may be old
    check_moved_recipe(folder, tmp_path)
    (folder / "report.html").unlink()
    assert run_whence("report", "out").returncode == 0 and "2 cures were tried" in (folder / "report.html").read_text()


def check_moved_recipe(folder, tmp_path):
    """The folder of a recipe can be moved, and the cure's own file may be gone. Another source is refused."""
    moved = folder.rename(tmp_path / "moved")
    (tmp_path / "mine.py").rename(tmp_path / "gone.py")
    model = tiny_random_model().model
    with apply_recipe(model, moved / "recipe.json") as applied:
        assert applied.cure.title == "My cure" and applied.cure.trained == 16
    source = moved / "cure_source" / "mine.py"
    source.write_text(source.read_text() + "# changed\n")
    with pytest.raises(WhenceError, match=r"mine\.py.*source.*whence mend"):
        apply_recipe(model, moved)
    source.write_bytes((tmp_path / "gone.py").read_bytes())
    (tmp_path / "gone.py").rename(tmp_path / "mine.py")
    moved.rename(folder)


def test_a_spent_budget_gives_a_page_or_says_why(mend_quick, tmp_path):
    done = mend_quick("--cure", "log-n", "--budget", "0.001s")
    assert done.returncode == 2 and "larger --budget" in done.stderr and "run the same command to resume" in done.stderr
    assert "whence mend got quick-" in done.stderr
    with pytest.raises(WhenceError, match=r"^whence mend \./none got"):
        load("./none", command="whence mend")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--cure", "log-m"), ("log-m", "did you mean log-n?")),
        (("--cure", "log-n", "--cure", "log-n()"), ("--cure", "a cure twice")),
        (("--items", "3"), ("--items", "3 items", "4 or more")),
        (("--budget", "soon"), ("--budget", "'soon'", "20m")),
        (("--budget", "0s"), ("--budget", "'0s'", "above 0")),
        (("--score", "loudness"), ("whence mend --score", "loudness", "likelihood, generation")),
        (("--task", "key-vale", "--quick"), ("whence mend --task", "did you mean key-value?")),
    ],
)
def test_wrong_options(run_whence, options, parts):
    done = run_whence("mend", "quick", *options)
    assert done.returncode == 2 and all(part in done.stderr for part in parts), done.stderr


def test_a_recipe_of_a_cure_that_was_not_judged(mend_quick, tmp_path):
    for model, quick in (("", False), ("smollm2", True)):
        with pytest.raises(WhenceError, match=r"whence mend.*(name one, such as smollm2|smollm2 too)"):
            name_model(model, quick)
    assert name_model("", True) == name_model("quick", True) == "quick"
    done = mend_quick("--cure", "log-n", "--recipe", "pine")
    assert done.returncode == 2 and "--recipe got pine" in done.stderr and "log-n" in done.stderr
    two = [LogN(trained=16), LogN(trained=32)]
    labels = [label_cure(cure) for cure in two]
    names = distinguish_names({label: identify_intervention(cure) for label, cure in zip(labels, two, strict=True)})
    known = [{"label": label, "name": "log-n", "display_name": names[label]} for label in labels]
    assert find_cure("log-n(trained=32)", known, labels) is known[1] and find_cure("pine", known, labels) is None
    assert find_cure("log-n", known, labels[1:]) is known[1]  # the only one of this command
    with pytest.raises(WhenceError, match=r'--recipe got log-n,.*"log-n\(trained=16\)", "log-n\(trained=32\)"'):
        require_recipe_name("log-n", tmp_path / "none", two)


def test_the_cure_of_an_earlier_command():
    """A built-in cure is built from its record. One of a file needs the file."""
    cure = LogN(trained=16)
    chosen = {"name": "log-n", "label": label_cure(cure), "chosen": identify_intervention(cure)}
    assert rebuild_cure(chosen, []).settings() == cure.settings()
    assert rebuild_cure({**chosen, "name": "mine"}, []) is None
    own = {**chosen["chosen"], "class": "Mine", "source_sha256": "0" * 64}
    assert rebuild_cure({**chosen, "chosen": own}, []) is None  # a cure of a file with the name of a built-in one


def test_all_cures_by_default():
    for short in (True, False):
        assert [cure.name for cure in load_cures(None, short=short)] == list(CURES)
    (note,) = describe_short_searches(None)
    assert "scale-channel and calibration: short searches" in note and '"scale-channel()"' in note


def test_a_named_cure_searches_shortly_on_a_cpu_unless_it_has_settings():
    (short,), (note,) = load_cures(["scale-channel"], short=True), describe_short_searches(["scale-channel"])
    assert short.texts == 2 and "short search" in note and '"scale-channel()"' in note
    assert not describe_short_searches(["scale-channel()", "log-n"])
    for text, on_cpu in (("scale-channel()", True), ("scale-channel", False)):
        assert load_cures([text], short=on_cpu)[0].texts == 200
