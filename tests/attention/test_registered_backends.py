"""A user's own backend: registration, choice, checks of what it returns, entry points."""

import pytest
import torch
from backend_requests import D, H, explain_call, tokens

from whence import (
    Alibi,
    Attention,
    Backend,
    Epar,
    KVCache,
    WhenceError,
    attend,
    register_backend,
)
from whence.attention.backends import BACKENDS, INSTALLED

# --- a user's own backend -----------------------------------------------------------------------------------------------


class Doubled(Backend):
    """The reference, with every output doubled, so that it is seen to run."""

    name = "doubled"
    effects = frozenset({"bias"})

    def run(self, call):
        return 2 * BACKENDS["reference"].run(call)[0], None


@pytest.fixture
def registry():
    before = dict(BACKENDS), dict(INSTALLED)
    yield
    for names, old in zip((BACKENDS, INSTALLED), before, strict=True):
        names.clear()
        names.update(old)


def test_a_registered_backend_runs_by_name(registry):
    register_backend(Doubled())
    q = torch.randn(1, H, 5, D, dtype=torch.float64)
    out = attend(q, q, q, position=Alibi(H), causal=True, backend="doubled")
    torch.testing.assert_close(out, 2 * attend(q, q, q, position=Alibi(H), causal=True))
    layer, x = Attention(H * D, H, Alibi(H), causal=True), torch.randn(1, 5, H * D)
    plain = layer(x)
    layer.backend = "doubled"
    torch.testing.assert_close(layer(x), 2 * plain)
    explanation = explain_call(Alibi(H), backend="doubled")
    assert (explanation.backend, explanation.why) == ("doubled", "named by the caller")
    assert dict(explain_call(Epar(H)).others)["doubled"] == "it does not apply score_scale"
    assert explain_call(Alibi(H)).backend == "sdpa"  # of priority 0, auto does not take it


def test_a_registered_backend_refuses_what_it_does_not_support(registry):
    register_backend(Doubled())
    for unsupported in ({"position": Epar(H)}, {"return_weights": True}):
        with pytest.raises(WhenceError, match=r"backend='doubled'.*backend='"):
            attend(tokens(), tokens(), tokens(), backend="doubled", **unsupported)


def test_auto_takes_the_highest_priority(registry):
    class First(Doubled):
        name = "first"

        def priority(self, request):
            return 100

    register_backend(First())
    assert explain_call(Alibi(H)).backend == "first"
    assert explain_call(Epar(H)).backend == "blockwise"  # which it does not support


def test_a_backend_that_promises_weights_returns_them(registry):
    class Promising(Doubled):
        name, returns_weights = "promising", True

    register_backend(Promising())
    with pytest.raises(WhenceError, match=r"promising.*return_weights"):
        attend(tokens(), tokens(), tokens(), backend="promising", return_weights=True)
    cache = KVCache()
    with pytest.raises(WhenceError, match=r"promising.*return_weights"):
        attend(tokens(), tokens(), tokens(), causal=True, backend="promising", return_weights=True, cache=cache)
    assert len(cache) == 0  # a call that raises leaves no tokens behind


def test_what_a_registered_backend_returns_is_checked(registry):
    q = tokens()
    out = torch.zeros_like(q)
    wrong = (
        None,
        out,
        (out, None, None),
        (None, None),
        (out[:, :, :1], None),
        (out.long(), None),
        (out, out[0]),
        (out.to("meta"), None),
    )
    for result in wrong:
        kind = type("Wrong", (Backend,), {"name": "wrong", "run": lambda self, call, result=result: result})
        register_backend(kind(), replace=True)
        with pytest.raises(
            WhenceError, match=r"backend='wrong'.*(return output, None|return a float tensor of shape|call.q.device)"
        ):
            attend(q, q, q, backend="wrong")


def test_dropout_and_grouped_heads_are_declared(registry):
    register_backend(Doubled())
    q, k = torch.randn(1, H, 5, D), torch.randn(1, H // 2, 5, D)
    for x, options, why in ((q, {"dropout": 0.5}, "dropout"), (k, {}, "fewer heads")):
        with pytest.raises(WhenceError, match=rf"doubled.*{why}.*backend='sdpa'"):
            attend(q, x, x, backend="doubled", **options)
    Doubled.takes_dropout = Doubled.takes_grouped_heads = True
    try:
        assert attend(q, k, k, dropout=0.5, backend="doubled").shape == q.shape
    finally:
        del Doubled.takes_dropout, Doubled.takes_grouped_heads


def test_a_backend_has_a_run_of_its_own(registry):
    with pytest.raises(WhenceError, match=r"Idle without run.*def run"):
        register_backend(type("Idle", (Backend,), {"name": "idle"})())


def test_what_cannot_be_registered(registry):
    register_backend(Doubled())
    with pytest.raises(WhenceError, match=r"'doubled'.*replace=True"):
        register_backend(Doubled())
    register_backend(Doubled(), replace=True)
    for wrong in (object(), Doubled, type("Nameless", (Backend,), {})(), type("Auto", (Backend,), {"name": "auto"})()):
        with pytest.raises(WhenceError, match=r"register_backend.*(subclass whence.Backend|attribute name)"):
            register_backend(wrong)


def test_an_unknown_name_lists_what_exists(registry):
    register_backend(Doubled())
    for run in (
        lambda: attend(tokens(), tokens(), tokens(), backend="flash"),
        lambda: Attention(8, 2, backend="flash"),
    ):
        with pytest.raises(WhenceError, match=r"backend=.*'flash'.*'auto'.*'reference'.*'doubled'.*register_backend"):
            run()


def install(tmp_path, monkeypatch, name, target):
    """A package that registers the backend ``threefold:Threefold`` under a name."""
    (tmp_path / "threefold.py").write_text(
        "from whence import Backend\n"
        "class Threefold(Backend):\n"
        "    name = 'threefold'\n"
        "    def run(self, call):\n"
        "        return 3 * call.v, None\n"
    )
    info = tmp_path / "threefold-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: threefold\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[whence.backends]\n{name} = {target}\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_backend_of_an_installed_package_runs_by_name(registry, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "threefold", "threefold:Threefold")
    q = torch.randn(1, H, 5, D)
    torch.testing.assert_close(attend(q, q, q, backend="threefold"), 3 * q)
    assert "threefold" in dict(explain_call().others) and explain_call().backend == "sdpa"


@pytest.mark.parametrize(
    "name, target, expected",
    [("fourfold", "threefold:Threefold", "name = 'fourfold'"), ("gone", "threefold:Gone", "reinstall or correct")],
)
def test_an_entry_point_that_does_not_fit(name, target, expected, registry, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, name, target)
    with pytest.raises(WhenceError, match=rf"{name}.*{expected}"):
        attend(tokens(), tokens(), tokens(), backend=name)
