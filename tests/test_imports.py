"""``import whence`` loads torch and nothing heavier; the rest comes when it is used, or says which extra it needs."""

import subprocess
import sys

HEAVY = ("triton", "transformers", "matplotlib", "scipy", "pandas", "jinja2", "onnx", "accelerate", "rich", "typer")


def fresh(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_torch_alone():
    loaded, heavy = fresh(
        "import sys, torch; before = set(sys.modules); import whence; print(*(set(sys.modules) - before))\n"
        f"print('heavy:', *(set({HEAVY!r}) & set(sys.modules)))"  # torch may not bring them either
    ).splitlines()
    outside = {name.split(".")[0] for name in loaded.split()} - {"whence", "torch"} - set(sys.stdlib_module_names)
    assert not outside
    assert not {"whence.checks", "whence.plotting", "whence.report"} & set(loaded.split())
    assert heavy == "heavy:"


def test_everything_promised_is_there():
    promised, unknown = fresh(
        "import whence; print(all(getattr(whence, name) is not None for name in whence.__all__))\n"
        "try: whence.nonsense\nexcept AttributeError as e: print(e)"
    ).splitlines()
    assert promised == "True" and "no attribute 'nonsense'" in unknown


def test_show_without_matplotlib_names_the_extra():
    code = (
        "import sys; sys.modules['matplotlib'] = None\nimport whence\n"
        "try: whence.show(whence.Alibi(2))\nexcept whence.MissingExtra as e: print(e)"
    )
    assert fresh(code) == 'whence.show needs matplotlib, which is not installed; run: pip install "whence[plot]".'
