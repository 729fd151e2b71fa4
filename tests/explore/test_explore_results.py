"""The list of results, without a browser."""

from whence.explore.results import find_reports
from whence.explore.results_tab import list_results, show_result
from whence.report.html_page import render_page


def test_reports_of_whence_are_listed_before_records_without_one(tmp_path):
    probe, trial, hidden = (tmp_path / name for name in ("probe", "trial", ".hidden"))
    for folder in (probe, trial, hidden):
        folder.mkdir()
        (folder / "report.html").write_text(render_page(f"Where <{folder.name}>", "<p>text</p>", "today"))
    (trial / "report.html").unlink()
    (probe / "plan.json").write_text("{}")
    (trial / "trial.json").write_text("{}")
    (tmp_path / "report.html").write_text("<title>of another program</title>")
    assert [(one.kind, one.has_report) for one in find_reports(tmp_path)] == [
        ("probe", True),
        ("trial of cures", False),
    ]
    labels, first, _ = list_results(str(tmp_path))
    assert labels == ["Where <probe> (probe, probe)", "trial (trial of cures, no report yet)"] and first == labels[0]
    shown = show_result(str(tmp_path), first)
    assert 'sandbox="allow-scripts"' in shown and "<p>text" not in shown and "&lt;p&gt;text" in shown
    assert f"whence report {trial}" in show_result(str(tmp_path), labels[1])


def test_nothing_outside_the_list_is_read(tmp_path):
    (tmp_path / "secret.html").write_text("secret")
    assert "secret" not in show_result(str(tmp_path), str(tmp_path / "secret.html"))
    assert "no longer there" in show_result(str(tmp_path), "secret.html") and show_result(str(tmp_path), None) == ""


def test_an_empty_and_a_missing_folder_are_sentences(tmp_path):
    assert list_results(str(tmp_path))[:2] == ([], None) and "No results" in list_results(str(tmp_path))[2]
    message = list_results(str(tmp_path / "missing"))[2]
    assert 'role="alert"' in message and "--results" in message and "missing" in message
