"""Block skipping under Triton's interpreter: distant keys are skipped only if they cannot change the result."""

import pytest
import torch
from reference_comparison import check_against_reference, random_inputs, run

from whence import Alibi, Epar, Position, PowerPrior, Sink, T5Bias, attend

pytestmark = pytest.mark.usefixtures("interpreted", "poisoned")

# --- leaving out keys that cannot matter ------------------------------------------------------------------------------------

STEEP = {
    "Alibi": lambda: Alibi(2, slope=[1.2, 0.7], learnable=True),
    "Alibi + Sink": lambda: Alibi(2, slope=[1.2, 0.7], learnable=True) + Sink(2),
    "PowerPrior": lambda: PowerPrior(2, alpha=[1.2, -0.7], beta=[1.0, 1.1]),
    "T5Bias + PowerPrior": lambda: T5Bias(2, std=1.0) + PowerPrior(2, alpha=[1.2, 0.7], beta=[1.0, 1.1]),
    "Epar + Alibi": lambda: Epar(2, context=40, learnable=True) + Alibi(2, slope=[1.2, 0.7]),
}


BOTH = [(name, torch.float32) for name in STEEP] + [
    (name, torch.float16) for name in ("Alibi", "Alibi + Sink", "T5Bias + PowerPrior")
]


@pytest.fixture
def recorded_distances(monkeypatch):
    """How far each call found that its heads must look; the heads behind it are in that order."""
    from whence.attention.fused import block_skipping

    actual, original = [], block_skipping.max_distances

    def max_distances(call):
        result = original(call)
        if result.numel():
            distances, order = result[:-1].view(2, -1).tolist()
            assert [distances[head] for head in order] == sorted(distances, reverse=True)
            assert sorted(order) == list(range(len(distances)))
            actual.append(torch.tensor(distances))
        return result

    monkeypatch.setattr(block_skipping, "max_distances", max_distances)
    return actual


def small(dtype, length=150, keys=None):
    """Queries and keys short enough for the bound to bite within a test's length."""
    q, k, v, grad_out = random_inputs(1, 2, 1, length, keys or length, 16, 16, dtype=dtype)
    return [q / 2, k / 2, v], grad_out


@pytest.mark.parametrize("mechanism, dtype", BOTH)
def test_skipping_does_not_change_the_result(mechanism, dtype, recorded_distances):
    tensors, grad_out = small(dtype)
    position = STEEP[mechanism]()
    actual = check_against_reference(position, tensors, grad_out, {"causal": True, "skip_blocks": True})
    assert len(recorded_distances) == 1 and int(recorded_distances[0].min()) < 100  # something was left out
    everything = run(position, tensors, grad_out, {"causal": True, "skip_blocks": False}, backend="triton")
    assert len(recorded_distances) == 1
    for a, b in zip(actual, everything, strict=True):
        # the same sums in the same blocks, less what is below the last digit
        torch.testing.assert_close(a, b, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("case", ["later", "segment_ids", "window", "key_mask", "lengths, deterministic"])
def test_skipping_with_a_mask(case, recorded_distances, request):
    tensors, grad_out = small(torch.float32, 150, 180 if case == "later" else 150)
    options = {"causal": True}
    if "lengths" in case:  # the last queries see far keys only, not their own
        options["lengths"] = torch.tensor([30])
    if case == "key_mask":
        options["key_mask"] = (torch.arange(150) >= 20)[None]
    if case == "later":
        options |= {"q_positions": torch.arange(30, 180), "k_positions": torch.arange(180)}
    if case == "segment_ids":
        options["segment_ids"] = torch.arange(150) // 110
    if case == "window":
        options["window"] = 120
    if "deterministic" in case:
        request.getfixturevalue("deterministic")
    check_against_reference(STEEP["T5Bias + PowerPrior"](), tensors, grad_out, options)
    assert len(recorded_distances) == 1 and int(recorded_distances[0].min()) < 100


@pytest.mark.parametrize("mechanism, dtype", BOTH)
def test_important_distant_key_is_not_skipped(mechanism, dtype):
    tensors, grad_out = small(dtype)
    q, k, _ = tensors
    aim = torch.nn.functional.normalize(torch.ones(16), dim=0).to(dtype)
    q[:, :, 140:] = 8 * aim  # the last rows look for one key at the very beginning
    k[:, :, 2] = 180 * aim
    position = STEEP[mechanism]()
    with torch.no_grad():
        _, weights = attend(*tensors, position=position, causal=True, backend="reference", return_weights=True)
    assert weights[:, :, 140:, 2].min() > 0.9
    # logits of hundreds leave few digits behind the point, and a parameter's share of them is as large
    check_against_reference(position, tensors, grad_out, {"causal": True}, slack=4)


@pytest.mark.parametrize("scale", [-0.25, 0.25])
def test_important_distant_key_with_a_negative_scale(scale):
    tensors, grad_out = small(torch.float32)
    aim = torch.nn.functional.normalize(torch.ones(16), dim=0)
    tensors[0][:, :, 140:] = 8 * aim
    tensors[1][:, :, 2] = (180 if scale > 0 else -180) * aim
    check_against_reference(STEEP["Alibi"](), tensors, grad_out, {"causal": True, "scale": scale}, slack=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_no_skipping_if_a_query_does_not_see_its_own_key(dtype):
    # the bound is reckoned from a query's own key; another document hides it here, and only far keys are left
    tensors, grad_out = small(dtype, 260)
    options = {"causal": True, "q_positions": torch.arange(260), "k_positions": torch.arange(260)}
    options["segment_ids"] = ((torch.arange(260) >= 130).long(), (torch.arange(260) < 100).long())
    # a slope's gradient weighs what rounding leaves of a row by its distances, all of which are large here
    actual = check_against_reference(STEEP["Alibi"](), tensors, grad_out, options, slack=4)
    assert (actual[0][:, :, 130:] != 0).any(-1).all()


def test_no_skipping_if_the_own_key_has_an_infinite_bias():
    class Blind(Alibi):
        def bias(self, distance, length):
            return super().bias(distance, length).masked_fill(distance < 80, -torch.inf)

        parameter_gradients = Position.parameter_gradients
        bias_slope = Position.bias_slope

    tensors, grad_out = small(torch.float32)
    actual = check_against_reference(Blind(2, slope=[1.2, 0.7], learnable=True), tensors, grad_out, {"causal": True})
    assert (actual[0][:, :, 80:] != 0).any(-1).all()
