"""The user's source files: their hashes are part of a study, and its records say which code made them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from whence import records
from whence.errors import WhenceError
from whence.lab import tasks
from whence.lab.study import Study
from whence.plugin_sources import hash_source_file
from whence.plugins import FILE_MODULE
from whence.position.expression import hash_position_sources, parse_position

#: packages whose versions are recorded; their sources are not part of a study's hash
OWN_PACKAGES = ("whence", "whence_papers")


def pin_sources(study: Study) -> Study:
    """The study with the hashes of the user's source files, so that changed code makes another study.

    A study without code from outside whence and whence_papers is returned with the same hash.
    """
    return replace(study, sources=hash_user_sources(study))


def hash_user_sources(study: Study) -> dict[str, str]:
    """SHA-256 of each source file from outside whence and whence_papers, by the name in the task or the position."""
    definitions: dict[str, Any] = {study.task.partition("(")[0]: tasks.find_task_class(study.task)}
    for arm in study.arms:
        definitions |= {term.name: term.factory for term in parse_position(arm.position).terms}
    hashes = {
        name: hash_source_file(definition)
        for name, definition in definitions.items()
        if definition.__module__.partition(".")[0] not in OWN_PACKAGES
    }
    return {name: digest for name, digest in hashes.items() if digest is not None}


def has_same_sources(study: Study) -> bool:
    """Whether the user's code is still the code of a study whose sources are pinned."""
    try:
        return hash_user_sources(study) == study.sources
    except WhenceError:  # a file is gone, or can no longer be imported
        return False


def describe_origin(study: Study) -> dict[str, Any]:
    """The command and the environment of a study's records, with the hash of each source file from outside whence."""
    task_class = tasks.find_task_class(study.task)
    own = task_class.__module__.partition(".")[0] != "whence"
    packages = [task_class.__module__] if own and not task_class.__module__.startswith(FILE_MODULE) else []
    environment = records.describe_environment(("torch", "accelerate"), accelerator=gpu_name(), sources=packages)
    sources = {study.task.partition("(")[0]: hash_source_file(task_class)} if own else {}
    for arm in study.arms:
        sources |= hash_position_sources(arm.position)
    if sources:
        environment["plugin_sources"] = sources
    return {"command": records.rerun_command(), "environment": environment}


def gpu_name() -> str | None:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
