"""``whence studies``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whence.cli.json_output import JsonOption, json_document
from whence.errors import WhenceError, usage_error

if TYPE_CHECKING:
    from whence.lab.experiment import Experiment
    from whence.lab.study import Study

HELP = "List the studies and experiments that `whence run` can run, or describe one study file with its scales and options."
EXAMPLES = """Examples:

whence studies

whence studies translation

whence studies --folder my_studies"""


def studies(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="Name of a study file, or a file: print its description, scales and options.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder with study files. Default: studies.")] = None,
    as_json: JsonOption = False,
) -> None:
    from whence.lab.study_files import STUDIES_FOLDER, find_study_file, list_study_files, load_study_file
    from whence.records import require_folder

    if folder is not None:
        require_folder("whence studies --folder", folder, "study files")
    results = ctx.with_resource(json_document("studies", as_json))
    if name is not None:
        describe_study_file(name, find_study_file(name, folder or STUDIES_FOLDER, "whence studies"), results)
        return
    files = list_study_files(folder or STUDIES_FOLDER)
    if not files:
        raise usage_error(
            "whence studies",
            f"no Python file in {folder or STUDIES_FOLDER}",
            "studies are files in a folder",
            "name it with --folder",
        )
    rows = results.setdefault("studies", [])
    for name, path in files.items():
        try:
            loaded = load_study_file(path)
        except WhenceError as error:  # one faulty file does not hide the others
            print(f"{name:28} unavailable: {error}")
            rows.append({"file": name, "error": str(error)})
            continue
        for one in loaded:
            row = describe_study(one)
            print(f"{name:28} {one.name:28} {row['size']}: {one.question}")
            rows.append({"file": name, **row})
    print("whence studies NAME describes a study file, with its scales and options.", file=sys.stderr)


def describe_study(one: Study | Experiment) -> dict[str, str]:
    from whence.lab.study import Study

    if isinstance(one, Study):
        size = f"{len(one.arms)} arms, {len(one.seeds)} seeds"
    else:
        size = f"experiment, figures in output/{one.folder}"
    return {"name": one.name, "size": size, "question": one.question}


def describe_study_file(name: str, path: Path, results: dict[str, Any]) -> None:
    """Print the docstring of a study file, its scales and options, and its studies at the default scale."""
    from whence.lab.study_files import load_study_file, read_study_file

    file = read_study_file(path)
    results.update(file=name, about=file.about, scales=list(file.scales), default_scale=file.default_scale)
    results["options"] = list(file.options)
    if file.about:
        print(f"{file.about}\n")
    default = f" (default: {file.default_scale})" if file.scales else ""
    print(f"--scale: {', '.join(file.scales) or 'none; the study has one size'}{default}")
    print(f"options: {', '.join(file.options) or 'none beside those of whence run'}")
    results["studies"] = [describe_study(one) for one in load_study_file(path)]
    for row in results["studies"]:
        print(f"study {row['name']}: {row['size']}: {row['question']}")
