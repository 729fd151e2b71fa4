"""Options of a probe: chat templates, layers of hybrids, devices, batches; families that are measured by curves alone."""

import json
import sys
from dataclasses import replace

import pytest
import torch

from whence import hf
from whence.cli.probe_options import plan_from_options, rerun_command, split_items_option
from whence.errors import MissingExtra, WhenceError
from whence.probe import analyses, likelihood, measurement, run_folder
from whence.probe.findings import findings
from whence.probe.identity import identify
from whence.probe.plan import Plan, TaskSpec
from whence.probe.probed_model import ProbedModel, byte_tokenizer, load, tiny_random_model
from whence.probe.tasks import build_task

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PLAN = Plan(
    "quick", (TaskSpec("key-value", 2, 2, {"pairs": 2}),), texts=3, tokens=48, intervention_items=1, items_per_record=2
)
SMALL = ("--task", "key-value", "--items", "2", "--length", "2", "--slots", "2")


def chatting(**changed):
    lm = replace(tiny_random_model(layers=1), chat=True, **changed)
    lm.tokenizer.chat_template = TEMPLATE
    return lm


def test_a_prompt_stands_in_the_chat_template_and_its_slots_move_along():
    lm, instance = chatting(), build_task("key-value", 1, pairs=3)
    raw = instance.prompt(instance.items[0], 1)
    apply_template = lm.apply_template(raw)
    assert apply_template.text == f"<|user|>{raw.text}<end><|assistant|>" and apply_template.gold == 1
    assert [apply_template.text[a:b] for a, b in apply_template.slots] == [raw.text[a:b] for a, b in raw.slots]
    assert apply_template.answer == raw.answer.lstrip() and apply_template.accepted == raw.accepted
    spans = lm.token_spans(apply_template.text, apply_template.slots)
    tokens = lm.tokens(apply_template.text)
    assert [lm.tokenizer.decode(tokens[a:b]) for a, b in spans] == [raw.text[a:b] for a, b in raw.slots]
    message = [{"role": "user", "content": raw.text}]
    whole = lm.tokenizer.apply_chat_template(message, add_generation_prompt=True)["input_ids"]
    assert tokens == list(whole)
    assert replace(lm, chat=False).apply_template(raw) is raw


def test_special_tokens_of_a_template_are_not_put_in_twice():
    from tokenizers.processors import TemplateProcessing

    lm = chatting()
    end = lm.tokenizer.eos_token_id
    lm.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<end> $A", special_tokens=[("<end>", end)]
    )
    assert lm.tokens("a")[0] != end and replace(lm, chat=False).tokens("a")[0] == end


def test_answers_in_a_chat_are_scored_as_a_whole_text_would_be(tmp_path):
    lm, instance = chatting(), build_task("key-value", 2, pairs=2)
    prompt = lm.apply_template(instance.prompt(instance.items[0], 0))
    tokens = lm.tokens(prompt.text + prompt.answer)
    shared = len(lm.tokens(prompt.text))
    with torch.inference_mode():
        known = lm.model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    expected = sum(float(known[at - 1, tokens[at]]) for at in range(shared, shared + 8))
    rivals = likelihood.build_branches(lm, [prompt])[0]
    skipped = len(rivals.shared) - shared  # what all answers begin with is not scored
    expected = sum(float(known[at - 1, tokens[at]]) for at in range(shared + skipped, shared + skipped + 8))
    assert likelihood.score_choices(lm, [prompt])[0][0] == pytest.approx(expected, abs=1e-4)
    folder, actual = measurement.measure(lm, replace(PLAN, chat=True), tmp_path)
    assert (
        actual[0]["identity"]["chat"] == ["<|user|>", "<end><|assistant|>"] and actual[0]["identity"]["chat_template"]
    )
    raw, _ = measurement.measure(replace(lm, chat=False), PLAN, tmp_path)
    assert raw != folder and json.loads((raw / "key-value-000-0000.json").read_text())["identity"]["chat"] is None


def test_a_tokenizer_without_a_usable_template_is_refused(whence_here, tmp_path):
    done = whence_here("probe", "--quick", "--chat", "--out", tmp_path)
    assert done.returncode == 2 and "leave it out" in done.stderr and not list(tmp_path.iterdir())
    lm = chatting()
    lm.tokenizer.chat_template = "{{ messages[0]['content'] }} {{ messages[0]['content'] }}"
    with pytest.raises(WhenceError, match=r"omits or repeats.*leave --chat out"):
        lm.apply_template(build_task("needle", 1).oracle(build_task("needle", 1).items[0]))


