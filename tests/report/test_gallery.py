"""The gallery: one self-contained page, written atomically."""

import multiprocessing
import re

import pytest

from whence import records
from whence.errors import WhenceError
from whence.position.catalogue import CATALOGUE, Entry

pytest.importorskip("matplotlib")
from whence.report import gallery as module
from whence.report.gallery import main, write_gallery

TWO = tuple(entry for entry in CATALOGUE if entry.name in ("Alibi", "Kerple, log"))


@pytest.fixture(autouse=True)
def small_pictures(monkeypatch):
    monkeypatch.setattr(module, "DPI", 20)


@pytest.fixture
def no_compositions(monkeypatch):
    monkeypatch.setattr(module, "COMPOSITIONS", ())


@pytest.mark.usefixtures("no_compositions")
def test_page_is_self_contained_and_describes_its_figures(tmp_path):
    odd = Entry("<odd> & name", TWO[0].make, 'an "idea" < 1', "arXiv 0000.00000")
    seen = []
    path = write_gallery(
        tmp_path / "new" / "gallery.html",
        entries=(*TWO[1:], odd),
        length=16,
        progress=lambda done, total, name: seen.append((done, total, name)),
    )
    page = path.read_text(encoding="utf-8")
    assert seen == [(0, 2, "Kerple, log"), (1, 2, "<odd> & name")]
    assert "<odd>" not in page
    assert "&lt;odd&gt; &amp; name" in page
    text = re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)  # a picture may spell anything
    assert "http" not in text
    assert "<script" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert all(source.startswith("data:image/png;base64,") for source in re.findall(r'src="([^"]*)"', page))
    anchors = re.findall(r'id="([^"]*)"', page)
    links = re.findall(r'href="([^"]*)"', page)
    assert len(set(anchors)) == len(anchors)
    assert {link.removeprefix("#") for link in links} <= set(anchors)
    assert "kerple-log" in anchors
    alts = re.findall(r'<img [^>]*alt="([^"]+)"', page)
    assert len(alts) == 2
    assert all("added to the logit" in alt for alt in alts)
    for text in (TWO[1].idea, TWO[1].source, "Kerple(heads=4"):
        assert text in page


def test_compositions_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_plot", lambda position, *_: module.EmbeddedFigure(b"", 1, 1, type(position).__name__))
    page = write_gallery(tmp_path / "gallery.html", entries=(), length=16).read_text(encoding="utf-8")
    assert page.count('alt="Sum"') == len(module.COMPOSITIONS)
    assert "Rotary + Epar" in page


@pytest.mark.usefixtures("no_compositions")
def test_processes_draw_the_same_page(tmp_path, monkeypatch):
    context = multiprocessing.get_context("forkserver")  # each process has what is loaded once
    context.set_forkserver_preload(["whence.report.gallery", "whence.plotting", "matplotlib.figure"])
    monkeypatch.setattr(module.multiprocessing, "get_context", lambda method: context)
    entries = [entry for entry in CATALOGUE if entry.name in ("Alibi", "Epar")]
    pages = [
        write_gallery(tmp_path / f"{jobs}.html", entries=entries, length=16, jobs=jobs).read_text() for jobs in (1, 2)
    ]
    captions = [re.findall(r'alt="([^"]+)"', page) for page in pages]
    assert captions[0] == captions[1] and len(captions[0]) == len(entries) == 2


@pytest.mark.usefixtures("no_compositions")
def test_a_failing_picture_leaves_the_old_page(tmp_path):
    path = tmp_path / "gallery.html"
    path.write_text("old")

    def fail(heads, head_dim):
        raise RuntimeError("cannot be built")

    with pytest.raises(RuntimeError, match="cannot be built"):
        write_gallery(path, entries=(Entry("Bad", fail, "", ""),), length=16)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_write_leaves_the_old_page(tmp_path, monkeypatch):
    path = tmp_path / "gallery.html"
    path.write_text("old")
    monkeypatch.setattr("whence.records.files.os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(WhenceError, match="disk full"):
        records.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("no_compositions")
def test_command_prints_the_path(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "_plot", lambda *_: module.EmbeddedFigure(b"png", 1, 1, "a picture"))
    out = tmp_path / "page.html"
    assert main(["--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert str(out) in captured.out
    assert f"[{len(CATALOGUE)}/{len(CATALOGUE)}]" in captured.err
    assert "s left" in captured.err
    assert out.exists()


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "python -m whence.report.gallery --out build/gallery.html" in capsys.readouterr().out
