"""Download the public data sets of the papers into the data folder: ``python -m whence_papers.downloads NAME``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from whence.lab.data.corpora import VARIABLE
from whence.lab.data.downloads import Download, download_files, main

#: how to get each data set into the folder
ORIGINS = {
    "speeches": "run: python -m whence_papers.downloads speeches",
    "nltk_data": f"run: python -m nltk.downloader -d ${VARIABLE}/nltk_data punkt_tab",
    "geolife": "run: python -m whence_papers.downloads geolife",
    "foursquare": "run: python -m whence_papers.downloads foursquare",
}

RAW = "https://raw.githubusercontent.com"
#: file -> address and checksum
SPEECHES = {
    name: (
        f"{RAW}/yasho191/ScratchLLM/c410378c4350641e973b1836ff40ec558da7f43d/speechesdataset/{name}",
        f"sha256:{checksum}",
    )
    for name, checksum in {
        "train_CLS.tsv": "7dbd7cadc6efe746d0c0a7e5fe81f0ac2431bd2a3b86b51f4cb23f373466c88e",
        "test_CLS.tsv": "31277b7d67cff8ad717c9f43c05810c6b78feb67f04472bd7aa20e71eb2e0da8",
        "train_LM.txt": "aff1d88fad90db8cedfe8918a9099ffdfe622641a2a8c6e25dac1f7eda199b1a",
        "test_LM_obama.txt": "6cb3bb657ae40cab1cb8f3f38f391dbdcc80a9b21b577d5fc1ea4ba86901bed2",
        "test_LM_wbush.txt": "1281773860075b12727f9f581940c028074d05f3efbf99bbfcc9c7c472d4dbd5",
        "test_LM_hbush.txt": "a0592374b7cd47a6417a311892a4b8a59f35cbe054cbaf96c06e50e904c8451f",
    }.items()
}
#: visits as published with other studies
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


def _download(name: str, files: dict[str, tuple[str, str]], subject: str, folder: Path) -> list[Path]:
    return download_files(subject, folder / name, files)


SETS: dict[str, Download] = {
    "speeches": partial(_download, "speeches", SPEECHES),
    "geolife": partial(_download, "mobility", GEOLIFE),
    "foursquare": partial(_download, "mobility", FOURSQUARE),
}

if __name__ == "__main__":
    main("whence_papers.downloads", SETS)
