"""Compare every value of the committed records with those of an earlier commit, and write a summary.

    python tools/compare_records.py d25c626 --out papers/src/whence_papers/results/README.md

Records were renamed with the project: folders and files, keys, and the texts and hashes that hold them. ``KEYS`` and
``TEXTS`` list every such name. The summary counts each kind of difference. Anything else, above all another number, makes
the command fail.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from whence.records import RecordFolder, write_text

ROOT = Path(__file__).resolve().parents[1]
NEW = ROOT / "papers" / "src" / "whence_papers"
FOLDERS = ("results", "claims/records")
HASH = re.compile(r"[0-9a-f]{12}")
Folder = dict[str, dict[str, Any]]

#: keys of records and what they are called now
KEYS: dict[str, tuple[str, ...]] = {
    # studies
    "accumulate": ("grad_accum_steps",),
    "asked": ("kind", "num_targets", "num_test_texts", "tasks"),
    "batch": ("batch_size",),
    "classes": ("num_classes",),
    "clip": ("max_grad_norm",),
    "factor": ("score_scale",),
    "compiled": ("compile",),
    "hidden": ("ffn_dim", "hidden_size"),
    "kept": ("best_step",),
    "optimiser": ("optimizer",),
    "precision": ("mixed_precision",),
    "rate": ("lr",),
    "stopped": ("last_step",),
    "surprise": ("cross_entropy",),
    "tied": ("tie_embeddings",),
    "vocabulary": ("vocab_size",),
    "warmup": ("warmup_steps",),
    "width": ("embed_dim", "head_dim", "hidden_size"),
    # experiments
    "0_trained_heads": ("trained_heads",),
    "given": ("arguments", "inputs"),
    "longer": ("max_names_longer",),
    "marked": ("max_names",),
    "more": ("extra_steps",),
    "place_part": ("position_part",),
    "repeated, longer": ("coverage_loss, longer",),
    "repeated, trained": ("coverage_loss, trained",),
    "said_again, longer": ("repeated_words, longer",),
    "said_again, trained": ("repeated_words, trained",),
    "shown": ("example_pattern",),
    "true_place": ("true_position",),
    # probes
    "ablated": ("ablation_slots",),
    "chosen": ("chosen_slot",),
    "chunk": ("items_per_record",),
    "count": ("items",),
    "doubt": ("hypothesis",),
    "found": ("figures", "result"),
    "gold": ("gold_attention", "gold_slot"),
    "intervened": ("intervention_items",),
    "multiplied": ("quantity",),
    "places": ("random_positions", "gold_slots", "num_gold_slots"),
    "right": ("correct",),
    "scored": ("scored_tokens",),
    "share": ("probability",),
    "short": ("summary",),
    "times": ("factor",),
    "watched": ("attention_items",),
    "way": ("analysis",),
    "where": ("condition",),
    "with_attention": ("same_direction",),
    "written": ("generated_correct",),
}
#: texts of records and what they say now
TEXTS = {
    "kept": "fixed",
    "places": "random_positions",
    "Importance: all places alike": "Importance: uniform",
    "Length: 64 places, the usual one": "Length: 64 tokens, the default",
    "Length: 256 places": "Length: 256 tokens",
    "Length: 1024 places": "Length: 1024 tokens",
    "Length: 4096 places": "Length: 4096 tokens",
    "Order and noise: a tenth of the votes wrong": "Order and noise: 10 % of the votes wrong",
    "Order and noise: three tenths wrong": "Order and noise: 30 % of the votes wrong",
    "Retrieval distance: mark in the nearest quarter of 128 places": "Retrieval distance: mark in the nearest quarter of 128 tokens",
    "Retrieval distance: mark in the farthest quarter of 128 places": "Retrieval distance: mark in the farthest quarter of 128 tokens",
    "two-part consistency of a position that is drawn at random, in the place of p": "two-part consistency of a random position instead of p",
    "1 - |p* - p'| / L, p' the position that gathers most under the attention the task wants": "1 - |p* - p'| / L, p' = argmax V under the target attention",
    "Spearman's correlation of V and the V of the attention that the task wants": "Spearman's correlation of V and the V of the target attention",
    "0_trained_heads": "trained_heads",
    "1_position_effect": "position_effect",
    "2_optimal_position": "optimal_position",
    "3_parameter_sensitivity": "parameter_sensitivity",
    "4_adaptive_attention": "adaptive_attention",
    "doubt": "hypothesis",
    "follows": "emphasis-weight",
    "follows-score": "emphasis-score",
    "whence.mobility.task:NextPlaceTask": "whence_papers.pointer.next_location.task:NextPlaceTask",
}
#: keys that records did not have: the comparison of source hashes, the command that makes a study of the same hash, and the
#: hash that a renamed plan had
ADDED = ("provenance", "command", "renamed_from")


def load_old(commit: str) -> dict[str, Folder]:
    """The records of a commit by folder, ``results/...`` or ``claims/records``, and name."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit, *FOLDERS], capture_output=True, check=True).stdout
    folders: dict[str, Folder] = defaultdict(dict)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for entry in files:
            path = PurePosixPath(entry.name)
            if path.suffix == ".json":
                content = files.extractfile(entry)
                assert content is not None
                folders[path.parent.as_posix()][path.name] = json.loads(content.read())
    return dict(folders)


