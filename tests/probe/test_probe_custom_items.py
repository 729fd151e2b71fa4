"""Items and tasks of one's own: read, checked with the line that is wrong, asked, and reported without their files."""

import gzip
import hashlib
import json
import sys
from pathlib import Path

import pytest

from whence.cli.app import app
from whence.cli.probe_options import plan_from_options, print_warnings, rerun_command
from whence.errors import WhenceError
from whence.plugins import PluginReference, parse_reference
from whence.probe import run_folder
from whence.probe.measurement import build_tasks
from whence.probe.plan import Plan, TaskSpec
from whence.probe.tasks import Item, build_task, lost_in_the_middle, spread_slots
from whence.probe.tasks.user_tasks import load_items, load_task

pytestmark = pytest.mark.usefixtures("no_figures")
NAMES = ("Ada", "Ben", "Cy", "Dora", "Eve")
OWN = """
from dataclasses import dataclass, replace
from whence.probe.tasks import Item, ProbeTask

@dataclass
class Words:
    count: int

def MyTask(items, words=2, kind="plain"):
    made = tuple(Item(f"q{n}", f"gold {n}", ("x",) * words, (f"a{n}",), (f"b{n}", f"c{n}")) for n in range(items))
    return ProbeTask(kind, "mine", "Read.\\n", "\\n", "\\nQuestion: {question}\\nAnswer:", " ", "", "value", False, made)

def broken(items): raise KeyError("no such thing")
def number(items): return 3
def tail(items): return replace(MyTask(items), tail="{question} {other}")
def label(items): return replace(MyTask(items), label="{}")
def clash(items):
    task = MyTask(items)
    return replace(task, items=tuple(replace(item, rivals=("grey", item.answers[0].upper())) for item in task.items))
def short(items): return MyTask(items - 1) if items > 1 else MyTask(1)
"""


def row(n, **changed):
    others = [f"{other} saw house {n}." for other in NAMES if other != NAMES[n]]
    return {"question": f"Who built house {n}?", "gold": f"{NAMES[n]} built house {n}.", "others": others,
            "answers": [NAMES[n]]} | changed  # fmt: skip


def written(path, rows):
    path.write_text("\n".join(json.dumps(one) if not isinstance(one, str) else one for one in rows) + "\n")
    return path


@pytest.fixture
def mine(tmp_path):
    return written(tmp_path / "mine.jsonl", [row(n) for n in range(5)])


def test_items_become_a_task_with_rivals_from_other_lines(mine):
    instance = load_items(None, str(mine))
    assert len(instance.items) == 5 and instance.slots == 5 and instance.source == "own items from mine.jsonl"
    for item in instance.items:
        assert len(item.rivals) == 4 and item.answers[0] not in item.rivals
    assert not instance.paired and "published" not in instance.source + instance.name + instance.about
    assert load_items(2, str(mine), slots=3).slots == 3 and len(load_items(2, str(mine)).items) == 2
    prompt = instance.prompt(instance.items[1], 2)
    assert [prompt.text[a:b] for a, b in prompt.slots][2] == "Text [3]: Ben built house 1."


