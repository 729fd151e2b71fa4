"""Tokenise documents once, for training: split them, train a tokenizer on the training part, write a token folder.

The documents are copied into a temporary file first, so that a stream is read once. Equal documents are in one part. The
vocabulary comes from the training part alone. Two calls with the same documents and settings write the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from whence import records
from whence.errors import require_package, usage_error
from whence.lab.data import bpe, hub
from whence.lab.data.documents import (
    NAMED_SOURCES,
    SUBJECT,
    Document,
    DocumentOptions,
    TextLimit,
    read_documents,
    require_source,
)
from whence.lab.data.token_folder import (
    DOCUMENTS,
    FORMAT,
    MANIFEST,
    PARTS,
    TOKENIZER,
    TOKENS,
    TokenFolder,
    describe_file,
    read_manifest,
)

#: with fewer documents than this, the end of every document is held out instead of whole documents
MIN_DOCUMENTS = 10
#: bytes of text that are tokenised at once
BATCH_BYTES = 2_000_000
_LOCK = "tokenize.lock"
#: phases of the work
READ, TRAIN, TOKENISE = "read documents", "train the tokenizer", "tokenise"

#: takes the phase, the bytes that are done, and the bytes in all, 0 while they are unknown
ProgressCallback = Callable[[str, int, int], None]


@dataclass(frozen=True)
class PrepareSettings:
    """What determines the tokens beside the documents.

    Args:
        vocab_size: largest vocabulary of the byte-level BPE.
        tokenizer: a ``tokenizer.json`` to use instead of a new one; empty to train one.
        held_out: share of the text in the validation part, and in the test part, if the sources name no parts.
        split_seed: seed of the choice of held-out documents.
        characters: largest number of characters of training text; None for all.
    """

    vocab_size: int = 8192
    tokenizer: str = ""
    held_out: float = 0.05
    split_seed: int = 0
    characters: int | None = None

    def __post_init__(self) -> None:
        bpe.require_vocabulary(self.vocab_size)
        if not 0 < self.held_out <= 0.4:
            rule = "it is the share of each of the validation and test parts, above 0 and at most 0.4"
            raise usage_error("--held-out", str(self.held_out), rule, "use 0.05, for example")
        if self.characters is not None and self.characters < 1:
            raise usage_error(
                "--characters", str(self.characters), "it must be at least 1", "leave it out for all text"
            )


@dataclass(frozen=True)
class Piece:
    """A document, or a piece of one, in the temporary file."""

    start: int
    size: int  # in bytes
    digest: bytes
    part: str | None


class DocumentCopy:
    """Documents in a temporary file without a name, which disappears with the process."""

    def __init__(self, folder: Path) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (close closes it)
        self.pieces: list[Piece] = []
        self.size = 0

    def append(self, document: Document) -> None:
        raw = document.text.encode()
        self._file.write(raw)
        self.pieces.append(Piece(self.size, len(raw), hashlib.sha256(raw).digest(), document.part))
        self.size += len(raw)

    def text(self, piece: Piece) -> str:
        self._file.seek(piece.start)
        return self._file.read(piece.size).decode()

    def close(self) -> None:
        self._file.close()

    @property
    def digest(self) -> str:
        """A hash of all documents with their named parts, in order."""
        total = hashlib.sha256()
        for piece in self.pieces:
            total.update(f"{piece.part or ''}\0".encode() + piece.digest)
        return total.hexdigest()


def prepare_tokens(
    sources: Sequence[str],
    out: Path,
    settings: PrepareSettings | None = None,
    options: DocumentOptions | None = None,
    on_progress: ProgressCallback = lambda phase, done, total: None,
) -> TokenFolder:
    """Tokenise the documents of some sources into the folder ``out``. A folder with the same content is left as it is.

    Args:
        sources: files, folders, ``hf:NAME``, or names of ``NAMED_SOURCES``.
        out: a new folder, or one that the same call wrote.
        settings: tokenizer, split and size.
        options: how documents are found in a source.
        on_progress: called with the phase, the bytes done and the bytes in all.
    """
    settings, options = settings or PrepareSettings(), options or DocumentOptions()
    for source in sources:
        require_source(source)
    given = bpe.read_tokenizer(Path(settings.tokenizer)) if settings.tokenizer else None
    records.require_output_folder("--out", out)
    own = (TOKENS, DOCUMENTS, TOKENIZER, MANIFEST, _LOCK)
    if out.is_dir() and not all(one.name.startswith(own) for one in out.iterdir()):
        raise usage_error(
            "--out", f"the folder {out} with other files", "it must be new or empty", "name another folder"
        )
    records.make_folder(out)
    with _claim(out):
        copy = DocumentCopy(out)
        try:
            limit = TextLimit(settings.characters)
            names = [_copy_source(source, options, limit, copy, on_progress) for source in sources]
            identity = _identify(copy.digest, settings, given)
            if (out / MANIFEST).is_file():
                if read_manifest(out)["identity"] == identity:
                    return TokenFolder(out)
                rule = "it has tokens of other documents or settings"
                raise usage_error("--out", str(out), rule, "name another folder, or delete it")
            parts = split_documents(copy, settings)
            _write_folder(out, copy, parts, settings, given, on_progress, identity, names, options)
        finally:
            copy.close()
    return TokenFolder(out)


@contextmanager
def _claim(out: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that two processes do not write it, and remove what a killed one left."""
    lock = FileLock(out / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        rule, remedy = "another process writes it", "wait for it, or name another folder"
        raise usage_error("--out", str(out), rule, remedy) from None
    try:
        for name in (TOKENS, DOCUMENTS, TOKENIZER, MANIFEST):
            records.remove_partial_files(out / name)
        yield
    finally:
        lock.release()
        (out / _LOCK).unlink(missing_ok=True)
        if next(out.iterdir(), None) is None:  # nothing was written
            out.rmdir()


def _copy_source(
    source: str, options: DocumentOptions, limit: TextLimit, copy: DocumentCopy, on_progress: ProgressCallback
) -> dict[str, Any]:
    """Copy the documents of a source; returns what the manifest says about it."""
    before, size = len(copy.pieces), copy.size
    for document in read_documents(source, options, limit):
        copy.append(document)
        on_progress(READ, copy.size, 0)
    if len(copy.pieces) == before and limit.left > 0:
        raise usage_error(SUBJECT, f"{source} without a text", "every source needs a document", "remove it")
    name = source if source in NAMED_SOURCES or hub.is_hub_name(source) else Path(source).resolve().name
    return {"name": name, "documents": len(copy.pieces) - before, "bytes": copy.size - size}


def _identify(documents: str, settings: PrepareSettings, given: str | None) -> str:
    """A hash of all that determines the tokens. The version of tokenizers counts, since training may differ between two."""
    version = require_package("tokenizers", "a byte-level BPE", "data").__version__
    trained = {"vocab_size": settings.vocab_size, "tokenizers": version}
    tokenizer = trained if given is None else hashlib.sha256(given.encode()).hexdigest()
    facts = [FORMAT, documents, tokenizer, settings.held_out, settings.split_seed]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def split_documents(copy: DocumentCopy, settings: PrepareSettings) -> dict[str, list[Piece]]:
    """The documents of each part, in their order.

    Named parts stay. If no document is in a named validation or test part, whole documents are held out, chosen by a hash of
    their text and the seed, so that equal documents stay together; of fewer than ``MIN_DOCUMENTS``, the end of each one is.
    """
    parts: dict[str, list[Piece]] = {part: [] for part in PARTS}
    if any(piece.part in ("validation", "test") for piece in copy.pieces):
        for piece in copy.pieces:
            parts[piece.part or "train"].append(piece)
    elif len({piece.digest for piece in copy.pieces}) < MIN_DOCUMENTS:
        for piece in copy.pieces:
            for part, cut in _cut_document(copy, piece, settings.held_out):
                parts[part].append(cut)
    else:
        chosen = _choose_documents(copy.pieces, settings)
        for piece in copy.pieces:
            parts[chosen.get(piece.digest, "train")].append(piece)
    for part in ("train", "test"):
        if not parts[part]:
            sizes = ", ".join(f"{len(own)} for {name}" for name, own in parts.items())
            rule = "there must be documents for training and for test"
            raise usage_error(SUBJECT, f"{len(copy.pieces)} documents ({sizes})", rule, "add texts")
    return parts


def _choose_documents(pieces: Iterable[Piece], settings: PrepareSettings) -> dict[bytes, str]:
    """The held-out documents by their hash."""
    sizes: dict[bytes, int] = defaultdict(int)
    for piece in pieces:
        sizes[piece.digest] += piece.size
    seed = str(settings.split_seed).encode()
    waiting = sorted(sizes, key=lambda digest: hashlib.sha256(seed + digest).digest())
    wanted = settings.held_out * sum(sizes.values())
    chosen: dict[bytes, str] = {}
    for part in ("validation", "test"):
        taken = 0
        while taken < wanted and len(waiting) > 1:
            digest = waiting.pop()
            chosen[digest] = part
            taken += sizes[digest]
    return chosen


def _cut_document(copy: DocumentCopy, piece: Piece, share: float) -> Iterator[tuple[str, Piece]]:
    """The beginning of a document for training, then the pieces for validation and test."""
    text = copy.text(piece)
    tail, start = int(len(text) * share), piece.start
    first, second = len(text) - 2 * tail, len(text) - tail
    for part, cut in zip(PARTS, (text[:first], text[first:second], text[second:]), strict=True):
        size = len(cut.encode())
        if size:
            yield part, Piece(start, size, b"", part)
        start += size


def _write_folder(
    out: Path,
    copy: DocumentCopy,
    parts: dict[str, list[Piece]],
    settings: PrepareSettings,
    given: str | None,
    on_progress: ProgressCallback,
    identity: str,
    sources: list[dict[str, Any]],
    options: DocumentOptions,
) -> None:
    """Write the files, each atomically, and the manifest last."""
    numpy = require_package("numpy", SUBJECT, "lab")
    package = require_package("tokenizers", SUBJECT, "data")
    total = sum(piece.size for own in parts.values() for piece in own)
    text = given
    if text is None:
        training = parts["train"]
        on_progress(TRAIN, 0, sum(piece.size for piece in training))
        text = bpe.train_bpe((copy.text(piece) for piece in training), settings.vocab_size)
    tokenizer = package.Tokenizer.from_str(text)
    tokenizer.encode_special_tokens = True  # the words <|endoftext|> in a document are words
    tokenizer.no_truncation()
    tokenizer.no_padding()
    size, end = tokenizer.get_vocab_size(), tokenizer.token_to_id(bpe.END_OF_TEXT)
    dtype = "uint16" if size <= 2**16 else "uint32"
    offsets, done, facts = [0], 0, dict[str, dict[str, int]]()
    records.write_text(out / TOKENIZER, text)
    with records.replace_file(out / TOKENS) as path, path.open("wb") as file:
        for part, pieces in parts.items():
            first = offsets[-1]
            for batch in _batch(pieces):
                for encoding in tokenizer.encode_batch_fast(
                    [copy.text(piece) for piece in batch], add_special_tokens=False
                ):
                    ids = numpy.array([*encoding.ids, end], dtype=dtype)
                    file.write(ids.tobytes())
                    offsets.append(offsets[-1] + len(ids))
                done += sum(piece.size for piece in batch)
                on_progress(TOKENISE, done, total)
            facts[part] = {
                "documents": len(pieces),
                "tokens": offsets[-1] - first,
                "bytes": sum(piece.size for piece in pieces),
            }
    records.write_bytes(out / DOCUMENTS, numpy.array(offsets, dtype="int64").tobytes())
    records.write(
        out / MANIFEST,
        {
            "format": FORMAT, "identity": identity, "dtype": dtype, "vocab_size": size, "end_token": end, "parts": facts,
            "sources": sources, "settings": asdict(settings) | asdict(options) | {"tokenizer": Path(settings.tokenizer).name}, "documents_sha256": copy.digest,
            "files": {name: describe_file(out / name) for name in (TOKENS, DOCUMENTS, TOKENIZER)},
            "command": records.rerun_command(),
            "environment": records.describe_environment(("numpy", "tokenizers", "datasets")),
        },
    )  # fmt: skip


def _batch(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Documents in groups of about ``BATCH_BYTES``."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += piece.size
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
