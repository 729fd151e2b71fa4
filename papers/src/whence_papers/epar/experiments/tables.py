"""What the CSV files and text reports of the experiments contain, from records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence.statistics import AnalysisPlan, compare_paired
from whence_papers.epar.experiments.published import CONSISTENCY, CONSISTENCY_OF_ALL, RANKING
from whence_papers.epar.experiments.text_reports import (
    Record,
    format_mean,
    paragraph,
    section,
    table,
    write_csv,
    write_report,
)  # fmt: skip


def head_means(record: Record, weights: str, form: str, pattern: str, measure: str) -> list[float]:
    """The mean over the runs of each head; ``consistency`` is the mean of its two parts."""
    return [sum(runs) / len(runs) for runs in head_runs(record, weights, form, pattern, measure)]


def head_runs(record: Record, weights: str, form: str, pattern: str, measure: str) -> list[list[float]]:
    """``[head][run]``."""
    cell = record["results"]["values"][weights][form][pattern]
    if measure != "consistency":
        return list(cell[measure])
    pairs = zip(cell["value_part"], cell["position_part"], strict=True)
    return [[(a + b) / 2 for a, b in zip(value, place, strict=True)] for value, place in pairs]


def patterns(record: Record) -> list[str]:
    return list(record["results"]["values"]["random"]["basic"])


def write_trained_heads(record: Record, folder: Path) -> None:
    heads, seeds = record["results"]["heads"], record["spec"]["seeds"]
    rows = [
        {"form": form, "seed": seed, "last_error": head["errors"][-1]}
        | {name: head.get(name, "") for name in ("alpha", "beta", "gamma")}
        for form in heads
        if form != "start"
        for seed, head in zip(seeds, heads[form], strict=True)
    ]
    write_csv(folder / "trained_heads.csv", rows)


def write_position_effect(record: Record, folder: Path) -> None:
    parts = [properties_section(record), retention_section(record), attention_section(record)]
    write_report(folder / "position_effect_report.txt", record, "Experiment 1: the position effect", parts)


def properties_section(record: Record) -> str:
    lines = []
    for one in record["results"]["evidence"]:
        verdict = "holds" if one["holds"] else f"FAILS, by {one['violation']:.3g}"
        checks = f"({one['checked']} checks: {one['where']})"
        lines.append(paragraph(f"{one['form']}: {one['statement']}: {verdict} {checks}."))
        if one["counter_example"]:
            example = ", ".join(f"{name} {value:.4g}" for name, value in one["counter_example"].items())
            lines.append(paragraph(f"    for example: {example}"))
    return section("Theorem 1 and the bound, each checked on a grid", *lines)


def retention_section(record: Record) -> str:
    retention = record["results"]["retention"]
    source, half = retention["source"], len(retention["share"]) // 2
    rows = [
        ["retention of a score", "computed", "the source"],
        ["basic, at L", f"{retention['basic'][-1]:.3f}", f"{source['basic_far']:.3f}"],
        ["enhanced, at L", f"{retention['enhanced'][-1]:.3f}", f"{source['enhanced_far']:.3f}"],
        ["gain at L", f"{retention['gain'][-1]:.2f}x", f"{source['gain_far']:g}x"],
        ["gain at L/2", f"{retention['gain'][half]:.2f}x", f"{source['gain_medium']:g}x"],
    ]
    beta = retention["beta_of_the_source's_basic_figure"]
    there = (
        f"The source's basic figure needs beta = {beta:.3f}; with that beta the enhanced form retains "
        f"{retention['enhanced_at_that_beta'][-1]:.3f} at L, a gain of {retention['gain_at_that_beta'][-1]:.1f}x "
        f"({retention['gain_at_that_beta'][0]:.1f}x at L/2)."
    )
    agree = retention["figures_agree"]
    verdict = "agree" if agree["holds"] else f"do not agree (gain at L/2 off by {agree['violation']:.3g})"
    return section("Information retention", table(rows), paragraph(f"{there} The source's three figures {verdict}."))


def attention_section(record: Record) -> str:
    statistics = record["results"]["statistics"]
    rows = [["mean [95 % interval over heads]", *next(iter(statistics["random"].values()))]]
    for weights, forms in statistics.items():
        for form, by_statistic in forms.items():
            cells = [
                format_mean([sum(runs) / len(runs) for runs in head_means]) for head_means in by_statistic.values()
            ]
            rows.append([f"{weights} weights, {form}", *cells])
    return section("Attention of heads, all five patterns", table(rows))


WEIGHTS, FORMS = ("random", "random_positions", "trained"), ("none", "basic", "enhanced")


def write_optimal_position(record: Record, folder: Path) -> None:
    write_csv(folder / "verification_data.csv", optimal_position_rows(record))
    parts = [
        definitions_section(record),
        prediction_section(record),
        values_section(record),
        differences_section(record),
    ]
    parts += [claimed_gains_section(record), source_section(record)]
    write_report(folder / "verification_report.txt", record, "Experiment 2: the position of maximum benefit", parts)


def optimal_position_rows(record: Record) -> list[dict[str, Any]]:
    """One row per run of every head."""
    rows, spec = [], record["spec"]
    for weights in WEIGHTS:
        for form in FORMS:
            for pattern in patterns(record):
                cell = record["results"]["values"][weights][form][pattern]
                for number, seed in enumerate(spec["seeds"]):
                    for run in range(len(cell["ranking"][number])):
                        about = {"weights": weights, "form": form, "pattern": pattern, "seed": seed, "run": run}
                        rows.append(about | {measure: cell[measure][number][run] for measure in cell})
    return rows


def definitions_section(record: Record) -> str:
    lines = [f"{name}: {meaning}" for name, meaning in record["results"]["measures"].items()]
    lines += ["consistency (the source's two-part form): (value_part + position_part) / 2"]
    lines += [
        "random: untrained heads; random_positions: the same with random position vectors added to the input, as in the source;"
    ]
    lines += ["trained: heads trained on a task whose target attention is known. All intervals: 95 %, over heads."]
    return section("Definitions", *lines)


def prediction_section(record: Record) -> str:
    checks = record["results"]["prediction"]
    failed = [one for one in checks if not one["holds"]]
    count = sum(one["checked"] for one in checks)
    verdict = "in every case" if not failed else f"but not for {len(failed)} of {len(checks)} kinds of heads"
    text = (
        f"The source predicts argmax_i of (row mean of A) x I. On {count} attention maps this is argmax I {verdict}: "
        "a softmax row has the mean 1/L, so the prediction does not depend on the attention, and not on alpha, beta or gamma."
    )
    return section("The prediction reads no attention", paragraph(text))


def values_section(record: Record) -> str:
    parts = []
    for measure in ("consistency", "position_part", "guess", "ranking", "true_position", "true_ranking"):
        lines = [["pattern", *(f"{weights}, {form}" for weights in ("random_positions", "trained") for form in FORMS)]]
        for pattern in patterns(record):
            cells = [
                head_means(record, w, form, pattern, measure) for w in ("random_positions", "trained") for form in FORMS
            ]
            lines.append([pattern, *map(format_mean, cells)])
        parts += [f"{measure}:", table(lines), ""]
    return section("Values", *parts)


def differences_section(record: Record) -> str:
    """Enhanced minus basic with its interval, paired by head; not tested, because there are too many comparisons."""
    lines = [["weights, pattern", "consistency", "ranking", "true_position", "true_ranking"]]
    for weights in WEIGHTS:
        for pattern in patterns(record):
            cells = []
            for measure in lines[0][1:]:
                basic, enhanced = (
                    head_means(record, weights, form, pattern, measure) for form in ("basic", "enhanced")
                )
                cells.append(format_mean([b - a for a, b in zip(basic, enhanced, strict=True)]))
            lines.append([f"{weights}, {pattern}", *cells])
    return section("Enhanced minus basic, heads paired", table(lines))


def claimed_gains_section(record: Record) -> str:
    """Tests of the source's four claims that the enhanced form is better, for each kind of weights."""
    claims = [("consistency", pattern) for pattern in CONSISTENCY] + [("ranking", pattern) for pattern in RANKING]
    lines = []
    for weights in WEIGHTS:
        for measure, pattern in claims:
            arms = {
                form: dict(enumerate(head_means(record, weights, form, pattern, measure)))
                for form in ("basic", "enhanced")
            }
            verdict = compare_paired(arms, AnalysisPlan(baseline="basic", share=1 / len(claims))).text()
            lines.append(f"{weights} weights, {measure}, {pattern}: {verdict}")
    heading = f"Is enhanced better, as the source claims? Heads paired, {len(claims)} claims per kind of weights as one family"
    return section(heading, *lines)


