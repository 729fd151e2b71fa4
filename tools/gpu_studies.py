"""Run studies at the scale "gpu" on one GPU, many runs side by side, and pack their records.

    python tools/gpu_studies.py prepare build/gpu                # data and pure Python packages that travel, at most 40 MiB
    python tools/gpu_studies.py prepare build/gpu glue translation       # what these two read, and no more
    python tools/gpu_studies.py run glue translation --carried build/gpu --minutes 9
    python tools/gpu_studies.py run glue --carried build/gpu --trial     # two arms, one seed, four steps

``run`` trains the runs that have no record in ``CARRIED/results``, with ``--jobs`` processes under NVIDIA's multi-process service
where the machine has it. At the time limit the runs save checkpoints; the same command resumes. The records of every study
that has begun are packed into one file each in ``--out``. To resume on another machine, put these files into ``CARRIED/results``;
``prepare`` does so with committed ones. To commit them, unpack each into a folder of its name in
papers/src/whence_papers/results and run ``tools/pack_records.py`` there, which adds their provenance.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from pack_records import pack_folder
from whence.cli.run import run_studies
from whence.lab.study import Study
from whence.lab.study_files import STUDIES_FOLDER, find_study_file, load_study_file
from whence.lab.study_folder import study_folder
from whence_papers import FOLDER

#: studies in the order in which they are worth the time, with what they read in the data folder
DATA = {
    "translation": ("multi30k",),
    "glue": ("glue/SST-2",),
    "question_answering": ("benchmarks/squad2",),
    "summarization": ("benchmarks/qmsum",),
    "language_modelling": ("books", "wikitext2"),
    "speeches_printed": ("speeches", "nltk_data"),
    "prior": ("books",),
    "next_location": ("mobility",),
}
#: options of study files
OPTIONS = {"next_location": {"data": "foursquare"}}
WITHOUT_SCALE = ("speeches_printed", "next_location")  # the source's own size
#: distributions without compiled code that studies need and a machine may lack
DISTRIBUTIONS = {
    "translation": ("sacrebleu", "portalocker", "tabulate", "colorama"),
    "summarization": ("rouge_score", "absl-py", "six", "nltk"),
    "speeches_printed": ("nltk",),
}
#: megabytes that may travel
LIMIT = 40


def prepare(carried: Path, names: Sequence[str] = ()) -> None:
    """Copy the data of WHENCE_DATA, the packages and the committed records of the named studies into a folder; default: of all."""
    named = os.environ.get("WHENCE_DATA")
    if not named:
        sys.exit("WHENCE_DATA names no folder; set it to the folder with the data")
    shutil.rmtree(carried, ignore_errors=True)
    chosen = tuple(names) or tuple(DATA)
    for name in dict.fromkeys(folder for study in chosen for folder in DATA[study]):
        shutil.copytree(Path(named) / name, carried / "data" / name)
    for name in dict.fromkeys(one for study in chosen for one in DISTRIBUTIONS.get(study, ())):
        copy_distribution(name, carried / "packages")
    if "translation" in chosen:  # sacrebleu imports lxml, for data sets that nothing reads here; its code is compiled
        stub = carried / "packages" / "lxml"
        stub.mkdir(parents=True)
        for module in ("__init__", "etree"):
            (stub / f"{module}.py").write_text('"""An empty module, for a machine without lxml."""\n')
    committed = FOLDER / "results"
    for study in (one for name in chosen for one in load_studies(name, [], False)):
        packed = committed / f"{study_folder(study, committed).name}.zip"
        if packed.is_file():  # a study that has begun is resumed
            (carried / "results").mkdir(exist_ok=True)
            shutil.copy(packed, carried / "results")
    size = sum(path.stat().st_size for path in carried.rglob("*") if path.is_file()) / 2**20
    print(f"{carried}: {size:.1f} MiB")
    if size > LIMIT:
        sys.exit(f"{carried} has {size:.1f} MiB, and at most {LIMIT} travel; name fewer studies")


def copy_distribution(name: str, folder: Path) -> None:
    """Copy the Python files and the metadata of an installed distribution, whose version a record may name."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"the package {name} is not installed here; install the extras translation and summarization")
    for path in found.files or ():
        if path.suffix in (".so", ".pyc") or {"..", "test", "tests"} & set(path.parts):
            continue
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(str(found.locate_file(path))), target)


def load_studies(name: str, only: list[str], trial: bool) -> list[Study]:
    """The studies of a name at the scale "gpu"; ``trial`` shrinks them to two arms, one seed and four steps."""
    path = find_study_file(name, STUDIES_FOLDER)
    loaded = load_study_file(path, None if name in WITHOUT_SCALE else "gpu", OPTIONS.get(name, {}))
    found = [one for one in loaded if isinstance(one, Study) and one.name in (only or [one.name])]
    return [shrink_study(study) for study in found] if trial else found


