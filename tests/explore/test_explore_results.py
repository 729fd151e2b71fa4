"""The list of results, without a browser."""

import json
import zipfile

from whence.cli.discover_report import DISCOVERY, PROFILES
from whence.explore.results import KINDS, find_reports
from whence.explore.results_tab import list_results, show_result
from whence.report.html_page import render_page


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
    assert labels == ["Where <probe> (probe, probe)", "trial (trial of cures, no report yet)"] and first == labels[0]
    shown = show_result(str(tmp_path), first)
    assert 'sandbox="allow-scripts"' in shown and "<p>text" not in shown and "&lt;p&gt;text" in shown
    shown = show_result(str(tmp_path), labels[1])
    assert f"whence report {trial}" in shown and "whence mend tiny" in shown


def test_studies_discoveries_and_packed_records_are_named(tmp_path):
    assert {DISCOVERY, PROFILES} <= set(KINDS)
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
        "learned (discovery, no report yet)",
        "measured (profiles of a model, no report yet)",
    ]
    shown = show_result(str(tmp_path), labels[1])
    assert "whence discover --task lm" in shown and f"whence report {tmp_path / 'learned'}" in shown and "2" in shown
    (tmp_path / "learned").mkdir()
    (tmp_path / "learned" / "report.html").write_text(render_page("Learned", "", "today"))
    assert list_results(str(tmp_path))[0][1] == "Learned (discovery, learned)"


def test_nothing_outside_the_list_is_read(tmp_path):
    (tmp_path / "secret.html").write_text("secret")
    assert "secret" not in show_result(str(tmp_path), str(tmp_path / "secret.html"))
    assert "no longer there" in show_result(str(tmp_path), "secret.html") and show_result(str(tmp_path), None) == ""


def test_an_empty_and_a_missing_folder_are_sentences(tmp_path):
    assert list_results(str(tmp_path))[:2] == ([], None) and "No results" in list_results(str(tmp_path))[2]
    message = list_results(str(tmp_path / "missing"))[2]
    assert 'role="alert"' in message and "--results" in message and "missing" in message