def load_new() -> dict[str, Folder]:
    """The same of the files in this checkout, packed or not."""
    paths = {path for base in FOLDERS for path in (NEW / base).rglob("*.zip")}
    paths |= {path.parent for base in FOLDERS for path in (NEW / base).rglob("*.json")} | {NEW / "claims" / "records"}
    stores = {RecordFolder(path).path: RecordFolder(path) for path in paths}
    folders = {
        path.relative_to(NEW).as_posix(): {name: store.read(name) for name in store.names() if is_record(path, name)}
        for path, store in stores.items()
    }
    return {path: folder for path, folder in folders.items() if folder}


def is_record(folder: Path, name: str) -> bool:
    return folder != NEW / "results"  # which holds no records of its own


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no dict or list, with its path; an empty one counts as a value."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for inner in value:
            yield from leaves(inner, f"{path}[]")
    else:
        yield path, value


def numbers(record: dict[str, Any]) -> Counter[str]:
    """How often each number occurs in a record, which renaming does not change."""
    return Counter(json.dumps(value) for _, value in leaves(record) if isinstance(value, int | float))


def match(old: dict[str, Any], new: dict[str, Any], overlap: Any) -> dict[str, str]:
    """Old names to new ones: the same name, or the one of the rest that shares most."""
    pairs = {name: name for name in old if name in new}
    rest = [(overlap(old[a], new[b]), a, b) for a in old.keys() - pairs.keys() for b in new.keys() - pairs.values()]
    taken: set[str] = set()
    for score, a, b in sorted(rest, key=lambda row: (-row[0], row[1], row[2])):
        if score > 0 and a not in pairs and b not in taken:
            pairs[a] = b
            taken.add(b)
    return pairs


def shared_numbers(old: dict[str, Any], new: dict[str, Any]) -> float:
    same_run = all(old.get(key) == new.get(key) for key in ("arm", "seed", "where"))
    return (1000 if same_run else 0) + sum((numbers(old) & numbers(new)).values()) / 1e6 if same_run else 0


def shared_names(name: str, other: str, old: Folder, new: Folder) -> int:
    plain = [HASH.sub("", text) for text in (name, other)]
    return 1000 * (plain[0] == plain[1]) + len(old.keys() & new.keys()) if plain[0] == plain[1] else 0


class Comparison:
    """Counts of equal values and of differences by kind."""

    def __init__(self) -> None:
        self.equal = 0
        self.kinds: Counter[str] = Counter()
        self.unexpected: list[str] = []

    def compare(self, old: Any, new: Any, where: str) -> None:
        if isinstance(old, dict) and isinstance(new, dict) and (old or new):
            self._compare_dicts(old, new, where)
        elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) > 0:
            for index, (a, b) in enumerate(zip(old, new, strict=True)):
                self.compare(a, b, f"{where}[{index}]")
        elif json.dumps(old) == json.dumps(new):
            self.equal += 1
        else:
            self._differ(old, new, where)

    def _compare_dicts(self, old: dict[str, Any], new: dict[str, Any], where: str) -> None:
        gone, added = [key for key in old if key not in new], [key for key in new if key not in old]
        for key in old:
            if key in new:
                self.compare(old[key], new[key], f"{where}.{key}")
        for key in gone:
            renamed = [name for name in KEYS.get(key, ()) if name in added]
            if not renamed:
                self.unexpected.append(f"{where}: {key} is missing")
                continue
            other = renamed[0]
            added.remove(other)
            self.kinds[f"name {key} -> {other}"] += 1
            self.compare(old[key], new[other], f"{where}.{other}")
        for key in added:
            self.kinds[f"added: {key}"] += 1
            if key not in ADDED:
                self.unexpected.append(f"{where}: {key} was added")

    def _differ(self, old: Any, new: Any, where: str) -> None:
        if not (isinstance(old, str) and isinstance(new, str)):
            self.unexpected.append(f"{where}: {json.dumps(old)[:60]} became {json.dumps(new)[:60]}")
        elif HASH.search(old) and HASH.sub("", old) == HASH.sub("", new):
            self.kinds["hash of a renamed specification"] += 1
        elif re.sub(r"\blearn=", "learnable=", old) == new:
            self.kinds["position text, learn= -> learnable="] += 1
        elif TEXTS.get(old) == new:
            self.kinds[f"text {old} -> {new}"] += 1
        else:
            self.unexpected.append(f"{where}: {old[:80]!r} became {new[:80]!r}")


