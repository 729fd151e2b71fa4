"""``whence compare``: from options to records and a report.

Most commands run in this process. The one on a terminal runs in its own process, as a user's would.
"""

import json
import re
import signal
import subprocess
import sys

import pytest

from whence.cli.compare_config import rebase_values
from whence.errors import Terminated

SMALL = ["--task", "retrieval", "--position", "none", "--position", "alibi", "--seeds", "1", "--steps", "4"]


def test_help_lists_every_task_and_position(run_whence):
    from whence.cli.compare import EXAMPLES
    from whence.lab.tasks import TASKS
    from whence.position.catalogue import SHORT_NAMES

    tasks, positions = EXAMPLES.split("Tasks: ")[1].split("Positions: ")
    for names, listed in ((TASKS, tasks), (SHORT_NAMES, positions.split("; or")[0])):
        words = listed.replace(";", ",").replace("from the folder of WHENCE_DATA also ", "").rstrip(".\n ").split(",")
        assert sorted(word.strip() for word in words) == sorted(names)


def test_an_unknown_position_is_one_line(run_whence):
    done = run_whence("compare", "--position", "flurb")
    assert done.returncode == 2 and "unknown mechanism flurb" in done.stderr and "Traceback" not in done.stderr


def test_a_small_comparison_and_its_page(run_whence, tmp_path):
    done = run_whence("compare", *SMALL, "--jobs", "1")
    assert done.returncode == 0, done.stderr
    page = tmp_path / "build" / "compare" / "report.html"
    first = page.read_text()
    assert "alibi" in first and "\x1b[" not in done.stdout + done.stderr  # no terminal, no colour
    assert "1 of 2" in done.stderr
    title, constant, verdict, *arms, last = done.stdout.splitlines()
    assert title == "retrieval, accuracy (%) on test:" and last.startswith("report: ")
    assert constant.startswith("No arm beats a constant answer (chance: ") and verdict.startswith("No comparison")
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
    run = [sys.executable, "-m", "whence", "compare", *SMALL, "--jobs", "1"]
    done = subprocess.run([sys.executable, "-c", code, *run], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout[-800:]
    assert "2 of 2 runs" in done.stdout and "report: build/compare/report.html" in done.stdout


def test_options_from_a_file(run_whence, tmp_path):
    (tmp_path / "mine.toml").write_text('task = ["retrieval"]\nposition = ["none"]\nseeds = 1\nsteps = 2\n')
    assert run_whence("compare", "--config", "mine.toml", "--jobs", "1").returncode == 0
    small = "embed_dim = 16\nheads = 2\nnum_kv_heads = 1\nhead_dim = 8\nlayers = 1\nffn_dim = 16\n"
    (tmp_path / "one.toml").write_text(
        'task = "retrieval"\nposition = "none"\nsteps = 2\njobs = 1\nout = "one"\npreset = "qwen3-20m"\n'
        f'{small}schedule = "cosine"\nmin_lr_ratio = 0.1\n'
    )
    assert run_whence("compare", "--seeds", "2", "--config", "one.toml").returncode == 0  # what is typed wins
    first, _ = (tmp_path / "one").glob("*/*seed*.json")
    spec = json.loads(first.read_text())["spec"]
    assert spec["model"]["qk_norm"] and spec["model"]["layers"] == 1 and "preset" not in spec["model"]
    assert spec["budget"]["min_lr_ratio"] == 0.1
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
    page = (tmp_path / "build/compare/report.html").read_text()
    assert "none on reviews.csv</h1>" in page and "classification of texts · 1 arm" in page
    # the spec at the end has the names of the folder and the class
    visible = page.split("<pre>")[0] + done.stdout + done.stderr
    assert "labelled_file" not in visible and "compare-reviews" not in visible
    done = run_whence("compare", "--data", "book.txt", *small)
    assert done.returncode == 0, done.stderr
    names = sorted(path.name.rsplit("-", 1)[0] for path in (tmp_path / "build/compare").glob("compare-*"))
    assert names == ["compare-book", "compare-reviews"]
    (tmp_path / "book.txt").write_text("Another text. " * 800)
    assert run_whence("compare", "--data", "book.txt", *small).returncode == 0  # other data, another study
    assert len(list((tmp_path / "build/compare").glob("compare-book-*"))) == 2
    refused = run_whence("compare", "--data", "reviews.csv", *small)
    assert refused.returncode == 2 and "text, stars" in refused.stderr and "--label-column" in refused.stderr


ARMS_FILE = """
task = "retrieval"
seeds = 1
steps = 2
layers = 1
schedule = "cosine"
jobs = 1
sweep = {lr = [1e-3, 1e-2]}

[[arms]]
name = "plain"
position = "none"

[[arms]]
name = "steep"
position = "./bell.py"
model = {embed_dim = 16}
budget = {batch_size = 8}
"""
BELL = """
import whence

class Bell(whence.Position):
    def bias(self, distance, length):
        return -(distance**2)
"""


def test_arms_settings_and_a_sweep_from_a_file(run_whence, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/arms.toml").write_text(ARMS_FILE)
    (tmp_path / "own/bell.py").write_text(BELL)
    done = run_whence("compare", "--config", "own/arms.toml", "--set", "warmup_steps=1")
    assert done.returncode == 0, done.stderr
    assert "note: 1 seed cannot decide" in done.stderr and "2 tries" in done.stdout
    (study,) = (tmp_path / "build/compare").glob("compare-retrieval-*")
    spec = json.loads((study / "study.json").read_text())["spec"]
    assert [arm["name"] for arm in spec["arms"]] == ["plain", "steep"]
    assert (
        spec["model"]["layers"] == 1 and spec["budget"]["schedule"] == "cosine" and spec["budget"]["warmup_steps"] == 1
    )
    assert spec["arms"][1]["model"] == {"embed_dim": 16} and spec["arms"][1]["budget"]["batch_size"] == 8
    assert all(arm["budget"]["lr"] in (1e-3, 1e-2) for arm in spec["arms"])
    tries = list((tmp_path / "build/compare/tuning").glob("*/*seed*.json"))
    assert len(tries) == 4 and not any('"test"' in path.read_text().split('"result"')[1] for path in tries)
    page = (tmp_path / "build/compare/report.html").read_text()
    assert "2 tries of each arm" in page and page.count("✓ ") >= 3 and "1 seed cannot decide" in page
    again = run_whence("compare", "--config", "own/arms.toml", "--set", "warmup_steps=1")
    assert again.returncode == 0 and "1 of" not in again.stderr  # nothing is trained again


def test_positions_on_the_command_line_replace_the_arms_of_a_file(run_whence, tmp_path):
    (tmp_path / "arms.toml").write_text(ARMS_FILE.replace("sweep = {lr = [1e-3, 1e-2]}", ""))
    done = run_whence("compare", "--config", "arms.toml", "--position", "none; lr=1e-2")
    assert done.returncode == 0, done.stderr
    (record,) = (tmp_path / "build/compare").glob("*/*seed*.json")
    assert json.loads(record.read_text())["arm"] == "none; lr=1e-2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "layer=2"], r"--set got .*layer.*did you mean layers\?"),
        (["--heads", "3", "--embed-dim", "16"], "16 and 3.*choose a divisor"),
        (["--sweep", "heads=3", "--embed-dim", "16"], "16 and 3.*choose a divisor"),
        (["--executor", "locl"], r"locl.*did you mean local\?"),
        (["--task", "coppy"], r"coppy.*did you mean copy\?"),
        (["--metric", "acuracy"], r"acuracy.*did you mean accuracy\?"),
        (["--metric", "mcc"], r"(?m)^--metric got 'mcc', .*retrieval.*choose accuracy"),
        (["--margin", "-1"], r"(?m)^--margin got -1.*above 0.*use 0"),
        (["--lr", "0"], r"(?m)^--lr got 0\.0, .*above 0; set another value"),
        (["--dropout", "2"], r"(?m)^--dropout got 2.*below 1"),
        (["--set", "schedule=linear"], r"(?m)^--set schedule got 'linear'.*constant, cosine"),
        (["--position", "none; lr=0"], r"(?m)^lr of the arm 'none; lr=0' got 0, .*set another value"),
        (["--position", "none; heads=3"], r"(?m)^embed_dim and heads of the arm 'none; heads=3' got 32 and 3"),
        (["--position", "rotery"], r"rotery.*did you mean rotary\?"),
        (["--position", "Learned(max_length=3)"], r"only arms that cannot run on .*max_length=3.*another position"),
    ],
)
def test_wrong_options_are_named_before_training(run_whence, tmp_path, options, message):
    known = [] if "--task" in options else ["--task", "retrieval"]
    positions = [] if "--position" in options else ["--position", "none"]
    done = run_whence("compare", *known, *positions, "--seeds", "3", "--jobs", "1", *options)
    assert done.returncode == 2 and re.search(message, done.stderr), done.stderr
    assert not list(tmp_path.glob("build/compare/**/*seed*.json"))


