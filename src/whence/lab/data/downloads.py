"""Download a public data set into the data folder: ``python -m whence.lab.data.downloads NAME``.

Tasks never download. They read the folder, so that a study does not depend on a server; a hash records what was read.
"""

from __future__ import annotations

import gzip
import lzma
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from whence.errors import MissingExtra, WhenceError, require_package, usage_error
from whence.lab.data.corpora import BOOK_START, data_folder
from whence.lab.data.hub import WIKITEXT_REVISION
from whence.records import write_bytes

Download = Callable[
    [str, Path], list[Path]
]  # takes the subject of an error and the data folder; returns the files written

GLUE_SST2 = "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"
GLUE_SST2_CHECKSUM = "md5:9f81648d4199384278b86e315dac217c"

#: 18 public-domain books that NLTK publishes; the checksum is the one in its index of the same commit
GUTENBERG = "https://raw.githubusercontent.com/nltk/nltk_data/5db857e6f7df11eabb5e5665836db9ec8df07e28/packages/corpora/gutenberg.zip"
GUTENBERG_CHECKSUM = "md5:48c9c8605cd70b0230687557ee543633"
#: the books of the other parts; all others train
GUTENBERG_PARTS = {"valid": ("austen-persuasion.txt",), "test": ("chesterton-brown.txt",)}

#: our names of the splits, and those at their source
WIKITEXT_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


def fetch(name: str, sets: Mapping[str, Download] | None = None) -> list[Path]:
    """Download a data set into the folder of WHENCE_DATA. Existing files are not changed.

    Args:
        name: name of the data set.
        sets: functions that download a set, by name; by default those of this module.
    """
    subject, sets = f'fetch("{name}")', sets or SETS
    if name not in sets:
        raise usage_error(subject, "an unknown name", f"the data sets are {', '.join(sets)}", "choose one of them")
    return sets[name](subject, data_folder(subject, may_be_new=True))


def _wikitext2(subject: str, folder: Path) -> list[Path]:
    return _wikitext(subject, folder, 2)


def _wikitext103(subject: str, folder: Path) -> list[Path]:
    return _wikitext(subject, folder, 103)


def _wikitext(subject: str, folder: Path, size: int) -> list[Path]:
    datasets = require_package("datasets", subject, "lab")
    written = []
    for part, split in WIKITEXT_SPLITS.items():
        path = folder / f"wikitext{size}" / f"{part}.txt"
        if path.exists():
            continue
        try:
            rows = datasets.load_dataset(
                "Salesforce/wikitext", f"wikitext-{size}-v1", split=split, revision=WIKITEXT_REVISION
            )["text"]
        except Exception as error:  # each library has its own class for connection errors
            raise _download_error(subject, error) from error
        # a blank line of the published file is an empty row here, and a token in published perplexities
        write_bytes(path, "".join(row or " \n" for row in rows).encode())
        written.append(path)
    return written


def _multi30k(subject: str, folder: Path) -> list[Path]:
    stems = {"train": "train", "val": "validation", "test_2016_flickr": "test"}
    return _parallel_text(subject, folder / "multi30k", ("bentrevett/multi30k", None), stems)


def _wmt14(subject: str, folder: Path) -> list[Path]:
    stems = {"train": "train", "val": "validation", "test": "test"}
    return _parallel_text(subject, folder / "wmt14", ("wmt/wmt14", "de-en"), stems)


def _parallel_text(subject: str, folder: Path, source: tuple[str, str | None], stems: Mapping[str, str]) -> list[Path]:
    """Sentence pairs of a Hugging Face dataset as two files for each split; ``stems`` maps our names of the splits to its own."""
    datasets = require_package("datasets", subject, "lab")
    written = []
    for stem, split in stems.items():
        paths = {language: folder / f"{stem}.{language}.gz" for language in ("en", "de")}
        if all(path.exists() for path in paths.values()):
            continue
        try:
            rows = datasets.load_dataset(*source, split=split)
        except Exception as error:  # each library has its own class for connection errors
            raise _download_error(subject, error) from error
        lines: dict[str, list[str]] = {language: [] for language in paths}
        for row in rows:
            pair = row.get("translation", row)
            for language, own in lines.items():
                own.append(" ".join(pair[language].split()))  # a sentence is one line
        for language, path in paths.items():
            write_bytes(path, gzip.compress("".join(f"{line}\n" for line in lines[language]).encode(), mtime=0))
            written.append(path)
    return written