def describe_provenance(folders: dict[str, Folder]) -> list[str]:
    """A table of how many records were made by the sources of the commit that they name."""
    lines = [
        "| folder | records with an environment | sources are those of the commit | they are not | unknown | "
        "uncommitted changes not recorded |",
        "|---|---|---|---|---|---|",
    ]
    total = Counter[str]()
    for name in sorted(folders):
        row = Counter[str]()
        for record in folders[name].values():
            if isinstance(record.get("environment"), dict):
                row["all"] += 1
                row[str(record.get("provenance", {}).get("source_matches_commit"))] += 1
                row["not recorded"] += record["environment"].get("uncommitted_changes") is None
        total += row
        lines.append(f"| {name} | " + " | ".join(str(row[key]) for key in COLUMNS) + " |")
    return [*lines, "| all | " + " | ".join(str(total[key]) for key in COLUMNS) + " |"]


COLUMNS = ("all", "True", "False", "None", "not recorded")
README = """# Records

Written by `{command}`; do not edit.

One file per study, probe or group of experiments: a zip file of JSON records, as `tools/pack_records.py` writes it.
`whence.records.RecordFolder` reads it like the folder `NAME/` of the same records; `unzip -d NAME NAME.zip` unpacks it. Zip
opens in a millisecond and reads single records ({size:.1f} MB in all; tar.xz or JSON lines with xz would be 4.3 MB, and would have to
be unpacked whole, up to 0.4 s a file).

## Nothing was lost in renaming and packing

Every value of the records at commit {commit} was compared with the files here.

| | |
|---|---|
| folders | {folders}, {folders_renamed} renamed |
| records | {files}, {files_renamed} renamed |
| equal values | {equal:,} |
| unexpected differences | {unexpected} |

| difference | count |
|---|---|
{differences}

## Provenance

Each record names a git commit and a hash of the sources that ran. `provenance.source_matches_commit` says whether that is
the hash of `src` at that commit: where it is false, the sources had changes that the commit does not have.

{provenance}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="whose results/ and claims/records/ are compared with")
    parser.add_argument("--out", type=Path, help="file for the summary")
    arguments = parser.parse_args()
    old, new = load_old(arguments.commit), load_new()
    comparison = Comparison()
    files = renamed_files = 0
    folders = match(
        {name: (name, folder) for name, folder in old.items()},
        {name: (name, folder) for name, folder in new.items()},
        lambda a, b: shared_names(a[0], b[0], a[1], b[1]),
    )
    for name, folder in old.items():
        if name not in folders:
            comparison.unexpected.append(f"{name} is missing")
            continue
        there = new[folders[name]]
        pairs = match(folder, there, shared_numbers)
        for file, record in folder.items():
            if file not in pairs:
                comparison.unexpected.append(f"{name}/{file} is missing")
                continue
            files += 1
            renamed_files += pairs[file] != file
            comparison.compare(record, there[pairs[file]], f"{name}/{file}")
        comparison.unexpected += [f"{folders[name]}/{extra} was added" for extra in there.keys() - set(pairs.values())]
    text = README.format(
        command=f"python tools/compare_records.py {arguments.commit}",
        commit=arguments.commit,
        size=sum(path.stat().st_size for path in NEW.rglob("*.zip")) / 1e6,
        folders=len(old),
        folders_renamed=sum(a != b for a, b in folders.items()),
        files=files,
        files_renamed=renamed_files,
        equal=comparison.equal,
        unexpected=len(comparison.unexpected) or "none",
        differences="\n".join(
            "| " + kind.replace("|", r"\|") + f" | {count} |" for kind, count in sorted(comparison.kinds.items())
        ),
        provenance="\n".join(describe_provenance(new)),
    )
    if arguments.out:
        write_text(arguments.out, text)
    print(text, *comparison.unexpected, sep="\n")
    sys.exit(bool(comparison.unexpected))


if __name__ == "__main__":
    main()
