"""The record store: JSON records written atomically, read from a folder or from one packed file, with their provenance.

The lab, the probe and the papers all write and read through this package::

    from whence.records import RecordFolder, describe_environment, rerun_command

    folder = RecordFolder(Path("results/copy-0123456789ab"))
    folder.write("none-seed0.json", {"values": [1.0], "command": rerun_command(), "environment": describe_environment()})
    folder.read("none-seed0.json")["values"]  # the same call reads results/copy-0123456789ab.zip
"""

from whence.records.environment import describe_environment, describe_machine, rerun_command, source_hash
from whence.records.files import (
    make_folder,
    remove_partial_files,
    replace_file,
    require_folder,
    require_output_folder,
    write,
    write_bytes,
    write_text,
)
from whence.records.folder import RecordFolder, RecordReader, exists, find_folders, read

__all__ = [
    "RecordFolder",
    "RecordReader",
    "describe_environment",
    "describe_machine",
    "exists",
    "find_folders",
    "make_folder",
    "read",
    "remove_partial_files",
    "replace_file",
    "require_folder",
    "require_output_folder",
    "rerun_command",
    "source_hash",
    "write",
    "write_bytes",
    "write_text",
]
