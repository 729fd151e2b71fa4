"""``import whence`` loads torch and nothing heavier; the rest comes when it is used, or says which extra it needs."""

import subprocess
import sys

import pytest

HEAVY = ("triton", "transformers", "matplotlib", "scipy", "pandas", "jinja2", "onnx", "accelerate", "rich", "typer")
#: what a command loads when it runs; those of installed packages are imported to be listed
LATE = ("transformers", "matplotlib", "scipy", "whence.lab.training", "whence.mend", "whence.probe.findings")
CODE = f"""
import sys, torch
before = set(sys.modules)
import whence
print(*(set(sys.modules) - before))
print('heavy:', *(set({HEAVY!r}) & set(sys.modules)))  # torch may not bring them either
q = torch.ones(1, 1, 2, 4, requires_grad=True)
whence.attend(q, q, q, backend='blockwise').sum().backward()
print('compiler:', 'torch._dynamo' in sys.modules)
import whence.cli.app
print('command:', *(set({LATE!r}) & set(sys.modules)))
print(all(getattr(whence, name) is not None for name in whence.__all__))
try: whence.nonsense
except AttributeError as error: print(error)
sys.modules['matplotlib'] = None
try: whence.show(whence.Alibi(2))
except whence.MissingExtra as error: print(error)
"""


@pytest.fixture(scope="module")
def printed():
    """What a fresh process finds out, line by line."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_import_loads_torch_alone(printed):
    loaded, heavy, *_ = printed
    outside = {name.split(".")[0] for name in loaded.split()} - {"whence", "torch"} - set(sys.stdlib_module_names)
    assert not outside
    assert not {"whence.checks", "whence.plotting", "whence.report"} & set(loaded.split())
    assert heavy == "heavy:"


def test_attention_on_a_cpu_imports_no_compiler(printed):
    assert printed[2] == "compiler: False"  # it takes seconds


def test_everything_promised_is_there(printed):
    promised, unknown = printed[4:6]
    assert promised == "True" and "no attribute 'nonsense'" in unknown


def test_show_without_matplotlib_names_the_extra(printed):
    assert printed[6] == 'whence.show needs matplotlib, which is not installed; run: pip install "whence[plot]".'


def test_the_command_line_loads_what_a_command_needs_when_it_runs(printed):
    assert printed[3] == "command:"
