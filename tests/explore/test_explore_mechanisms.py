"""What the tab of mechanisms shows, without a browser."""

import re

import pytest
import torch

from whence import Alibi, NoPosition
from whence.attention.module import Attention
from whence.explore.mechanism_view import Settings, build, split_words, view_mechanism, view_mechanisms, word_weights
from whence.explore.mechanisms_tab import load_own, make_settings, picked_names, view_sides
from whence.explore.onnx_file import export_onnx
from whence.position.catalogue import SHORT_NAMES

SMALL = Settings(heads=2, length=16, context=16)


@pytest.mark.parametrize("text", [*SHORT_NAMES, "rotary + epar + sink"])
def test_every_mechanism_is_drawn(text):
    view = view_mechanism(text, SMALL)
    assert "problem" not in view.figures and view.figures.count("<figure") == 5 and view.sentence.count("<figure") == 2
    words = re.sub(r"base64,[\w+/=]*|alternan", "", view.figures, flags=re.IGNORECASE)  # pixels may spell anything
    assert "nan" not in words.lower() and "position" in view.code


def test_curves_tell_their_numbers_to_screen_readers():
    labels = re.findall(r'aria-label="([^"]*)"', view_mechanism("Alibi(scale=2)", SMALL).figures)
    assert any("head 0 is 0 at 0 and -1.88 at 15" in label for label in labels), labels


@pytest.mark.parametrize(
    "text, said",
    [("Alibi(scale=-1)", "scale"), ("nonsense", "nonsense"), ("", "type for example"), ("./no.py:Bell", "no.py")],
)
def test_errors_are_sentences(text, said):
    view = view_mechanism(text, SMALL)
    assert (
        'role="alert"' in view.figures and said in view.figures and view.code == "" and "Traceback" not in view.figures
    )


def test_an_error_in_ones_own_code_names_file_and_line(tmp_path):
    path = tmp_path / "bell.py"
    path.write_text(
        "from whence import Position\nclass Bell(Position):\n    def bias(self, distance, length):\n        return 1 / 0\n"
    )
    view = view_mechanism(f"{path}:Bell", SMALL)
    assert "ZeroDivisionError" in view.figures and "line 4" in view.figures


def test_what_is_typed_is_never_evaluated_and_is_escaped(tmp_path):
    marker = tmp_path / "ran"
    for text in (f"__import__('pathlib').Path({str(marker)!r}).touch()", f"Alibi(scale=open({str(marker)!r}, 'w'))"):
        assert 'role="alert"' in view_mechanism(text, SMALL).figures
    assert not marker.exists()
    shown = view_mechanism("alibi", Settings(heads=2, length=16, sentence="<script>x</script> & more"))
    assert "<script" not in shown.sentence and "&lt;" in shown.sentence
    assert "<b>" not in view_mechanism("<b>bold</b>", SMALL).figures


def test_equal_words_attract_and_the_mechanism_adds_its_bias():
    words = split_words("the cat saw the dog")
    plain, weights = word_weights(Alibi(2), words, heads=2)
    assert (plain.sum(-1) - 1).abs().max() < 1e-12
    assert plain[:, 3, 0].min() > 0.2  # "the" finds "the"
    distance = torch.arange(5)[:, None] - torch.arange(5)
    expected = plain * torch.exp(-Alibi(2).slope().double()[:, :, None] * distance).tril()
    torch.testing.assert_close(weights, expected / expected.sum(-1, keepdim=True))
    assert torch.equal(*word_weights(NoPosition(), words, heads=2))


def test_ones_own_class_is_added_to_the_sum(tmp_path):
    path = tmp_path / "bell.py"
    path.write_text(
        "from whence import Position\nclass Bell(Position):\n    def bias(self, distance, length):\n        return -distance.abs()\n"
    )
    text, error = load_own(f"{path}:Bell", "Alibi()")
    assert text == f"Alibi() + {path}:Bell" and error == ""
    assert "<b>Bell</b> your own mechanism <small>bell.py<" in view_mechanism(text, SMALL).figures
    assert picked_names(text) == ["Alibi"]
    assert load_own(f"{path}:Bell", "NoPosition()")[0] == f"{path}:Bell"
    for reference in ("", f"{path}:Missing"):
        text, error = load_own(reference, "Alibi()")
        assert text == "Alibi()" and 'role="alert"' in error


def test_a_head_beyond_the_last_shows_the_last():
    values = (2, 16, 16, 11, True, "a b c", 40)
    assert make_settings(*values) == Settings(2, 16, 16, 11, True, "a b c", 40)
    pytest.importorskip("gradio")
    figures, sentence, _, *other = view_sides("alibi", "rotary", False, *values)
    assert "head 11" not in figures and "head 1" in figures and "From “a”" in sentence
    assert not any(isinstance(part, str) for part in other)  # the hidden side is not drawn


def read_axis(figures, title):
    """The texts beside the vertical axis of a chart, and the ends of the colors of a map."""
    figure = figures.split(f"<figcaption>{title}")[1].split("</figure>")[0]
    bar = re.findall(r'<div class="bar"><span>(.*?)</span>.*?<span>(.*?)</span>', figure)
    return bar or re.findall(r'text-anchor="end">([^<]*)</text>', figure)


def test_two_mechanisms_have_the_same_axes():
    alone = view_mechanism("Alibi(scale=0.5)", SMALL)
    for first, second in (("Alibi(scale=0.5)", "Alibi(scale=8)"), ("Alibi(scale=0.5)", "Epar(beta=8)")):
        small, large = view_mechanisms([first, second], SMALL)
        for title in ("Effect over distance", "Effect by query and key", "Change by distance"):
            assert read_axis(small.figures, title) == read_axis(large.figures, title)
            assert second.startswith("Epar") or read_axis(small.figures, title) != read_axis(alone.figures, title)
    assert "change of the logit of a score of 1" in small.figures and "change of the logit of" in large.figures
    assert (
        "head 0 is 0 at 0" in small.figures and "every head is -0.323 at -7" in large.figures
    )  # a factor below 1 is a change below 0
    broken, shown = view_mechanisms(["nonsense", "Alibi(scale=0.5)"], SMALL)
    assert 'role="alert"' in broken.figures and shown == alone


def test_the_onnx_file_computes_the_layer_at_another_length(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    dims = Settings(heads=2, context=16).dims
    path = export_onnx("Alibi(scale=2)", dims, tmp_path)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = torch.randn(3, 11, dims.embed_dim)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.manual_seed(0)  # as the export draws its weights
    layer = Attention(dims.embed_dim, dims.heads, build("Alibi(scale=2)", dims), causal=True)
    torch.testing.assert_close(torch.from_numpy(found), layer(x).detach(), atol=1e-4, rtol=1e-3)
