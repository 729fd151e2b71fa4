"""The README cannot rot: its tables are what the code says, and its code runs."""

import re
from pathlib import Path

import pytest
import torch

import readme

TEXT = (readme.ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_generated_parts_are_up_to_date():
    assert readme.rendered(TEXT) == TEXT, "run: make readme"


def test_every_code_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {}
    assert len(BLOCKS) >= 3
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
    assert Path("bell.png").stat().st_size > 10_000


def test_commands_exist():
    targets = re.findall(r"^([a-z0-9-]+):", (readme.ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in re.findall(r"make ([a-z0-9-]+)", TEXT):
        assert command in targets


def test_every_folder_of_the_tree_exists():
    tree = re.search(r"```text\n(.*?)```", TEXT, re.DOTALL)[1]
    for line in tree.splitlines():
        assert (readme.ROOT / line.split()[0]).is_dir()


def test_links_to_files_exist():
    for target in re.findall(r"\]\((?!http)([^)]+)\)", TEXT):
        assert (readme.ROOT / target).exists(), target


def test_memory_of_capture_is_that_of_the_record():
    sizes = {"plain": 3e8, "LastRow": 3.4e8, "Turned": 1.26e9, "everything": 1.7e9}
    record = {"about": {"length": 512}, "results": {way: {"bytes": size} for way, size in sizes.items()}}
    told = readme.capture_memory(record)
    assert (
        "512 tokens of SmolLM2 takes 0.3 GB beyond the model; 0.3 to 1.3 GB where one" in told
        and "1.7 GB where all" in told
    )


def test_a_missing_place_is_named():
    with pytest.raises(SystemExit, match="'backends'"):
        readme.rendered(TEXT.replace("<!-- backends -->", ""))
