"""Pages of the site that are generated while it is built (mkdocs.yml names this file).

Nothing here is committed: the reference comes from docstrings and help texts, the mechanisms from the catalogue, the home
page from the README.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website.links import PAGES, move_links, unescape_pipes
from website.mechanisms import mechanism_pages
from website.reference import commands_page, link_names, module_pages

ROOT = Path(__file__).resolve().parents[1]
NETWORK = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
PICTURE = re.compile(r'<p>(<img\b[^>]*\bsrc="([^"]+)"[^>]*>)</p>')
INTERACTIVE = "mechanisms/interactive.html"
#: parts of the layout that a page leaves out to have more room
HIDDEN = {"index.md": ["navigation"], "mechanisms.md": ["toc"]}
GENERATED: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the generated pages and put them into the navigation."""
    documented: dict[str, str] = {}
    mechanisms = mechanism_pages(documented)
    interactive = ROOT / "build" / "gallery.html"  # make site writes it
    if interactive.exists():
        GENERATED[INTERACTIVE] = interactive.read_text()
        mechanisms["mechanisms/index.md"] += (
            f"\n[The gallery with sliders]({Path(INTERACTIVE).name}) moves every parameter.\n"
        )
    modules = module_pages(documented)
    home = (ROOT / "docs" / "index.md").read_text()
    readme = move_links((ROOT / "README.md").read_text().partition("\n## Documentation")[0], "README.md", "index.md")
    GENERATED.update(mechanisms, **modules)
    GENERATED["reference/commands.md"] = commands_page()
    GENERATED["index.md"] = home.replace("<!-- README -->", readme.partition("\n")[2])
    GENERATED["api.md"] = link_names(
        move_links((ROOT / "docs" / "api.md").read_text(), "docs/api.md", "api.md"), documented
    )
    for source, page in PAGES.items():
        if source != "README.md":
            GENERATED[page] = move_links((ROOT / source).read_text(), source, page)
    GENERATED["papers/index.md"] = link_sources(GENERATED["papers/index.md"])
    lists = {"modules": list(modules), "mechanisms": [path for path in mechanisms if not path.endswith("index.md")]}
    config.nav = _fill(config.nav, lists)
    return config


def link_sources(text: str) -> str:
    """The page about all papers with a link to the page of each source in place of its table of claims.

    >>> print(link_sources("<!-- epar -->\\n| a |\\n<!-- end epar -->"))
    [Every claim, with what was found](epar.md)
    """
    names = "|".join(path.stem for path in (ROOT / "docs" / "papers").glob("*.md"))
    pattern = rf"<!-- ({names}) -->.*?<!-- end \1 -->"
    return re.sub(pattern, r"[Every claim, with what was found](\1.md)", text, flags=re.DOTALL)


def _fill(nav: Any, lists: dict[str, list[str]]) -> Any:
    """The navigation with each ``GENERATED name`` replaced by its list of pages."""
    if isinstance(nav, list):
        return [_fill(one, lists) for one in nav]
    if isinstance(nav, dict):
        return {title: _fill(one, lists) for title, one in nav.items()}
    return lists[nav.removeprefix("GENERATED ")] if nav.startswith("GENERATED ") else nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, content in GENERATED.items():
        existing = files.get_file_from_path(path)
        if existing is not None:
            files.remove(existing)
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    path = page.file.src_uri
    page.meta.setdefault("hide", HIDDEN.get(path, []))
    text = markdown if path in GENERATED else move_links(markdown, f"docs/{path}", path)
    return unescape_pipes(text)


def on_page_content(html: str, **_: Any) -> str:
    """Each picture opens in its full size: on a narrow screen its text is too small.

    >>> print(on_page_content('<p><img alt="A bell" src="bell.png" /></p>'))
    <p><a href="bell.png" title="Full size"><img alt="A bell" src="bell.png" /></a></p>
    """
    return PICTURE.sub(r'<p><a href="\2" title="Full size">\1</a></p>', html)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Refuse a page that would load something from a network."""
    found = NETWORK.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} loads from a network: {found[0]}")
    return output
