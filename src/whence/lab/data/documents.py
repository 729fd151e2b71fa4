"""Documents for pretraining, one at a time: from text files, tables, Hugging Face datasets, or data sets with a name.

A text file is one document, unless a pattern marks the first line of each of its documents. A row of a table is a document.
Nothing is read before it is needed, so a source may be larger than the memory.
"""

from __future__ import annotations

import gzip
import json
import lzma
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from whence.errors import WhenceError, require_package, usage_error
from whence.lab.data import hub, python_texts
from whence.lab.data.corpora import BOOK_START, ORIGINS, data_file, is_held_out
from whence.lab.data.rows import SPLIT_NAMES, has_invalid_utf8
from whence.lab.data.tables import DELIMITERS, JSON_LINES, PARQUET, SUFFIXES, TEXT_SUFFIXES, plain_suffix, read_table

SUBJECT = "whence tokenize"
#: the first line of an article of WikiText; sections have two signs
ARTICLE_START = r" = [^=].* = $"
#: rows of a Parquet file that are read at once
PARQUET_ROWS = 1000
FORMATS = ", ".join((*TEXT_SUFFIXES, *SUFFIXES))


@dataclass(frozen=True)
class Document:
    """A text. ``part`` is train, validation or test where the source names it."""

    text: str
    part: str | None = None


@dataclass(frozen=True)
class DocumentOptions:
    """How documents are found in a source.

    Args:
        text_column: the column of tables and datasets with the texts.
        document_start: a regular expression that matches the first line of each document of a text file; empty for one
            document per file.
    """

    text_column: str = "text"
    document_start: str = ""

    def __post_init__(self) -> None:
        try:
            re.compile(self.document_start)
        except re.error as error:
            got = f"{self.document_start!r} ({error})"
            raise usage_error("--document-start", got, "it is a regular expression", "correct it") from None


class TextLimit:
    """Reads training texts up to a number of characters; the last one is cut. What is beyond is never read.

    >>> list(TextLimit(5).take(["abc", "def", "ghi"], "train")), list(TextLimit(1).take(["abc"], "test"))
    (['abc', 'de'], ['abc'])
    """

    def __init__(self, characters: int | None = None) -> None:
        self.left = math.inf if characters is None else characters

    def take(self, texts: Iterable[str], part: str | None) -> Iterator[str]:
        """Texts of a part. Only those of the training part, and those without a part, are limited."""
        if part not in (None, "train"):
            yield from texts
            return
        if self.left <= 0:
            return
        for text in texts:
            cut = text if len(text) <= self.left else text[: int(self.left)]
            self.left -= len(cut)
            yield cut
            if self.left <= 0:
                return


def read_documents(
    source: str, options: DocumentOptions | None = None, limit: TextLimit | None = None
) -> Iterator[Document]:
    """The documents of a source, in the order of its files and rows; empty ones are left out.

    Args:
        source: a file, a folder, ``hf:NAME``, ``hf:NAME/CONFIG``, or a name of ``NAMED_SOURCES``; a file of such a name is
            written as ``./books``.
        options: how documents are found.
        limit: how much training text is read, of this source and of those before it.
    """
    options, limit = options or DocumentOptions(), limit or TextLimit()
    if source in NAMED_SOURCES:
        documents = NAMED_SOURCES[source].read(limit)
    elif hub.is_hub_name(source):
        documents = stream_dataset(hub.stream_splits(source), options.text_column, source, limit=limit)
    else:
        documents = _read_path(Path(source).expanduser(), options, limit)
    return (document for document in documents if document.text.strip())


def require_source(source: str) -> None:
    """Raise before any work if a source is neither a path, ``hf:NAME`` nor a known name."""
    if hub.is_hub_name(source) or source in NAMED_SOURCES or Path(source).expanduser().exists():
        return
    rule = f"a source is a file, a folder, hf:NAME or one of {', '.join(NAMED_SOURCES)}"
    raise usage_error(SUBJECT, f"no file {source}", rule, "check the path")


