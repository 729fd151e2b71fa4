"""Download a public data set into the data folder: ``python -m whence.lab.data.downloads NAME``.

Tasks never download. They read the folder, so that a study does not depend on a server; a hash records what was read.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from whence.errors import MissingExtra, WhenceError, require_package, usage_error
from whence.lab.data.corpora import data_folder
from whence.records import write_bytes

GLUE_SST2 = "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"
GLUE_SST2_CHECKSUM = "md5:9f81648d4199384278b86e315dac217c"

SPEECHES = (
    "https://raw.githubusercontent.com/yasho191/ScratchLLM/c410378c4350641e973b1836ff40ec558da7f43d/speechesdataset"
)
SPEECHES_CHECKSUMS = {
    "train_CLS.tsv": "sha256:7dbd7cadc6efe746d0c0a7e5fe81f0ac2431bd2a3b86b51f4cb23f373466c88e",
    "test_CLS.tsv": "sha256:31277b7d67cff8ad717c9f43c05810c6b78feb67f04472bd7aa20e71eb2e0da8",
    "train_LM.txt": "sha256:aff1d88fad90db8cedfe8918a9099ffdfe622641a2a8c6e25dac1f7eda199b1a",
    "test_LM_obama.txt": "sha256:6cb3bb657ae40cab1cb8f3f38f391dbdcc80a9b21b577d5fc1ea4ba86901bed2",
    "test_LM_wbush.txt": "sha256:1281773860075b12727f9f581940c028074d05f3efbf99bbfcc9c7c472d4dbd5",
    "test_LM_hbush.txt": "sha256:a0592374b7cd47a6417a311892a4b8a59f35cbe054cbaf96c06e50e904c8451f",
}

#: visits as published with other studies: address and checksum
RAW = "https://raw.githubusercontent.com"
GEOLIFE = {
    "geolife_stays.csv": (
        f"{RAW}/hengxu-tongji/P-GCDAN/291ff6413944c3833f9f8a7aff7cf759882e3c26/data/dataSet_geolife.csv",
        "sha256:0c6df0a28c17d54831548ebb24c95bbbeb795600f0d85d935328147d72af6291",
    ),
}
FOURSQUARE = {
    f"foursquare_{part}.csv": (
        f"{RAW}/xlwang233/LLM-Mob/5fddb1f0bc762a70808853e3a613cc94eb3f5968/data/fsq/foursquare_{part}.csv",
        f"sha256:{checksum}",
    )
    for part, checksum in {
        "train": "e04ca94d78d9a9faa5e7c219735a9c80528c0c10cd042f3fb60e278c3d14f929",
        "valid": "2e881e5cd2335b7cae9c7965129725a43583657a541077b7d167950a81e718c0",
        "test": "5567681ada0f4fa2785f6a068b94504aba3151b4dd24fad7e7998d62aec839e2",
    }.items()
}

#: our names of the splits, and those at their source; the revision pins its content
WIKITEXT_REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
WIKITEXT_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


def fetch(name: str) -> list[Path]:
    """Download a data set into the folder of WHENCE_DATA. Existing files are not changed."""
    subject = f'fetch("{name}")'
    if name not in SETS:
        raise usage_error(subject, "an unknown name", f"the data sets are {', '.join(SETS)}", "choose one of them")
    return SETS[name](subject, data_folder(subject))


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


def _speeches(subject: str, folder: Path) -> list[Path]:
    wanted = {name: (f"{SPEECHES}/{name}", checksum) for name, checksum in SPEECHES_CHECKSUMS.items()}
    return _download_files(subject, folder / "speeches", wanted)


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


def _retrieve(subject: str, address: str, checksum: str) -> Path:
    """A file from the network, or from the cache of pooch."""
    pooch = require_package("pooch", subject, "lab")
    try:
        return Path(pooch.retrieve(address, known_hash=checksum, progressbar=False))
    except Exception as error:  # no connection, or a wrong checksum
        raise _download_error(subject, error) from error


def _geolife(subject: str, folder: Path) -> list[Path]:
    return _download_files(subject, folder / "mobility", GEOLIFE)


def _foursquare(subject: str, folder: Path) -> list[Path]:
    return _download_files(subject, folder / "mobility", FOURSQUARE)


def _download_files(subject: str, folder: Path, wanted: dict[str, tuple[str, str]]) -> list[Path]:
    """Download the missing files of a set, all or none. ``wanted`` has the address and checksum of each."""
    missing = {folder / name: origin for name, origin in wanted.items() if not (folder / name).exists()}
    fetched = {path: _retrieve(subject, *origin) for path, origin in missing.items()}
    for path, copy in fetched.items():
        write_bytes(path, copy.read_bytes())
    return list(fetched)


def _download_error(subject: str, error: Exception) -> WhenceError:
    return usage_error(
        subject,
        f"{type(error).__name__} from its server",
        "a download needs a network and the expected checksum",
        "run it again with a network, or copy the folder from another machine",
    )


SETS: dict[str, Callable[[str, Path], list[Path]]] = {
    "speeches": _speeches,
    "wikitext2": _wikitext2,
    "wikitext103": _wikitext103,
    "sst2": _sst2,
    "geolife": _geolife,
    "foursquare": _foursquare,
}

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"usage: python -m whence.lab.data.downloads NAME...; names: {', '.join(SETS)}")
    try:
        for requested in sys.argv[1:]:
            for path in fetch(requested):
                print(path)
    except (WhenceError, MissingExtra) as error:
        sys.exit(str(error))
