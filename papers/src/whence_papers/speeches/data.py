"""Sentences of three presidents' speeches, with the tokenization and vocabulary of the source.

The tokenizer is nltk's ``word_tokenize``. It changed with nltk 3.9.3: up to 3.9.2 the vocabulary has 5755 types,
later 5639 or 5634. Results are comparable with the source only at 5755, so a task records version and size.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from whence.errors import MissingExtra, usage_error
from whence.lab.data.corpora import content_hash, data_file, data_folder
from whence.lab.data.tokenizers import WordTokenizer
from whence_papers.downloads import ORIGINS

PRESIDENTS = ("obama", "wbush", "hbush")  # in the order of the labels 0, 1, 2
LONGEST = 32


@dataclass(frozen=True)
class NltkTokenizer:
    """nltk's tokenizer with its version."""

    split: Callable[[str], list[str]]
    version: str


def load_tokenizer(subject: str) -> NltkTokenizer:
    """Load nltk's word_tokenize with sentence parameters from the data folder. Nothing is downloaded."""
    try:
        nltk = importlib.import_module("nltk")
    except ModuleNotFoundError as error:
        rule = "the speeches are tokenized with the package nltk"
        raise usage_error(
            subject, f"no package {error.name}", rule, "run: pip install whence-papers", kind=MissingExtra
        ) from None
    data_file(subject, ORIGINS["nltk_data"], "nltk_data/tokenizers/punkt_tab/english/abbrev_types.txt")
    folder = str(data_folder(subject) / "nltk_data")
    if folder not in nltk.data.path:
        nltk.data.path.insert(0, folder)
    return NltkTokenizer(nltk.tokenize.word_tokenize, nltk.__version__)


def build_vocabulary(subject: str, split: Callable[[str], list[str]]) -> WordTokenizer:
    """Every type of both training files, labels included, in alphabetical order after padding and unknown.

    The files are tokenized as a whole. nltk splits off a full stop only at the end of a sentence, and tokenizing line by
    line gives one type more.
    """
    types: set[str] = set()
    for name in ("train_CLS.tsv", "train_LM.txt"):
        types.update(split(read_speech_file(subject, name)))
    return WordTokenizer(sorted(types))


def read_speech_file(subject: str, name: str) -> str:
    """Read one file of the data set."""
    return data_file(subject, ORIGINS["speeches"], f"speeches/{name}").read_text(encoding="utf-8")


def read_labelled(subject: str, name: str) -> tuple[list[str], list[int]]:
    """Read the sentences of a classification file and their labels."""
    texts, labels = [], []
    for number, line in enumerate(read_speech_file(subject, name).splitlines(), start=1):
        label, tab, text = line.strip().partition("\t")
        if not tab or label not in ("0", "1", "2"):
            raise usage_error(
                subject,
                f"line {number} of {name} starting with {line[:12]!r}",
                "a line is a label 0, 1 or 2, a tab and a text",
                "restore the file",
            )
        texts.append(text)
        labels.append(int(label))
    return texts, labels


def speeches_hash(subject: str, names: tuple[str, ...]) -> str:
    """Hash of the named files and the two files of the vocabulary."""
    return content_hash(read_speech_file(subject, name) for name in sorted({"train_CLS.tsv", "train_LM.txt", *names}))
