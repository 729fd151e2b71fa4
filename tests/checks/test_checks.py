"""The common checks hold for every mechanism of the list, and for a user's own, and fail when something is wrong."""

import pytest
import torch

import whence
from whence.checks import CHECKS, TOKENS, layers
from whence.checks.fixture import Failure, Fixture
from whence.position import DynamicNtk, Llama3, LongRope, Yarn
from whence.position.catalogue import CATALOGUE

HALF = 4  # pairs of a head of width 8
# two each, because a check costs a second; other sums are checked in tests/attention
VARIANTS = {
    "Rotary interleaved + Alibi symmetric, learnable": lambda: (
        whence.Rotary(layout="interleaved") + whence.Alibi(3, form="symmetric", learnable=True, scale=1.1)
    ),
    "Rotary partial, llama3 + T5 bidirectional": lambda: (
        whence.Rotary(rotary_dim=4, scaling=Llama3(8.0, original=16))
        + whence.T5Bias(4, form="bidirectional", buckets=8, max_distance=16)
    ),
    "Rotary dynamic + Recency per head": lambda: (
        whence.Rotary(scaling=DynamicNtk(4.0, original=4), context=16) + whence.Recency(6, heads=4)
    ),
    "Shaw keys per head + Cope per head": lambda: (
        whence.Shaw(8, acts_on="keys", heads=4, clip=3) + whence.Cope(8, heads=4, positions=4)
    ),
    "Rotary longrope + Fire context": lambda: (
        whence.Rotary(scaling=LongRope(short=[1.0] * HALF, long=[2.0] * HALF, original=8, factor=4.0), context=32)
        + whence.Fire(4, length="context", context=64, threshold=4.0)
    ),
    "Rotary yarn + Shaw values + QueryTable of the layer input": lambda: (
        whence.Rotary(scaling=Yarn(4.0, original=8))
        + whence.Shaw(8, acts_on="values", clip=3)
        + whence.QueryTable(4, 8, source="input", embed_dim=12, rank=2, extent=5, std=1.0)
    ),
    "StableMask learnable + LearnedRotary per key head": lambda: (
        whence.StableMask(4, context=12, learnable=True) + whence.LearnedRotary(8, num_kv_heads=2)
    ),
    "Rotary dynamic, sequence": lambda: whence.Rotary(scaling=DynamicNtk(4.0, original=4), length="sequence"),
    "Epar sequence": lambda: whence.Epar(length="sequence", learnable=True),
}


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda e: e.name)
def test_every_mechanism_of_the_list(entry):
    report = whence.check(entry.make(4, 8))
    assert len(report.passed) + len(report.skipped) == len(CHECKS)
    others = {name for name, _ in report.skipped} - {
        "steps of a clock",
        "selected heads",
    }  # for clocks, and for parameters by head
    assert len(others) <= 2  # shift invariance and the other side, where they are not claimed


#: what these add to the mechanisms of the list has no code of its own for torch.compile to trace
TRACED_ALREADY = ("interleaved", "partial", "proportional", "Shaw", "yarn")


@pytest.fixture
def without_compilation(monkeypatch):
    """Tracing a step takes three quarters of the time of all checks."""
    monkeypatch.delitem(CHECKS, "compiled decoding step")


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant(name, request):
    if any(word in name for word in TRACED_ALREADY):
        request.getfixturevalue("without_compilation")
    report = whence.check(VARIANTS[name]())
    assert not report.failed


class Bell(whence.Position):
    """A user's own, which does not even say its number of heads."""

    def __init__(self, heads):
        super().__init__()
        self.width = torch.nn.Parameter(torch.full((heads, 1), 64.0))

    def bias(self, distance, length):
        return -((distance / self.width) ** 2)


def test_a_users_own():
    report = whence.check(Bell(8))
    assert len(report.passed) == len(CHECKS) - 1 and report.skipped == [("steps of a clock", "it has no clock")]
    assert "passed   gradients against finite differences" in str(report)


class WrongShape(Bell):
    def bias(self, distance, length):
        return super().bias(distance, length)[:, :1]


class Detached(Bell):
    def bias(self, distance, length):  # the value at the present width, hidden from autograd
        return -((distance / self.width.detach()) ** 2) + 0 * self.width


class NotFinite(Bell):
    def bias(self, distance, length):
        return -((distance / self.width) ** 2) + torch.log(distance.abs())


class Absolute(Bell):
    """Claims to be relative and looks at where keys stand."""

    def content_bias(self, rows):
        return rows.scores * 0 + 0.1 * rows.k_positions[:, None, None, :]

    def value_bias(self, weights, rows):
        return (weights * rows.k_positions[:, None, None, :]).sum(-1, keepdim=True).expand(-1, -1, -1, rows.q.shape[-1])