def save_model(folder, model, tokenizer=None):
    model.save_pretrained(folder)
    (tokenizer or byte_tokenizer()).save_pretrained(folder)
    return str(folder)


def tiny(name):
    import transformers as t

    size = {"vocab_size": len(byte_tokenizer()), "hidden_size": 16}
    torch.manual_seed(0)
    if name == "bloom":
        return t.BloomForCausalLM(t.BloomConfig(**size, n_layer=2, n_head=2)).eval()
    if name == "falcon":
        config = t.FalconConfig(**size, num_hidden_layers=2, num_attention_heads=2, alibi=True)
        return t.FalconForCausalLM(config).eval()
    if name == "mamba":
        return t.MambaForCausalLM(t.MambaConfig(**size, num_hidden_layers=2, state_size=4)).eval()
    layers = {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16}
    return t.Lfm2ForCausalLM(t.Lfm2Config(**size, **layers, **heads)).eval()


@pytest.mark.parametrize("name", ["bloom", "falcon", "mamba"])
@pytest.mark.usefixtures("no_figures")
def test_families_without_the_interface_are_measured_by_their_curves(name, tmp_path, whence_here):
    path = save_model(tmp_path / name, tiny(name))
    done = whence_here("probe", path, *SMALL, "--out", tmp_path / "out")
    assert done.returncode == 0
    assert f"({name})" in done.stderr and "curves only, no explanations" in done.stderr
    [folder] = (tmp_path / "out").iterdir()
    assert "Explanations are left out" in (folder / "report.html").read_text() and not list(folder.glob("explain-*"))
    assert f"({name})" in run_folder.load_plan(folder)[1]["model"]["capture_error"]


@pytest.mark.parametrize("name", ["bloom", "falcon", "mamba", "lfm2"])
def test_their_scores_are_those_of_whole_texts_one_by_one(name):
    model, instance = tiny(name), build_task("key-value", 2, pairs=2)
    lm = ProbedModel(name, model, byte_tokenizer(), {})
    assert not lm.supports_branching
    prompts = [instance.prompt(item, 1) for item in instance.items]
    for prompt, scores in zip(prompts, likelihood.score_choices(lm, prompts), strict=True):
        [one] = likelihood.build_branches(lm, [prompt])
        for end, score in zip(one.ends, scores, strict=True):
            row = torch.tensor([[*one.shared, *end]])
            with torch.inference_mode():
                known = model(row).logits[0].log_softmax(-1)
            at = range(len(one.shared) - 1, row.shape[1] - 1)
            assert score == pytest.approx(sum(float(known[i, row[0, i + 1]]) for i in at), abs=1e-3)


@pytest.mark.usefixtures("no_layout")
def test_a_hybrid_is_looked_into_where_it_attends(tmp_path, whence_here):
    path = save_model(tmp_path / "lfm2", tiny("lfm2"))
    done = whence_here("probe", path, *SMALL, "--only", "measure", "--only", "explain", "--out", tmp_path / "plain")
    assert done.returncode == 0 and "pass --layers 1" in done.stderr
    done = whence_here("probe", path, *SMALL, "--layers", "1", "--out", tmp_path / "out")
    assert done.returncode == 0 and "curves only" not in done.stderr
    [folder] = (tmp_path / "out").iterdir()
    report_data = findings(folder, "")
    attention = report_data["explanation"]["attention"]["key-value-of-2"]
    assert attention["layers"] == [1] and len(attention["gold"]) == 1 and report_data["explanation"]["geometry"]
    assert "layers 1 downwards" in (folder / "report.html").read_text()
    plan = run_folder.load_plan(folder)[0]
    assert plan.layers == (1,) and "--layers 1" in rerun_command(plan, "cpu")
    done = whence_here("probe", path, *SMALL, "--layers", "0", "--out", tmp_path / "out")
    assert done.returncode == 2 and "pass --layers 1" in done.stderr and done.stderr.count(", but ") == 1


