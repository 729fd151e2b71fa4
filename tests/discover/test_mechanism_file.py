"""The written mechanism computes the formula and passes the common checks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whence
from whence.discover import Kind, Naming, Ranked, format_mechanism, read_tables, write_mechanism
from whence.discover.fitting import Candidate, Fit, list_candidates
from whence.discover.shapes import SHAPES
from whence.errors import WhenceError
from whence.models import ModelSpec, build
from whence.position.expression import ModelDims, parse_position
from whence.position.free_table import FreeTable

D = np.arange(40.0)
VALUES = {"s": 7.0, "p": 0.7, "period": 9.0, "centre": 5.0, "width": 2.5, "edge": 6.5}


def kind_of(candidate: Candidate, heads: tuple[int, ...] = (0,), hook: str = "bias") -> Kind:
    """A kind with a formula of given numbers."""
    parameters = tuple(VALUES[name.rstrip("2")] for name in candidate.parameters)
    rows = np.array([[1.0 if candidate.offset else 0.0] + [0.5 + head] * candidate.terms for head in heads])
    fit = Fit(candidate, hook, parameters, rows, 0.0, 1)
    return Kind(heads, Naming(heads, (Ranked(fit, 0.0, 0.0, 0.0, 0.0),)))


def make(text: str, **arguments: int) -> whence.Position:
    names: dict = {}
    exec(compile(text, "mechanism", "exec"), names)
    return names["Discovered"](**arguments).double()


def hook_values(position: whence.Position, hook: str) -> np.ndarray:
    out = (position.bias if hook == "bias" else position.score_scale)(torch.tensor(D), None)
    return out.detach().numpy()


@pytest.mark.parametrize("hook", ["bias", "scale"])
def test_every_formula_is_written_as_it_was_fitted(hook: str) -> None:
    for candidate in list_candidates(hook):
        kind = kind_of(candidate, hook=hook)
        got, wanted = hook_values(make(format_mechanism([kind])), hook), kind.naming.fit.evaluate(D)[0]
        if hook == "bias":
            got, wanted = got - got[0], wanted - wanted[0]
        elif candidate.shapes:
            wanted = wanted / (wanted[0] if wanted[0] else 1.0)
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5, err_msg=candidate.name)


def test_a_file_of_several_kinds_is_short_and_passes_the_checks(tmp_path) -> None:
    named = {shape.name: Candidate((shape,)) for shape in SHAPES}
    kinds = [kind_of(named["power"], (1, 3)), kind_of(named["one distance"], (0,)), kind_of(Candidate(), (2,))]
    path = write_mechanism(kinds, tmp_path / "found.py")
    code = [line for line in path.read_text().split('"""', 2)[2].splitlines() if line.strip()]
    assert len(code) <= 16
    position = parse_position(f"{path}:Discovered").build(ModelDims(4, 8, 32, 16))
    whence.check(position)
    got = hook_values(position.double(), "bias")
    for kind in kinds:
        for row, head in enumerate(kind.heads):
            wanted = kind.naming.fit.evaluate(D)[row]
            np.testing.assert_allclose(got[head] - got[head, 0], wanted - wanted[0], atol=1e-5)


def test_the_error_for_another_number_of_heads_has_a_remedy_that_the_file_allows() -> None:
    linear = next(candidate for candidate in list_candidates("bias") if candidate.name == "linear")
    position, q = make(format_mechanism([kind_of(linear, (0, 1))])).float(), torch.randn(1, 4, 3, 8)
    with pytest.raises(WhenceError, match=r"2 heads with 4 in q.*no argument heads.*whence compare --heads 2"):
        whence.attend(q, q, q, position=position, causal=True)
    with pytest.raises(WhenceError, match=r"2 heads with 4 in q.*build it with heads=4"):
        whence.attend(q, q, q, position=whence.Alibi(2), causal=True)


def test_layers_with_different_kinds_and_both_hooks() -> None:
    named = {shape.name: Candidate((shape,)) for shape in SHAPES}
    bias = [kind_of(named["power"], (0, 3)), kind_of(named["oscillation"], (1,)), kind_of(Candidate(), (2,))]
    scale = [kind_of(named["exponential"], (0, 1, 3), "scale"), kind_of(Candidate(), (2,), "scale")]
    text = format_mechanism([*bias, *scale], layers=2)
    for layer in (0, 1, 2):  # a third layer has the values of the first
        position = make(text, layer=layer)
        if layer == 1:
            whence.check(position)
        for hook, kinds in (("bias", bias), ("scale", scale)):
            got = hook_values(position, hook)
            for kind in kinds:
                for row, head in enumerate(kind.heads):
                    if head // 2 != layer % 2:
                        continue
                    wanted = kind.naming.fit.evaluate(D)[row]
                    if hook == "bias":
                        np.testing.assert_allclose(got[head % 2] - got[head % 2, 0], wanted - wanted[0], atol=1e-5)
                    else:
                        np.testing.assert_allclose(got[head % 2], wanted / wanted[0], atol=1e-5)
    assert "layer 0, head 0; layer 1, head 1: power" in text
    nothing = make(format_mechanism([kind_of(Candidate(), (0, 1), "scale")]))
    assert (hook_values(nothing, "scale") == np.ones((2, len(D)))).all()
    with pytest.raises(WhenceError, match=r"layers.*3 for 8 heads.*number of layers"):
        format_mechanism([*bias, *scale], layers=3)


def test_an_existing_file_is_not_replaced(tmp_path) -> None:
    (tmp_path / "found.py").write_text("mine")
    with pytest.raises(WhenceError, match=r"found\.py.*exists.*another path"):
        write_mechanism([kind_of(Candidate())], tmp_path / "found.py")
    with pytest.raises(WhenceError, match="no kind"):
        format_mechanism([])


def test_tables_of_models_become_curves_and_a_mechanism() -> None:
    table = FreeTable(2, acts_on="bias and scale", exact=8, per_octave=2, max_distance=64)
    spec = ModelSpec("decoder", vocab_size=5, layers=2, embed_dim=8, heads=2, ffn_dim=8)
    models = [build(spec, table, seed=seed) for seed in range(3)]
    rng = np.random.default_rng(0)
    for seed, model in enumerate(models):
        parts = [part for part in model.modules() if isinstance(part, FreeTable)]
        knots = parts[1].knots.double()
        heads = [-0.1 * knots, 3.0 * torch.exp(-knots / 6)]
        rows = torch.stack(heads[::-1] if seed == 1 else heads) + 5 * seed  # another order, another level
        parts[1].bias_table.data.copy_(rows + torch.tensor(0.02 * rng.normal(size=rows.shape)))
    curves = read_tables(models, layer=1, longest=48)
    assert curves.distances[-1] <= 48 and curves.values.shape[:2] == (3, 2)
    np.testing.assert_allclose(curves.mean[0] - curves.mean[0, 0], -0.1 * curves.distances, atol=0.1)
    with pytest.raises(WhenceError, match=r"2 FreeTables and layer=2"):
        read_tables(models, layer=2)
    with pytest.raises(WhenceError, match=r"hook.*'scale'.*acts on bias"):
        read_tables([build(spec, FreeTable(2), seed=0)], "scale")
