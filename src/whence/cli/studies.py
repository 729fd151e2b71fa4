"""``whence studies``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whence.cli.json_output import JsonOption, json_document
from whence.errors import WhenceError, usage_error

HELP = "List the studies and experiments that `whence run` can run."
EXAMPLES = """Examples:

whence studies

whence studies --folder my_studies"""


def studies(
    ctx: typer.Context,
    folder: Annotated[Path | None, typer.Option(help="Folder with study files. Default: studies.")] = None,
    as_json: JsonOption = False,
) -> None:
    from whence.lab.study import Study
    from whence.lab.study_files import STUDIES_FOLDER, list_study_files, load_study_file
    from whence.records import require_folder

    if folder is not None:
        require_folder("whence studies --folder", folder, "study files")
    files = list_study_files(folder or STUDIES_FOLDER)
    if not files:
        raise usage_error(
            "whence studies",
            f"no Python file in {folder or STUDIES_FOLDER}",
            "studies are files in a folder",
            "name it with --folder",
        )
    results = ctx.with_resource(json_document("studies", as_json))
    rows = results.setdefault("studies", [])
    for name, path in files.items():
        try:
            loaded = load_study_file(path)
        except WhenceError as error:  # one faulty file does not hide the others
            print(f"{name:28} unavailable: {error}")
            rows.append({"file": name, "error": str(error)})
            continue
        for one in loaded:
            if isinstance(one, Study):
                size = f"{len(one.arms)} arms, {len(one.seeds)} seeds"
            else:
                size = f"experiment, figures in output/{one.folder}"
            print(f"{name:28} {one.name:28} {size}: {one.question}")
            rows.append({"file": name, "name": one.name, "size": size, "question": one.question})
