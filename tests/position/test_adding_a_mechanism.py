"""A built-in mechanism needs three files: its own, the catalogue and its test. Everything else follows the catalogue."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MECHANISM = '''
import torch

from whence.position.base import Position


class Bump(Position):
    """A learnable bump around each query."""

    needs_heads = True

    def __init__(self, heads):
        super().__init__(heads=heads)
        self.width = torch.nn.Parameter(torch.linspace(2, 8, heads)[:, None])

    def bias(self, distance, length):
        return -((distance / self.width) ** 2)
'''
#: what a mechanism adds to the catalogue, by the line that it follows
CATALOGUE = {
    "from whence.position.alibi import Alibi\n": "from whence.position.bump import Bump\n",
    "__all__ = [\n": '    "Bump",\n',
    "SHORT_NAMES = {\n": '    "bump": "Bump()",\n',
    "CATALOGUE: tuple[Entry, ...] = (\n": '    Entry("Bump", lambda h, d: Bump(h), "a learnable bump", "no paper"),\n',
}
USE = """
import sys
from pathlib import Path

import torch
import transformers

import whence
assert Path(whence.__file__).is_relative_to(Path.cwd()), whence.__file__
assert whence.Bump is whence.position.Bump
whence.check(whence.Bump(4))

from whence.position.expression import parse_position
assert parse_position("bump + rotary").text == "Bump() + Rotary()"

from whence.cli.compare import EXAMPLES
assert "bump" in EXAMPLES.partition("Positions:")[2]

from whence.lab.default_studies import build_studies
(study,) = build_studies(("retrieval",), ("none", "bump"))
assert study.arms[1].position == "Bump()"

from whence.position.catalogue import CATALOGUE
from whence.report.gallery import write_gallery
write_gallery(Path("gallery.html"), entries=[entry for entry in CATALOGUE if entry.name == "Bump"], compositions=())
assert "a learnable bump" in Path("gallery.html").read_text()

import generate_docs
for table in (generate_docs.mechanisms, generate_docs.short_names, generate_docs.api):
    assert "`Bump`" in table() or "`Bump()`" in table(), table

config = transformers.LlamaConfig(vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4)
model = transformers.LlamaForCausalLM(config)
assert isinstance(whence.hf.attach(model, "bump").positions[0], whence.Bump)
whence.hf.save_positions(model, "saved")

import random_mechanisms
import test_independent_reference as random_calls
names = list(random_calls.MAKERS)
assert "Bump" in random_calls.FUSED
call = random_calls.draw_call(names.index("Bump"))
exact = random_calls.run_reference(call, torch.float64)
for backend in random_calls.backends_for(call):
    random_calls.assert_same(call, backend, random_calls.run_package(call, backend), exact)
print("all of it", "Bump" in call.names)

# without a formula of its own, a mechanism's hooks are the formula of the random calls
makers = random_calls.MAKERS
random_mechanisms.FORMULAS.clear()
makers.clear()
makers.update(random_mechanisms.list_makers())
for case in range(len(makers)):
    call = random_calls.draw_call(case)
    exact = random_calls.run_reference(call, torch.float64)
    random_calls.assert_same(call, "reference", random_calls.run_package(call, "reference"), exact)
print("formulas of hooks", len(makers))
"""


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """One process with a copy of the sources, in which a mechanism is added."""
    tmp_path = tmp_path_factory.mktemp("added")
    shutil.copytree(ROOT / "src" / "whence", tmp_path / "whence")  # with bytecode, where there is some
    (tmp_path / "whence" / "position" / "bump.py").write_text(MECHANISM)
    catalogue = tmp_path / "whence" / "position" / "catalogue.py"
    text = catalogue.read_text()
    for line, addition in CATALOGUE.items():
        assert text.count(line) == 1, line
        text = text.replace(line, line + addition)
    catalogue.write_text(text)
    folders = [tmp_path, ROOT / "papers" / "src", ROOT / "tools", ROOT / "tests" / "attention"]
    return subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
    )  # fmt: skip


def test_the_rest_follows_the_catalogue(process):
    assert "all of it True\n" in process.stdout, process.stdout[-1000:] + process.stderr[-3000:]


def test_every_formula_matches_the_hooks_that_a_mechanism_without_one_would_use(process):
    assert process.returncode == 0 and "formulas of hooks" in process.stdout, process.stderr[-3000:]
