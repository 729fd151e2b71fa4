"""Document reordering: the published orders, texts that move under labels that stay, and ranks by the model itself."""

import pytest
import torch

from whence import WhenceError
from whence.mend.reorder import (
    ReorderDocuments,
    attention_to_documents,
    long_context_reorder,
    move_texts,
    question_likelihoods,
    two_stage_order,
)
from whence.probe.likelihood import last_attention_row
from whence.probe.probed_model import tiny_random_model
from whence.probe.tasks import build_task
from whence.probe.tasks.task import Item, ProbeTask

TEXTS = ("Grass is green.", "Stone 2 is grey.", "The sky over the sea is blue.")


@pytest.fixture(scope="module")
def lm():
    return tiny_random_model(layers=2)


@pytest.fixture(scope="module")
def prompt():
    item = Item("the thing", "The thing is red.", TEXTS, ("red",), ("green", "grey", "blue"))
    task = ProbeTask(
        name="colors", about="", head="Read this.\n", joint="\n", tail="\nWhat color is {question}?", lead=" ",
        label="[{number}] ", metric="value", paired=True, items=(item,),
    )  # fmt: skip
    return task.prompt(item, 1)


def test_published_orders():
    assert long_context_reorder([1, 2, 3, 4, 5]) == [1, 3, 5, 4, 2]
    assert long_context_reorder([1, 2, 3, 4, 5, 6]) == [2, 4, 6, 5, 3, 1]
    assert two_stage_order([1, 2, 3, 4, 5, 6]) == [1, 3, 5, 6, 4, 2]


@pytest.mark.parametrize("order", [long_context_reorder, two_stage_order])
@pytest.mark.parametrize("count", range(1, 12))
def test_orders_are_permutations_with_the_best_at_the_edges(order, count):
    ranks = order(list(range(1, count + 1)))
    assert sorted(ranks) == list(range(1, count + 1))
    assert {ranks[0], ranks[-1]} == ({1, 2} if count > 1 else {1})
    worst = ranks.index(count)
    assert abs(worst - (count - 1) / 2) <= 0.5
    assert ranks[: worst + 1] == sorted(ranks[: worst + 1]) and ranks[worst:] == sorted(ranks[worst:], reverse=True)
    assert order is long_context_reorder or ranks[0] == 1


def test_texts_move_and_labels_stay(prompt):
    moved = move_texts(prompt, [3, 0, 2, 1])
    assert moved.text == (
        "Read this.\n[1] The sky over the sea is blue.\n[2] Grass is green.\n[3] Stone 2 is grey.\n[4] The thing is red."
        "\nWhat color is the thing?"
    )
    assert prompt.gold == 1 and moved.gold == 3
    assert [moved.text[start:end] for start, end in moved.slots][3] == "[4] The thing is red."
    for owner, answer in zip(moved.owners, (moved.answer, *moved.rivals), strict=True):
        assert answer.strip() in moved.text[slice(*moved.slots[owner])]
    back = move_texts(moved, [1, 3, 2, 0])
    assert back == prompt
    with pytest.raises(WhenceError, match=r"\[0, 0, 1, 2\].*permutation"):
        move_texts(prompt, [0, 0, 1, 2])


def test_ranks_are_the_attention_and_the_likelihood_of_the_model(lm, prompt):
    row = last_attention_row(lm, lm.tokens(prompt.text)).mean((0, 1))
    assert attention_to_documents(lm, prompt) == pytest.approx(
        [float(row[start:end].mean()) for start, end in prompt.slots], rel=1e-5
    )  # a byte is a token
    text, tail = "Read this.\n[1] " + TEXTS[2] + "\nWhat color is the thing?", len("\nWhat color is the thing?")
    ids = torch.tensor([lm.tokens(text)])
    with torch.no_grad():
        log_probs = lm.model(ids).logits[0].log_softmax(-1)
    each = log_probs[:-1].gather(1, ids[0, 1:, None])[-tail:, 0]
    assert question_likelihoods(lm, prompt)[3] == pytest.approx(float(each.mean()), rel=1e-4)


@pytest.mark.parametrize("rank", ["attention", "likelihood"])
@pytest.mark.parametrize("order", ["long_context", "two_stage"])
def test_rewritten_prompts_have_the_order_of_their_ranks(lm, prompt, order, rank):
    scores = {"attention": attention_to_documents, "likelihood": question_likelihoods}[rank](lm, prompt)
    best_first = sorted(range(4), key=lambda slot: -scores[slot])
    expected = {"long_context": long_context_reorder, "two_stage": two_stage_order}[order](best_first)
    cure = ReorderDocuments(order, rank)
    assert cure.rewrite(lm, prompt) == move_texts(prompt, expected)
    assert cure.unavailable(lm.model) is None


def test_likelihood_ranks_do_not_depend_on_the_order(lm, prompt):
    cure = ReorderDocuments("two_stage", "likelihood")
    assert cure.rewrite(lm, move_texts(prompt, [2, 0, 3, 1])) == cure.rewrite(lm, prompt)


def test_what_is_not_reordered(lm, prompt):
    (control,) = ReorderDocuments().controls()
    assert control.rewrite(lm, prompt) is prompt
    task = build_task("key-value", 1, pairs=3)
    for condition in ("oracle", "closed book"):
        alone = task.at(task.items[0], condition)
        assert ReorderDocuments().rewrite(lm, alone) is alone
    ids, before = torch.tensor([lm.tokens(prompt.text)]), lm.model.config._attn_implementation
    with torch.no_grad(), ReorderDocuments().apply(lm.model):
        inside = lm.model(ids).logits
        assert lm.model.config._attn_implementation == before
    assert torch.equal(lm.model(ids).logits, inside)
    with pytest.raises(WhenceError, match=r"order=.*alphabetical"):
        ReorderDocuments("alphabetical")
    with pytest.raises(WhenceError, match=r"rank=.*length"):
        ReorderDocuments(rank="length")