class LooksAhead(Bell):
    def content_bias(self, rows):
        return rows.scores.mean(-1, keepdim=True) * rows.scores


class CountsKeys(Bell):
    """Depends on how many keys there are, which differs between one pass and a cache."""

    def content_bias(self, rows):
        return rows.scores * rows.k.shape[2] / TOKENS


class Unsteady(Bell):
    """Answers differently from call to call."""

    def __init__(self, heads):
        super().__init__(heads)
        self.calls = 0

    def bias(self, distance, length):
        self.calls += 1
        return super().bias(distance, length) * self.calls


class Forgetful(Bell):
    """Loses its parameter on the way to disk."""

    def load_state_dict(self, state, strict=True, assign=False):
        return super().load_state_dict({}, strict=False)


class HalfAngles(whence.Position):
    """Computes in the dtype of the queries what they cannot tell apart: far positions."""

    def rotate(self, q, k, q_positions, k_positions):
        return self._turned(q, q_positions), self._turned(k, k_positions)

    def _turned(self, x, positions):
        angle = positions.to(x.dtype)[:, None, :, None]
        first, second = x.chunk(2, -1)
        return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1)


class Widening(whence.Position):
    """Leaves its result in float32, whatever came in."""

    def rotate(self, q, k, q_positions, k_positions):
        wide = torch.promote_types(q.dtype, torch.float32)
        return q.to(wide), k.to(wide)


class WideningEmbedding(whence.Position):
    relative = False

    def embed(self, x, positions):
        return x + positions[..., None].to(torch.promote_types(x.dtype, torch.float32)) / 64


class OwnPrecision(whence.Position):
    """Multiplies queries in float32 with parameters in whatever precision the model has."""

    def __init__(self, heads):
        super().__init__()
        self.table = torch.nn.Parameter(torch.eye(8))

    def content_bias(self, rows):
        return 0.1 * rows.q @ self.table @ rows.k.mT


class WritesQueries(whence.Position):
    """Scales q in its own memory, and k, which the cache keeps, in new memory."""

    def rotate(self, q, k, q_positions, k_positions):
        return q.mul_(2.0), 2.0 * k


class WritesScores(whence.Position):
    def content_bias(self, rows):
        return rows.scores.mul_(0.5)


class WritesDistances(Bell):
    def bias(self, distance, length):
        return super().bias(distance.clamp_(max=64.0), length)


class PoleFarAway(Bell):
    def bias(self, distance, length):
        return super().bias(distance, length) + torch.where(distance == 1000, torch.inf, 0.0)


class CoarseWhenMany(Bell):
    """Rounds where there are many distances: a grid and a table differ, and only far from zero."""

    def bias(self, distance, length):
        return super().bias((distance / 4).round() * 4 if distance.numel() > 2000 else distance, length)


class Squared(torch.autograd.Function):
    """Right but for its forward-mode derivative."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad

    @staticmethod
    def jvp(ctx, tangent):
        return 0 * tangent


class NoTangent(Bell):
    def bias(self, distance, length):
        return -Squared.apply(distance / self.width)


class OtherWhileTraced(Bell):
    def bias(self, distance, length):
        if torch.compiler.is_compiling():
            return 0 * super().bias(distance, length)
        return super().bias(distance, length)


class FirstRowForAll(whence.Position):
    """Rotates every row of a batch by the positions of the first."""

    def rotate(self, q, k, q_positions, k_positions):
        return whence.Rotary().rotate(q, k, q_positions[:1], k_positions[:1])


class FirstRowOfContent(whence.Position):
    def content_bias(self, rows):
        return -0.1 * rows.distance[:1, None].clamp(min=0).to(rows.scores.dtype).expand_as(rows.scores)


class ByKeyHead(whence.Position):
    """Scales key heads by their number, which is not the number of the query heads that they serve."""

    def rotate(self, q, k, q_positions, k_positions):
        number = torch.arange(1, k.shape[1] + 1, dtype=k.dtype)
        return q, k * number[:, None, None]


class WithoutHeadDim(whence.Position):
    """The columns of a query are not known from outside."""

    def __init__(self, heads, head_dim=16):
        super().__init__(heads=heads)
        self.register_buffer("weight", torch.ones(head_dim, 2))

    def content_bias_table(self, q, unrotated_q, scale):
        return whence.DistanceTable(q @ self.weight.to(q.dtype), 0, clipped=True)


class WithoutLength(Bell):
    def bias(self, distance, length):
        return super().bias(distance)


class SinkPerHead(Bell):
    """Forgets that a sink has a number for each row."""

    def sink(self, position, length):
        return self.width[:, 0]


class ByTheLargest(Bell):
    def bias(self, distance, length):
        return super().bias(distance / distance.abs().max().clamp(min=1), length)


class PastOnly(Bell):
    def bias(self, distance, length):
        return -torch.log1p(distance)


class GrowingSink(whence.Position):
    """Starts at zero, where it does not show that it depends on the query's place."""

    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.zeros(()))

    def sink(self, position, length):
        return self.rate * position


