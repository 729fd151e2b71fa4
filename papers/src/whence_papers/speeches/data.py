"""Speech sentences of three presidents, in the tokens and the vocabulary of the study they come from.

The tokens are those of nltk's ``word_tokenize``. It changed with nltk 3.9.3: up to 3.9.2 the vocabulary has 5755 types,
after that 5639 or 5634. Numbers are comparable with the source's only on 5755, so a task records the version and size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whence.errors import require_package, usage_error
from whence.lab.data.corpora import content_hash, data_file, data_folder
from whence.lab.data.tokenizers import WordTokenizer

PRESIDENTS = ("obama", "wbush", "hbush")  # in the order of the labels 0, 1, 2
LONGEST = 32


@dataclass(frozen=True)
class Tokeniser:
    """nltk's, with the version that decides what it does."""

    split: Callable[[str], list[str]]
    version: str


def tokeniser(asked: str) -> Tokeniser:
    """nltk's word_tokenize, with its sentence parameters from the data folder; nothing is downloaded."""
    nltk = require_package("nltk", asked, "lab")
    data_file(asked, "nltk_data", "nltk_data/tokenizers/punkt_tab/english/abbrev_types.txt")
    folder = str(data_folder(asked) / "nltk_data")
    if folder not in nltk.data.path:
        nltk.data.path.insert(0, folder)
    return Tokeniser(nltk.tokenize.word_tokenize, nltk.__version__)


def vocabulary(asked: str, split: Callable[[str], list[str]]) -> WordTokenizer:
    """Every type of both training files, labels and all, in alphabetical order after padding and unknown.

    The files are tokenised whole, not line by line: nltk splits off a full stop only at the end of what it takes for a
    sentence, and line by line gives one type more.
    """
    types: set[str] = set()
    for name in ("train_CLS.tsv", "train_LM.txt"):
        types.update(split(speech_file(asked, name)))
    return WordTokenizer(sorted(types))


def speech_file(asked: str, name: str) -> str:
    """The text of one file of the set."""
    return data_file(asked, "speeches", f"speeches/{name}").read_text(encoding="utf-8")


def labelled(asked: str, name: str) -> tuple[list[str], list[int]]:
    """The sentences of a classification file and their labels."""
    texts, labels = [], []
    for number, line in enumerate(speech_file(asked, name).splitlines(), start=1):
        label, tab, text = line.strip().partition("\t")
        if not tab or label not in ("0", "1", "2"):
            raise usage_error(
                asked,
                f"line {number} of {name} starting with {line[:12]!r}",
                "a line is a label 0, 1 or 2, a tab and a text",
                "restore the file",
            )
        texts.append(text)
        labels.append(int(label))
    return texts, labels


def speeches_hash(asked: str, names: tuple[str, ...]) -> str:
    """One hash over the named files, and the two that make the vocabulary."""
    return content_hash(speech_file(asked, name) for name in sorted({"train_CLS.tsv", "train_LM.txt", *names}))