def test_paths_of_a_file_start_from_its_folder(tmp_path):
    (tmp_path / "saved").mkdir()
    for data, expected in (
        ("reviews.csv", str(tmp_path / "reviews.csv")),
        ("hf:stanfordnlp/imdb", "hf:stanfordnlp/imdb"),
        ("stanfordnlp/imdb", "stanfordnlp/imdb"),
        ("saved", str(tmp_path / "saved")),
        ("hf:saved", f"hf:{tmp_path / 'saved'}"),
    ):
        assert rebase_values({"data": data}, tmp_path) == {"data": expected}
    assert rebase_values({"tokens": "tok/tokenizer.json"}, tmp_path) == {"tokens": str(tmp_path / "tok/tokenizer.json")}
    assert rebase_values({"tokens": "bytes", "out": "here"}, tmp_path) == {"tokens": "bytes", "out": "here"}


@pytest.mark.parametrize("options", [[], ["--sweep", "lr=1e-3,1e-2"]])
def test_a_stopped_command_has_the_exit_code_of_its_signal(run_whence, monkeypatch, options):
    def stop(*arguments, **named):
        raise Terminated("stopped at step 3; run the command again to resume", signal.SIGTERM)

    monkeypatch.setattr("whence.lab.sequential.run_until_decided", stop)
    done = run_whence("compare", *SMALL, "--jobs", "1", *options)
    assert done.returncode == 143 and "run the command again" in done.stderr and "Traceback" not in done.stderr


