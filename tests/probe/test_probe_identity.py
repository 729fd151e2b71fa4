"""A record belongs to the model it was measured on: every change of the model shows, and nothing else does."""

import json
import warnings
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from whence import Alibi, PowerPrior, hf
from whence.errors import WhenceError
from whence.probe import analyses, measurement, run_folder
from whence.probe.findings import findings
from whence.probe.identity import checksum, describe_identity, difference, identify, same_model, weights_checksum
from whence.probe.plan import Plan, TaskSpec
from whence.probe.probed_model import ProbedModel, byte_tokenizer, load, tiny_random_model

PLAN = Plan(
    "quick", (TaskSpec("key-value", 2, 2, {"pairs": 2}),), texts=3, tokens=48, intervention_items=1, items_per_record=2
)


def shares(actual):
    return [row["probability"] for record in actual for row in record["rows"]]


def test_a_changed_checkpoint_under_the_same_path_gets_numbers_of_its_own(tmp_path):
    saved = tmp_path / "model"
    one = tiny_random_model(layers=1)
    one.tokenizer.save_pretrained(saved)
    one.model.save_pretrained(saved)
    plan = replace(PLAN, model=str(saved))
    folder, before = measurement.measure(load(str(saved)), plan, tmp_path / "out")
    again, same = measurement.measure(load(str(saved)), plan, tmp_path / "out")
    assert again == folder and same == before
    tiny_random_model(seed=1, layers=1).model.save_pretrained(saved)
    other, after = measurement.measure(load(str(saved)), plan, tmp_path / "out")
    assert other != folder and shares(after) != shares(before)
    for path in (folder, other):
        record = json.loads((path / "key-value-000-0000.json").read_text())
        assert record["identity"] == run_folder.load_plan(path)[0].identity
        assert len(record["identity"]["weights"]["sha256"]) == 64 and record["identity"]["tokenizer"]
    assert difference(before[0]["identity"], after[0]["identity"]) == "other weights"


def test_a_folder_that_was_saved_with_positions_is_measured_with_them(tmp_path):
    saved, one = tmp_path / "model", tiny_random_model(layers=1)
    one.tokenizer.save_pretrained(saved)
    with hf.attach(one.model, Alibi(4, scale=2.0)):
        one.model.save_pretrained(saved)
        wanted = identify(one)["attached"]
        logits = one.model(torch.arange(9)[None]).logits
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load(str(saved))
    assert identify(again)["attached"] == wanted and "scale=2" in str(wanted)
    torch.testing.assert_close(again.model(torch.arange(9)[None]).logits, logits)


def test_a_mechanism_attached_between_two_measurements_gets_a_folder_of_its_own(tmp_path):
    lm = tiny_random_model(layers=2)
    plain, before = measurement.measure(lm, PLAN, tmp_path)
    with hf.attach(lm.model, Alibi(heads=4, scale=2.0), layers=[1]):
        folder, after = measurement.measure(lm, PLAN, tmp_path)
        assert folder != plain and shares(after) != shares(before)
        [told] = after[0]["identity"]["attached"]
        assert told["layers"] == [1] and "Alibi(heads=4" in told["position"] and "scale=2" in told["position"]
        assert told["own_rotation"] == "kept" and "Alibi(heads=4" in describe_identity(after[0]["identity"])
        assert after[0]["identity"]["weights"] == before[0]["identity"]["weights"]
        with pytest.raises(WhenceError, match="for a model with other attached, attention"):
            analyses.explain(lm, PLAN, plain, lambda *about: None)
    assert identify(lm) == before[0]["identity"]


def changed_rope(lm):
    lm.model.config.rope_parameters["rope_theta"] = 77.0


def changed_generation(lm):
    lm.model.generation_config.repetition_penalty = 1.3


def changed_template(lm):
    lm.tokenizer.chat_template = "{{ messages[0]['content'] }}"


def changed_vocabulary(lm):
    lm.tokenizer.add_tokens(["whence"])


def changed_hook(lm):
    lm.model.model.layers[0].register_forward_hook(lambda module, given, out: None)


def changed_weight(lm):
    with torch.no_grad():
        lm.model.model.norm.weight[3] += 1e-6


def changed_dtype(lm):
    lm.model.to(torch.bfloat16)


@pytest.mark.parametrize(
    "change, name",
    [
        (changed_rope, "config"),
        (changed_generation, "generation"),
        (changed_template, "chat_template"),
        (changed_vocabulary, "tokenizer"),
        (changed_hook, "hooks"),
        (changed_weight, "weights"),
        (changed_dtype, "dtype"),
    ],
)
def test_every_change_of_a_model_shows(change, name):
    lm = tiny_random_model(layers=1)
    before = identify(lm)
    assert identify(tiny_random_model(layers=1)) == before  # nothing in it belongs to one process or one object
    change(lm)
    assert name in difference(before, identify(lm))
    assert not same_model(before, identify(lm)) or name == "dtype"


@contextmanager
def scaled_output(module, factor):
    before = module.forward

    def forward(x):
        return before(x) * factor

    module.forward = forward
    try:
        yield
    finally:
        del module.forward


