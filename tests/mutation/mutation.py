"""Mutation testing: sample small wrong changes of the sources and see whether the tests notice each.

    python tests/mutation/mutation.py --jobs 2 --out mutation.json                    # 200 mutants, evenly over all modules
    python tests/mutation/mutation.py --jobs 2 --out part.json --only attention/cache # of some modules

Not part of ``make test``. A run takes minutes and prints the outcome of every mutant. The working tree is never changed:
every mutant is a forked child with a copy of ``src/whence``. Torch is loaded once, in the parent.

First every test file runs on unchanged sources. That tells which lines it executes, how long it takes, and whether it
runs here at all; one that fails is left out and named in the record. A mutant is then given to the doctests of its
module and to the test files that ``TESTS`` names for it, the fastest first, and if they stay green, to every other file
that executes its line. A mutant that takes four times as long as the tests did, and a minute more, counts as killed. A survivor is a missing
test, or equivalent: then ``tests/mutation/equivalents.json`` says why, under the mutant's id.

An interrupted run continues when the same command is given again.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import subprocess
import sys
from pathlib import Path

from mutation_runs import ROOT, SOURCES, TEST_FOLDER, Job, in_parallel, preload
from mutation_sites import mutants_of

EQUIVALENTS = Path(__file__).with_name("equivalents.json")
A, L, S = "attention/", "lab/", "statistics/"
CORE = ["attention/test_reference.py", "attention/test_edge_cases.py"]
PLACES = ["attention/test_packed_rows.py", "attention/test_padding.py", "attention/test_explicit_positions.py"]
ERRORS = ["attention/test_argument_errors.py", "attention/test_hook_errors.py", "attention/test_cache_errors.py"]
LOOP = [
    "lab/test_resumed_data.py",
    "lab/test_runner.py",
    "lab/test_training.py",
    "lab/test_divergence.py",
    "lab/test_study_spec.py",
    "lab/test_early_stopping.py",
]
TRIAL = ["mend/test_mend_trial.py"]
CURES = ["mend/test_log_n.py", "mend/test_ms_poe.py", "mend/test_self_extend.py", "mend/test_dual_chunk.py", "mend/test_string_positions.py"]  # fmt: skip
RECORDS = ["lab/test_resumed_data.py", "lab/test_results.py"]

#: module below src/whence (a prefix) and the test files that should notice a change of it
TESTS = {
    "position/base": ["position/test_x_transformers.py", "position/test_composition.py", "attention/test_composition_attention.py", *CORE],
    "position/hooks": ["position/test_hooks.py", "position/test_composition.py", *CORE],
    "position/hook_types": ["position/test_composition.py", "attention/test_composition_attention.py", *CORE],
    "position/evaluate": ["attention/test_composition_attention.py", *CORE],
    "position/": ["position/test_constructor_arguments.py", "attention/fused/test_parameter_gradients.py"],  # after its own file of the same name
    A + "cache": [*PLACES, "attention/test_cache.py", *ERRORS],
    A + "token_positions": [*PLACES, "attention/test_cache.py", *ERRORS, *CORE],
    A + "pair_mask": ["attention/test_masks.py", "attention/test_low_masks.py"],
    A + "layout": [*PLACES, "attention/test_cache.py", *ERRORS, *CORE],
    A + "additive": ["attention/test_additive.py"],
    A + "pointer": ["attention/test_pointer.py", "attention/test_pointer_examples.py"],
    A + "backends": ["attention/test_backends.py", "attention/test_registered_backends.py"],
    A + "call": ["attention/test_backends.py", *ERRORS, *CORE],
    A + "module": ["attention/test_composition_attention.py", *ERRORS, "checks/test_checks.py"],
    A + "attend": ["attention/test_backends.py", *ERRORS, *CORE],
    A: [*CORE, "attention/test_packed_rows.py", "attention/test_derivatives.py", "attention/test_hypothesis.py", "attention/test_memory.py"],
    L + "early_stopping": ["lab/test_resumed_data.py", "lab/test_early_stopping.py"],
    L + "kernels": ["lab/test_training_kernels.py"],
    L + "executors": ["lab/test_executors.py"],
    L + "checks": ["lab/test_checks_before_training.py"],
    L + "settings": ["lab/test_settings.py"],
    L + "setting_errors": ["lab/test_settings.py"],
    L + "data_options": ["lab/tasks/test_file_tasks.py"],
    L + "default_studies": ["lab/test_default_studies.py", "lab/test_settings.py"],
    L + "failures": ["lab/test_failures.py", "lab/test_study_labels.py"],
    L + "plan_changes": ["lab/test_plan_changes.py"],
    L + "study_labels": ["lab/test_study_labels.py"],
    L + "study_folder": ["lab/test_run_keys.py", "lab/test_results.py", "lab/test_runner.py", "lab/test_sharing.py"],
    L + "sources": ["lab/test_plan_changes.py", "lab/test_runner.py", "lab/test_sharing.py"],
    L + "tasks/file": ["lab/tasks/test_file_tasks.py"],
    L + "sweeps": ["lab/test_sweeps.py"],
    L + "results": RECORDS,
    L + "observe": RECORDS,
    L + "tasks/": ["lab/tasks/test_every_task.py", "lab/tasks/test_generated_tasks.py", "lab/tasks/test_text_tasks.py"],
    L: LOOP,
    "records/": ["records/test_folder.py"],
    "plugin": ["test_plugins.py", "test_file_references.py", "cli/test_cli_plugins.py", "test_extending.py"],
    "mend/in2_": ["mend/test_in2.py"],
    "mend/document_windows": ["mend/test_parallel_windows.py", "mend/test_pine.py"],
    "mend/answer_loss": ["mend/test_scale_channel.py"],
    "mend/recipe": TRIAL,
    "mend/judgement": TRIAL,
    "mend/measurement": ["mend/test_mend_measurement.py", *TRIAL],
    "mend/costs": ["mend/test_mend_measurement.py", *TRIAL],
    "mend/trial": TRIAL,
    "mend/cure": [*CURES, *TRIAL],
    "mend/catalogue": ["mend/test_mend_protocol.py", *TRIAL],
    "mend/": ["mend/test_mend_protocol.py", "probe/test_probe_plugins.py"],
    "checks/": ["checks/test_checks.py"],
    "probe/tasks/": ["probe/test_probe_tasks.py", "probe/test_probe_custom_items.py", "probe/test_probe_plugins.py"],
    "probe/arrays/": ["probe/test_probe_explanations.py", "probe/test_probe_ablation.py"],
    "probe/": ["probe/test_probe.py", "probe/test_probe_decisions.py"],
    "hf/edits": ["hf/test_hf_intervene.py", *CURES],
    "hf/intervene": ["hf/test_hf_intervene.py", *CURES],
    "hf/requests": ["hf/test_hf_intervene.py", "mend/test_parallel_windows.py", "mend/test_pine.py"],
    "hf/rotary_config": ["hf/test_hf_intervene.py", "mend/test_pine.py"],
    S + "samples": ["statistics/test_samples.py", "statistics/test_cluster_proportion.py"],
    S + "two_samples": ["statistics/test_two_samples.py"],
    S + "verdict_texts": ["statistics/test_verdict_texts.py", "report/test_comparison_sentences.py"],
    S: ["statistics/test_paired_comparison.py", "statistics/test_verdict_texts.py", "statistics/test_moderated_t.py", "statistics/test_corrections.py"],
}  # fmt: skip
#: what is mutated: all but the fused kernels, which need a GPU or a slow interpreter, and readers of published data
MODULES = (
    "plugin*.py", "position/*.py", "attention/*.py", "lab/*.py", "lab/tasks/*.py", "records/*.py", "statistics/*.py",
    "checks/*.py", "mend/*.py", "hf/edits.py", "hf/intervene.py", "hf/requests.py", "hf/rotary_config.py", "probe/*.py", "probe/tasks/*.py", "probe/arrays/*.py",
)  # fmt: skip
LEFT_OUT = {
    "position/catalogue.py": "a list for tests and figures",
    "lab/tasks/classification.py": "reads published data",
}
#: every test file that may be asked
ASKED = ("attention/test_*.py", "attention/fused/test_parameter_gradients.py", "position/test_*.py", "statistics/test_*.py", "lab/test_*.py", "lab/tasks/test_*.py", "records/test_*.py",
         "models/test_*.py", "checks/test_*.py", "fuzzing/test_*.py", "cli/test_*.py", "mend/test_*.py", "probe/test_*.py",
         "hf/test_hf_intervene.py", "report/test_comparison_sentences.py",
         "test_plugins.py", "test_file_references.py", "test_extending.py")  # fmt: skip
NEVER = {
    "attention/test_gpu.py", "lab/test_lab_on_gpu.py", "lab/tasks/test_real_data.py", "probe/test_probe_on_gpu.py",
    "position/test_adding_a_mechanism.py",  # copies the sources of the working tree, not the mutant's
}  # fmt: skip


def select_files(only):
    """Every test file, or those named for the modules at hand."""
    result = {str(path.relative_to(TEST_FOLDER)) for pattern in ASKED for path in TEST_FOLDER.glob(pattern)} - NEVER
    return sorted(result.intersection(f for m in modules(only) for f in files_for(m)) if only else result)


def modules(only):
    result = sorted({str(path.relative_to(SOURCES)) for pattern in MODULES for path in SOURCES.glob(pattern)})
    result = [m for m in result if not m.endswith("__init__.py") and m not in LEFT_OUT]
    return [m for m in result if not only or any(m.startswith(part) for part in only)]


def files_for(module):
    """The test files named for a module."""
    stem = module.removesuffix(".py")
    key = max((key for key in TESTS if stem.startswith(key)), key=len)
    folder, _, name = stem.rpartition("/")
    if folder.startswith("probe"):
        name = f"probe_{name}"
    own = [f"{folder}/test_{name}.py"] if folder and (key.endswith("/") or key == stem) else []
    return [*own, *TESTS[key]]


def sample(baseline, only, wanted, seed):
    """Mutants spread evenly over the executed lines that have any: at most one a line."""
    by_line = {}
    for module in modules(only):
        for mutant in mutants_of(module, (SOURCES / module).read_text()):
            if any(mutant.line in about["lines"].get(module, ()) for about in baseline.values()):
                by_line.setdefault((module, mutant.line), []).append(mutant)
    chance = random.Random(seed)
    lines = sorted(by_line)
    step = max(1.0, len(lines) / wanted)  # one line out of each stretch of this many
    places = [int(chance.uniform(i * step, (i + 1) * step)) for i in range(min(wanted, len(lines)))]
    return [chance.choice(by_line[lines[min(place, len(lines) - 1)]]) for place in places], len(lines)


def judged(mutant, baseline, outcomes, note):
    """Give a mutant to the tests named for it, then to all that execute its line."""
    named = [f for f in files_for(mutant.file) if f in baseline]
    others = [f for f in baseline if f not in named and mutant.line in baseline[f]["lines"].get(mutant.file, ())]
    seconds = 0.0
    for files in (named, others):
        files = sorted(files, key=lambda f: baseline[f]["seconds"])
        tests = ([f"src:{mutant.file}"] if files is not others and not seconds else []) + files
        if not files and not tests:
            continue
        limit = 60 + 4 * sum(baseline[f]["seconds"] for f in files)
        result = yield Job(mutant, tests, limit)
        seconds += result["seconds"]
        if result["exit"] not in (0, 5):  # 5: no test there
            outcomes[mutant.id] = about(mutant, "killed", result["by"], seconds)
            return note(mutant)
    outcomes[mutant.id] = about(mutant, "survived", None, seconds)
    return note(mutant)


def about(mutant, outcome, by, seconds):
    by = by and by.rsplit("/", 1)[-1]
    keys = "file", "function", "line", "kind", "original", "mutated"
    return {key: getattr(mutant, key) for key in keys} | {"outcome": outcome, "by": by, "seconds": round(seconds, 1)}


def run_baseline(jobs, files):
    """Every test file on unchanged sources: lines, seconds, and whether it runs here at all."""
    result = {}

    def task(file):
        outcome = yield Job(None, [file], 900, traced=True)
        result[file] = outcome
        print(f"baseline {file}: exit {outcome['exit']}, {outcome['seconds']} s {outcome['by'] or ''}", file=sys.stderr)

    in_parallel([task(file) for file in files], jobs)
    green = {file: {k: about[k] for k in ("lines", "seconds")} for file, about in result.items() if about["exit"] == 0}
    return green, {file: about["by"] or f"exit {about['exit']}" for file, about in result.items() if file not in green}


def require_green(mutant, baseline):
    """Stop if the tests fail on unchanged sources when they are run as for a mutant: every mutant would count as killed."""
    outcomes = []

    def task():
        named = [f for f in files_for(mutant.file) if f in baseline][:1]
        outcomes.append((yield Job(None, [f"src:{mutant.file}", *named], 900)))

    in_parallel([task()], 1)
    if outcomes[0]["exit"] not in (0, 5):
        sys.exit(f"the tests of {mutant.file} fail on unchanged sources ({outcomes[0]['by']}); no mutant was run")


def digest(paths):
    whole = hashlib.sha256()
    for path in sorted(paths):
        whole.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return whole.hexdigest()[:16]


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="Processes at a time.")
    parser.add_argument("--out", type=Path, required=True, help="Record to write; an unfinished one is continued.")
    parser.add_argument("--mutants", type=int, default=200, help="How many mutants to sample.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the sample.")
    parser.add_argument("--only", action="append", default=[], help="Prefix of modules below src/whence; repeatable.")
    parser.add_argument("--baseline", type=Path, help="Keep the lines and times of the unchanged run here for later.")
    parser.add_argument(
        "--again", type=Path, help="Try the unexplained survivors of a record again, on sources and tests as they are."
    )
    parser.add_argument("--merge", type=Path, nargs="+", help="Put finished records of parts together into one.")
    given = parser.parse_args()
    if given.merge:
        return merged([json.loads(path.read_text()) for path in given.merge], given.out)
    preload("accelerate", "transformers.models.llama.modeling_llama")
    if given.again:
        return try_again(json.loads(given.again.read_text()), given.jobs, given.out)
    tests = digest(TEST_FOLDER.rglob("*.py"))
    sources = digest(SOURCES.rglob("*.py"))
    if given.baseline and given.baseline.exists():
        kept = json.loads(given.baseline.read_text())
        baseline, left_out = kept["green"], kept["left_out"]
    else:
        baseline, left_out = run_baseline(given.jobs, select_files(given.only))
        if given.baseline:
            given.baseline.write_text(json.dumps({"green": baseline, "left_out": left_out}))
    chosen, lines = sample(baseline, given.only, given.mutants, given.seed)
    if chosen:
        require_green(chosen[0], baseline)
    same = {"seed": given.seed, "sources": sources, "tests": tests, "asked_for": given.mutants, "only": given.only}
    outcomes = {}
    if given.out.exists():
        before = json.loads(given.out.read_text())
        if {key: before.get(key) for key in same} == same:
            outcomes = before["mutants"]

    def note(mutant):
        result = outcomes[mutant.id]
        print(f"{len(outcomes)}/{len(chosen)} {result['outcome']} {mutant.file}:{mutant.line} {mutant.id} "
              f"{mutant.original!r} -> {mutant.mutated!r} ({result['by']}, {result['seconds']} s)", file=sys.stderr)  # fmt: skip
        write()

    def write():
        facts = {
            "command": f"python tests/mutation/mutation.py --seed {given.seed} --mutants {given.mutants}"
            + "".join(f" --only {part}" for part in given.only),
            **measured_commit(),
            **same,
            "python": platform.python_version(),
            "torch": sys.modules["torch"].__version__,
            "lines": lines,
            "test_files": len(baseline),
            "left_out": left_out,
        }
        record(given.out, facts, outcomes)

    in_parallel([judged(m, baseline, outcomes, note) for m in chosen if m.id not in outcomes], given.jobs)
    write()
    return print_conclusion(given.out)


def try_again(before, jobs, path):
    """Give the survivors that no reason explains to the tests as they are now; the other outcomes stay."""
    ids = {survivor["id"] for survivor in before["survivors"] if survivor["reason"] is None}
    files = sorted({before["mutants"][i]["file"] for i in ids})
    baseline, _ = run_baseline(jobs, sorted({test for file in files for test in files_for(file)}))
    chosen = [m for file in files for m in mutants_of(file, (SOURCES / file).read_text()) if m.id in ids]
    outcomes = {}

    def note(mutant):
        print(f"{mutant.file}:{mutant.line} {mutant.id} {outcomes[mutant.id]['outcome']}", file=sys.stderr)

    in_parallel([judged(mutant, baseline, outcomes, note) for mutant in chosen], jobs)
    now = measured_commit()
    for outcome in outcomes.values():
        outcome["again"] = now
    record(path, before, before["mutants"] | outcomes)
    return print_conclusion(path)


def measured_commit():
    """The commit, or the one that the caller names where only a copy of the tree is at hand."""
    handed = os.environ.get("WHENCE_COMMIT")  # as `git describe --always --dirty` says it
    if handed:
        return {"commit": handed.removesuffix("-dirty"), "uncommitted_changes": handed.endswith("-dirty")}
    return {
        "commit": git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(git("status", "--porcelain", "src", "tests")),
    }


def record(path, facts, outcomes):
    """Write what is known so far, survivors with the reason why they are equivalent, where there is one."""
    reasons = {entry["id"]: entry["reason"] for entry in json.loads(EQUIVALENTS.read_text())["mutants"]}
    survived = [{"id": i, **o, "reason": reasons.get(i)} for i, o in outcomes.items() if o["outcome"] == "survived"]
    counts = {
        "mutants_tested": len(outcomes),
        "killed": len(outcomes) - len(survived),
        "survived": len(survived),
        "survived_share": round(len(survived) / max(1, len(outcomes)), 4),
        "unexplained": sum(s["reason"] is None for s in survived),
    }
    whole = facts | counts | {"by_area": by_area(outcomes), "survivors": survived, "mutants": outcomes}
    path.with_suffix(".new").write_text(json.dumps(whole, indent=1) + "\n")
    path.with_suffix(".new").replace(path)


def merged(parts, path):
    """One record of several runs, each of its own modules."""
    facts = {"parts": [{k: v for k, v in part.items() if k not in ("mutants", "survivors")} for part in parts]}
    record(path, facts, {i: outcome for part in parts for i, outcome in part["mutants"].items()})
    return print_conclusion(path)


def print_conclusion(path):
    result = json.loads(path.read_text())
    print(f"{result['killed']} of {result['mutants_tested']} mutants killed, {result['survived']} survived, "
          f"{result['unexplained']} of them without a reason")  # fmt: skip
    return 1 if result["unexplained"] else 0


def by_area(outcomes):
    areas = {}
    for result in outcomes.values():
        area = areas.setdefault(result["file"].split("/")[0], {"killed": 0, "survived": 0})
        area[result["outcome"]] += 1
    return areas


if __name__ == "__main__":
    sys.exit(main())