def stream_dataset(
    splits: Mapping[str, Iterable[Mapping[str, Any]]],
    column: str,
    name: str,
    start: str = "",
    limit: TextLimit | None = None,
) -> Iterator[Document]:
    """The documents of a dataset, which may be a stream: one for each row, or with ``start`` for each row that matches it.

    Args:
        splits: rows by the name of their split; splits other than train, validation and test are left out.
        column: the column with the texts.
        name: of the dataset, for errors.
        start: a regular expression that matches the first row of each document.
        limit: how much training text is read.
    """
    limit = limit or TextLimit()
    known = {split: SPLIT_NAMES[split] for split in splits if split in SPLIT_NAMES}
    if "train" not in known.values():
        got = f"{name} with the splits {', '.join(splits)}"
        raise usage_error(SUBJECT, got, "one of them must be train", "choose another dataset or configuration")
    for split, part in known.items():
        named = part if len(known) > 1 else None  # of a dataset with a training split alone, documents are held out
        texts = _read_column(splits[split], column, name)
        for text in limit.take(_join_from(texts, start) if start else texts, part):
            yield Document(text, named)


def _read_column(rows: Iterable[Mapping[str, Any]], column: str, name: str) -> Iterator[str]:
    iterator = iter(rows)
    while True:
        try:
            row = next(iterator, None)
        except WhenceError:
            raise
        except Exception as error:  # each library has its own class for connection errors
            raise hub.network_error(SUBJECT, name, error) from error
        if row is None:
            return
        if column not in row:
            rule = f"the columns of {name} are {', '.join(map(str, row))}"
            raise usage_error("--text-column", repr(column), rule, "name one of them")
        if isinstance(row[column], str):  # other values, such as None, are no text
            yield row[column]


def _join_from(pieces: Iterable[str], start: str) -> Iterator[str]:
    """Lines or rows as documents; each begins with a piece that matches ``start``.

    >>> list(_join_from(["# A\\n", "x\\n", "# B\\n"], "# "))
    ['# A\\nx\\n', '# B\\n']
    """
    pattern, current = re.compile(start), list[str]()
    for piece in pieces:
        if current and pattern.match(piece.rstrip("\n")):
            yield "".join(current)
            current = []
        current.append(piece)
    if current:
        yield "".join(current)


def _read_path(path: Path, options: DocumentOptions, limit: TextLimit) -> Iterator[Document]:
    if not path.is_dir():
        yield from _read_file(path, options, None, limit)
        return
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    chosen = [file for file in files if plain_suffix(file) in (*TEXT_SUFFIXES, *SUFFIXES)]
    if not chosen:
        rule, remedy = f"a folder has files that end in {FORMATS}", "rename the files, or name a dataset as hf:FOLDER"
        raise usage_error(SUBJECT, f"{path} without a text or a table", rule, remedy)
    parts = {file: _part_of_name(file) for file in chosen}
    named = all(parts.values()) and {"train", "test"} <= set(parts.values())
    for file in chosen:
        yield from _read_file(file, options, parts[file] if named else None, limit)


def _part_of_name(path: Path) -> str | None:
    words = "".join(c if c.isalnum() else " " for c in path.name.lower()).split()
    return SPLIT_NAMES.get(words[0]) if words else None


def _read_file(path: Path, options: DocumentOptions, part: str | None, limit: TextLimit) -> Iterator[Document]:
    suffix = plain_suffix(path)
    if suffix in JSON_LINES:
        texts = _read_column(_json_rows(path), options.text_column, path.name)
    elif suffix in PARQUET:
        texts = _read_column(_parquet_rows(path), options.text_column, path.name)
    elif suffix in DELIMITERS:
        table = read_table(path, [options.text_column])
        table.require_columns({"--text-column": options.text_column})
        texts = _read_column((row.values for row in table.rows), options.text_column, path.name)
    elif suffix in TEXT_SUFFIXES or not suffix:
        lines = _text_lines(path)
        texts = _join_from(lines, options.document_start or "(?!)")
    else:
        raise usage_error(SUBJECT, path.name, f"formats are {FORMATS}", "convert the file to one of these")
    return (Document(text, part) for text in limit.take(texts, part))


