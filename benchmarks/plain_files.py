"""Comparisons on plain files: acceptability, translation and sentiment, as a user would run them.

    python benchmarks/plain_files.py build/plain                 # write the files and print the commands
    python benchmarks/plain_files.py build/plain --run sst2      # run one of them, or all three without a name
    python benchmarks/plain_files.py build/plain --pack          # pack the records, without weights, into benchmarks/records

The files come from the folder that WHENCE_DATA names. CoLA is not in it. ``acceptability.tsv`` has its format and about its
size: sentences of Multi30k, in 30 % of which four adjacent words have another order. Both classes have the same words, so only the
order of words tells them apart.
"""

from __future__ import annotations

import argparse
import gzip
import random
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from whence.lab.data.corpora import data_folder

RECORDS = Path(__file__).parent / "records" / "plain_files"
POSITIONS = ("none", "rotary", "alibi")
#: numbers of rows of CoLA's training and validation parts, and the share of unacceptable sentences
ROWS, UNACCEPTABLE = {"train": 8551, "dev": 1043}, 0.3
SPAN = 4  # words in another order
COMMANDS = {
    "acceptability": "--data {folder}/acceptability.tsv --text-column 4 --label-column 2 --split-column 1 --metric mcc --context 32",
    "multi30k": "--data {folder}/multi30k.tsv --source-column en --target-column de --split-column split --context 40",
    "sst2": "--data {folder}/sst2 --text-column sentence --label-column label --context 32",
}
STEPS = 2000


def write_acceptability(data: Path, path: Path, seed: int = 0) -> None:
    """Rows without a header line, as in CoLA: part, label (1 is acceptable), an unused column, sentence."""
    draw, lines = random.Random(seed), []
    for part, source in (("train", "train"), ("dev", "val")):
        sentences = [line.split() for line in read_lines(data, source, "en")]
        sentences = [words for words in sentences if len(words) > SPAN + 1]
        draw.shuffle(sentences)
        for words in sentences[: ROWS[part]]:
            acceptable = draw.random() >= UNACCEPTABLE
            shown = words if acceptable else reorder(words, draw)
            lines.append(f"{part}\t{int(acceptable)}\t{'' if acceptable else '*'}\t{' '.join(shown)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def reorder(words: list[str], draw: random.Random) -> list[str]:
    """The words with another order of ``SPAN`` adjacent ones; the last word, with the full stop, stays."""
    while True:
        start = draw.randrange(len(words) - SPAN)
        span = words[start : start + SPAN]
        other = draw.sample(span, SPAN)
        if other != span:
            return [*words[:start], *other, *words[start + SPAN :]]


def read_lines(data: Path, part: str, language: str) -> list[str]:
    with gzip.open(data / "multi30k" / f"{part}.{language}.gz", "rt", encoding="utf-8") as file:
        return [" ".join(line.split()) for line in file]


def write_pairs(data: Path, path: Path) -> None:
    """English and German sentences with the part of each pair."""
    lines = ["en\tde\tsplit"]
    for part, name in (("train", "train"), ("val", "val"), ("test", "test_2016_flickr")):
        both = zip(read_lines(data, name, "en"), read_lines(data, name, "de"), strict=True)
        lines += [f"{source}\t{target}\t{part}" for source, target in both]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def copy_sentiment(data: Path, folder: Path) -> None:
    """SST-2 with the labelled test part; the published one has no labels."""
    folder.mkdir(exist_ok=True)
    for name in ("train_full.tsv", "dev.tsv", "test-labeled.tsv"):
        shutil.copyfile(data / "glue" / "SST-2" / name, folder / name)


def command(name: str, folder: Path, jobs: int) -> list[str]:
    """The command of a comparison: at most three looks, 8 minutes; a GPU needs half of it for all three side by side."""
    positions = " ".join(f"--position {position}" for position in POSITIONS)
    options = f"{COMMANDS[name].format(folder=folder)} --steps {STEPS} {positions}"
    limits = f"--seeds 8 --until decided --budget 8m --jobs {jobs}"
    return shlex.split(f"whence compare {options} {limits} --out {folder / 'out' / name}")


def write_files(folder: Path) -> None:
    """Write the three data sets, unless they are there."""
    writers = {"acceptability.tsv": write_acceptability, "multi30k.tsv": write_pairs, "sst2": copy_sentiment}
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in writers.items():
        if not (folder / name).exists():
            write(data_folder("benchmarks/plain_files.py"), folder / name)


def pack(out: Path) -> None:
    """Pack the records of all comparisons, without weights and attention maps, in place of older ones."""
    sys.path.append(str(Path(__file__).parents[1] / "tools"))
    from pack_records import describe_provenance, pack_folder

    shutil.rmtree(RECORDS, ignore_errors=True)
    for study in sorted(out.glob("*/compare-*")):
        target = RECORDS / study.name
        shutil.copytree(study, target, ignore=shutil.ignore_patterns("weights", "checkpoints", "observations.json"))
        pack_folder(target, describe_provenance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for the files and the reports")
    parser.add_argument(
        "--run", nargs="*", metavar="NAME", choices=COMMANDS, help="run comparisons, by default all three"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--pack", action="store_true", help="pack the records of all comparisons")
    arguments = parser.parse_args()
    folder = arguments.folder
    if arguments.pack:
        return pack(folder / "out")
    write_files(folder)
    for name in COMMANDS:
        print(shlex.join(command(name, folder, arguments.jobs)))
    for name in () if arguments.run is None else arguments.run or COMMANDS:
        subprocess.run([sys.executable, "-m", *command(name, folder, arguments.jobs)], check=True)


if __name__ == "__main__":
    main()
