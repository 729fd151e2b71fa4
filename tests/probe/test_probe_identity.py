"""A record belongs to the model it was measured on: every change of the model shows, and nothing else does."""

import json
import warnings
from dataclasses import replace

import pytest
import torch

from whence import Alibi, PowerPrior, hf
from whence.errors import WhenceError
from whence.probe import explaining, measuring, run_folder
from whence.probe.checksums import checksum, weights_checksum
from whence.probe.findings import findings
from whence.probe.identity import difference, identify, in_words, same_model
from whence.probe.plan import Asked, Plan
from whence.probe.scaling import scaled
from whence.probe.subject import Subject, byte_tokenizer, load, quick_subject

PLAN = Plan("quick", (Asked("key-value", 2, 2, {"pairs": 2}),), texts=3, tokens=48, intervened=1, chunk=2)


def shares(found):
    return [row["share"] for record in found for row in record["rows"]]


def test_a_changed_checkpoint_under_the_same_path_gets_numbers_of_its_own(tmp_path):
    saved = tmp_path / "model"
    one = quick_subject(layers=1)
    one.tokenizer.save_pretrained(saved)
    one.model.save_pretrained(saved)
    plan = replace(PLAN, model=str(saved))
    folder, before = measuring.measure(load(str(saved)), plan, tmp_path / "out")
    again, same = measuring.measure(load(str(saved)), plan, tmp_path / "out")
    assert again == folder and same == before
    quick_subject(seed=1, layers=1).model.save_pretrained(saved)
    other, after = measuring.measure(load(str(saved)), plan, tmp_path / "out")
    assert other != folder and shares(after) != shares(before)
    for path in (folder, other):
        record = json.loads((path / "key-value-000-0000.json").read_text())
        assert record["identity"] == run_folder.plan_in(path)[0].identity
        assert len(record["identity"]["weights"]["sha256"]) == 64 and record["identity"]["tokenizer"]
    assert difference(before[0]["identity"], after[0]["identity"]) == "other weights"


def test_a_folder_that_was_saved_with_positions_is_measured_with_them(tmp_path):
    saved, one = tmp_path / "model", quick_subject(layers=1)
    one.tokenizer.save_pretrained(saved)
    with hf.attached(one.model, Alibi(4, scale=2.0)):
        one.model.save_pretrained(saved)
        wanted = identify(one)["attached"]
        logits = one.model(torch.arange(9)[None]).logits
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load(str(saved))
    assert identify(again)["attached"] == wanted and "scale=2" in str(wanted)
    torch.testing.assert_close(again.model(torch.arange(9)[None]).logits, logits)


def test_a_mechanism_attached_between_two_measurements_gets_a_folder_of_its_own(tmp_path):
    subject = quick_subject(layers=2)
    plain, before = measuring.measure(subject, PLAN, tmp_path)
    with hf.attached(subject.model, Alibi(heads=4, scale=2.0), layers=[1]):
        folder, after = measuring.measure(subject, PLAN, tmp_path)
        assert folder != plain and shares(after) != shares(before)
        [told] = after[0]["identity"]["attached"]
        assert told["layers"] == [1] and "Alibi(heads=4" in told["position"] and "scale=2" in told["position"]
        assert told["own_rotation"] == "kept" and "Alibi(heads=4" in in_words(after[0]["identity"])
        assert after[0]["identity"]["weights"] == before[0]["identity"]["weights"]
        with pytest.raises(WhenceError, match="for a model with other attached, attention"):
            explaining.explain(subject, PLAN, plain, lambda *about: None)
    assert identify(subject) == before[0]["identity"]


def changed_rope(subject):
    subject.model.config.rope_parameters["rope_theta"] = 77.0


def changed_generation(subject):
    subject.model.generation_config.repetition_penalty = 1.3


def changed_template(subject):
    subject.tokenizer.chat_template = "{{ messages[0]['content'] }}"


def changed_vocabulary(subject):
    subject.tokenizer.add_tokens(["whence"])


def changed_hook(subject):
    subject.model.model.layers[0].register_forward_hook(lambda module, given, out: None)


def changed_weight(subject):
    with torch.no_grad():
        subject.model.model.norm.weight[3] += 1e-6


def changed_dtype(subject):
    subject.model.to(torch.bfloat16)


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
    subject = quick_subject(layers=1)
    before = identify(subject)
    assert identify(quick_subject(layers=1)) == before  # nothing in it belongs to one process or one object
    change(subject)
    assert name in difference(before, identify(subject))
    assert not same_model(before, identify(subject)) or name == "dtype"


