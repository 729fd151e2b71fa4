"""What a probe asks: the gold moves and nothing else does, spans are where they say, and no distractor answers."""

import os
import re
from pathlib import Path

import pytest

from whence.errors import WhenceError
from whence.lab.answer_scores import normalize_answer
from whence.probe.tasks import build_task, spread_slots
from whence.probe.tasks.lost_in_the_middle import DOCUMENTS_FILE as FILE
from whence.probe.tasks.lost_in_the_middle import documents_from_rows
from whence.probe.tasks.task import best_subspan, is_correct

PUBLISHED = Path(os.environ.get("WHENCE_DATA", "")) / FILE
needs_published = pytest.mark.skipif(not PUBLISHED.is_file(), reason="WHENCE_DATA has no lost_in_the_middle")


def passages(count=12):
    """Rows of the published form with answers that are words of their own."""
    return [
        {
            "question": f"who built tower {n}",
            "answers": [f"Builder{n:02d}"],
            "ctxs": [{"title": f"Tower {n}", "text": f"Tower number {n} was built by Builder{n:02d} long ago."}],
        }
        for n in range(count)
    ]


def every_task():
    return [
        build_task("key-value", 3, pairs=4),
        build_task("needle", 3, pieces=4, words=9),
        build_task("needle", 3, pieces=4, words=9, distractors=3),
        documents_from_rows(passages(), 3, 4, 0, 100, {}),
    ]


@pytest.mark.parametrize("instance", every_task(), ids=lambda instance: instance.name)
def test_the_gold_moves_and_all_else_stays(instance):
    for item in instance.items:
        texts = {}
        for place in range(instance.slots):
            prompt = instance.prompt(item, place)
            pieces = [prompt.text[start:end] for start, end in prompt.slots]
            assert prompt.gold == place and item.gold in pieces[place]
            around = pieces[:place] + pieces[place + 1 :]
            assert all(piece.endswith(other) for other, piece in zip(item.others, around, strict=True))
            assert prompt.owners[0] == place and len(prompt.owners) == 1 + len(prompt.rivals)
            if instance.paired:  # each rival stands in the slot that is said to own it
                for rival, owner in zip(item.rivals, prompt.owners[1:], strict=True):
                    assert rival in pieces[owner] and owner != place
            texts[place] = prompt
        tails = {prompt.text[prompt.slots[-1][1] :] for prompt in texts.values()}
        assert len(tails) == 1 and item.question in tails.pop()
        assert item.gold not in instance.closed_book(item).text and instance.closed_book(item).slots == ()
        assert instance.oracle(item).text.count(item.gold) == 1 and len(instance.oracle(item).slots) == 1


def test_the_same_seed_asks_the_same_and_another_does_not():
    one, two, other = (
        build_task("key-value", 2, pairs=3),
        build_task("key-value", 2, pairs=3),
        build_task("key-value", 2, pairs=3, seed=1),
    )
    assert one.hash == two.hash != other.hash
    assert one.first(1).hash != one.hash


def test_distractors_are_needles_of_other_names():
    plain, hard = build_task("needle", 4, pieces=5, words=9), build_task("needle", 4, pieces=5, words=9, distractors=4)
    assert "distractors" not in plain.settings and plain.name == "needle, 45 words"  # old records keep their label
    assert hard.settings["distractors"] == 4 and hard.name == "needle, 45 words, 4 distractors"
    assert hard.hash != plain.hash and hard.paired and not plain.paired
    for item in hard.items:
        assert len(item.rivals) == 4 and item.answers[0] not in item.rivals
        facts = [re.search(r"The gate code of (\w+) is (\d{5})\.$", other).groups() for other in item.others]
        assert [number for _, number in facts] == list(item.rivals)
        assert len({item.question, *(name for name, _ in facts)}) == 5
    some = build_task("needle", 4, pieces=5, words=9, distractors=2)
    assert not some.paired and all(sum("gate code" in other for other in item.others) == 2 for item in some.items)


def test_content_free_slots_differ_in_nothing():
    instance = build_task("needle", 1, pieces=5, words=6)
    prompt = instance.content_free("same words")
    assert {prompt.text[start:end] for start, end in prompt.slots} == {"same words"} and len(prompt.slots) == 5