class OtherNames(whence.Position):
    """Names its arguments as it likes, since attend passes them in order."""

    def rotate(self, queries, keys, at, to):
        return whence.Rotary().rotate(queries, keys, at, to)


class BranchesOnValues(whence.Position):
    def bias(self, distance, length):
        return -distance if distance > 0 else 0 * distance


class ScoresOfTwoKeys(whence.Position):
    def content_bias(self, rows):
        return rows.scores[..., :2]


class CutsOff(whence.Position):
    def bias(self, distance, length):
        return torch.where(distance > 3, -torch.inf, 0.0).to(distance.dtype)


class NotBuilt(Bell):
    def __init__(self, heads):
        pass


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (WrongShape, "shapes and dtypes of hook outputs"),
        (NotFinite, "shapes and dtypes of hook outputs"),
        (Absolute, "shift invariance"),
        (LooksAhead, "causality"),
        (CountsKeys, "token-by-token decoding"),
        (Unsteady, "deterministic hooks"),
        (Forgetful, "repr and state_dict round trip"),
        (WithoutLength, "shapes and dtypes of hook outputs: WithoutLength.bias: it raised TypeError"),
        (SinkPerHead, "shapes and dtypes of hook outputs: SinkPerHead.sink: for 9 positions it returned shape [2]"),
        (ByTheLargest, "distances up to 4096: ByTheLargest.bias"),
        (lambda _: GrowingSink(), "shift invariance"),
    ],
)
@pytest.mark.usefixtures("without_compilation")
def test_what_is_wrong_is_named(wrong, named):
    with pytest.raises(whence.CheckFailed) as caught:
        whence.check(wrong(2))
    assert f"FAILED   {named}" in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "named", "hook", "remedy"),
    [
        (lambda: BranchesOnValues(), "shapes and dtypes of hook outputs", "BranchesOnValues.bias got Python code", "use torch.where"),
        (lambda: HalfAngles(), "half precision", "HalfAngles.rotate", "compute angles in torch.promote_types"),
        (lambda: Widening(), "half precision", "Widening.rotate", "return the dtype of the argument"),
        (lambda: WideningEmbedding(), "half precision", "WideningEmbedding.embed", "return the dtype"),
        (lambda: OwnPrecision(2), "half precision", "OwnPrecision.content", "convert parameters with .to"),
        (lambda: WritesQueries(), "no in-place changes of arguments", "WritesQueries.rotate: it changed its argument q", "a new tensor"),
        (lambda: WritesScores(), "no in-place changes of arguments", "WritesScores.content_bias: it changed its argument rows.scores", "a new tensor"),
        (lambda: WritesDistances(2), "no in-place changes of arguments", "WritesDistances.bias: it changed its argument distance", "a new tensor"),
        (lambda: PoleFarAway(2), "distances up to 4096", "PoleFarAway.bias: it is not finite at 1000", "return finite numbers"),
        (lambda: CoarseWhenMany(2), "distances up to 4096", "CoarseWhenMany.bias", "from its own distance alone"),
        (lambda: NoTangent(2), "forward-mode derivatives", "NoTangent.bias", "a correct jvp"),
        (lambda: OtherWhileTraced(2), "compiled decoding step", "OtherWhileTraced.bias", "while torch.compile traces"),
        (lambda: FirstRowForAll(), "different positions within a batch", "FirstRowForAll.rotate", "row by row"),
        (lambda: FirstRowOfContent(), "different positions within a batch", "FirstRowOfContent.content", "row by row"),
        (lambda: ByKeyHead(), "grouped-query attention", "ByKeyHead.rotate", "treat every head of k alike"),
    ],
)  # fmt: skip
def test_each_check_sees_what_no_other_sees(wrong, named, hook, remedy, request):
    if named != "compiled decoding step":  # which compares a step with itself: it cannot see the others
        request.getfixturevalue("without_compilation")
    with pytest.raises(whence.CheckFailed) as caught:
        whence.check(wrong())
    failures = [line for line in str(caught.value).splitlines() if "FAILED" in line]
    if named == "grouped-query attention":  # the number of a key head also changes with a selection of heads
        failures = [line for line in failures if "selected heads" not in line]
    assert len(failures) == 1, failures
    assert f"FAILED   {named}: {hook}" in failures[0] and remedy in failures[0]


