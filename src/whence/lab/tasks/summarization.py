"""Summarization as pairs of texts: generated reports, QMSum (Zhong et al. 2021, arXiv 2104.05938) and scientific papers with
their abstracts (Cohan et al. 2018, arXiv 1804.05685). Any other table of texts and summaries is a ``pairs_file``.

A summary is generated and scored with ROUGE against the reference. Sources are cut to ``context`` tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from whence.errors import WhenceError, usage_error
from whence.lab.data.corpora import ORIGINS, content_hash, data_folder
from whence.lab.data.generated_texts import generate_reports
from whence.lab.data.rows import SPLIT_NAMES
from whence.lab.data.splits import stratified_split
from whence.lab.data.tables import COMPRESSED, decode_text, plain_suffix
from whence.lab.tasks.base import require_at_least, require_choice
from whence.lab.tasks.file_rows import require_same_data
from whence.lab.tasks.pairs import PairsTask, check_pair_settings

Pair = tuple[str, str]
#: source, summary, and what stays in one part, such as a meeting
Example = tuple[str, str, str]
SPANS = ("relevant", "whole")


class GeneratedReports(PairsTask):
    """Generated reports with summaries of their first and last sentence, which need no files.

    Args:
        reports: number of training reports.
        test_reports: number of test reports.
        sentences: number of sentences of a report.
        context: tokens of a report; its summary has at most 24.
        summaries: number of test reports that are summarized for ROUGE.
        num_beams: beams of the summaries; 1 is greedy search.
        seed: seed of the reports.
    """

    name = "reports"

    def __init__(
        self,
        reports: int = 1000,
        test_reports: int = 50,
        sentences: int = 5,
        context: int = 48,
        summaries: int = 20,
        num_beams: int = 1,
        seed: int = 0,
    ) -> None:
        require_at_least(self.name, "reports", reports, 2)
        require_at_least(self.name, "test_reports", test_reports, 1)
        require_at_least(self.name, "sentences", sentences, 2)
        if sentences > 16:
            rule = "a report names at most 16 travellers"
            raise usage_error(f"task {self.name!r}", f"sentences={sentences}", rule, "decrease sentences")
        check_pair_settings(self.name, context, "encoder-decoder", "none", 0, num_beams, summaries)
        read = {
            "train": generate_reports(reports, sentences, seed),
            "test": generate_reports(test_reports, sentences, seed + 1),
        }
        hashed = [text for own in read.values() for pair in own for text in pair]
        settings = {"sentences": sentences, "seed": seed, "data_hash": content_hash(hashed)}
        super().__init__(
            read,
            "words",
            context,
            1000,
            "encoder-decoder",
            "none",
            0,
            num_beams,
            settings,
            summaries,
            target_context=24,
        )
        self.metric = "rougeL" if summaries else "perplexity"
        self._facts |= {"items": {part: len(own) for part, own in read.items()}}


class SummaryText(PairsTask):
    """Texts with summaries from files of JSON Lines. Subclasses name the data set and read its lines.

    Args:
        path: a file, which is split, or a folder with files whose names start with train, val and test; empty for the published
            files in the folder of WHENCE_DATA.
        train_part: ``train``, or ``val`` to split the published validation part, for folders without the training part. Its
            results are not those of the full set.
        span: what of a QMSum meeting is read: the turns that are ``relevant`` to the query, as published, or the ``whole`` of it.
        tokens: ``words``, ``bytes``, ``characters`` or the path of a ``tokenizer.json``.
        context: tokens of a text, or of both and a separator for a decoder.
        target_context: tokens of a summary.
        words: largest vocabulary of words or characters.
        architecture: ``encoder-decoder`` or ``decoder``.
        summaries: number of texts of each split that are summarized for ROUGE; 0 for none.
        num_beams: beams of the summaries; 1 is greedy search.
        texts: number of training texts; 0 for all.
        test_texts: number of texts of each other part; 0 for all.
        split_seed: seed of the split of a single file.
        sha256: the hash that the data must have, if it is not empty.
    """

    stems: ClassVar[Mapping[str, Sequence[str]]]  # places of the published parts in the data folder, without a suffix

    def __init__(
        self,
        path: str = "",
        train_part: str = "train",
        span: str = "relevant",
        tokens: str = "words",
        context: int = 512,
        target_context: int = 128,
        words: int = 20_000,
        architecture: str = "encoder-decoder",
        summaries: int = 50,
        num_beams: int = 1,
        texts: int = 0,
        test_texts: int = 0,
        split_seed: int = 0,
        sha256: str = "",
    ) -> None:
        require_choice(self.name, "train_part", train_part, ("train", "val"))
        require_choice(self.name, "span", span, SPANS)
        require_at_least(self.name, "words", words, 6)
        require_at_least(self.name, "texts", texts, 0)
        require_at_least(self.name, "test_texts", test_texts, 0)
        require_at_least(self.name, "target_context", target_context, 2)
        check_pair_settings(self.name, context, architecture, "none", 0, num_beams, summaries)
        if path:
            require_same_data(path, tokens, sha256)
            files = _find_parts(Path(path))
        elif train_part == "val":
            files = {"": self._find_published("val")}
        else:
            files = {
                part: self._find_published(name)
                for part, name in (("train", "train"), ("validation", "val"), ("test", "test"))
            }
        read = {part: list(self.read_examples(file, span)) for part, file in files.items()}
        how = "the parts as published"
        if "" in read:
            read, how = _split_examples(files[""].name, read[""], split_seed)
        if "test" not in read:
            read["test"] = read.pop("validation")
        pairs: dict[str, list[Pair]] = {
            part: [(source, summary) for source, summary, _ in read[part]][
                : (texts if part == "train" else test_texts) or None
            ]
            for part in ("train", "test", "validation")
            if read.get(part)
        }
        hashed = [text for own in pairs.values() for pair in own for text in pair]
        settings = {
            "file": Path(path).name, "train_part": train_part, "span": span, "tokens": tokens, "words": words,
            "split_seed": split_seed, "data_hash": content_hash(hashed),
        }  # fmt: skip
        super().__init__(
            pairs, tokens, context, words, architecture, "none", 0, num_beams, settings, summaries, target_context
        )
        self.metric = "rougeL" if summaries else "perplexity"
        self._facts |= {"items": {part: len(own) for part, own in pairs.items()}, "split": how}

    def read_examples(self, path: Path, span: str) -> Iterator[Example]:
        """The examples of a file."""
        raise NotImplementedError

    def _find_published(self, part: str) -> Path:
        subject = f"task {self.name!r}"
        folder = data_folder(subject, ORIGINS[self.name])
        for stem in self.stems[part]:
            for suffix in (".jsonl", ".txt"):
                for compression in ("", *COMPRESSED):
                    if (folder / f"{stem}{suffix}{compression}").is_file():
                        return folder / f"{stem}{suffix}{compression}"
        otherwise = ', or set train_part="val" to train on a part of the validation set' if part != "val" else ""
        raise usage_error(
            subject, f"no {self.stems[part][0]}.jsonl in {folder}", "WHENCE_DATA must name the folder that contains it",
            f"{ORIGINS[self.name]}{otherwise}",
        )  # fmt: skip


class Qmsum(SummaryText):
    """Meetings with queries and answers: a line has ``meeting_transcripts`` and lists of general and specific queries."""

    name = "qmsum"
    stems = {"train": ("qmsum/train",), "val": ("qmsum/val", "benchmarks/qmsum/val"), "test": ("qmsum/test",)}

    def read_examples(self, path: Path, span: str) -> Iterator[Example]:
        for number, meeting in _read_json_lines(path):
            turns = [
                f"{_field(path, number, turn, 'speaker', str)}: {_field(path, number, turn, 'content', str)}"
                for turn in _field(path, number, meeting, "meeting_transcripts", list)
            ]
            for query in [*meeting.get("general_query_list", ()), *meeting.get("specific_query_list", ())]:
                asked, answer = (_field(path, number, query, name, str) for name in ("query", "answer"))
                spans = query.get("relevant_text_span") if span == "relevant" else None
                chosen = [turn for a, b in spans for turn in turns[int(a) : int(b) + 1]] if spans else turns
                if asked.strip() and answer.strip() and chosen:
                    yield "\n".join([asked, *chosen]), answer, str(number)


class Arxiv(SummaryText):
    """Papers of arXiv and their abstracts: a line has ``article_text`` and ``abstract_text``, lists of sentences of which those of
    the abstract are within ``<S>`` and ``</S>``, or the texts ``article`` and ``abstract``."""

    name = "arxiv"
    stems = {part: (f"arxiv/{part}",) for part in ("train", "val", "test")}

    def read_examples(self, path: Path, span: str) -> Iterator[Example]:
        for number, paper in _read_json_lines(path):
            if "article_text" in paper:
                article = "\n".join(map(str, _field(path, number, paper, "article_text", list)))
                sentences = map(str, _field(path, number, paper, "abstract_text", list))
                abstract = " ".join(one.replace("<S>", "").replace("</S>", "").strip() for one in sentences)
            else:
                article, abstract = (_field(path, number, paper, name, str) for name in ("article", "abstract"))
            if article.strip() and abstract.strip():  # the published files have empty ones
                yield article, abstract, str(number)


def _find_parts(path: Path) -> dict[str, Path]:
    """The files of a folder by part, or one file under the name ""."""
    if path.is_file():
        return {"": path}
    parts: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        word = "".join(c if c.isalnum() else " " for c in file.name.lower()).split()
        part = SPLIT_NAMES.get(word[0]) if word else None
        if part is not None and plain_suffix(file) in (".jsonl", ".txt"):
            parts.setdefault(part, file)
    if "train" not in parts or len(parts) < 2:
        got = f"{path} with {', '.join(file.name for file in parts.values()) or 'no file of a part'}"
        rule = "names that start with train, val or test give the parts"
        raise usage_error("--data", got, rule, "rename the files, or name one file, which is split")
    return parts


def _split_examples(name: str, examples: Sequence[Example], seed: int) -> tuple[dict[str, list[Example]], str]:
    groups = [group for *_, group in examples]
    if len(set(groups)) < 3:
        got = f"{name} with {len(set(groups))} texts"
        raise usage_error("--data", got, "each part has texts of its own", "add texts, or name a folder of parts")
    read: dict[str, list[Example]] = {"train": [], "test": [], "validation": []}
    for one, part in zip(examples, stratified_split(groups, [0] * len(groups), seed), strict=True):
        read[part].append(one)
    return (
        read,
        f"80 % training, 10 % validation, 10 % test of {name} by seed {seed}; the summaries of one text stay together",
    )


def _read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file with their lines."""
    for number, line in enumerate(decode_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except json.JSONDecodeError:
            raise _malformed(path, number, "no JSON") from None
        if not isinstance(item, dict):
            raise _malformed(path, number, f"a {type(item).__name__}")
        yield number, item


def _field(path: Path, number: int, item: Any, name: str, kind: type) -> Any:
    if not isinstance(item, dict) or not isinstance(item.get(name), kind):
        raise _malformed(path, number, f"no {name} ({kind.__name__})")
    return item[name]


def _malformed(path: Path, number: int, got: str) -> WhenceError:
    return usage_error(
        "--data", f"{path.name} with {got} at line {number}", "it must have the published format", "correct the file"
    )