def test_given_rivals_that_stand_in_the_other_texts_pair_up(tmp_path):
    rows = [row(n, rivals=[other for other in NAMES if other != NAMES[n]]) for n in range(2)]
    instance = load_items(None, str(written(tmp_path / "a.jsonl", rows)), slots=3)
    assert (
        instance.paired
        and instance.items[0].rivals == ("Ben", "Cy")
        and instance.prompt(instance.items[0], 1).owners == (1, 0, 2)
    )


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", r"mine\.jsonl, line 2, got broken JSON at column 2"),
        ("[1]", r"line 2, got a list"),
        (row(1, qestion="?"), r"line 2, got a field 'qestion', but the fields are question, gold"),
        ({"question": "?"}, r"line 2, got no gold"),
        (row(1, gold="  "), r"line 2, got gold"),
        (row(1, gold="half a character \ud800"), r"line 2, got gold"),
        (row(1, answers=["\udfff"]), r"line 2, got answers"),
        (row(1, others=[]), r"line 2, got others \[\]"),
        (row(1, others=["a", 3, "b", "c"]), r"line 2, got others"),
        (row(1, answers="Ben"), r"line 2, got answers"),
        (row(1, others=["one"]), r"line 2, got 1 others, but line 1 has 4"),
        (row(1, rivals=["Ada"]), r"line 2, got 1 rivals, but line 1 has 0"),
        (row(1, rivals=["the ben of"]), r"line 2, got the rival 'the ben of' beside the answer 'Ben'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    path = written(tmp_path / "mine.jsonl", [row(0), line])
    with pytest.raises(WhenceError, match=message):
        load_items(None, str(path))


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"answers": "red"}, r"^Item\(answers=\.\.\.\) got 'red', but answers is a tuple of texts; pass \('red',\)\.$"),
        ({"rivals": "grey"}, r"Item\(rivals=\.\.\.\) got 'grey'"),
        ({"others": "Stone is grey."}, r"Item\(others=\.\.\.\) got 'Stone"),
        ({"answers": (3,)}, r"got \(3,\)"),
    ],
)
def test_a_wrong_item_is_refused(changed, message):
    item = {"question": "q", "gold": "g", "others": ("x",), "answers": ("red",), "rivals": ("grey",)}
    Item(**item)
    with pytest.raises(WhenceError, match=message):
        Item(**item | changed)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path, mine):
    marked = tmp_path / "marked.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + mine.read_bytes())
    assert load_items(None, str(marked)).items == load_items(None, str(mine)).items


def test_golds_without_an_answer_and_others_with_one_are_counted(tmp_path, mine, capsys):
    assert "contain" not in load_items(None, str(mine)).about
    others = [f"{name} saw house 1." for name in ("Ada", "Ben", "Cy", "Benedict")]
    rows = [row(0, gold="Adam built it."), row(1, others=others), *(row(n) for n in (2, 3, 4))]
    path = written(tmp_path / "doubtful.jsonl", rows)
    about = load_items(None, str(path)).about
    assert "In 1 of 5 items the gold contains none of the answers." in about
    assert "In 1 of 5 items another text contains one." in about
    options = ("--items", 2, "--slots", 2, "--score", "likelihood", "--only", "measure")
    run("--quick", "--items", path, *options, "--out", tmp_path / "out")
    assert "warning: doubtful, 5 texts: In 1 of 2 items the gold" in capsys.readouterr().err