@contextmanager
def _open_text(path: Path) -> Iterator[IO[str]]:
    """A file as text, decompressed by its suffix. A damaged file is an error that names it."""
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
    try:
        with openers.get(path.suffix.lower(), open)(path, "rt", encoding="utf-8-sig", newline="\n") as stream:
            yield stream
    except UnicodeDecodeError as error:
        got = f"{path}, which is not UTF-8 at byte {error.start} of a block"
        remedy = "convert it, for example with iconv -f latin1 -t utf-8"
        raise usage_error(SUBJECT, got, "texts must be UTF-8", remedy) from None
    except (gzip.BadGzipFile, lzma.LZMAError, EOFError):
        remedy = "compress it again, or download it again"
        raise usage_error(SUBJECT, f"{path}, which is damaged", "it must be a complete file", remedy) from None
    except OSError as error:
        got = f"{path}, which cannot be read ({error.strerror})"
        raise usage_error(SUBJECT, got, "it must be a readable file", "check the path and its permissions") from None


def _text_lines(path: Path) -> Iterator[str]:
    with _open_text(path) as stream:
        for line in stream:
            if "\0" in line:
                got = f"{path.name}, which is a binary file"
                raise usage_error(SUBJECT, got, f"formats are {FORMATS}", "convert it to text")
            yield line.replace("\r\n", "\n")


def _json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    with _open_text(path) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, RecursionError):
                row = None
            if not isinstance(row, dict) or any(isinstance(v, str) and has_invalid_utf8(v) for v in row.values()):
                rule = "each line is a JSON object with texts in UTF-8"
                raise usage_error(SUBJECT, f"{path.name} line {number}", rule, "correct or remove this line")
            yield row


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    parquet = require_package("pyarrow.parquet", f"reading {path.name}", "data")
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(PARQUET_ROWS):
                yield from batch.to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
        got = f"{path.name}, which cannot be read ({type(error).__name__})"
        raise usage_error(SUBJECT, got, "it must be a complete Parquet file", "write it again") from error


# data sets with a name


def _read_topics(limit: TextLimit) -> Iterator[Document]:
    topics = python_texts.topics(SUBJECT)
    parts: dict[str, list[str]] = {"train": [], "validation": [], "test": list(topics.test.values())}
    for name, text in topics.train.items():
        parts["validation" if is_held_out(f"{name}/validation", 10) else "train"].append(text)
    yield from (Document(text, part) for part, texts in parts.items() for text in limit.take(texts, part))


def _read_books(limit: TextLimit) -> Iterator[Document]:
    paths = {part: data_file(SUBJECT, ORIGINS["books"], f"books/{part}.txt.xz") for part in ("train", "valid", "test")}
    for part, path in paths.items():
        yield from _read_file(path, DocumentOptions(document_start=BOOK_START), SPLIT_NAMES[part], limit)


def _stream_wikitext103(limit: TextLimit) -> Iterator[Document]:
    name = "hf:Salesforce/wikitext/wikitext-103-raw-v1"
    return stream_dataset(hub.stream_splits(name, hub.WIKITEXT_REVISION), "text", name, ARTICLE_START, limit)


def _stream_fineweb(limit: TextLimit) -> Iterator[Document]:
    name = "hf:HuggingFaceFW/fineweb/sample-10BT"
    return stream_dataset(hub.stream_splits(name), "text", name, limit=limit)


@dataclass(frozen=True)
class NamedSource:
    """A data set that ``whence tokenize`` knows by name."""

    read: Callable[[TextLimit], Iterator[Document]]
    description: str


NAMED_SOURCES: dict[str, NamedSource] = {
    "topics": NamedSource(_read_topics, "Python's help topics, half a megabyte, without a download"),
    "books": NamedSource(_read_books, "public-domain books, from the folder of WHENCE_DATA"),
    "wikitext103": NamedSource(_stream_wikitext103, "articles of Wikipedia, streamed from the Hugging Face Hub"),
    "fineweb": NamedSource(_stream_fineweb, "pages of the web (sample-10BT), streamed from the Hugging Face Hub"),
}
