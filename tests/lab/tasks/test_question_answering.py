"""Extractive question answering: the format of SQuAD, spans, unanswerable questions, shuffled sentences, exact match and F1."""

import json

import pytest
import torch

from whence import WhenceError
from whence.lab import data_options, study_task, training
from whence.lab.answer_scores import exact_match, score_answer, token_f1
from whence.lab.arms import parse_arm
from whence.lab.data.cloze import make_cloze_questions
from whence.lab.data.generated_texts import generate_questions
from whence.lab.data.squad import Question, read_questions, shuffle_sentences
from whence.lab.study import Budget, Decision, Study
from whence.lab.tasks import IGNORE_INDEX, load

MODEL = {"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16, "dropout": 0.0}


def squad_json(questions):
    """Questions in SQuAD's own format, one article for each title."""
    articles = {}
    for one in questions:
        paragraphs = articles.setdefault(one.title, {})
        answers = [{"text": text, "answer_start": start} for text, start in one.answers]
        item = {"id": one.id, "question": one.question, "answers": answers, "is_impossible": not answers}
        paragraphs.setdefault(one.context, []).append(item)
    data = [
        {"title": title, "paragraphs": [{"context": context, "qas": own} for context, own in paragraphs.items()]}
        for title, paragraphs in articles.items()
    ]
    return json.dumps({"version": "v2.0", "data": data})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("squad")
    (path / "squad").mkdir()
    for name, count, seed in (("train-v2.0", 40, 0), ("dev-v2.0", 12, 1)):
        (path / f"squad/{name}.json").write_text(squad_json(generate_questions(count, 2, seed)))
    return path


@pytest.fixture(scope="module")
def task():
    return load("questions", passages=60, test_passages=20, facts=2, context=40)


def test_targets_are_the_tokens_of_the_answer(task):
    for split in ("train", "test", "shuffled"):
        own = task.parts[split]
        assert any(not one.answers for one in own.questions) and any(one.answers for one in own.questions)
        for row, one in enumerate(own.questions):
            start, end = own.targets[row].tolist()
            words = task.decode(own.tokens[row, start : end + 1])
            assert words == (one.references[0].split() if one.answers else ["<cls>"])
            asked = task.decode(own.tokens[row, 1 : int(own.first[row]) - 1])
            assert " ".join(asked).replace(" ?", "?") == one.question
            assert task.decode([own.tokens[row, int(own.first[row]) - 1]]) == ["<sep>"]


def test_the_model_answers_within_the_context(task):
    model = task.build_model(MODEL, parse_arm("rotary"), 0)
    (batch, *_) = task.evaluation("test")
    logits = task.logits(model, batch)
    assert logits.shape == (len(batch.tokens), 2, 40)
    probability = logits.softmax(-1)
    assert not probability[~batch.extras["allowed"][:, None].expand_as(logits)].any()
    assert batch.extras["allowed"][:, 0].all() and not batch.extras["allowed"][:, 1].any()
    for answer, one in zip(task.answer(model, "test"), task.parts["test"].questions, strict=True):
        assert answer in one.context


def test_it_is_learned_and_scored(task):
    model = task.build_model(MODEL, parse_arm("rotary"), 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = training.evaluate_split(task, model, "test", torch.device("cpu"))
    for step in range(15):
        batch = task.train_batch(16, torch.Generator().manual_seed(step))
        training.compute_loss(task, model, batch, training.count_targets(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = training.evaluate_split(task, model, "test", torch.device("cpu"))
    assert after["cross_entropy"] < before["cross_entropy"] - 0.5
    assert after["value"] == after["token_f1"] and after["num_targets"] == 80
    answers, questions = task.answer(model, "test"), task.parts["test"].questions
    by_hand = [
        max(token_f1(answer, r) for r in one.references or [""]) for answer, one in zip(answers, questions, strict=True)
    ]
    assert after["token_f1"] == pytest.approx(sum(by_hand) / len(by_hand))
    notes = task.notes(model)
    assert notes["answers"][0]["answer"] == answers[0]
    share = sum(not one.answers for one in questions) / len(questions)
    together = (1 - share) * notes["scores"]["answerable"]["exact_match"] + share * notes["scores"]["unanswerable"][
        "exact_match"
    ]
    assert together == pytest.approx(after["exact_match"])
    scores, texts = type(task).panels({"rotary": [{"notes": notes}]}, {})
    assert scores["rows"][0][0] == "rotary" and texts["rows"][2] == ["rotary", answers[0] or "(no answer)"]
    assert type(task).panels({"rotary": [{"notes": {}}]}, {}) == []


def test_gold_logits_give_gold_answers(task):
    own = task.parts["test"]

    class Oracle(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.row, self.weight = 0, torch.nn.Parameter(torch.zeros(1))

        def forward(self, tokens, key_mask, pool):
            targets = own.targets[self.row : self.row + len(tokens)]
            self.row += len(tokens)
            return torch.nn.functional.one_hot(targets, tokens.shape[1]).float().transpose(1, 2)

    assert task.score_predictions(Oracle(), "test") == {"token_f1": 1.0, "exact_match": 1.0}
    found = task.baselines()
    assert found["best possible"]["splits"]["test"]["exact_match"] == 1
    share = sum(not one.answers for one in own.questions) / len(own.questions)
    assert found["no answer"]["splits"]["test"] == {"token_f1": share, "exact_match": share}
    assert found["similar sentence"]["splits"]["test"]["token_f1"] > 0


def test_shuffled_sentences_keep_their_answers():
    moved = 0
    for one in generate_questions(30, 3, seed=4):
        other = shuffle_sentences(one)
        assert sorted(other.context.replace(".", " .").split()) == sorted(one.context.replace(".", " .").split())
        assert all(other.context[start : start + len(text)] == text for text, start in other.answers)
        assert other == shuffle_sentences(one)
        moved += other.context != one.context
    assert moved > 25
    across = Question("0", "", "He met Dr. Who in May. It rained. Bo left.", "Who?", (("Dr. Who", 7),))
    assert "Dr. Who" in shuffle_sentences(across).context


def test_training_order_is_a_setting(task):
    shuffled = load("questions", passages=60, test_passages=20, facts=2, context=40, order="shuffled")
    assert not torch.equal(shuffled.parts["train"].tokens, task.parts["train"].tokens)
    assert shuffled.parts["test"].questions == task.parts["test"].questions
    assert shuffled.settings["order"] == "shuffled" and task.splits() == {"test": 40, "shuffled": 40}


def test_published_files(folder, monkeypatch):
    monkeypatch.setenv("WHENCE_DATA", str(folder))
    task = load("squad", context=48)
    assert task.describe_data()["items"] == {"train": 80, "test": 24, "shuffled": 24}
    few = load("squad", context=48, questions=10, test_questions=4)
    assert few.describe_data()["items"] == {"train": 10, "test": 4, "shuffled": 4}
    split = load("squad", context=48, train_part="dev")
    titles = {part: {one.title for one in own.questions} for part, own in split.parts.items()}
    assert not titles["train"] & titles["test"] and not titles["validation"] & titles["test"]
    assert "articles stay whole" in split.describe_data()["split"]
    (folder / "squad/train-v2.0.json").rename(folder / "squad/elsewhere.json")
    with pytest.raises(WhenceError, match=r'squad/train-v2.0.json.*train_part="dev"'):
        load("squad")
    (folder / "squad/elsewhere.json").rename(folder / "squad/train-v2.0.json")


def test_own_files(folder, tmp_path):
    lines = [
        {"context": one.context, "question": one.question, "answers": {"text": one.references, "answer_start": [s for _, s in one.answers]}}
        for one in generate_questions(12, 2, seed=3)
    ]  # fmt: skip
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, lines)))
    task = load("squad", path=str(tmp_path / "mine.jsonl"), context=48)
    assert sum(task.describe_data()["items"].values()) == 24 + len(task.parts["shuffled"].questions)
    name, settings = data_options.file_task(str(folder / "squad"), ["squad"], tokens="words")
    assert name == "squad" and len(settings["sha256"]) == 64
    assert len(load(name, **settings | {"context": 48}).parts["test"].questions) == 24
    with pytest.raises(WhenceError, match=r"--label-column.*squad has no such option"):
        data_options.file_task(str(folder / "squad"), ["squad"], label_column="x")
    with pytest.raises(WhenceError, match=r"changed since the study was built"):
        load("squad", path=str(tmp_path / "mine.jsonl"), sha256="0" * 64)


@pytest.mark.parametrize(
    "content, got",
    [
        ("no JSON", "no JSON at line 1"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "without context"),
        ('{"data": []}', "no question"),
        (squad_json([Question("7", "t", "Bo slept.", "Who?", (("Ada", 0),))]), "question 7"),
    ],
)
def test_faulty_files(tmp_path, content, got):
    (tmp_path / "faulty.json").write_text(content)
    with pytest.raises(WhenceError) as caught:
        read_questions(tmp_path / "faulty.json")
    assert "faulty.json" in str(caught.value) and got in str(caught.value) and "correct the file" in str(caught.value)


def test_a_cut_context(folder):
    """A question whose answer is cut is left out of training, and counts as wrong in the evaluation."""
    path = str(folder / "squad")
    task = load("squad", path=path, context=20)
    assert len(task.parts["train"].questions) < 80 and (task.parts["test"].targets == IGNORE_INDEX).any()
    best = task.baselines()["best possible"]["splits"]["test"]["exact_match"]
    lost = int((task.parts["test"].targets[:, 0] == IGNORE_INDEX).sum())
    assert best == pytest.approx(1 - lost / 24) and any("cuts" in note for note in task.describe_data()["notes"])
    for settings, said in (
        ({"order": "reversed"}, "order='reversed'"),
        ({"max_answer": 0}, "max_answer=0"),
        ({"train_part": "test"}, "train_part='test'"),
    ):
        with pytest.raises(WhenceError, match=said):
            load("squad", path=path, **settings)


def test_without_unanswerable_questions_every_question_gets_an_answer(tmp_path):
    questions = [one for one in generate_questions(30, 2, seed=5) if one.answers]
    (tmp_path / "v1.json").write_text(squad_json(questions))
    task = load("squad", path=str(tmp_path / "v1.json"), context=48)
    assert all(task.answer(task.build_model(MODEL, parse_arm("none"), 0), "test"))


def test_cloze_questions_of_the_training_contexts(folder, monkeypatch):
    monkeypatch.setenv("WHENCE_DATA", str(folder))
    plain, more = load("squad", context=40), load("squad", context=40, unanswerable=False, cloze=30)
    cloze = [one for one in more.parts["train"].questions if one.id.startswith("cloze")]
    contexts = {one.context for one in plain.parts["train"].questions}
    assert len(cloze) == 30 and {one.context for one in cloze} <= contexts
    for one in cloze:
        ((answer, start),) = one.answers
        assert one.context[start:].startswith(answer) and "what" in one.question and answer not in one.question.split()
    assert all(one.answers for own in more.parts.values() for one in own.questions) and not more.may_abstain
    assert (more.settings["cloze"], more.settings["unanswerable"]) == (30, False) and "cloze" not in plain.settings


def test_some_cloze_questions_have_no_answer(folder):
    made = make_cloze_questions(generate_questions(20, 2, 0), 60)
    without = [one for one in made if not one.answers]
    assert 5 < len(without) < 40 and made == make_cloze_questions(generate_questions(20, 2, 0), 60)


def test_validation_has_contexts_of_its_own(task):
    held = load("questions", passages=60, test_passages=20, facts=2, context=40)
    held.hold_out_validation()
    contexts = {part: {one.context for one in own.questions} for part, own in held.parts.items()}
    assert held.validation == "validation" and len(contexts["validation"]) == 6
    assert not contexts["validation"] & contexts["train"]


def test_scores_of_published_examples():
    """Cases of the published script; other ones agree with the F1 of lm-evaluation-harness, which has the same definition."""
    assert score_answer("1976", ["1976"]) == {"exact_match": 1.0, "token_f1": 1.0}
    assert score_answer("Denver Broncos", ["Denver Broncos", "The Denver Broncos"])["exact_match"] == 1
    assert score_answer("10th century", ["the first half of the 10th century", "10th"])["token_f1"] == pytest.approx(
        2 / 3
    )
    assert score_answer("France", []) == {"exact_match": 0.0, "token_f1": 0.0} and exact_match("", "the") == 1


def test_other_tasks_have_no_answers(task):
    study = Study(
        name="s", question="?", task="copy", arms=(parse_arm("none"),), seeds=(0,), budget=Budget(steps=1),
        decision=Decision(baseline="none", metric="token_f1"),
    )  # fmt: skip
    with pytest.raises(WhenceError, match=r"'token_f1'.*choose another metric"):
        study_task.load_task(study)
