"""Mechanisms as text: short names, classes, modules, files, entry points and sums of them."""

import hashlib
import importlib.metadata
import json
import sys

import pytest
import torch

import whence
from whence.errors import WhenceError
from whence.position import catalogue, expression
from whence.position.expression import ModelDims, build_position, hash_position_sources, parse_position

DIMS = ModelDims(heads=2, head_dim=8, embed_dim=16, context=32)
ENCODER = ModelDims(heads=2, head_dim=8, embed_dim=16, context=32, causal=False)
BELL = """
import torch
import whence

class Bell(whence.Position):
    def __init__(self, heads, *, start=8.0, causal=True, names=()):
        super().__init__(heads=heads)
        self.causal, self.names = causal, names
        self.width = torch.nn.Parameter(torch.full((heads, 1), start))

    def bias(self, distance, length):
        return -((distance / self.width) ** 2)

def wide_bell(heads):
    return Bell(heads, start=64.0)

def not_a_position():
    return 3

NUMBER = 3
"""


@pytest.fixture
def bell(tmp_path, monkeypatch):
    """A file and a module of the same content, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bell.py").write_text(BELL)
    (tmp_path / "own_bells.py").write_text(BELL)
    yield tmp_path / "bell.py"
    sys.modules.pop("own_bells", None)


@pytest.mark.parametrize("name", catalogue.SHORT_NAMES)
@pytest.mark.parametrize("dims", [DIMS, ENCODER], ids=["causal", "both sides"])
def test_every_short_name_is_built_for_the_model(name, dims):
    position = build_position(name, dims)
    assert type(position).__name__ == catalogue.SHORT_NAMES[name].partition("(")[0]
    assert position.heads in (None, 2)
    assert parse_position(name).text == catalogue.SHORT_NAMES[name]


def test_every_mechanism_of_the_catalogue_has_a_short_name():
    assert {text.partition("(")[0] for text in catalogue.SHORT_NAMES.values()} == set(catalogue.__all__)


def test_model_sizes_are_filled_in_where_the_text_does_not_set_them():
    assert build_position("Epar()", DIMS).heads == 2 and build_position("Epar()", DIMS).context == 32
    assert build_position("Epar(heads=None, context=9)", DIMS).heads is None
    assert build_position("Epar(context=9)", DIMS).context == 9
    assert build_position("PowerPrior()", DIMS).heads == 2
    assert build_position("Shaw()", DIMS).heads is None  # shared among heads, as published
    assert build_position("Shaw()", DIMS).head_dim == 8
    assert build_position("Sinusoidal()", DIMS).embed_dim == 16
    assert build_position("TransformerXL()", DIMS).embed_dim == 16
    assert build_position("Learned()", DIMS).max_length == 8 * 32 + 1
    assert build_position("Learned()", ModelDims(2, 8, 16, 32, max_length=40)).max_length == 40
    assert build_position("Fire()", DIMS).context is None
    assert build_position("Fire(length='context')", DIMS).context == 32


def test_forms_follow_causality():
    assert [build_position("Alibi()", dims).form for dims in (DIMS, ENCODER)] == ["causal", "symmetric"]
    assert [build_position("T5Bias()", dims).form for dims in (DIMS, ENCODER)] == ["causal", "bidirectional"]
    assert build_position("Alibi(form='causal')", ENCODER).form == "causal"


def test_sums_of_short_names_classes_and_files(bell):
    position = build_position("rotary + alibi(scale=2) + ./bell.py:Bell", DIMS)
    assert [type(part).__name__ for part in position.parts] == ["Rotary", "Alibi", "Bell"]
    assert position.parts[1].scale == 2
    assert parse_position("rotary + epar(beta=2)").text == "Rotary() + Epar(learnable=True, beta=2)"
    assert parse_position("  Rotary()+Alibi() ").text == "Rotary()+Alibi()"  # without short names the text stays


def test_nested_constructors():
    rotary = build_position("Rotary(scaling=Yarn(factor=4))", DIMS)
    assert rotary.scaling == whence.position.Yarn(factor=4, original=32)
    assert build_position("Rotary(scaling=Yarn(factor=4, original=64))", DIMS).scaling.original == 64
    longrope = "Rotary(scaling=LongRope(short=[1.0, 1.0, 1.0, 1.0], long=(2, 2, 2, 2), factor=2), length='context')"
    assert build_position(longrope, DIMS).context == 32
    for text in ("Rotary(scaling=open('x'))", "Rotary(scaling=Alibi())"):
        with pytest.raises(WhenceError, match=r"as the value of an argument.*use one of them"):
            parse_position(text)
    with pytest.raises(WhenceError, match=r"Yarn\(size=\.\.\.\).*rename size"):
        parse_position("Rotary(scaling=Yarn(size=4))")
    with pytest.raises(WhenceError, match=r"Yarn\(factr=\.\.\.\).*did you mean factor\?"):
        parse_position("rotary(scaling=Yarn(factr=4))")
    for text, name in (
        ("yarn(factor=4)", "Yarn"),
        ("a.Yarn(factor=4)", "Yarn"),
        ("DynamicNTK(factor=4)", "DynamicNtk"),
    ):
        with pytest.raises(WhenceError, match=rf"as the value of an argument.*did you mean {name}\?"):
            parse_position(f"Rotary(scaling={text})")
    with pytest.raises(WhenceError, match=r"the scaling Yarn.*write Rotary\(scaling=Yarn\(\.\.\.\)\)"):
        parse_position("rotary + Yarn(factor=4)")


@pytest.mark.parametrize(
    "text",
    [
        "rotary + alibi",
        "rotary(scaling=Yarn(factor=4)) + Epar(learnable=True)",
        "Rotary(scaling=Linear(factor=2.5), base=500)",
        "rotary(scaling=Llama3(factor=8, low=1.5)) + sink",
        "sinusoidal + t5(buckets=8)",
    ],
)
def test_expressions_survive_a_record(text):
    parsed = parse_position(text)
    again = parse_position(json.loads(json.dumps(parsed.text)))
    assert again.normal_form == parsed.normal_form and again.text == parsed.text
    assert repr(again.build(DIMS)) == repr(build_position(text, DIMS))


def test_a_class_from_a_file_works_like_a_built_in_one(bell):
    first, second = (build_position("./bell.py:Bell(start=4.0, names=['+', 'a'])", DIMS) for _ in range(2))
    assert type(first) is type(second) and first.names == ["+", "a"] and first.heads == 2 and first.causal is True
    assert build_position("./bell.py:Bell", ENCODER).causal is False
    q = torch.randn(1, 2, 5, 8)
    assert whence.attend(q, q, q, position=first, causal=True).shape == q.shape
    assert build_position(f"{bell}:wide_bell", DIMS).width[0].item() == 64


def test_a_file_that_changed_is_loaded_again(bell):
    build_position("./bell.py:Bell", DIMS)
    bell.write_text(BELL.replace("start=8.0", "start=2.0"))
    assert build_position("./bell.py:Bell", DIMS).width[0].item() == 2


def test_a_class_from_a_module(bell):
    before = list(sys.path)
    assert type(build_position("own_bells:Bell(heads=2)", DIMS)).__module__ == "own_bells"
    assert sys.path == before


def test_a_registered_class(bell, monkeypatch):
    point = importlib.metadata.EntryPoint("my-bell", "own_bells:Bell", "whence.positions")
    broken = importlib.metadata.EntryPoint("broken", "no_such_module:Bell", "whence.positions")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point, broken])
    monkeypatch.syspath_prepend(str(bell.parent))
    assert type(build_position("rotary + my-bell(start=3.0)", DIMS).parts[1]).__name__ == "Bell"
    with pytest.raises(WhenceError, match=r"no_such_module.*reinstall"):
        parse_position("broken")
    with pytest.raises(WhenceError, match="my-bell"):
        parse_position("nonsense")


def test_sources_are_hashed_for_classes_from_outside(bell):
    digest = hashlib.sha256(bell.read_bytes()).hexdigest()
    assert hash_position_sources("rotary + ./bell.py:Bell") == {"./bell.py:Bell": digest}
    assert hash_position_sources("own_bells:wide_bell") == {"own_bells:wide_bell": digest}
    assert hash_position_sources("Rotary(scaling=Yarn(factor=4)) + alibi") == {}


def test_more_terms_than_python_allows_recursive_calls():
    count = sys.getrecursionlimit() + 200
    position = build_position(" + ".join(["Recency()"] * count), DIMS)
    assert len(position.parts) == count


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Rotary"),
        ("Rotary() +", "Rotary"),
        ("Rotary() - Alibi()", "Rotary"),
        ("alibis", r"alibis.*did you mean alibi"),
        ("Position", "unknown mechanism Position"),
        ("Sum()", "unknown mechanism Sum"),
        ("Alibi(scale=1, scale=2)", r"scale twice.*keep one scale="),
        ("Alibi(2)", "name each of them"),
        ("Alibi(**{'scale': 1})", "name each of them"),
        ("Alibi(scal=1)", r"Alibi\(scal=\.\.\.\).*did you mean scale\?"),
        ("Alibi(zzz=1)", r"Alibi\(zzz=\.\.\.\).*rename zzz"),
        ("rotary + ALIBY", r"unknown mechanism ALIBY.*did you mean alibi\?"),
        ("NoPosition(x=1)", r"NoPosition\(x=\.\.\.\).*rename x"),
        ("Alibi(scale=__import__('os'))", "as the value of an argument"),
        ("Alibi(scale=1 if True else 2)", r"scale=1 if True else 2.*write a number"),
        ("Alibi(scale=[__import__('os')])", "scale=.*write a number"),
        ("Alibi(scale=1", "write for example"),
        ("Alibi(scale=" + "(" * 500 + ")" * 500 + ")", "correct the syntax"),
        ("Alibi(scale=" + "9" * 5000 + ")", "correct the syntax"),
        ("./nothing.py:Bell", r"no file nothing\.py.*check the path"),
        ("no_such_module:Bell", r"no module no_such_module.*check the name"),
        ("./bell.py:", "no name after the colon"),
        (3, "pass a string"),
    ],
)
def test_what_is_no_position_is_refused(text, message):
    with pytest.raises(WhenceError, match=message):
        parse_position(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Epar(learnable='yes')", r"Epar\(learnable=\.\.\.\) got 'yes'"),
        ("Alibi(scale='x')", r"scale=\.\.\.\) got 'x'"),
        ("Alibi(slope={})", r"slope=\.\.\.\) got {}"),
        ("Alibi(slope=['x', 'y'])", r"slope=\.\.\.\) got 'x'"),
        ("Learned(max_length='x')", r"max_length=\.\.\.\) got 'x'"),
        ("Rotary(base=[1])", r"base=\.\.\.\) got \[1\]"),
        ("Rotary(scaling=3)", r"scaling=\.\.\.\) got int"),
        ("Rotary(scaling=Yarn(factor='x'))", r"Yarn\(factor=\.\.\.\) got 'x'"),
        ("Rotary(scaling=Yarn())", r"Yarn without factor.*write Yarn\(factor=\.\.\.\)"),
        ("Alibi(heads='x')", r"heads=\.\.\.\) got 'x'"),
        ("Shaw(acts_on=['keys'])", r"acts_on=\.\.\.\) got \['keys'\]"),
    ],
)
def test_arguments_of_the_wrong_type_are_named(text, message):
    with pytest.raises(WhenceError, match=message):
        build_position(text, DIMS)


def test_errors_of_own_classes_are_usage_errors(bell):
    with pytest.raises(WhenceError, match=r"TypeError.*\./bell\.py:Bell\(start='x'.*correct the arguments") as caught:
        build_position("./bell.py:Bell(start='x')", DIMS)
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(WhenceError, match=r"3 from \./bell\.py:not_a_position"):
        build_position("./bell.py:not_a_position", DIMS)
    with pytest.raises(WhenceError, match=r"\./bell\.py:NUMBER, which is 3.*name the class"):
        parse_position("./bell.py:NUMBER")
    with pytest.raises(WhenceError, match=r"no Bells in \./bell\.py"):
        parse_position("./bell.py:Bells")
    bell.write_text("import no_such_package\n")
    with pytest.raises(WhenceError, match="install no_such_package"):
        parse_position("./bell.py:Bell")
    bell.write_text("1 +\n")
    with pytest.raises(WhenceError, match="line 1: SyntaxError"):
        parse_position("./bell.py:Bell")
    assert not [
        name for name in sys.modules if name.startswith("whence_file_bell") and not hasattr(sys.modules[name], "Bell")
    ]


def test_a_class_without_a_hook_is_refused(bell):
    bell.write_text(
        "import whence\n\nclass Forward(whence.Position):\n    def forward(self, distance):\n        return distance\n"
    )
    with pytest.raises(WhenceError, match=r"the class Forward, but it overrides no hook.*write one of .*bias"):
        build_position("./bell.py:Forward", DIMS)


def test_the_extrapolation_factor_covers_the_longest_evaluation():
    assert expression.EXTRAPOLATION_FACTOR >= 8