def _sst2(subject: str, folder: Path) -> list[Path]:
    target = folder / "glue" / "SST-2"
    # the published test split has no labels and is not extracted
    wanted = {"SST-2/train.tsv": target / "train_full.tsv", "SST-2/dev.tsv": target / "dev.tsv"}
    missing = {inside: path for inside, path in wanted.items() if not path.exists()}
    if not missing:
        return []
    archive = _retrieve(subject, GLUE_SST2, GLUE_SST2_CHECKSUM)
    with zipfile.ZipFile(archive) as packed:
        for inside, path in missing.items():
            write_bytes(path, packed.read(inside))
    return list(missing.values())


def _books(subject: str, folder: Path) -> list[Path]:
    """The books as one file for each part. They differ from the books of the committed records, which are 90 million characters."""
    target = folder / "books"
    paths = {part: target / f"{part}.txt.xz" for part in ("train", *GUTENBERG_PARTS)}
    missing = [part for part, path in paths.items() if not path.exists()]
    if not missing:
        return []
    if len(missing) < len(paths):
        got = f"{target} without {', '.join(paths[part].name for part in missing)}"
        raise usage_error(subject, got, "the three parts belong together", "remove the others, or restore these")
    held_out = {book: part for part, books in GUTENBERG_PARTS.items() for book in books}
    parts: dict[str, list[str]] = {part: [] for part in paths}
    with zipfile.ZipFile(_retrieve(subject, GUTENBERG, GUTENBERG_CHECKSUM)) as packed:
        for name in sorted(name for name in packed.namelist() if name.endswith(".txt")):
            book = Path(name).name
            text = packed.read(name).decode("latin-1").replace("\r\n", "\n").strip("\n")
            parts[held_out.get(book, "train")].append(f"{BOOK_START}{Path(name).stem}\n\n{text}\n\n")
    for part, path in paths.items():
        write_bytes(path, lzma.compress("".join(parts[part]).encode()))
    return list(paths.values())


def _retrieve(subject: str, address: str, checksum: str) -> Path:
    """A file from the network, or from the cache of pooch."""
    pooch = require_package("pooch", subject, "lab")
    try:
        return Path(pooch.retrieve(address, known_hash=checksum, progressbar=False))
    except Exception as error:  # no connection, or a wrong checksum
        raise _download_error(subject, error) from error


def download_files(subject: str, folder: Path, files: Mapping[str, tuple[str, str]]) -> list[Path]:
    """Download the missing files of a set, all or none. ``files`` has the address and checksum of each."""
    missing = {folder / name: origin for name, origin in files.items() if not (folder / name).exists()}
    copies = {path: _retrieve(subject, *origin) for path, origin in missing.items()}
    for path, copy in copies.items():
        write_bytes(path, copy.read_bytes())
    return list(copies)


def _download_error(subject: str, error: Exception) -> WhenceError:
    return usage_error(
        subject,
        f"{type(error).__name__} from its server",
        "a download needs a network and the expected checksum",
        "run it again with a network, or copy the folder from another machine",
    )


SETS: dict[str, Download] = {
    "books": _books, "wikitext2": _wikitext2, "wikitext103": _wikitext103, "sst2": _sst2, "multi30k": _multi30k, "wmt14": _wmt14,
}  # fmt: skip


def main(module: str, sets: Mapping[str, Download]) -> None:
    """The command ``python -m MODULE NAME...``, which prints the files that it writes."""
    if len(sys.argv) < 2:
        sys.exit(f"usage: python -m {module} NAME...; names: {', '.join(sets)}")
    try:
        for name in sys.argv[1:]:
            for path in fetch(name, sets):
                print(path)
    except (WhenceError, MissingExtra) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main("whence.lab.data.downloads", SETS)
