"""Question answering tasks: SQuAD's format from files, and generated questions, which need none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.lab.data import squad
from whence.lab.data.cloze import UNANSWERABLE, make_cloze_questions
from whence.lab.data.generated_texts import generate_questions
from whence.lab.data.squad import hash_questions, split_questions
from whence.lab.tasks.base import require_at_least, require_choice
from whence.lab.tasks.file_rows import require_same_data
from whence.lab.tasks.question_answering import QuestionAnswering, check_question_settings


class GeneratedQuestions(QuestionAnswering):
    """Questions about generated passages, which need no files; see ``generate_questions``.

    Args:
        passages: number of training passages, with two questions each.
        test_passages: number of test passages.
        facts: number of facts of a passage, of two sentences each.
        order: ``shuffled`` also shuffles the sentences of the training contexts.
        context: tokens of an input.
        seed: seed of the passages.
    """

    name = "questions"

    def __init__(
        self,
        passages: int = 1000,
        test_passages: int = 100,
        facts: int = 3,
        order: str = "original",
        context: int = 64,
        seed: int = 0,
    ) -> None:
        check_question_settings(self.name, order, context, 6, 1)
        require_at_least(self.name, "passages", passages, 2)
        require_at_least(self.name, "test_passages", test_passages, 2)
        require_at_least(self.name, "facts", facts, 2)
        if facts > 10:
            raise usage_error(f"task {self.name!r}", f"facts={facts}", "it must be at most 10", "decrease facts")
        read = {
            "train": generate_questions(passages, facts, seed),
            "test": generate_questions(test_passages, facts, seed + 1),
        }
        settings = {"facts": facts, "seed": seed, "data_hash": hash_questions(read)}
        super().__init__(read, order, "words", context, 1000, 4, settings)


class Squad(QuestionAnswering):
    """Questions in the format of SQuAD, from files; `whence compare --task squad --data my.json` reads other ones.

    Args:
        path: a .json or .jsonl file, whose articles are split, or a folder with files of the parts; empty for the published
            files in the folder of WHENCE_DATA.
        train_part: ``train``, or ``dev`` to split the published development part by article, for folders without the
            training part. Its results are not those of the full set.
        order: ``shuffled`` also shuffles the sentences of the training contexts.
        tokens: ``words``, ``bytes``, ``characters`` or the path of a ``tokenizer.json``.
        context: tokens of an input; longer contexts are cut.
        words: largest vocabulary of words or characters.
        max_answer: largest number of tokens of a predicted answer.
        questions: number of training questions; 0 for all.
        unanswerable: whether questions without an answer take part, as in SQuAD 2.0.
        cloze: number of cloze questions about the training contexts that training has besides; see ``make_cloze_questions``.
        test_questions: number of questions of each other part; 0 for all.
        split_seed: seed of the split of a single file.
        sha256: the hash that the data must have, if it is not empty.
    """

    name = "squad"

    def __init__(
        self,
        path: str = "",
        train_part: str = "train",
        order: str = "original",
        tokens: str = "words",
        context: int = 384,
        words: int = 20_000,
        max_answer: int = 30,
        questions: int = 0,
        test_questions: int = 0,
        split_seed: int = 0,
        sha256: str = "",
        unanswerable: bool = True,
        cloze: int = 0,
    ) -> None:
        check_question_settings(self.name, order, context, words, max_answer)
        require_at_least(self.name, "cloze", cloze, 0)
        require_choice(self.name, "train_part", train_part, ("train", "dev"))
        require_at_least(self.name, "questions", questions, 0)
        require_at_least(self.name, "test_questions", test_questions, 0)
        if path:
            require_same_data(path, tokens, sha256)
            files = squad.find_question_files(Path(path))
        elif train_part == "dev":
            files = {"": squad.find_published_file(f"task {self.name!r}", "dev")}
        else:
            files = {
                part: squad.find_published_file(f"task {self.name!r}", published)
                for part, published in (("train", "train"), ("test", "dev"))
            }
        read = {part: squad.read_questions(file) for part, file in files.items()}
        how = "the parts as published"
        if "" in read:
            read, how = split_questions(files[""].name, read[""], split_seed)
        elif "test" not in read:  # a folder of train and dev: dev decides
            read["test"] = read.pop("validation")
        if not unanswerable:
            read = {part: [one for one in own if one.answers] for part, own in read.items()}
        limits = {part: questions if part == "train" else test_questions for part in read}
        read = {part: own[: limits[part] or None] for part, own in read.items()}
        settings: dict[str, Any] = {
            "file": Path(path).name, "train_part": train_part, "split_seed": split_seed, "data_hash": hash_questions(read),
        }  # fmt: skip
        if not unanswerable:  # the usual values are left out, so that older records stay valid
            settings["unanswerable"] = False
            how += "; questions without an answer are left out"
        if cloze:
            settings["cloze"] = cloze
            share = UNANSWERABLE if unanswerable else 0.0
            read["train"] = [*read["train"], *make_cloze_questions(read["train"], cloze, unanswerable=share)]
            how += f"; {cloze:,} cloze questions about the training contexts train as well"
        super().__init__(read, order, tokens, context, words, max_answer, settings)
        self._facts["split"] = how
