"""The declared benchmarks. A subset is a few files, a reader, and the settings of a task of lm-evaluation-harness."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whence.bench.tasks import readers, scores
from whence.bench.tasks.files import benchmark_folder, find_file, missing_file
from whence.errors import usage_error
from whence.plugins import did_you_mean

#: metrics of a whole set of answers, which have no value for one item
CORPUS_METRICS = ("bleu", "chrf", "ter", "token_bleu", "codebleu")

NEAR = 0.8  # similarity of a name that is suggested: longbensh is 0.89 from longbench, and nobench 0.75


@dataclass(frozen=True)
class Subset:
    """One task of a benchmark.

    Args:
        benchmark, name: such as ``longbench`` and ``trec``.
        files: paths in the data folder, without .xz or .gz.
        read: turns these files into rows.
        metric: the metric that decides a comparison; it has a value for each item.
        config: settings of the harness's task.
        template: a task file of the harness, relative to its tasks, whose settings ``config`` replaces.
        examples: files with further rows, for ``--shots``.
        corpus: the metrics that are computed over all answers, by sacrebleu or codebleu.
    """

    benchmark: str
    name: str
    files: tuple[str, ...]
    read: readers.Reader
    metric: str
    config: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None
    examples: tuple[str, ...] = ()
    corpus: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.benchmark}-{self.name}"

    def locate(self, folder: Path) -> list[Path]:
        """The paths of the files, or an error that names the first missing one."""
        found = [find_file(folder, name) for name in self.files]
        for name, path in zip(self.files, found, strict=True):
            if path is None:
                raise missing_file(f"the benchmark {self.benchmark}, subset {self.name}", folder, name)
        return [path for path in found if path is not None]

    def locate_examples(self, folder: Path) -> list[Path] | None:
        """The paths of the files with examples; None if there are none."""
        found = [path for name in self.examples if (path := find_file(folder, name)) is not None]
        return found if found and len(found) == len(self.examples) else None


def _generation(
    score: Callable[..., Any], metrics: Sequence[str], tokens: int, language: str | None = None
) -> dict[str, Any]:
    """The settings of a task whose answer is one generated line."""
    return {
        "output_type": "generate_until",
        "doc_to_text": "prompt",
        "doc_to_target": "target",
        "process_results": score,
        "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": tokens},
        "metric_list": [_metric(name, language) for name in metrics],
    }


def _metric(name: str, language: str | None = None) -> dict[str, Any]:
    aggregation: Any = name if name in CORPUS_METRICS else "mean"
    if name == "token_bleu":
        aggregation = scores.token_bleu
    if name == "codebleu" and language is not None:
        aggregation = scores.codebleu(language)
    return {"metric": name, "aggregation": aggregation, "higher_is_better": name != "ter"}


LONGBENCH = (
    "narrativeqa", "qasper", "multifieldqa_en", "2wikimqa", "musique", "dureader", "gov_report", "qmsum", "multi_news",
    "trec", "samsum", "passage_count", "lcc",
)  # fmt: skip


def _longbench(name: str) -> Subset:
    return Subset(
        "longbench", name, (f"benchmarks/longbench/{name}.json",), readers.read_longbench, "score",
        config={"doc_to_text": "prompt", "doc_to_target": "target"}, template=f"longbench/{name}.yaml",
    )  # fmt: skip


ROUGE = ("rougeL", "rouge1", "rouge2")
SCROLLS_QUESTIONS = {"qasper": "f1", "narrative_qa": "f1", "quality": "exact", "contract_nli": "exact"}
SCROLLS_SUMMARIES = ("gov_report", "summ_screen_fd")


def _scrolls(name: str) -> Subset:
    files = (f"benchmarks/scrolls/{name}/validation.jsonl",)
    if name in SCROLLS_QUESTIONS:
        metric = SCROLLS_QUESTIONS[name]
        score = scores.score_f1 if metric == "f1" else scores.score_exact
        return Subset("scrolls", name, files, readers.read_scrolls_questions, metric, _generation(score, [metric], 64))
    return Subset(
        "scrolls", name, files, readers.read_scrolls_summaries, "rougeL", _generation(scores.score_rouge, ROUGE, 512)
    )


QMSUM = Subset(
    "scrolls", "qmsum", ("benchmarks/qmsum/val.jsonl",), readers.read_qmsum, "rougeL",
    _generation(scores.score_rouge, ROUGE, 256),
)  # fmt: skip

LANGUAGES = {
    "cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "fr": "French", "hi": "Hindi", "ja": "Japanese",
    "ro": "Romanian", "ru": "Russian", "uk": "Ukrainian", "zh": "Chinese",
}  # fmt: skip
TRANSLATION = ("sentence_chrf", "bleu", "chrf", "ter")


def translation_subset(name: str) -> Subset | None:
    """The subset of a name such as ``wmt22_zh_en``: a folder with source.zh and reference.en; None for other names."""
    match = re.fullmatch(r"wmt\d\d_([a-z]{2})_([a-z]{2})", name)
    if match is None:
        return None
    source, target = match.groups()
    words = [f"{LANGUAGES.get(code, code)} phrase:" for code in (source, target)]
    folder = f"benchmarks/{name}"
    return Subset(
        "wmt", name, (f"{folder}/source.{source}", f"{folder}/reference.{target}"), readers.read_pairs(*words),
        "sentence_chrf", _generation(scores.score_translation, TRANSLATION, 256), corpus=("bleu", "chrf", "ter"),
    )  # fmt: skip


CODE = ("sentence_chrf", "token_bleu", "exact")
CODEXGLUE = "benchmarks/codexglue"


def _code_pairs(name: str, stems: tuple[str, str], words: tuple[str, str], language: str) -> Subset:
    """Programs in pairs. ``language`` is that of the answer, as codebleu names it."""
    more = ("codebleu",) if scores.has_codebleu() else ()
    files, examples = (tuple(f"{CODEXGLUE}/{name}/{part}.{stem}" for stem in stems) for part in ("test", "valid"))
    return Subset(
        "codexglue", name, files, readers.read_pairs(*words), "sentence_chrf",
        _generation(scores.score_code, (*CODE, *more), 256, language), examples=examples, corpus=("token_bleu", *more),
    )  # fmt: skip


def _cloze(language: str) -> Subset:
    folder = f"{CODEXGLUE}/ClozeTesting-maxmin"
    config = {
        "output_type": "multiple_choice", "doc_to_text": "context", "doc_to_choice": "choices", "doc_to_target": "label",
        "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    files = (f"{folder}/{language}.json", f"{folder}/answers/{language}.txt")
    return Subset("codexglue", f"cloze-maxmin-{language}", files, readers.read_cloze, "acc", config)


def _glue(name: str, folder: str, columns: Mapping[str, str | int], label: str | int, labels: tuple[str, ...],
          more: tuple[str, ...] = (), dev: str = "dev.tsv", train: str = "train.tsv") -> Subset:  # fmt: skip
    config = {"metric_list": [{"metric": metric} for metric in ("acc", *more)], "should_decontaminate": False}
    return Subset(
        "glue", name, (f"glue/{folder}/{dev}",), readers.read_glue(columns, label, labels), "acc", config,
        template=f"glue/{name}/default.yaml", examples=(f"glue/{folder}/{train}",),
    )  # fmt: skip


_TWO = {"sentence1": "sentence1", "sentence2": "sentence2"}
_ENTAILMENT = ("entailment", "not_entailment")

SQUAD = Subset(
    "squad", "squad2", ("benchmarks/squad2/dev.json",), readers.read_squad, "f1",
    _generation(scores.score_squad, ("f1", "exact", "HasAns_f1", "HasAns_exact", "NoAns_f1", "NoAns_exact"), 48),
)  # fmt: skip

#: by benchmark and subset
BENCHMARKS: dict[str, dict[str, Subset]] = {
    name: {one.name: one for one in subsets}
    for name, subsets in {
        "longbench": [_longbench(name) for name in LONGBENCH],
        "scrolls": [QMSUM, *(_scrolls(name) for name in (*SCROLLS_QUESTIONS, *SCROLLS_SUMMARIES))],
        "wmt": [one for one in (translation_subset("wmt22_zh_en"),) if one is not None],
        "codexglue": [
            _code_pairs("code-to-code-trans", ("java-cs.txt.java", "java-cs.txt.cs"), ("Java:", "C#:"), "c_sharp"),
            _code_pairs("code-refinement", ("buggy-fixed.buggy", "buggy-fixed.fixed"), ("Buggy code:", "Fixed code:"), "java"),
            _cloze("go"),
            _cloze("ruby"),
        ],
        "glue": [
            _glue("sst2", "SST-2", {"sentence": "sentence"}, "label", ("0", "1"), train="train_full.tsv"),
            _glue("cola", "CoLA", {"sentence": 3}, 1, ("0", "1"), ("mcc",)),
            _glue("mrpc", "MRPC", {"sentence1": "#1 String", "sentence2": "#2 String"}, "Quality", ("0", "1"), ("f1",)),
            _glue("qqp", "QQP", {"question1": "question1", "question2": "question2"}, "is_duplicate", ("0", "1"), ("f1",)),
            _glue("mnli", "MNLI", {"premise": "sentence1", "hypothesis": "sentence2"}, "gold_label",
                  ("entailment", "neutral", "contradiction"), dev="dev_matched.tsv"),
            _glue("qnli", "QNLI", {"question": "question", "sentence": "sentence"}, "label", _ENTAILMENT),
            _glue("rte", "RTE", _TWO, "label", _ENTAILMENT),
            _glue("wnli", "WNLI", _TWO, "label", ("0", "1")),
        ],
        "squad": [SQUAD],
    }.items()
}  # fmt: skip


def select_subsets(benchmarks: Sequence[str], names: Sequence[str], data: Path | None) -> tuple[list[Subset], Path]:
    """The subsets that the options name, and the folder of their files.

    Without names, these are all subsets of the benchmarks whose files exist. A named subset must have its files, in one of
    the benchmarks that share the name.
    """
    unknown = next((name for name in benchmarks if name not in BENCHMARKS), None)
    if unknown is not None:
        raise usage_error(
            "whence bench --benchmark", unknown, f"the benchmarks are {', '.join(BENCHMARKS)}",
            _suggest_benchmark(unknown),
        )  # fmt: skip
    folder = benchmark_folder(data)
    if names:
        groups = [_named_subsets(name, benchmarks) for name in dict.fromkeys(names)]
    else:
        groups = [list(BENCHMARKS[benchmark].values()) for benchmark in dict.fromkeys(benchmarks)]
    chosen = []
    for group in groups:
        own = [one for one in group if all(find_file(folder, name) is not None for name in one.files)]
        if not own:
            group[0].locate(folder)  # raises
        chosen += own
    return chosen, folder


def _suggest_benchmark(unknown: str) -> str:
    """A remedy for an unknown benchmark: a similar one, or a similar subset with its benchmark."""
    owners = {name: benchmark for benchmark, subsets in BENCHMARKS.items() for name in subsets}
    subset = _nearest(unknown, owners)
    benchmark = None if unknown.lower() in owners else _nearest(unknown, BENCHMARKS)
    if benchmark is not None:
        return f"did you mean {benchmark}?"
    return "choose one of them" if subset is None else f"did you mean --benchmark {owners[subset]} --subset {subset}?"


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that differs by a letter or two, or in the order of its letters; None if none is so near.

    >>> _nearest("longbensh", ["longbench"]), _nearest("gleu", ["glue"]), _nearest("nobench", ["longbench"])
    ('longbench', 'glue', None)
    """
    known, name = list(known), name.lower()
    close = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
    return next(iter(close or [one for one in known if sorted(one) == sorted(name)]), None)


def _named_subsets(name: str, benchmarks: Sequence[str]) -> list[Subset]:
    """The subsets of this name; two benchmarks may share one, such as qasper."""
    chosen = dict.fromkeys(benchmarks)
    found = [BENCHMARKS[benchmark][name] for benchmark in chosen if name in BENCHMARKS[benchmark]]
    pair = translation_subset(name) if "wmt" in chosen and not found else None
    if pair is not None:
        found = [pair]
    if not found:
        known = [one for benchmark in chosen for one in BENCHMARKS[benchmark]]
        raise usage_error(
            "whence bench --subset", name, f"the subsets of {', '.join(chosen)} are {', '.join(known)}",
            did_you_mean(name, known, "choose one of them"),
        )  # fmt: skip
    return found
