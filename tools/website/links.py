"""Links of Markdown files at their place on the site.

Pages in docs/ link to files of the repository, such as ``../papers/README.md``. Pages that come from outside docs/, such
as ``CONTRIBUTING.md``, link to docs/. On the site both lead to the page that shows the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

#: a file of the repository that is shown as a page -> the page
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "RELEASING.md": "project/releasing.md",
    "SECURITY.md": "project/security.md",
    "papers/README.md": "papers/index.md",
    "notebooks/README.md": "notebooks.md",
}
LINK = re.compile(r"(?<!`)(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def move_links(text: str, source: str, page: str, pages: Mapping[str, str] = PAGES) -> str:
    """The text of the repository's file ``source`` with the links that it needs as the site's page ``page``.

    A link to a file of the repository that the site does not show becomes its text.

    >>> move_links("See [docs](docs/caches.md#a) and [papers](papers/README.md).", "README.md", "index.md")
    'See [docs](caches.md#a) and [papers](papers/index.md).'
    >>> move_links("The [record](../benchmarks/records/kills.json).", "docs/comparing.md", "comparing.md")
    'The record (`benchmarks/records/kills.json`).'
    """

    def move(match: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(source), match[3]))
        if target in pages:
            target = pages[target]
        elif target.startswith("docs/"):
            target = target.removeprefix("docs/")
        else:
            return match[2] if f"`{target}`" in match[2] or target == match[2] else f"{match[2]} (`{target}`)"
        return f"{match[1]}[{match[2]}]({os.path.relpath(target, os.path.dirname(page) or '.')}{match[4] or ''})"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(move, part) for part in parts)


def unescape_pipes(text: str) -> str:
    r"""Tables as the site reads them: a pipe in code needs no backslash there, and would show it.

    >>> print(unescape_pipes(r"| ``\|d\|`` | `\|` | a \| b |"))
    | ``|d|`` | `|` | a \| b |
    """
    return re.sub(
        r"^\|.*$",
        lambda row: re.sub(r"(`+).+?\1", lambda code: code[0].replace(r"\|", "|"), row[0]),
        text,
        flags=re.MULTILINE,
    )