def shrink_study(study: Study) -> Study:
    """A study that shows whether everything runs: the first and the last arm, one seed, four steps on a CPU or a GPU."""
    arms = study.arms if len(study.arms) == 1 else (study.arms[0], study.arms[-1])
    budget = replace(study.budget, steps=4, epochs=None, evaluate_every=4, warmup_steps=1, mixed_precision="no")
    decision = replace(study.decision, comparisons=None)
    return replace(
        study, name=f"trial-{study.name}", arms=arms, seeds=study.seeds[:1], budget=budget, decision=decision
    )


def start_sharing(folder: Path) -> bool:
    """Start NVIDIA's multi-process service, so that kernels of several processes run at once; False if there is none."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        return False
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for name in ("pipe", "log"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return subprocess.run([control, "-d"]).returncode == 0


def stop_sharing() -> None:
    subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, capture_output=True)


def run(options: argparse.Namespace) -> int:
    """Run the studies until the time limit; the number of those with a problem."""
    carried: Path = options.carried.resolve()
    packages = carried / "packages"
    if packages.is_dir():
        sys.path.append(str(packages))  # behind what the machine has
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(packages))))
    if (carried / "data").is_dir():
        os.environ["WHENCE_DATA"] = str(carried / "data")
    os.environ["OMP_NUM_THREADS"] = "1"
    results, deadline = carried / "results", time.time() + 60 * options.minutes
    unpack_results(results)
    studies = [study for name in options.names for study in load_studies(name, options.only, options.trial)]
    sharing = not options.no_sharing and start_sharing(Path("/tmp/whence-mps"))
    print(
        f"{len(studies)} studies, {options.jobs} runs at a time, {'with' if sharing else 'without'} the multi-process service"
    )
    problems = 0
    try:
        for study in studies:
            began, left = time.time(), deadline - time.time()
            if left < 20:
                print(f"{study.name}: not started, the time limit is near")
                continue
            try:
                run_studies([study], results, options.jobs, None, seconds=left)
            except typer.Exit as ended:
                problems += bool(ended.exit_code)
            except Exception as error:  # the other studies go on
                problems += 1
                print(f"{study.name}: {error}", file=sys.stderr)
            print(f"{study.name}: {(time.time() - began) / 60:.1f} minutes", flush=True)
            if study_folder(study, results).is_dir():
                pack_study(study, results, options.out)
    finally:
        if sharing:
            stop_sharing()
    return problems


def pack_study(study: Study, results: Path, out: Path) -> None:
    """Pack a copy of the records of a study, which may be incomplete, into ``out``. Their provenance is added where git is."""
    folder = study_folder(study, results)
    with tempfile.TemporaryDirectory() as temporary:
        copied = Path(temporary) / folder.name
        copied.mkdir()
        for path in folder.glob("*.json"):
            shutil.copy(path, copied)
        packed = pack_folder(copied, lambda record: None)
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(packed, out / packed.name)
    print(f"{out / packed.name}: {(out / packed.name).stat().st_size / 2**20:.2f} MiB", flush=True)


def unpack_results(results: Path) -> None:
    """Unpack records of an earlier machine into the folders of their studies, beside records that are there."""
    for packed in sorted(results.glob("*.zip")):
        with zipfile.ZipFile(packed) as records:
            folder = results / packed.stem
            folder.mkdir(exist_ok=True)
            for name in records.namelist():
                if not (folder / name).exists():
                    records.extract(name, folder)
        packed.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    own = commands.add_parser("prepare", help="Copy what must travel into a folder.")
    own.add_argument("carried", type=Path)
    own.add_argument("names", nargs="*", metavar="NAME", help=f"Of {', '.join(DATA)}; default: all.")
    own = commands.add_parser("run", help="Run or resume studies and pack their records.")
    own.add_argument("names", nargs="+", choices=DATA, metavar="NAME", help=f"Of {', '.join(DATA)}.")
    own.add_argument("--carried", type=Path, required=True, help="Folder of prepare; records go to its folder results.")
    own.add_argument("--out", type=Path, default=Path("build/packed"), help="Folder for the packed records.")
    own.add_argument("--only", nargs="+", default=[], help="Names of single studies.")
    own.add_argument("--jobs", type=int, default=12, help="Runs at a time.")
    own.add_argument("--minutes", type=float, default=9.0, help="Time limit; rerun to resume.")
    own.add_argument("--trial", action="store_true", help="Two arms, one seed, four steps: does everything run?")
    own.add_argument("--no-sharing", action="store_true", help="Leave out NVIDIA's multi-process service.")
    options = parser.parse_args()
    if options.command == "prepare":
        unknown = sorted(set(options.names) - set(DATA))
        if unknown:
            parser.error(f"unknown study {', '.join(unknown)}; choose from {', '.join(DATA)}")
        prepare(options.carried, options.names)
        return
    sys.exit(min(1, run(options)))


if __name__ == "__main__":
    main()
