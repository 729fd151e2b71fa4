"""The command line application. Exit codes: 0 done, 1 something failed, 2 a usage error, 130 interrupted,
128 and the number of the signal if another one asked to stop.

Other packages add commands by an entry point of the group ``whence.commands``: a function with typer's annotations. Its
docstring is the help text; what follows a line ``Examples:`` is shown below the options.

An error in the user's own code, such as a hook or a task, is one line with its file and line. With the environment variable
``WHENCE_TRACEBACK=1`` the whole traceback is shown.
"""

from __future__ import annotations

import inspect
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from whence.cli import bench, compare, discover, doctor, explore, mend, probe, report, show, studies, tokenize
from whence.cli import run as run_command
from whence.errors import Terminated, WhenceError, usage_error
from whence.plugins import COMMANDS, entry_points, require_unique
from whence.user_code import ErrorInWorker, describe_user_error, show_tracebacks

EXAMPLES = """Examples:

whence compare

whence show alibi

whence compare --help"""
INTERRUPTED = 130
#: commands that do not exist, and what a user of them looks for
SOUGHT = dict.fromkeys(("list", "ls", "mechanisms"), "whence show lists the mechanisms, whence studies the studies")

app = typer.Typer(
    help="Position in attention: compare mechanisms, draw them, run studies, probe and mend pretrained models.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("compare", help=compare.HELP, epilog=compare.EXAMPLES)(compare.compare)
app.command("tokenize", help=tokenize.HELP, epilog=tokenize.EXAMPLES)(tokenize.tokenize)
app.command("studies", help=studies.HELP, epilog=studies.EXAMPLES)(studies.studies)
app.command("run", help=run_command.HELP, epilog=run_command.EXAMPLES, context_settings=run_command.CONTEXT)(
    run_command.run
)
app.command("report", help=report.HELP, epilog=report.EXAMPLES)(report.report)
app.command("show", help=show.HELP, epilog=show.EXAMPLES)(show.show)
app.command("explore", help=explore.HELP, epilog=explore.EXAMPLES)(explore.explore)
app.command("probe", help=probe.HELP, epilog=probe.EXAMPLES)(probe.probe)
app.command("mend", help=mend.HELP, epilog=mend.EXAMPLES)(mend.mend)
app.command("discover", help=discover.HELP, epilog=discover.EXAMPLES)(discover.discover)
app.command("bench", help=bench.HELP, epilog=bench.EXAMPLES)(bench.bench)
app.command("doctor", help=doctor.HELP, epilog=doctor.EXAMPLES)(doctor.doctor)


def add_plugin_commands(application: typer.Typer) -> None:
    """Add the commands of other packages. A command that cannot be imported, or that two packages register, says so when it is called.

    A command with the name of a built-in one is ignored with a warning.
    """
    existing = {command.name for command in application.registered_commands}
    for name, point in sorted(entry_points(COMMANDS).items()):
        if name in existing:
            warnings.warn(
                f"the command {name} of {point.value} is ignored: whence has a command of this name; "
                f"rename its entry point in the group {COMMANDS}",
                stacklevel=2,
            )
            continue
        settings = {}
        try:
            require_unique(COMMANDS, name, f"whence {name}")
            function = point.load()
        except Exception as error:
            function = _unavailable(name, error)
            settings = {"allow_extra_args": True, "ignore_unknown_options": True}  # the reason is shown for any options
        text, marker, examples = (inspect.getdoc(function) or "").partition("\n\nExamples:")
        epilog = f"Examples:{examples}" if marker else None
        application.command(name, help=text, epilog=epilog, context_settings=settings)(function)


def _unavailable(name: str, error: Exception) -> Callable[[], None]:
    def command() -> None:
        raise WhenceError(f"whence {name} is unavailable: {type(error).__name__}: {error}")

    command.__doc__ = f"Unavailable: {error}"
    return command


add_plugin_commands(app)


def describe_option_error(error: Any) -> str:
    """An error of typer about options or arguments, as one line with a remedy."""
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    command = "whence" if context is None else context.command_path
    unknown = re.match(r"No such command '(.*?)'", message)
    if unknown and unknown[1] in SOUGHT:
        return str(usage_error("whence", repr(unknown[1]), "there is no such command", SOUGHT[unknown[1]]))
    option = re.match(r"No such option: --([\w-]+)", message)
    if option and context is not None and any(one.name == "setting" for one in context.command.params):
        from whence.lab.settings import BUDGET_SETTINGS, MODEL_SETTINGS

        name = option[1].replace("-", "_")
        if name in (*MODEL_SETTINGS, *BUDGET_SETTINGS):
            rule = f"{name} is a setting of the {'model' if name in MODEL_SETTINGS else 'training'} without an option"
            return str(usage_error(command, f"--{option[1]}", rule, f"write --set {name}=..."))
    extra = re.fullmatch(r"Got unexpected extra argument\S* \((.*)\)", message)
    if extra is None or context is None:
        return f"{message}; {command} --help lists the options."
    arguments = [one.name for one in context.command.params if one.param_type_name == "argument"]
    options = [one for one in ("position", "task") if any(own.name == one for own in context.command.params)]
    rule = f"it takes {' and '.join(arguments)}" if arguments else "it takes options alone"
    remedy = f"write --{options[0]} {extra[1].split()[0]}" if options and not arguments else "leave it out"
    return str(usage_error(command, extra[1], rule, remedy))


def run(on_error: Callable[[str], None] | None = None) -> None:
    """Run the command of ``sys.argv`` and exit with its code. ``on_error`` gets the text of an error, which is printed too."""

    def fail(text: str, code: int) -> NoReturn:
        print(text, file=sys.stderr)
        if on_error is not None:
            on_error(text)
        sys.exit(code)

    try:
        code = app(
            standalone_mode=False, prog_name="whence"
        )  # typer returns the code of an Exit, and of an interrupt, in this mode
    except Terminated as error:  # of any command that trains
        print(error, file=sys.stderr)
        sys.exit(128 + (error.signal_number or signal.SIGTERM))
    except WhenceError as error:
        fail(str(error), 2)
    except typer.Abort:
        code = INTERRUPTED
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own errors about options
            fail(describe_option_error(error), 2)
        text = describe_user_error(error)
        if text is None or show_tracebacks():
            if not isinstance(error, ErrorInWorker):
                if on_error is not None:
                    on_error(traceback.format_exc().rstrip())
                raise
            text = error.traceback_text
        fail(text, 1)
    if code == INTERRUPTED:
        print("\nInterrupted. Finished work is saved.\nRun the same command to resume.", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)