def test_an_encoder_is_refused_although_transformers_loads_it_as_a_causal_model(tmp_path):
    import transformers as t

    size = {"vocab_size": len(byte_tokenizer()), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    path = save_model(tmp_path / "bert", t.BertLMHeadModel(t.BertConfig(**size, intermediate_size=16)))
    with pytest.raises(WhenceError, match=r"BertLMHeadModel \(bert\).*encoders and encoder-decoders are not"):
        load(path)


def test_layers_of_a_model_without_the_interface_are_refused(tmp_path):
    with pytest.raises(WhenceError, match=r"--layers got a bloom model.*leave --layers out"):
        load(save_model(tmp_path / "bloom", tiny("bloom")), layers=[1])


def test_the_quick_model_has_the_requested_dtype_and_a_missing_device_is_named():
    assert load("quick", dtype="bfloat16").model.dtype == torch.bfloat16
    for device in ("cuda:99", "gpu"):
        with pytest.raises(WhenceError, match=f"--device got '{device}'"):
            load("quick", device)


def test_batches_and_places_do_not_change_the_model(tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    import transformers

    path = save_model(tmp_path / "model", tiny_random_model(layers=1).model)
    real, given = transformers.AutoModelForCausalLM.from_pretrained, []
    note = staticmethod(lambda *about, **named: given.append(named) or real(*about, **named))
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", note)
    one, other = load(path), load(path, device_map="auto", batch_tokens=300)
    assert [named.get("device_map") for named in given] == [None, "auto"]
    assert identify(one)["weights"] == identify(other)["weights"] and other.tokens_at_once == 300
    with pytest.raises(WhenceError, match=r"revision=main.*omit revision"):
        hf.load(path, revision="main")


def test_a_plan_names_the_options_that_make_it():
    instance, _ = plan_from_options(
        "some/model", False, False, ["needle"], None, None, "bfloat16", None, slots="1,4", chat=True, layers=(1, 3),
        revision="v2",
    )  # fmt: skip
    output = rerun_command(instance, "cpu")
    assert output == (
        "whence probe some/model --task needle --slots 1,4 --dtype bfloat16 --chat --layers 1,3 --revision v2"
    )
    served, _ = plan_from_options("m", False, False, ["needle"], 9, None, endpoint="http://x/v1/", chat=True)
    assert served.scores == ("generation",) and served.endpoint == "http://x/v1"
    assert rerun_command(served, "cpu") == "whence probe m --task needle --items 9 --chat --endpoint http://x/v1"
    assert split_items_option(["a.jsonl", "3"]) == (3, ["a.jsonl"]) and split_items_option(None) == (None, [])
    for wrong in (["3", "4"], ["0"], ["-2"]):
        with pytest.raises(WhenceError, match="one number of at least 1"):
            split_items_option(wrong)


def test_a_missing_extra_is_one_sentence(tmp_path, monkeypatch, whence_here):
    assert issubclass(MissingExtra, WhenceError) and issubclass(MissingExtra, ImportError)
    monkeypatch.setitem(sys.modules, "transformers", None)
    done = whence_here("probe", "--quick", "--out", tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].endswith('run: pip install "whence[hf]".')


@pytest.mark.parametrize(
    "content, output",
    [(b"", "empty"), (b"\xff\xfe{", "not UTF-8"), (b"{}", "of another plan"), (b"[]", "with a list")],
)
def test_a_corrupt_record_is_named(tmp_path, content, output):
    lm = tiny_random_model(layers=1)
    folder, actual = measurement.measure(lm, PLAN, tmp_path)
    path = folder / "key-value-000-0000.json"
    whole = path.read_bytes()
    path.write_bytes(content)
    for read in (lambda: measurement.measure(lm, PLAN, tmp_path), lambda: findings(folder, "")):
        with pytest.raises(WhenceError, match=rf"key-value-000-0000\.json.*{output}"):
            read()
    cut = json.loads(whole)
    cut["rows"] = cut["rows"][:1]
    path.write_text(json.dumps(cut))
    with pytest.raises(WhenceError, match=r"key-value-000-0000\.json without the items 0 to 1"):
        measurement.measure(lm, PLAN, tmp_path)
    path.unlink()
    again = measurement.measure(lm, PLAN, tmp_path)[1]
    assert [one["rows"] for one in again] == [one["rows"] for one in actual]


def test_a_model_of_one_layer_is_explained_too(tmp_path):
    lm = tiny_random_model(layers=1)
    folder, _ = measurement.measure(lm, PLAN, tmp_path)
    analyses.explain(lm, PLAN, folder, lambda *about: None)
    assert set(findings(folder, "")["explanation"]) == {"attention", *analyses.ANALYSES}
