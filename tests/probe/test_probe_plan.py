"""Plans: their commands, lengths and errors."""

import pytest
from small_probe import PLAN

from whence.cli.probe_options import plan_from_options, rerun_command
from whence.errors import WhenceError
from whence.probe.plan import Plan, TaskSpec, default_plan, full_plan, quick_plan

NAMED = ("task", "items", "score", "dtype", "length")


def test_the_default_needle_exists_at_every_length():
    """With as many distractors at each, so that chance is the same."""
    instance, _ = plan_from_options("m", False, False, ["needle"], None, None, None, [2, 10, 20])
    names = [one.build().name for one in instance.tasks]
    assert [name.partition(", ")[2] for name in names] == [
        "24 words, 1 distractor", "120 words, 1 distractor", "240 words, 1 distractor",
    ]  # fmt: skip
    assert "--length 2 --length 10 --length 20" in rerun_command(instance, "cpu")


@pytest.mark.parametrize(
    "options",
    [
        ("", True, False, None, None, None),
        ("", True, False, ["needle"], 5, ["likelihood"], None, [3, 9]),
        ("smollm2", False, True, ["documents", "needle"], None, None, "float32"),
        ("smollm2", False, True, None, 7, None),
        ("some/model", False, False, ["key-value"], None, ["generation"]),
    ],
)
def test_a_plan_names_the_command_that_makes_it(options):
    instance, _ = plan_from_options(*options)
    message = rerun_command(instance, "cpu").split()
    assert message[:2] == ["whence", "probe"]
    several = {name: [message[i + 1] for i, word in enumerate(message) if word == f"--{name}"] for name in NAMED}
    again = plan_from_options(
        "" if options[1] else message[2], "--quick" in message, "--full" in message, several["task"],
        int(several["items"][0]) if several["items"] else None, several["score"],
        several["dtype"][0] if several["dtype"] else None, [int(one) for one in several["length"]],
    )  # fmt: skip
    assert again[0] == instance
    assert rerun_command(instance, "cuda").endswith(" --device cuda")


def test_a_custom_plan_has_no_command():
    assert rerun_command(PLAN, "cpu") == ""


def test_plans_are_what_they_say():
    assert (
        quick_plan().hash
        == quick_plan().hash
        != default_plan("smollm2", True).hash
        != default_plan("smollm2", False).hash
    )
    assert min(asked.items for asked in full_plan("m").tasks) == 400  # Wilson: at most 4.9 points to each side
    instance, size = plan_from_options("", True, False, ["needle"], 1, ["likelihood"])
    assert [one.task for one in instance.tasks] == ["needle"] and instance.tasks[0].items == 1 and size == "quick"


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: plan_from_options("", False, False, None, None, None), "whence probe got no model"),
        (lambda: plan_from_options("m", True, False, None, None, None), "it has its own"),
        (lambda: plan_from_options("", True, False, ["books"], None, None), "this plan has key-value, needle"),
        (lambda: plan_from_options("", True, False, None, None, ["bleu"]), "they are likelihood, generation"),
        (lambda: Plan("m", ()), "no tasks"),
        (lambda: Plan("m", (TaskSpec("needle", 1), TaskSpec("needle", 2))), "a task twice"),
        (lambda: Plan("m", (TaskSpec("needle", 1),), items_per_record=0), "items_per_record=0"),
        (lambda: Plan("m", (TaskSpec("needle", 1),), dtype="int8"), "dtype int8"),
    ],
)
def test_bad_plans_are_refused(call, message):
    with pytest.raises(WhenceError, match=message):
        call()


@pytest.mark.parametrize("task, known", [("needle", "pieces, words, seed, distractors"), ("items", "file, slots")])
def test_an_unknown_setting_of_a_task_lists_the_settings(task, known):
    with pytest.raises(WhenceError, match=rf"task '{task}' got the setting wrds=3.*{known}"):
        TaskSpec(task, 2, settings={"wrds": 3}).build()