def test_settings_numbers_and_code_of_attached_positions_show():
    subject = quick_subject(layers=2)
    plain = identify(subject)

    class Own(Alibi):
        pass

    found = [plain]
    for position in (
        Alibi(heads=4),
        Alibi(heads=4, scale=2.0),
        PowerPrior(heads=4, alpha=0.1, learnable=False),
        Own(heads=4),
    ):
        with hf.attached(subject.model, position):
            found.append(identify(subject))
    with hf.attached(subject.model, PowerPrior(heads=4, alpha=0.1, learnable=True)) as attachment:
        found.append(identify(subject))
        with torch.no_grad():
            next(attachment.positions[1].parameters()).add_(1e-3)
        found.append(identify(subject))
    with hf.attached(subject.model, Alibi(heads=4), keep_rotary=False):
        found.append(identify(subject))
    assert len({json.dumps(one, sort_keys=True) for one in found}) == len(found)
    assert {one["weights"]["sha256"] for one in found} == {plain["weights"]["sha256"]}
    assert [one["layers"] for one in found[1]["attached"]] == [[0, 1]]  # layers with the same position stand together
    assert [one["layers"] for one in found[6]["attached"]] == [[0], [1]]
    assert "code" in found[4]["attached"][0]["parts"][0] and found[-1]["attached"][0]["own_rotation"] == "removed"
    with scaled(subject, 3, 0.5, range(1)):
        assert identify(subject)["hooks"] == [
            "whence.probe.scaling._changed.<locals>.call(channel=3, times=0.5) on 1 modules"
        ]
    assert identify(subject) == plain


@pytest.fixture
def few_ways(monkeypatch):
    """Two of the explanations: one that captures attention, and one that reads hidden states."""
    kept_ways = {name: way for name, way in explaining.WAYS.items() if name in ("content-free", "geometry")}
    monkeypatch.setattr(explaining, "WAYS", kept_ways)


def test_a_probe_leaves_the_identity_as_it_was(few_ways, tmp_path):
    subject = quick_subject(layers=2)
    before = identify(subject)
    plan = replace(PLAN, scores=("likelihood", "generation"))
    folder, _ = measuring.measure(subject, plan, tmp_path)
    explaining.explain(subject, plan, folder, lambda *about: None)
    assert identify(subject) == before


def test_the_copy_that_is_looked_into_may_have_other_precision_and_nothing_else(few_ways, tmp_path):
    subject = quick_subject(layers=2)
    asked = replace(subject, model=quick_subject(layers=2).model.to(torch.bfloat16))
    plan = replace(PLAN, dtype="bfloat16")
    folder, _ = measuring.measure(asked, plan, tmp_path)
    explaining.explain(subject, plan, folder, lambda *about: None)
    record = json.loads((folder / "explain-geometry.json").read_text())
    assert record["identity"]["dtype"] == "float32" and run_folder.plan_in(folder)[0].identity["dtype"] == "bfloat16"
    assert findings(folder, "")["explanation"]["geometry"]
    other = replace(subject, model=quick_subject(layers=3).model)
    with pytest.raises(WhenceError, match="config"):
        explaining.explain(other, plan, folder, lambda *about: None)


def test_a_plan_of_another_model_and_a_record_of_another_are_refused(tmp_path):
    subject = quick_subject(layers=1)
    plan = run_folder.identified(PLAN, identify(subject))
    with pytest.raises(WhenceError, match="quick with other weights"):
        measuring.measure(quick_subject(seed=3, layers=1), plan, tmp_path)
    folder, _ = measuring.measure(subject, plan, tmp_path)
    path = folder / "key-value-000-0000.json"
    record = json.loads(path.read_text())
    record["identity"]["weights"]["sha256"] = "0" * 64
    path.write_text(json.dumps(record))
    for read in (lambda: measuring.measure(subject, plan, tmp_path), lambda: findings(folder, "")):
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
    subject = quick_subject(layers=1)
    whole = weights_checksum(subject.model)
    accelerate = pytest.importorskip("accelerate")
    offloaded = accelerate.cpu_offload(quick_subject(layers=1).model, execution_device=torch.device("cpu"))
    assert next(offloaded.parameters()).device.type == "meta"
    assert weights_checksum(offloaded) == whole
    held = Subject("offloaded", offloaded, subject.tokenizer, subject.about)
    assert held.device.type == "cpu" and identify(held)["weights"]["sha256"] == whole["sha256"]
    subject.model.lm_head = torch.nn.Linear(32, len(subject.tokenizer), bias=False, device="meta")
    found = identify(subject)
    assert found["weights"]["unread"] == ["lm_head.weight"] and "1 of" in in_words(found)
    with pytest.raises(WhenceError, match="without data in its weights"):
        identify(Subject("meta", quick_subject(layers=1).model.to("meta"), byte_tokenizer()))