def source_section(record: Record) -> str:
    lines = [["", "the source", *(f"{weights} weights" for weights in WEIGHTS), "random guess (trained)"]]
    for name, measure, source in (("consistency", "consistency", CONSISTENCY), ("ranking", "ranking", RANKING)):
        for pattern, figures in source.items():
            for form, figure in zip(("basic", "enhanced"), figures, strict=True):
                cells = [format_mean(head_means(record, weights, form, pattern, measure)) for weights in WEIGHTS]
                guess = (
                    format_mean(head_means(record, "trained", form, pattern, "guess"))
                    if measure == "consistency"
                    else ""
                )
                lines.append([f"{name}, {pattern}, {form}", f"{figure:g}", *cells, guess])
    below = []
    for weights in WEIGHTS:
        for form in ("basic", "enhanced"):
            for pattern in patterns(record):
                runs = [x for head in head_runs(record, weights, form, pattern, "consistency") for x in head]
                share = sum(x < CONSISTENCY_OF_ALL for x in runs) / len(runs)
                mean = sum(runs) / len(runs)
                below.append((mean, f"{weights}, {form}, {pattern}", share))
    least = min(below)
    floor = (
        f"The source: every pattern above {CONSISTENCY_OF_ALL:g}. Smallest mean here: {least[0]:.3f} ({least[1]}), with "
        f"{100 * least[2]:.0f} % of its runs below."
    )
    return section("Against the source's figures", table(lines), paragraph(floor))