def test_a_sweep_that_has_not_ended_prints_a_document(run_whence, monkeypatch):
    monkeypatch.setattr("whence.lab.training.train", None)  # the time is over before the first run
    done = run_whence("compare", *SMALL, "--jobs", "1", "--sweep", "lr=1e-3,1e-2", "--budget", "0.001s", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["report"] is None and not found["studies"] and found["unfinished_runs"] > 1
    assert found["notes"] and all(note in done.stderr for note in found["notes"])


def test_every_two_positions_are_compared(run_whence, tmp_path):
    order = ["compare", "--task", "copy", "--steps", "2", "--seeds", "2", "--jobs", "1", "--pairs"]
    done = run_whence(*order, "--position", "none", "--position", "alibi", "--position", "rotary")
    assert done.returncode == 0, done.stderr
    (study,) = (tmp_path / "build" / "compare").glob("*/study.json")
    assert json.loads(study.read_text())["spec"]["decision"]["family"] == "pairs"
    page = (tmp_path / "build" / "compare" / "report.html").read_text()
    assert "row minus column" in page and "for 3 comparisons" in page


def test_translation_with_an_encoder_decoder(run_whence, tmp_path):
    """The model for pairs from a TOML file and from an option, with BLEU as the metric that decides."""
    pairs = [{"en": f"a man number {n} sleeps", "de": f"ein mann nummer {n} schläft"} for n in range(20)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    (tmp_path / "mine.toml").write_text(
        'data = "pairs.jsonl"\nsource_column = "en"\ntarget_column = "de"\narchitecture = "encoder-decoder"\n'
        'translations = 2\nmetric = "bleu"\nposition = ["none", "rotary"]\nseeds = 1\nsteps = 2\nlayers = 1\n'
    )
    done = run_whence("compare", "--config", "mine.toml", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pairs.jsonl, BLEU on test:")
    record = json.loads(next((tmp_path / "build/compare").glob("*/*seed0.json")).read_text())
    assert record["task"]["architecture"] == "encoder-decoder"
    assert {"bleu", "chrf"} <= record["result"]["evaluations"][-1]["splits"]["test"].keys()
    page = (tmp_path / "build/compare/report.html").read_text()
    assert "Translations" in page and "chrF" in page and record["notes"]["translations"][0]["reference"] in page
    wrong = run_whence("compare", "--config", "mine.toml", "--architecture", "encoder")
    assert wrong.returncode == 2 and "architecture='encoder'" in wrong.stderr and "'encoder-decoder'" in wrong.stderr
    (tmp_path / "reviews.csv").write_text("text,label\n" + "a,1\nb,2\nc,1\nd,2\n" * 9)
    wrong = run_whence("compare", "--data", "reviews.csv", "--translations", "3")
    assert wrong.returncode == 2 and "--translations" in wrong.stderr and "classification of texts" in wrong.stderr


def test_a_task_with_a_format_of_its_own_reads_the_data(run_whence, tmp_path):
    context = "Ada bought a lamp in Rome. Bo slept."
    qas = [{"id": "0", "question": "Where?", "answers": [{"text": "Rome", "answer_start": 21}]}]
    articles = [{"title": str(n), "paragraphs": [{"context": f"{context} {n}.", "qas": qas}]} for n in range(6)]
    (tmp_path / "q.json").write_text(json.dumps({"data": articles}))
    small = ["--position", "none", "--seeds", "1", "--steps", "2", "--layers", "1", "--context", "24", "--jobs", "1"]
    done = run_whence("compare", "--task", "squad", "--data", "q.json", *small)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("squad on q.json, token F1 (%) on test:")
    record = json.loads(next((tmp_path / "build/compare").glob("*/*seed0.json")).read_text())
    assert record["task"]["task"] == "squad" and record["task"]["file"] == "q.json" and record["task"]["context"] == 24
    wrong = run_whence("compare", "--task", "squad", "--data", "q.json", "--label-column", "x")
    assert wrong.returncode == 2 and "--label-column" in wrong.stderr and "squad" in wrong.stderr