def test_settings_numbers_and_code_of_attached_positions_show():
    lm = tiny_random_model(layers=2)
    plain = identify(lm)

    class Own(Alibi):
        pass

    actual = [plain]
    for position in (
        Alibi(heads=4),
        Alibi(heads=4, scale=2.0),
        PowerPrior(heads=4, alpha=0.1, learnable=False),
        Own(heads=4),
    ):
        with hf.attach(lm.model, position):
            actual.append(identify(lm))
    with hf.attach(lm.model, PowerPrior(heads=4, alpha=0.1, learnable=True)) as attachment:
        actual.append(identify(lm))
        with torch.no_grad():
            next(attachment.positions[1].parameters()).add_(1e-3)
        actual.append(identify(lm))
    with hf.attach(lm.model, Alibi(heads=4), keep_rotary=False):
        actual.append(identify(lm))
    assert len({json.dumps(one, sort_keys=True) for one in actual}) == len(actual)
    assert {one["weights"]["sha256"] for one in actual} == {plain["weights"]["sha256"]}
    assert [one["layers"] for one in actual[1]["attached"]] == [[0, 1]]  # layers with the same position stand together
    assert [one["layers"] for one in actual[6]["attached"]] == [[0], [1]]
    assert "code" in actual[4]["attached"][0]["parts"][0] and actual[-1]["attached"][0]["own_rotation"] == "removed"
    with scaled_output(lm.model.lm_head, 0.5):
        assert identify(lm)["hooks"] == [f"{__name__}.scaled_output.<locals>.forward(factor=0.5) on 1 modules"]
    assert identify(lm) == plain


@pytest.fixture
def few_analyses(monkeypatch):
    """Two of the explanations: one that captures attention, and one that reads hidden states."""
    kept_ways = {name: way for name, way in analyses.ANALYSES.items() if name in ("content-free", "geometry")}
    monkeypatch.setattr(analyses, "ANALYSES", kept_ways)


def test_a_probe_leaves_the_identity_as_it_was(few_analyses, tmp_path):
    lm = tiny_random_model(layers=2)
    before = identify(lm)
    plan = replace(PLAN, scores=("likelihood", "generation"))
    folder, _ = measurement.measure(lm, plan, tmp_path)
    analyses.explain(lm, plan, folder, lambda *about: None)
    assert identify(lm) == before


def test_the_copy_that_is_looked_into_may_have_other_precision_and_nothing_else(few_analyses, tmp_path):
    lm = tiny_random_model(layers=2)
    queried_model = replace(lm, model=tiny_random_model(layers=2).model.to(torch.bfloat16))
    plan = replace(PLAN, dtype="bfloat16")
    folder, _ = measurement.measure(queried_model, plan, tmp_path)
    analyses.explain(lm, plan, folder, lambda *about: None)
    record = json.loads((folder / "explain-geometry.json").read_text())
    assert record["identity"]["dtype"] == "float32" and run_folder.load_plan(folder)[0].identity["dtype"] == "bfloat16"
    assert findings(folder, "")["explanation"]["geometry"]
    other = replace(lm, model=tiny_random_model(layers=3).model)
    with pytest.raises(WhenceError, match="config"):
        analyses.explain(other, plan, folder, lambda *about: None)


def test_a_plan_of_another_model_and_a_record_of_another_are_refused(tmp_path):
    lm = tiny_random_model(layers=1)
    plan = run_folder.with_identity(PLAN, identify(lm))
    with pytest.raises(WhenceError, match="quick with other weights"):
        measurement.measure(tiny_random_model(seed=3, layers=1), plan, tmp_path)
    folder, _ = measurement.measure(lm, plan, tmp_path)
    path = folder / "key-value-000-0000.json"
    record = json.loads(path.read_text())
    record["identity"]["weights"]["sha256"] = "0" * 64
    path.write_text(json.dumps(record))
    for read in (lambda: measurement.measure(lm, plan, tmp_path), lambda: findings(folder, "")):
        with pytest.raises(WhenceError, match=r"key-value-000-0000\.json of another model"):
            read()


def test_tensors_of_every_kind_are_hashed():
    two = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor
    a, b = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)

    def of(value):
        return checksum([("name", value)])["sha256"]

    assert of(a) == of(a.t().contiguous().t()) == of(a.clone())
    kinds = [
        a,
        a.double(),
        a.reshape(3, 2),
        a.to(torch.bfloat16),
        a + 1e-6,
        two(a, b),
        two(b, a),
        a[:0],
        a[0, 0],
        3,
        None,
    ]
    assert len({of(kind) for kind in kinds}) == len(kinds)
    assert checksum([("a", a), ("b", b)]) == checksum([("b", b), ("a", a)]) != checksum([("a", b), ("b", a)])


def test_weights_that_are_not_there_are_named_and_offloaded_ones_are_read():
    lm = tiny_random_model(layers=1)
    whole = weights_checksum(lm.model)
    accelerate = pytest.importorskip("accelerate")
    offloaded = accelerate.cpu_offload(tiny_random_model(layers=1).model, execution_device=torch.device("cpu"))
    assert next(offloaded.parameters()).device.type == "meta"
    assert weights_checksum(offloaded) == whole
    held = ProbedModel("offloaded", offloaded, lm.tokenizer, lm.about)
    assert held.device.type == "cpu" and identify(held)["weights"]["sha256"] == whole["sha256"]
    lm.model.lm_head = torch.nn.Linear(32, len(lm.tokenizer), bias=False, device="meta")
    actual = identify(lm)
    assert actual["weights"]["unread"] == ["lm_head.weight"] and "1 of" in describe_identity(actual)
    with pytest.raises(WhenceError, match="without data in its weights"):
        identify(ProbedModel("meta", tiny_random_model(layers=1).model.to("meta"), byte_tokenizer()))