def write_parameter_sensitivity(record: Record, folder: Path) -> None:
    for number in record["results"]["sweeps"]:
        write_csv(folder / f"{number}_parameter_data.csv", parameter_rows(record, number))
    parts = [sweep_section(record, number) for number in record["results"]["sweeps"]]
    parts += [elasticities_section(record), optima_section(record), training_section(record)]
    write_report(folder / "parameter_sensitivity_report.txt", record, "Experiment 3: parameter sensitivity", parts)


def parameter_rows(record: Record, number: str) -> list[dict[str, Any]]:
    """One row per value of the parameter, kind of weights, form and head."""
    sweep, seeds = record["results"]["sweeps"][number], record["spec"]["seeds"]
    return [
        {number: value, "weights": weights, "form": form, "seed": seed}
        | {measure: values[place][head] for measure, values in by_measure.items()}
        for weights in ("random", "trained")
        for form, by_measure in sweep[weights].items()
        for place, value in enumerate(sweep["at"])
        for head, seed in enumerate(seeds)
    ]


def sweep_section(record: Record, number: str) -> str:
    sweep = record["results"]["sweeps"][number]
    lines = []
    for form, by_measure in sweep["trained"].items():
        lines.append([f"{form}, {number}", *by_measure])
        for place, value in enumerate(sweep["at"]):
            lines.append([f"{value:g}", *(format_mean(values[place]) for values in by_measure.values())])
    return section(f"Trained heads over {number}, with fixed weights", table(lines))


def elasticities_section(record: Record) -> str:
    elasticities = record["results"]["elasticities"]
    lines = [["% for + 1 % of", *elasticities["by"]]]
    for number in next(iter(elasticities["by"].values())):
        lines.append([number, *(format_mean(by_number[number]) for by_number in elasticities["by"].values())])
    agreement = f"Autograd and central differences agree to {elasticities['autograd_against_differences']:.1e}."
    return section("Sensitivity at the source's parameters, trained enhanced heads", table(lines), agreement)


def optima_section(record: Record) -> str:
    optima = record["results"]["best"]
    parts = [_optima_of(name, heads, record["spec"]["seeds"]) for name, heads in optima.items()]
    about = (
        "Two objectives for a head with fixed weights: the task's error, and the distance from the attention that the head has "
        "with the parameters of the source's class signature, which are known to be the best. No theorem gives the best parameters."
    )
    return section("Best parameters", *parts, paragraph(about))


