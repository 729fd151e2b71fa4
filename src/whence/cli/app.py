"""The commands together, and how each of them ends: 0 done, 1 something failed, 2 a bad request, 130 interrupted."""

from __future__ import annotations

import sys

import typer

from whence.cli import claiming, comparing, doctoring, predicting, probing, reporting, running, showing
from whence.errors import WhenceError

EXAMPLES = """Examples:

whence compare

whence show alibi

whence compare --help"""

app = typer.Typer(
    help="What position does to attention: compare mechanisms, see them, run studies.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("compare", help=comparing.HELP, epilog=comparing.EXAMPLES)(comparing.compare)
app.command("studies", help=running.STUDIES_HELP, epilog=running.STUDIES_EXAMPLES)(running.studies)
app.command("run", help=running.HELP, epilog=running.EXAMPLES)(running.run)
app.command("report", help=reporting.HELP, epilog=reporting.EXAMPLES)(reporting.report)
app.command("show", help=showing.HELP, epilog=showing.EXAMPLES)(showing.show)
app.command("claims", help=claiming.HELP, epilog=claiming.EXAMPLES)(claiming.claims)
app.command("probe", help=probing.HELP, epilog=probing.EXAMPLES)(probing.probe)
app.command("predict", help=predicting.HELP, epilog=predicting.EXAMPLES)(predicting.predict)
app.command("doctor", help=doctoring.HELP, epilog=doctoring.EXAMPLES)(doctoring.doctor)


STOPPED = 130


def run() -> None:
    try:
        code = app(standalone_mode=False)  # typer answers with the code of an Exit, and of an interrupt, in this mode
    except WhenceError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        code = STOPPED
    except Exception as error:
        shown = getattr(error, "show", None)  # what typer itself has to say about a bad option
        if shown is None:
            raise
        shown()
        sys.exit(2)
    if code == STOPPED:
        print("\nstopped; what is finished is kept, and the same command goes on from there", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)
