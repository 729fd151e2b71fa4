"""``whence compare``: from options to records and a report.

Most commands run in this process. Three run in their own process, as a user's would.
"""

import subprocess
import sys

SMALL = ["--task", "retrieval", "--position", "none", "--position", "alibi", "--seeds", "1", "--steps", "4"]


def whence(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "whence", *arguments], capture_output=True, text=True, cwd=cwd, timeout=300
    )  # fmt: skip


def test_help_lists_every_task_and_position(run_whence):
    from whence.cli.compare import EXAMPLES
    from whence.lab.tasks import TASKS
    from whence.position.catalogue import SHORT_NAMES

    tasks, positions = EXAMPLES.split("Tasks: ")[1].split("Positions: ")
    for names, listed in ((TASKS, tasks), (SHORT_NAMES, positions.split("; or")[0])):
        words = listed.replace(";", ",").replace("from the folder of WHENCE_DATA also ", "").rstrip(".\n ").split(",")
        assert sorted(word.strip() for word in words) == sorted(names)


def test_an_error_in_a_separate_process(tmp_path):
    done = whence("compare", "--position", "flurb", cwd=tmp_path)
    assert done.returncode == 2 and "unknown mechanism flurb" in done.stderr and "Traceback" not in done.stderr


def test_a_small_comparison_and_its_page(run_whence, tmp_path):
    done = whence("compare", *SMALL, "--jobs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = tmp_path / "build" / "compare" / "report.html"
    first = page.read_text()
    assert "alibi" in first and "\x1b[" not in done.stdout + done.stderr  # no terminal, no colour
    assert "1 of 2" in done.stderr
    title, constant, verdict, *arms, last = done.stdout.splitlines()
    assert title == "compare-retrieval, accuracy (%) on test:" and last.startswith("report: ")
    assert constant.startswith("No arm beats a constant answer (chance: ") and verdict.startswith("Undecided")
    assert sorted(line.split()[0] for line in arms) == ["alibi", "none"] and max(map(len, [title, *arms])) <= 100
    assert any(line.endswith("  baseline") for line in arms)
    again = run_whence("report", "build/compare", "--out", "again.html")
    assert again.returncode == 0 and (tmp_path / "again.html").stat().st_size > 10_000
    for instance in (
        first,
        (tmp_path / "again.html").read_text(),
    ):  # both say how to run it again, not how to report again
        assert f"<pre><code>whence compare {' '.join(SMALL)} --jobs 1</code></pre>" in instance
    record = next((tmp_path / "build" / "compare").glob("*/*seed0.json"))
    record.write_text("{")
    broken = run_whence("compare", *SMALL, "--jobs", "1")
    assert broken.returncode == 1 and f"{record.name} is left alone" in broken.stderr
    assert f"{record.name} is left alone" in run_whence("report", "build/compare").stderr
    assert f"{record.name} is left alone" in page.read_text()


def test_progress_bars_on_a_terminal(tmp_path):
    # output to a terminal is a separate code path
    code = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
    run = [sys.executable, "-c", "from whence.cli import main; main()", "compare", *SMALL, "--jobs", "1"]
    done = subprocess.run([sys.executable, "-c", code, *run], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout[-800:]
    assert "2/2" in done.stdout and "report: build/compare/report.html" in done.stdout


def test_options_from_a_file(run_whence, tmp_path):
    (tmp_path / "mine.toml").write_text('task = ["retrieval"]\nposition = ["none"]\nseeds = 1\nsteps = 2\n')
    assert run_whence("compare", "--config", "mine.toml", "--jobs", "1").returncode == 0
    (tmp_path / "one.toml").write_text('task = "retrieval"\nposition = "none"\nsteps = 2\njobs = 1\nout = "one"\n')
    assert run_whence("compare", "--seeds", "2", "--config", "one.toml").returncode == 0  # what is typed wins
    assert len(list((tmp_path / "one").glob("*/*seed*.json"))) == 2
    for text, output in (
        ("sedes = 1", "sedes in bad.toml"),
        ("seeds = 0", "greater than or equal to 1"),
        ('steps = "some"', "--steps"),
        ("task = ", "bad.toml"),
    ):
        (tmp_path / "bad.toml").write_text(text + "\n")
        done = run_whence("compare", "--config", "bad.toml")
        assert done.returncode == 2 and output in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_custom_data(run_whence, tmp_path):
    rows = [f"{'good fine' if number % 2 else 'bad poor'} film {number},{number % 2}" for number in range(60)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,stars", *rows]))
    (tmp_path / "book.txt").write_text("It was a dark and stormy night. " * 400)
    small = ["--position", "none", "--seeds", "1", "--steps", "2", "--jobs", "1"]
    done = run_whence("compare", "--data", "reviews.csv", "--label-column", "stars", *small)
    assert done.returncode == 0, done.stderr
    done = run_whence("compare", "--data", "book.txt", *small)
    assert done.returncode == 0, done.stderr
    names = sorted(path.name.rsplit("-", 1)[0] for path in (tmp_path / "build/compare").glob("compare-*"))
    assert names == ["compare-book", "compare-reviews"]
    (tmp_path / "book.txt").write_text("Another text. " * 800)
    assert run_whence("compare", "--data", "book.txt", *small).returncode == 0  # other data, another study
    assert len(list((tmp_path / "build/compare").glob("compare-book-*"))) == 2
    refused = run_whence("compare", "--data", "reviews.csv", *small)
    assert refused.returncode == 2 and "text, stars" in refused.stderr and "--label-column" in refused.stderr