def _optima_of(objective: str, heads: list[Record], seeds: list[int]) -> str:
    lines = [[objective, "alpha", "beta", "gamma", "error", "on a bound", "decrease beyond the bound, relative"]]
    for seed, head in zip(seeds, heads, strict=True):
        for way in ("by_gradient", "by_grid"):
            numbers = (f"{head[way][key]:.4g}" for key in ("alpha", "beta", "gamma", "error"))
            beyond = f"{head['inside']['violation']:.2g}" if way == "by_gradient" else ""
            lines.append(
                [f"seed {seed}, {way[3:]}", *numbers, ", ".join(head[way]["at_bounds"]) or "none", beyond]
            )  # fmt: skip
    agreed = sum(head["two_ways_agree"]["holds"] for head in heads)
    difference = max(head["two_ways_agree"]["violation"] for head in heads)
    inside = sum(head["inside"]["holds"] for head in heads)
    verdict = (
        f"Grid and gradient agree for {agreed} of {len(heads)} heads (relative difference at most {difference:.1e}). The "
        f"optimum lies inside the bounds for {inside} of {len(heads)}."
    )
    return f"{table(lines)}\n{verdict}\n"


def training_section(record: Record) -> str:
    lines = [["trained with", "error of the last ten steps"]]
    lines += [[form, format_mean(values, 4)] for form, values in record["results"]["trained_errors"].items()]
    learned = [["learned parameter", "value"]]
    for name in ("alpha", "beta", "gamma"):
        learned.append([name, format_mean([one[name] for one in record["results"]["learned"]])])
    return section("Training with each form, and with learnable parameters", table(lines), "", table(learned))


def write_adaptive_attention(record: Record, folder: Path) -> None:
    parts = [
        accuracy_section(record),
        first_keys_section(record),
        task_weights_section(record),
        forced_types_section(record),
    ]
    write_report(folder / "adaptive_attention_report.txt", record, "Experiment 4: adaptive attention", parts)


def accuracy_section(record: Record) -> str:
    models, kinds = record["results"]["models"], record["results"]["kinds"]
    lines = [["adapter", *kinds, "all"]]
    for adapter, ones in models.items():
        cells = [format_mean([one["by_kind"][kind]["accuracy"] for one in ones]) for kind in kinds]
        lines.append([adapter, *cells, format_mean([one["splits"]["test"] for one in ones])])
    seeds = record["spec"]["seeds"]
    arms = {
        adapter: {seed: one["splits"]["test"] for seed, one in zip(seeds, ones, strict=True)}
        for adapter, ones in models.items()
    }
    comparison = compare_paired(arms, AnalysisPlan(baseline="none"))
    return section("Accuracy by where the answer is", table(lines), "", "Against no adapter:", comparison.text())


def first_keys_section(record: Record) -> str:
    models, kinds = record["results"]["models"], record["results"]["kinds"]
    lines = [["adapter", "rows whose first key it changes", *(f"entropy, {kind}" for kind in kinds)]]
    for adapter, ones in models.items():
        entropies = ([sum(one["entropy"][kind]) / len(one["entropy"][kind]) for one in ones] for kind in kinds)
        cells = [format_mean(values) for values in entropies]
        lines.append([adapter, format_mean([one["first_key_moved"] for one in ones]), *cells])
    text = "'row' is the source's form: it multiplies all logits of a row by one number, as a temperature does."
    return section("Terms on keys or per row; entropy in nats", table(lines), paragraph(text))


def task_weights_section(record: Record) -> str:
    models, kinds = record["results"]["models"], record["results"]["kinds"]
    lines = [["answer is", *(f"{adapter}: {kind}" for adapter in ("row", "task", "fused") for kind in kinds)]]
    for kind in kinds:
        cells = []
        for adapter in ("row", "task", "fused"):
            for place in range(len(kinds)):
                means = [
                    sum(row[place] for row in one["task_weights"][kind]) / len(one["task_weights"][kind])
                    for one in models[adapter]
                ]
                cells.append(format_mean(means, 2))
        lines.append([kind, *cells])
    shares = {kind: format_mean([one["by_kind"][kind]["task_share"] for one in models["fused"]]) for kind in kinds}
    rows = [[f"fusion: share of task, answer {kind}", share] for kind, share in shares.items()]
    return section("Learned task weights", table(lines), "", table(rows))


def forced_types_section(record: Record) -> str:
    models, kinds = record["results"]["models"], record["results"]["kinds"]
    parts = []
    for adapter in ("task", "fused"):
        lines = [[adapter, *(f"answers from {kind}" for kind in kinds)]]
        for how in models[adapter][0]["answered_from"]:
            cells = [format_mean([one["answered_from"][how][kind] for one in models[adapter]]) for kind in kinds]
            lines.append([how, *cells])
        parts += [table(lines), ""]
    return section("Forced task types, and where the answers come from", *parts)
