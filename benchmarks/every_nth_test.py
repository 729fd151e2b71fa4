"""Pytest plugin of ``gpu_tests.py``: run every n-th test, from the environment variable TEST_SHARD="index/n"."""

from __future__ import annotations

import os
from typing import Any


def pytest_collection_modifyitems(items: list[Any]) -> None:
    index, count = map(int, os.environ["TEST_SHARD"].split("/"))
    items[:] = items[index::count]