@pytest.mark.parametrize("wrong, named, remedy", [
    (ScoresOfTwoKeys, "ScoresOfTwoKeys.content_bias got an output of shape", "one number per element"),
    (CutsOff, "CutsOff.bias: it is not finite at 4, 5, 6, 7, 8", r"attend(window=...)"),
])  # fmt: skip
def test_a_mechanism_that_does_not_run_is_one_failure(wrong, named, remedy):
    with pytest.raises(whence.CheckFailed) as caught:
        whence.check(wrong())
    lines = str(caught.value).splitlines()
    (failure,) = [line for line in lines if "FAILED" in line]
    assert named in failure and remedy in failure and any("the other" in line and "checks" in line for line in lines)


class Misspelled(Bell):
    """A second hook, whose name is wrong."""

    def __init__(self, heads):
        super().__init__(heads)
        self.strength = torch.nn.Parameter(torch.ones(heads, 1))

    def scorescale(self, distance, length):
        return self.strength * torch.ones_like(distance)


class NarrowClock(whence.Position):
    def clock(self, x):
        return -x[..., :2].abs().transpose(1, 2)


@pytest.mark.parametrize("wrong, named, remedy", [
    (Misspelled, "the output does not depend on parameter strength", "use it in a hook, or remove it"),
    (lambda heads: NarrowClock(heads=heads), "it returned torch.float16 for torch.float16", "return torch.float32"),
])  # fmt: skip
@pytest.mark.usefixtures("without_compilation")
def test_what_no_error_would_show_is_a_failure(wrong, named, remedy):
    with pytest.raises(whence.CheckFailed) as caught:
        whence.check(wrong(2))
    assert any(named in line and remedy in line for line in str(caught.value).splitlines())


@pytest.mark.usefixtures("without_compilation")
def test_parameters_that_a_function_captures_are_no_error_of_the_check():
    strength = torch.nn.Parameter(torch.tensor(0.5))
    relative = whence.from_score_mod(lambda score, b, h, i, j: score - strength * (i - j).abs())
    assert not whence.check(relative).failed


def test_a_check_leaves_the_mechanism_and_the_random_numbers_alone():
    position = Bell(2)
    before, state = position.width.clone(), torch.get_rng_state()
    whence.check(position)
    assert torch.equal(position.width, before) and torch.equal(torch.get_rng_state(), state)
    assert position.width.dtype == torch.float32 and position.width.grad is None


def test_many_checks_in_one_process_still_compile():
    """torch.compile gives up on a function after a few recompilations, and a check that does not compile passes."""
    function = CHECKS["compiled decoding step"].function
    for number in range(2):
        kind = type(f"OtherWhileTraced{number}", (OtherWhileTraced,), {})
        with (
            torch._dynamo.config.patch(recompile_limit=1),  # 8 unless told
            pytest.raises(AssertionError, match="a compiled step and an eager step"),
        ):
            function(Fixture(kind(2)))


def failures_of(position):
    with pytest.raises(whence.CheckFailed) as caught:
        whence.check(position)
    return [line for line in str(caught.value).splitlines() if "FAILED" in line]


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        (WithoutLength, "make bias(distance, length) run"),
        (WithoutHeadDim, "write self.head_dim = head_dim in __init__"),
        (SinkPerHead, "one number per position, or one row of them per head"),
        (Unsteady, "keep no state between calls"),
    ],
)
def test_a_mechanism_that_does_not_run_fails_once(wrong, remedy):
    """The same error under every check's name, with every check's remedy, hid the one line that says it."""
    failures = failures_of(wrong(2))
    assert len(failures) == 1 and remedy in failures[0]


def test_a_wrong_gradient_is_named_by_its_parameter():
    (failure,) = failures_of(Detached(2))
    assert "FAILED   gradients against finite differences" in failure
    assert "the gradient of parameter width differs from finite differences" in failure


def test_a_wrong_gradient_of_the_input_is_named():
    class DetachedScores(whence.Position):
        def content_bias(self, rows):
            return 0.5 * rows.scores.detach()

    with pytest.raises(Failure, match="the gradient of the input x differs from finite differences"):
        layers.gradients(Fixture(DetachedScores()))


def test_a_pole_on_one_side_names_causal_only():
    assert all("set causal_only = True" in failure for failure in failures_of(PastOnly(2)))


def test_arguments_of_a_hook_may_have_any_names():
    assert not whence.check(OtherNames()).failed


def test_a_mechanism_that_was_not_built_is_refused():
    with pytest.raises(whence.WhenceError, match=r"NotBuilt.__init__ with super\(\).__init__\(\)"):
        whence.check(NotBuilt(2))


def test_a_mechanism_without_a_hook_fails():
    class Empty(whence.Position):
        pass

    with pytest.raises(
        whence.checks.CheckFailed, match=r"Empty overrides no hook, so it changes nothing.*write one of embed.*\bbias"
    ):
        whence.check(Empty())
    assert not whence.check(whence.NoPosition()).failed