def test_key_value_prompt_is_the_published_one():
    instance = build_task("key-value", 1, pairs=2)
    item = instance.items[0]
    prompt = instance.prompt(item, 0)
    lines = prompt.text.split("\n")
    assert lines[0].startswith("Extract the value") and lines[2] == "JSON data:"
    assert lines[3] == "{" + item.gold + "," and lines[4] == " " + item.others[0] + "}"
    assert lines[-2:] == [f'Key: "{item.question}"', "Corresponding value:"]
    assert re.fullmatch(r'"[0-9a-f-]{36}": "[0-9a-f-]{36}"', item.gold)


def test_no_distractor_holds_an_answer():
    rows = passages()
    rows[1]["ctxs"][0]["text"] += " So said Builder00."  # would answer the question of row 0
    for seed in range(6):
        for item in documents_from_rows(rows, 12, 3, seed, 100, {}).items:
            for other in item.others:
                assert not any(normalize_answer(answer) in normalize_answer(other) for answer in item.answers)
            assert item.answers[0] in item.gold and len({*item.rivals, item.answers[0]}) == 3


@needs_published
def test_published_files_have_what_is_known_of_them():
    pairs = build_task("key-value-75", 2)
    assert pairs.slots == 75 and pairs.items[0].question == "2a8d601d-1d69-4e64-9f90-8ad825a74195"
    documents = build_task("documents", 5, count=4)
    assert documents.slots == 4 and documents.settings["file"] == FILE
    prompt = documents.prompt(documents.items[0], 1)
    assert [prompt.text[start:end][:12] for start, end in prompt.slots] == [f"Document [{n}]" for n in (1, 2, 3, 4)]


def test_places_are_spread_to_both_ends():
    assert (
        spread_slots(6, 5) == (0, 1, 3, 4, 5)
        and spread_slots(20, 3) == (0, 10, 19)
        and spread_slots(4, 9) == (0, 1, 2, 3)
    )


def test_an_accepted_answer_of_articles_alone_forbids_no_distractor():
    rows = passages(6)
    rows[0]["answers"] = [*rows[0]["answers"], "The"]
    assert len(documents_from_rows(rows, 6, 3, 0, 100, {}).items) == 6


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: build_task("nonsense", 1), "task 'nonsense' got an unknown name, but the tasks are key-value"),
        (lambda: build_task("key-value", 0), "0 items, but it has at least one; pass 1 or more"),
        (lambda: build_task("key-value", 1, pairs=1), "pass at least 2"),
        (lambda: build_task("needle", 1, pieces=1), "1 pieces"),
        (lambda: build_task("needle", 1, pieces=4, distractors=4), "distractors=4, but"),
        (lambda: build_task("needle", 1, pieces=40, distractors=20), "0 to 19 here"),
        (lambda: documents_from_rows(passages(3), 3, 5, 0, 100, {}), "pass a smaller count"),
        (lambda: documents_from_rows(passages(3), 9, 2, 0, 100, {}), "there are 3"),
        (
            lambda: build_task("key-value", 1, pairs=2).prompt(build_task("key-value", 1, pairs=2).items[0], 2),
            "slots 0 to 1",
        ),
        (lambda: spread_slots(1, 3), "pass two or more of each"),
        (lambda: is_correct("bleu", "", []), "the metrics are value, subspan"),
    ],
)
def test_invalid_options_raise_one_sentence(call, message):
    with pytest.raises(WhenceError, match=re.escape(message)):
        call()


def test_without_the_data_folder_the_error_names_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    with pytest.raises(WhenceError, match=r"put kv-retrieval-75_keys\.jsonl\.gz"):
        build_task("key-value-75", 1)


@pytest.mark.parametrize(
    "output, answers, result",
    [
        ("  The Answer is: Menorca!", ["menorca"], True),
        ("\nMenorca", ["Menorca"], False),  # the first line is empty
        ("Minorca", ["Menorca", "Minorca"], True),
        ("An apple a day", ["apple day"], True),  # articles go
        ("theory", ["the"], True),  # an answer of articles alone is empty, and stands in everything: as published
        ("U.S.A.", ["USA"], True),
    ],
)
def test_best_subspan_is_the_published_metric(output, answers, result):
    assert best_subspan(output, answers) is result