def test_files_that_cannot_be_read_are_named(tmp_path, mine):
    with pytest.raises(WhenceError, match=r"--items none\.jsonl got No such file"):
        load_items(None, str(tmp_path / "none.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(WhenceError, match="no lines"):
        load_items(None, str(tmp_path / "empty.jsonl"))
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "\xe9"}')
    with pytest.raises(WhenceError, match="not UTF-8"):
        load_items(None, str(tmp_path / "latin.jsonl"))
    with pytest.raises(WhenceError, match="there are 5"):
        load_items(9, str(mine))
    with pytest.raises(WhenceError, match="9 slots, but its lines have 5"):
        load_items(2, str(mine), slots=9)


def run(*options):
    app(["probe", *map(str, options)], standalone_mode=False)


def test_items_are_measured_and_reported_without_their_file(mine, tmp_path, capsys):
    out = tmp_path / "out"
    options = ("--quick", "--items", mine, "--items", "3", "--slots", "1,3,5", "--score", "likelihood", "--out", out)
    run(*options, "--only", "measure")
    [folder] = out.iterdir()
    record = json.loads((folder / "mine-002-0000.json").read_text())
    assert record["source"] == "own items from mine.jsonl" and [one["item"] for one in record["rows"]] == [0, 1, 2]
    plan, about = run_folder.load_plan(folder)
    assert about["tasks"][0]["gold_slots"] == [0, 2, 4] and about["tasks"][0]["source"] == record["source"]
    instance = rerun_command(plan, "cpu")
    assert instance == f"whence probe --quick --items {mine} --items 3 --slots 1,3,5 --score likelihood"
    written(mine, [row(0, question="Who?"), *(row(n) for n in range(1, 5))])
    capsys.readouterr()
    run(*options, "--only", "measure", "--json")
    assert len(list(out.iterdir())) == 2  # other questions, another plan
    found = json.loads(capsys.readouterr().out)
    assert found["command"] == "probe" and found["report"] is None and Path(found["folder"]) in out.iterdir()
    mine.unlink()
    app(["report", str(folder), "--json"], standalone_mode=False)
    output = capsys.readouterr()
    (found,) = json.loads(output.out)["reports"]
    assert found["report"] == str(folder / "report.html") and "report:" in output.err
    assert found["tasks"][0]["task"] == "mine" and len(found["tasks"][0]["curves"][0]["points"]) == 3
    assert "mine, 5 texts" in (folder / "report.html").read_text()


def test_custom_tasks_are_measured_and_reported_without_their_module(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_tasks_here.py").write_text(OWN)
    for name in ("my_tasks_here:MyTask(words=3)", "./my_tasks_here.py:MyTask(words=3)"):
        run("--quick", "--task", name, "--items", "2", "--score", "likelihood", "--only", "measure", "--out", "out")
    folders = sorted((tmp_path / "out").iterdir())
    assert len(folders) == 2
    for folder in folders:
        plan, about = run_folder.load_plan(folder)
        assert about["tasks"][0]["slots"] == 4 and about["tasks"][0]["source"] == f"own task {plan.tasks[0].task}"
        assert (folder / "MyTask-words-3-000-0000.json").exists()
        assert "--task" in rerun_command(plan, "cpu") and "(words=3)" in rerun_command(plan, "cpu")
    (tmp_path / "my_tasks_here.py").unlink()
    monkeypatch.delitem(sys.modules, "my_tasks_here", raising=False)
    app(["report", str(folders[0])], standalone_mode=False)
    assert "report:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, message",
    [
        ("own_here.py:MyTask(words=open('x'))", r"words=open\('x'\).*literal values"),
        ("own_here.py:MyTask(3)", "name each of them"),
        ("own_here.py:MyTask(words=1, words=2)", "words twice"),
        ("own_here.py:MyTask(words=", "no name after the colon"),
        ("own_here.py:MyTask(words=0)", "0 others"),
        ("own_here.py:missing", r"no missing in own_here\.py"),
        ("own_here.py:broken", "KeyError: 'no such thing'"),
        ("own_here.py:number", r"got int"),
        ("own_here.py:short", "2 items, but there are 1"),
        ("own_here.py:clash", "item 0, got the rival 'A0' beside the answer 'a0', but no rival is a right answer"),
        ("own_here.py:tail", r"KeyError: 'other'.*braces"),
        ("own_here.py:label", r"label '\{\}'.*braces"),
        ("none.py:MyTask", r"no file none\.py"),
        ("no_such_module:MyTask", "no module no_such_module"),
        ("bad_here:MyTask", r"bad_here, line 1: SyntaxError"),
        ("needs_here:MyTask", "needs_here, which needs not_installed_here"),
    ],
)
def test_errors_of_a_custom_task(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_here.py").write_text(OWN)
    (tmp_path / "bad_here.py").write_text("def (")
    (tmp_path / "needs_here.py").write_text("import not_installed_here")
    with pytest.raises(WhenceError, match=message):
        load_task(name, 2)


def test_arguments_are_literals():
    assert parse_reference("a.b:C(x=[1, 2], y='z')") == PluginReference("a.b", "C", {"x": [1, 2], "y": "z"})
    with pytest.raises(WhenceError, match="literal"):
        parse_reference("a:C(x=__import__('os').getcwd())")


def test_items_without_rivals_are_for_generation(tmp_path):
    path = written(tmp_path / "one.jsonl", [row(0)])
    with pytest.raises(WhenceError, match=r"items without rivals.*--score generation"):
        run("--quick", "--items", path, "--score", "likelihood", "--out", tmp_path / "out")
    assert build_tasks(plan_from_options("", True, False, None, None, ["generation"], files=[str(path)])[0])


def test_lengths_and_slots_by_option(mine):
    instance, _ = plan_from_options("m", False, False, None, None, None, None, [2, 4], files=[str(mine)])
    assert [(one.label, one.build().slots) for one in instance.tasks] == [("mine-of-2", 2), ("mine-of-4", 4)]
    assert (
        all(one.items_hash for one in instance.tasks) and instance.tasks[0].items_hash != instance.tasks[1].items_hash
    )
    instance, _ = plan_from_options("m", False, False, ["needle"], None, None, None, None, slots="3")
    assert instance.tasks[0].select_slots(needle := instance.tasks[0].build()) == spread_slots(needle.slots, 3)
    instance, _ = plan_from_options("m", False, False, ["needle"], None, None, None, [4, 16])
    needles = build_tasks(instance)
    assert [one.slots for one in needles] == [4, 16] and {len(one.items[0].rivals) for one in needles} == {3}
    assert rerun_command(instance, "cpu") == "whence probe m --task needle --length 4 --length 16"
    for slots, message in (("1", "at least two"), ("0,2", "from 1 on"), ("2,2", "each once"), ("a", "whole numbers")):
        with pytest.raises(WhenceError, match=message):
            plan_from_options("m", False, False, ["needle"], None, None, slots=slots)
    beyond = plan_from_options("m", False, False, None, None, None, files=[str(mine)], slots="1,9")[0]
    with pytest.raises(WhenceError, match="slot 9, but it has the slots 1 to 5"):
        build_tasks(beyond)


def test_more_slots_than_a_task_has_are_noted(mine, capsys):
    for slots, noted in (("9", "mine, 5 texts: it has 5 slots; --slots 9 measures all of them"), ("5", ""), (None, "")):
        plan, _ = plan_from_options("m", False, False, None, None, None, files=[str(mine)], slots=slots)
        print_warnings(plan.tasks, build_tasks(plan), slots)
        assert noted in (output := capsys.readouterr().err) and bool(output) == bool(noted)


def test_only_the_published_files_are_called_published(tmp_path, monkeypatch):
    """A file of that name with other content, generated keys and built distractors say what they are."""
    pairs = [[f"k{n}", f"v{n}"] for n in range(3)]
    folder = tmp_path / "lost_in_the_middle"
    folder.mkdir()
    raw = (json.dumps({"key": "k0", "value": "v0", "ordered_kv_records": pairs}) + "\n").encode()
    (folder / "kv-retrieval-75_keys.jsonl.gz").write_bytes(gzip.compress(raw))
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    other = build_task("key-value-75", 1)
    assert "not that of the published file" in other.source and "published" not in other.name
    monkeypatch.setitem(lost_in_the_middle.CONTENT, "key-value-75", hashlib.sha256(raw).hexdigest())
    genuine = build_task("key-value-75", 1)
    assert genuine.source.startswith("published data") and genuine.name.endswith("published")
    assert "not the published data" in build_task("key-value", 1).source
    assert "not published data" in build_task("needle", 1).source
    passage = [{"question": f"q{n}", "answers": [f"Answer{n}x"], "ctxs": [{"title": f"t{n}", "text": f"It is Answer{n}x."}]}
               for n in range(4)]  # fmt: skip
    lines = "\n".join(map(json.dumps, passage)).encode()
    (folder / "nq-open-oracle.jsonl.gz").write_bytes(gzip.compress(lines))
    built = build_task("documents", 1, count=2)
    assert "built distractors" in built.source and "which is not the published file" in built.source
    (folder / "nq-open-oracle.jsonl.gz").write_bytes(gzip.compress(lines)[:40])
    with pytest.raises(WhenceError, match=r"nq-open-oracle\.jsonl\.gz"):
        build_task("documents", 1, count=2)


def test_a_plan_with_own_tasks_is_read_anywhere():
    plan = Plan("m", (TaskSpec("nowhere:Nothing(x=1)", 2, name="mine", items_hash="abc"),))
    assert plan.hash and rerun_command(plan, "cpu") == ""
    with pytest.raises(WhenceError, match="no module nowhere"):
        plan.tasks[0].build()
