"""``whence explore``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HELP = "Open a local web page to explore mechanisms, a pretrained model and results."
EXAMPLES = """Examples:

whence explore

whence explore --port 8000 --no-browser --results results"""


def explore(
    port: Annotated[int, typer.Option(help="Port on this machine; 0 chooses a free one.", min=0, max=65535)] = 7860,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    results: Annotated[Path, typer.Option(help="Folder of results that the page shows.")] = Path("build"),
) -> None:
    from whence.explore.server import serve

    serve(port, open_browser=browser, results=results)
