"""The list of results, without a browser."""

import json
import zipfile
from pathlib import Path

from whence.explore import results
from whence.explore.results import KINDS, find_reports
from whence.explore.results_tab import DrawnReports, list_results
from whence.report.html_page import render_page
from whence.report.record_page import DISCOVERY, PROFILES, RENDERERS

COMMITTED = Path(__file__).parents[2] / "papers/src/whence_papers/results"


def show_result(folder, label):
    *_, shown = DrawnReports().show(folder, label)
    return shown


def test_reports_of_whence_are_listed_before_records_without_one(tmp_path):
    probe, trial, hidden = (tmp_path / name for name in ("probe", "trial", ".hidden"))
    for folder in (probe, trial, hidden):
        folder.mkdir()
        (folder / "report.html").write_text(render_page(f"Where <{folder.name}>", "<p>text</p>", "today"))
    (trial / "report.html").unlink()
    (probe / "plan.json").write_text("{}")
    (trial / "trial.json").write_text('{"command": "whence mend tiny"}')
    (tmp_path / "report.html").write_text("<title>of another program</title>")
    assert [(one.kind, one.has_report) for one in find_reports(tmp_path)] == [
        ("probe", True),
        ("trial of cures", False),
    ]
    labels, first, _ = list_results(str(tmp_path))
    assert labels == ["Where <probe> (probe, probe)", "trial (trial of cures, from records)"] and first == labels[0]
    shown = show_result(str(tmp_path), first)
    assert 'sandbox="allow-scripts"' in shown and "<p>text" not in shown and "&lt;p&gt;text" in shown
    shown = show_result(str(tmp_path), labels[1])
    assert 'role="alert"' in shown and str(trial) in shown and "run the command that made them again" in shown


def test_studies_discoveries_and_packed_records_are_named(tmp_path):
    assert set(RENDERERS) == set(KINDS)
    (tmp_path / "compare" / "copy-0123").mkdir(parents=True)
    (tmp_path / "compare" / "copy-0123" / "study.json").write_text("{}")
    (tmp_path / "compare" / "report.html").write_text(render_page("Copying", "", "today"))
    with zipfile.ZipFile(tmp_path / "learned.zip", "w") as packed:
        packed.writestr(DISCOVERY, json.dumps({"command": "whence discover --task lm"}))
        packed.writestr("other.json", "{}")
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / PROFILES).write_text("{}")
    (tmp_path / "broken.zip").write_text("no archive")
    labels, _, _ = list_results(str(tmp_path))
    assert labels == [
        "Copying (study, compare)",
        "learned (discovery, from records)",
        "measured (profiles of a model, from records)",
    ]
    (tmp_path / "learned").mkdir()
    (tmp_path / "learned" / "report.html").write_text(render_page("Learned", "", "today"))
    assert list_results(str(tmp_path))[0][1] == "Learned (discovery, learned)"
    own = tmp_path / "compare" / "copy-0123" / "report.html"
    own.write_text(render_page("Copying", "", "today"))  # the same study, as whence compare writes it twice
    assert [label for label in list_results(str(tmp_path))[0] if "study" in label] == ["Copying (study, compare)"]
    own.write_text(render_page("Copying before", "", "today"))
    assert "Copying before (study, compare/copy-0123)" in list_results(str(tmp_path))[0]


def test_a_packed_study_is_drawn_once(tmp_path, monkeypatch):
    (tmp_path / "study.zip").write_bytes(next(COMMITTED.glob("speeches-decoder-*.zip")).read_bytes())
    (label,), _, _ = list_results(str(tmp_path))
    drawn = DrawnReports()
    first, shown = drawn.show(str(tmp_path), label)
    assert "Drawing" in first and 'sandbox="allow-scripts"' in shown and "&lt;svg" in shown and "svg" not in first
    assert "Made by: whence run speeches_decoder" in shown and f"whence report {tmp_path / 'study'}" in shown
    monkeypatch.setattr(results, "render_records", lambda folder: 1 / 0)
    assert list(drawn.show(str(tmp_path), label)) == [shown]
    (tmp_path / "study.zip").write_bytes(b"")  # changed
    assert 'role="alert"' in list(drawn.show(str(tmp_path), label))[-1]


def test_nothing_outside_the_list_is_read(tmp_path):
    (tmp_path / "secret.html").write_text("secret")
    assert "secret" not in show_result(str(tmp_path), str(tmp_path / "secret.html"))
    assert "no longer there" in show_result(str(tmp_path), "secret.html") and show_result(str(tmp_path), None) == ""


def test_an_empty_and_a_missing_folder_are_sentences(tmp_path):
    assert list_results(str(tmp_path))[:2] == ([], None) and "No results" in list_results(str(tmp_path))[2]
    for folder, said in ((str(tmp_path / "missing"), "missing"), (" ", "nothing")):
        message = list_results(folder)[2]
        assert 'role="alert"' in message and "Folder got" in message and said in message


def write_study(path, *hashes, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    studies = "".join(f'<p class="kicker">copy · 2 arms · <code>{one}</code></p>' for one in hashes)
    path.write_text(render_page("rotary on copy", studies + text, "today"))


def test_a_report_of_the_same_title_is_listed_unless_the_one_above_shows_its_study(tmp_path):
    def find():
        return [one.path.relative_to(tmp_path).as_posix() for one in find_reports(tmp_path)]

    write_study(tmp_path / "two/report.html", "0123abcd", "4567abcd")
    write_study(tmp_path / "two/copy-0123/report.html", "0123abcd", text="with another study")
    assert find() == ["two/report.html"]
    write_study(tmp_path / "two/report.html", "4567abcd")  # by the next command
    assert find() == ["two/copy-0123/report.html", "two/report.html"]
    write_study(tmp_path / "beside/report.html", "4567abcd")  # of another folder
    assert find() == ["beside/report.html", "two/copy-0123/report.html", "two/report.html"]
