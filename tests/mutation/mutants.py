"""Run each mutant of the sources against the tests that should catch it; print the outcomes as JSON.

    python tests/mutation/mutants.py 0 6     # the first of six shares

A mutant is one small wrong change. A forked child runs the named tests on a copy of the sources with that change.
The parent loads torch and compiles the sources once, so a mutant costs a second or less. At the end the tests that
failed run on the unchanged sources: a failing test shows nothing unless it passes on them.
"""

import compileall
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import hypothesis
import pytest
from mutation_runs import FirstFailure, preload

ROOT = Path(__file__).resolve().parents[2]
P, A, F = "position/", "attention/", "attention/fused/"
REFERENCE = ["tests/attention/test_reference.py", "-k", "no_position or alibi or length_of_a_query or masks"]
SCALED = ["tests/attention/test_reference.py", "-k", "temperature or takes_its_share"]
TILED = ["tests/attention/test_reference.py", "-k", "many_tiles or same_draw"]
RATES = ["tests/attention/fused/test_parameter_gradients.py", "-k", "derivatives_equal_autograd and start"]
FUSED = ["tests/attention/fused/test_kernels.py", "-k", "test_forward_and_gradients and Epar and 17x17x20x40"]
DENSE = ["tests/attention/fused/test_kernels.py", "-k", "test_forward_and_gradients and T5Bias-causal"]
#: the last sums of distances belong to visible pairs only where a query sees later keys
DENSE_BOTH_SIDES = [
    "tests/attention/fused/test_kernels.py",
    "-k",
    "test_forward_and_gradients and T5Bias and sides and 128x128",
]
DECODED = ["tests/attention/fused/test_kernels.py", "-k", "test_decode and Epar-causal"]
GATED_COUNTS = ["tests/attention/fused/test_gated_counts.py", "-k", "test_forward_and_gradients and 111x111"]
NETWORKS = [
    "tests/attention/fused/test_head_networks.py",
    "-k",
    "test_forward_and_gradients and 65x65 and kerple-causal",
]
NETWORK_BLOCKS = ["tests/attention/fused/test_head_networks.py", "-k", "test_blocks_of_rows and 16"]
CLOCKED = ["tests/attention/fused/test_clock_kernels.py", "-k", "test_forward_and_gradients and 75x130"]
PLANNED = ["tests/attention/fused/test_eager_plans.py", "-k", "stale and form or reference and 5x5 and Epar-causal"]
LAUNCHED = ["tests/attention/fused/test_compiled_launcher.py"]
READ_LATER = ["tests/attention/fused/test_operator.py", "-k", "only_the_backward"]
CACHED = ["tests/attention/test_cache.py", "-k", "one_full_pass and (NoPosition or Rotary)"]
COMPOSED = ["tests/attention/test_composition_attention.py", "-k", "formula_written_by_hand"]
PADDED = ["tests/attention/test_padding.py", "-k", "numbers_themselves or one_pass"]
GIVEN = ["tests/attention/test_explicit_positions.py", "-k", "fractional or negative_or_zero"]
DERIVED = ["tests/attention/test_derivatives.py", "-k", "dual or (second and score_scale-causal)"]
MASKS = ["tests/attention/test_masks.py", "-k", "learnable or combine"]
ROWS = ["tests/attention/test_packed_rows.py", "-k", "Alibi or window or began"]
RESUMED = ["tests/lab/test_resumed_data.py"]
POINTER = ["tests/attention/test_pointer.py", "-k", "not compiles and not points_as_it_attends"]
ADDITIVE = ["tests/attention/test_additive.py", "-k", "not finite_differences"]
G = "whence_papers/pointer/pointer_generator/"
EPAR = "whence_papers/epar/"
GENERATOR, SEARCH = (
    ["papers/tests/pointer/test_pointer_generator.py"],
    ["papers/tests/pointer/test_pointer_search.py", "-k", "coverage"],
)
L, S, R = "lab/", "statistics/", "report/comparison/"
LOOP = ["tests/lab/test_training.py", "-k", "own_data or between_two"]
SCHEDULED = ["tests/lab/test_training.py", "-k", "schedules"]
DECAYED = ["tests/lab/test_training.py", "-k", "matrices_alone"]
GATED = ["tests/models/test_body.py", "-k", "gated"]
BEAMS = ["tests/models/test_generation.py", "-k", "follow"]
PADDED_SOURCES = ["tests/models/test_encoder_decoder.py", "-k", "padding and rotary"]
NORMALIZED = ["tests/attention/test_qk_norm.py", "-k", "formulas or autocast"]
DIVERGED = ["tests/lab/test_divergence.py", "-k", "no_number"]
OWNED = ["tests/lab/test_runner.py", "-k", "left_alone or never_overwritten or names_the_sources"]
RESULTS = ["tests/lab/test_results.py"]
COMPARED = ["tests/statistics/test_paired_comparison.py"]
ALPHA = ["tests/statistics/test_paired_comparison.py", "-k", "share_of_alpha"]
ITEMS = ["tests/statistics/test_item_comparison.py", "-k", "one_difference or share or clopper"]
RATIOS = ["tests/lab/test_decision_scales.py"]
CORRECTED = ["tests/statistics/test_corrections.py"]
TESTED = ["tests/statistics/test_two_samples.py", "-k", "any_scale or never_vary or simulation"]
PAGE = "tests/report/test_comparison_page.py::"
QUICK = ["-x", "-q", "--tb=no", "-o", "addopts=", "-pno:cacheprovider", "-pno:unraisableexception"]

# file below src/whence (or below papers/src), what stands there, what stands there instead, which tests must notice
MUTANTS = [
    # the running sum of a clock
    (A + "clock.py", "torch.where(layout.real[:, None, :], steps, 0.0)", "steps + 0.0", ["tests/attention/test_clock.py", "-k", "padding"]),
    (A + "blockwise_kernel.py", "d_k_clock[tile.batch, heads, tile.keys].sub_(dz.sum(2))", "d_k_clock[tile.batch, heads, tile.keys].add_(dz.sum(2))", ["tests/attention/test_clock.py", "-k", "every_dtype"]),
    (A + "blockwise_kernel.py", "rows - rows % self.plan.block % CLOCK_ROWS", "rows - rows % self.plan.block", ["tests/attention/test_clock.py", "-k", "every_dtype"]),
    # FlexAttention, skipped tiles, half precision and selected heads
    (A + "flex.py", "(q_index - first).expand", "(q_index - first + 1).expand", ["tests/attention/test_flex.py", "-k", "gradients and gaps"]),
    (A + "block_visibility.py", "some & (q_high >= k_low)", "some & (q_low >= k_low)", ["tests/attention/test_flex.py", "-k", "found"]),
    (A + "blockwise_kernel.py", "keys - visible.flip", "keys - 1 - visible.flip", ["tests/attention/test_skipped_tiles.py", "-k", "causal"]),
    (A + "half_product.py", "multiply_in_half(grad, b.mT,", "multiply_in_half(2 * grad, b.mT,", ["tests/attention/test_half_product.py", "-k", "derivatives"]),
    (P + "transformer_xl.py", '"projection": 0}', '"projection": 1}', ["tests/parallel/test_context_parallel.py", "-k", "content"]),
    # a dropped sign
    (P + "alibi.py", "return -self.scale", "return self.scale", ["tests/position/test_alibi.py"]),
    (P + "epar.py", "torch.exp(-self.beta()", "torch.exp(self.beta()", ["tests/position/test_epar.py"]),
    (P + "kerple.py", "return -self.r1() * torch.log1p", "return self.r1() * torch.log1p", ["tests/position/test_kerple.py"]),
    (P + "power_prior.py", "return -torch.where(is_zero", "return torch.where(is_zero", ["tests/position/test_power_prior.py"]),
    (P + "shaw.py", ".flip(-2).mT)", ".mT)", ["tests/position/test_shaw.py"]),
    (P + "gated_count.py", "descending=True", "descending=False", ["tests/position/test_cope.py"]),
    # derivatives supplied for fast kernels
    (P + "epar.py", "* (decay - 1)", "* (decay + 1)", RATES),
    (P + "power_prior.py", "-moving * log", "moving * log", RATES),
    (P + "kerple.py", "far / (1 + r2 * far)", "far / (1 - r2 * far)", RATES),
    # the fused kernels, interpreted
    (F + "gated_tiles.py", "reverse=True", "reverse=False", GATED_COUNTS),
    (F + "gated_backward.py", "tl.store(PASSED + edge, passed)", "tl.store(PASSED + edge, 0 * passed)", GATED_COUNTS),
    (F + "gated_forward.py", "clamped = start_n + BLOCK_G", "clamped = start_n + 2 * BLOCK_G", GATED_COUNTS),
    (F + "network_kernels.py", "d_before = tl.where(before > 0", "d_before = tl.where(before < 0", NETWORKS),
    (F + "network_kernels.py", "(upstream - delta[None, :])", "(upstream + delta[None, :])", NETWORKS),
    (F + "network_kernels.py", "tl.store(pointers, tl.load(pointers) + x)", "tl.store(pointers, x)", NETWORK_BLOCKS),
    (F + "network_launch.py", "high = min(high, offset + end)", "high = min(high, offset + end - 1)", NETWORK_BLOCKS),
    (F + "tile_ops.py", "mask & (distance >= 0)", "mask & (distance > 0)", FUSED),
    (F + "head_parts.py", "load_tile(x[1], b, h, start, length, ROWS, COLUMNS - FIRST, FIRST)", "first", FUSED),
    (F + "backward_dkdv.py", "dlogits = dlogits * score_scale", "dlogits = dlogits * 1.0", FUSED),
    (F + "backward_dq.py", "multiply_parts(acc, qk_grad_scale)", "multiply_parts(acc, 1.0)", FUSED),
    (F + "packing.py", "first = max(first, 0)", "first = max(first, 1)", FUSED),
    (F + "diagonals.py", "atomic_add_diagonals(upper + carry", "atomic_add_diagonals(upper", DENSE),
    (F + "backward_dq.py", "if high > low:  # the carry", "if high < low:  # the carry", DENSE_BOTH_SIDES),
    (F + "decode.py", "tl.minimum(group_row // q_len, GROUP_SIZE - 1)", "tl.minimum(group_row // q_len, 0)", DECODED),
    (F + "backward_dkdv.py", "pointers, 0 - sums,", "pointers, sums,", CLOCKED),
    (F + "clock_terms.py", "values - base.to(tl.float64)", "values - values", CLOCKED),
    (F + "eager.py", "form.signature, type(part)", "type(part)", PLANNED),
    (F + "table_kernels.py", "* (decay - 1.0)", "* decay", PLANNED),
    (F + "descriptors.py", "key = (x.data_ptr(), x.dtype,", "key = (x.dtype,", LAUNCHED),
    (F + "descriptors.py", "key = (x.data_ptr(), x.dtype,", "key = (x.data_ptr(),", LAUNCHED),
    (F + "compiled_launcher.py", "maps[self] = expanded", "maps[None] = expanded", LAUNCHED),
    (F + "device_call.py", "> written", "< written", READ_LATER),
    # EPAR's mathematics and adaptive attention
    (EPAR + "theory/doubling.py", "torch.exp(-exponent) * q", "torch.exp(exponent) * q", ["papers/tests/epar/test_theory_properties.py", "-k", "doubled"]),
    (EPAR + "theory/benefit.py", "right=True", "right=False", ["papers/tests/epar/test_theory_benefit.py", "-k", "spearman"]),
    (EPAR + "theory/properties.py", "setting.floor - values", "values - setting.floor", ["papers/tests/epar/test_theory_position_effect.py", "-k", "floor"]),
    (EPAR + "attention.py", "[slope, -slope * at]", "[slope, slope * at]", ["papers/tests/epar/test_adaptive_attention.py", "-k", "formula"]),
    (EPAR + "attention.py", "q = q * output.row_scale", "k = k * output.row_scale", ["papers/tests/epar/test_adaptive_attention.py", "-k", "temperature"]),
    # a shift by one
    (P + "recency.py", "distance + 1", "distance", ["tests/position/test_recency.py"]),
    (P + "fire.py", "length.to(distance.dtype) - 1", "length.to(distance.dtype)", ["tests/position/test_fire.py"]),
    (P + "t5.py", "(distance < 0)", "(distance > 0)", ["tests/position/test_t5.py"]),
    (A + "layout.py", "distance >= 0", "distance > 0", REFERENCE),
    (A + "layout.py", "distance.abs() < self.window", "distance.abs() <= self.window", REFERENCE),
    (A + "layout.py", "(self.q_positions, rows) + 1).clamp", "(self.q_positions, rows)).clamp", REFERENCE),
    (A + "toeplitz.py", "return key - row + self.queries", "return key - row + self.queries - 1", REFERENCE),
    (A + "toeplitz.py", "low = max(low, self.offset + first - self.window + 1)", "low = max(low, self.offset + first - self.window + 2)", TILED),
    (A + "pair_mask.py", "else self.attn_mask[:, :, rows]", "else self.attn_mask[:, :, : rows.stop - rows.start]", MASKS),
    (A + "pair_mask.py", "allowed = answer if allowed is None else allowed & answer", "allowed = answer", MASKS),
    (A + "blockwise.py", "z = z if mask is None else z + mask", "z = z", MASKS),
    (A + "blockwise.py", "layout.offset - keys + 1", "layout.offset - keys + 2", REFERENCE),
    (A + "token_positions.py", "(goes_on, before + 1 + index, index)", "(goes_on, before + 2 + index, index)", CACHED),
    (A + "cache.py", "self._used - (self._behind() + self.rollback)", "self._used - (self._behind() - 1 + self.rollback)", CACHED),
    # rows of a batch that stand elsewhere than the first, and what a cache goes on from
    (A + "blockwise_kernel.py", "d if d.shape[0] == 1 else d[tile.batch]", "d[:1]", ROWS),
    (A + "token_positions.py", "return int(start) if bool(same.all()) else None", "return int(start)", ROWS),
    (A + "cache.py", "return common_offset(joined, joined) is not None", "return True", ROWS),
    (A + "cache.py", "return not leaves_gaps(key_mask, segments, positions, before)", "return True", ROWS),
    (A + "cache.py", "before = torch.where(segments[:, :1] == last.segment_ids, before, -1)", "pass", ROWS),
    (A + "layout.py", "if fractional else self.window - 1", "if fractional else self.window", ROWS),
    # a forgotten scale, factor or temperature
    (A + "reference.py", "scores = call.scale * (q @", "scores = (q @", REFERENCE),
    (A + "reference.py", "(sink / temperature)", "(sink)", SCALED),
    (A + "blockwise_kernel.py", "settings.scale if tables.score_scale is not None else settings.scale * self.unit", "self.unit", REFERENCE),
    (A + "blockwise_kernel.py", "back = settings.scale / LOG2E", "back = 1 / LOG2E", COMPOSED),
    (A + "blockwise_kernel.py", "dz.mul_(work.slice_band(work.score_scale, tile))", "pass", COMPOSED),
    (A + "blockwise_kernel.py", "dz.sub_(delta[tile.batch, heads, tile.rows, None])", "dz", COMPOSED),
    (A + "toeplitz.py", "high = min(high, self.offset + first + 1)", "high = min(high, self.offset + first + 2)", REFERENCE),
    (A + "blockwise_kernel.py", "mul_(-delta)", "mul_(delta)", COMPOSED),
    (A + "sdpa.py", "with_positive_scale(q, call.scale / temperature)", "with_positive_scale(q, call.scale)", SCALED),
    (P + "transformer_xl.py", "rows.scale * (by_key", "(by_key", ["tests/position/test_transformer_xl.py"]),
    # queries and keys changed places
    (A + "call.py", "(layout.q_positions, layout.k_positions)\n", "(layout.k_positions, layout.q_positions)\n", CACHED),
    (A + "layout.py", "return _select_rows(self.q_positions, rows)[:, :, None] - self.k_positions[:, None, :]", "return self.k_positions[:, None, :] - _select_rows(self.q_positions, rows)[:, :, None]", REFERENCE),
    (P + "hook_types.py", "self.q_positions[:, :, None] - self.k_positions[:, None, :]", "self.k_positions[:, None, :] - self.q_positions[:, :, None]", ["tests/position/test_shaw.py"]),
    # masks and rows that see nothing
    (A + "blockwise_kernel.py", "hidden = ~t.real[", "hidden = t.real[", REFERENCE),
    (A + "blockwise_kernel.py", "self.settings.seed + tile.number", "tile.number * 0 + int(torch.randint(9, ()))", TILED),
    (A + "reference.py", ".masked_fill(~visible, -torch.inf)", "", REFERENCE),
    (A + "token_positions.py", "real.long().argmax(-1)", "0", PADDED),
    (A + "token_positions.py", "torch.where(real, counted, padded)", "padded", PADDED),
    (A + "token_positions.py", "return bool(gaps.any())", "return False", PADDED),
    (A + "layout.py", "float_below(self.window, distance.dtype) if fractional else self.window - 1", "self.window - 1", GIVEN),
    (A + "sdpa.py", "(q, scale) if scale > 0 else (-q, -scale)", "(q, scale)", GIVEN),
    (A + "call.py", "if torch_modes.is_transforming():", "if False:", DERIVED),
    (A + "ops.py", "z * score_scale[:, entry]", "z", DERIVED),
    # pointing, copying, covering
    (A + "pointer.py", "places.gather(1, at[:, None])", "places[:, -1:]", POINTER),
    (A + "pointer.py", ".scatter_add(1, words,", ".scatter(1, words,", POINTER),
    (A + "pointer.py", "F.logsigmoid(-gate) + copied", "F.logsigmoid(gate) + copied", POINTER),
    (A + "pointer.py", "b.masked_fill(never, 0.0)", "b", POINTER),
    (A + "pointer.py", "total.masked_fill(nowhere, 1.0).log()", "total.log()", POINTER),
    (A + "additive.py", "scores.masked_fill(~real, -torch.inf)", "scores", ADDITIVE),
    (A + "additive.py", "before + weights, coverage_loss", "weights, coverage_loss", ADDITIVE),
    (G + "model.py", "torch.cat([vectors, before.context], -1)", "torch.cat([vectors, 0 * before.context], -1)", GENERATOR),
    (G + "model.py", "/ has_target.sum(1)", "/ has_target.shape[1]", GENERATOR),
    (G + "search.py", "state.of(source.tokens.new_tensor(parents))", "state.of(torch.arange(len(longer)).clamp(max=len(state.h) - 1))", SEARCH),
    # the training loop: data, learning rate, resuming, non-finite values
    (L + "training.py", "(seed * 1_000_003 + number)", "(seed * 1_000_003)", LOOP),
    (L + "training.py", "b.lr * (step + 1) / b.warmup_steps", "b.lr * step / b.warmup_steps", SCHEDULED),
    (L + "training.py", 'before.get("recent", [])', "[]", LOOP),
    (L + "training.py", "if not math.isfinite(float(norm)):", "if False:", DIVERGED),
    (L + "training.py", "b.min_lr_ratio + (1 - b.min_lr_ratio) * cosine", "max(b.min_lr_ratio, cosine)", SCHEDULED),
    (L + "training.py", "p.ndim >= 2 and id(p) not in inside", "p.ndim >= 2", DECAYED),
    ("models/encoder_decoder.py", "self.source = self.source.select(index)", "self.source = self.source.select(0 * index)", BEAMS),
    ("models/encoder_decoder.py", "key_mask=source.key_mask, positions", "key_mask=None, positions", PADDED_SOURCES),
    ("models/generation.py", "(base * num_beams + parents).flatten()", "(base * num_beams + parents * 0).flatten()", BEAMS),
    ("models/body.py", "self.activation(self.gate(x)) * self.into(x)", "self.activation(self.into(x)) * self.gate(x)", GATED),
    (A + "module.py", "k = self.key_norm(", "k = self.query_norm(", NORMALIZED),
    (A + "module.py", "return q.to(v.dtype), k, v", "return q, k, v", NORMALIZED),
    (L + "training.py", "require_finite(metrics, step, curves)", "pass", DIVERGED),
    (L + "checkpoints.py", 'torch.set_rng_state(tensors[f"{own}cpu"])', "pass", LOOP),
    (L + "training.py", "schedule.steps_per_epoch + number >= first", "schedule.steps_per_epoch + number > first", RESUMED),
    (L + "training.py", "model.train(was_training)", "model.train()", RESUMED),
    (L + "early_stopping.py", "max(values) if self.task.higher_is_better else min(values)", "max(values)", RESUMED),
    (L + "observe.py", "rows[None, :, :, None]", "rows[None, :, None, :]", RESUMED),
    (P + "expression.py", "EXTRAPOLATION_FACTOR = 8", "EXTRAPOLATION_FACTOR = 4", RESUMED),
    # the runner: whose record it is, that it is written once, which sources made it
    (L + "study_folder.py", "if not own and not is_record_of(record, run):", "if False:", OWNED),
    (L + "study_folder.py", ' and record.get("seed") == run.seed', "", OWNED),
    (L + "run_execution.py", "    recorded = records.exists(path)\n    if", "    recorded = False\n    if", OWNED),
    (L + "runner.py", "try_run, origin=prepared.origin", "try_run, origin=None", OWNED),
    # from records to findings
    (L + "results.py", 'result["evaluations"][-1]', 'result["evaluations"][0]', RESULTS),
    (L + "results.py", " or study.decision.comparisons is not None", "", RESULTS),
    (L + "observe.py", "weights.mul(255)", "weights.mul(250)", RESULTS),
    # statistics
    (S + "corrections.py", "min(1.0, p * m)", "min(1.0, p)", CORRECTED),
    (S + "contrasts.py", "(low > 0) == plan.higher_is_better", "low > 0", COMPARED),
    (S + "contrasts.py", "-margin < low and high", "high", COMPARED),
    (S + "item_comparison.py", 'verdict != "equivalent" or self', 'verdict == "equivalent" or self', ITEMS),
    (S + "item_comparison.py", "counts[largest] += 1", "counts[largest] += 0", ITEMS),
    (S + "item_comparison.py", "<= level / self.family / 2", "<= level / self.family", ITEMS),
    (S + "analysis_plan.py", "math.log1p(self.margin / 100)", "self.margin / 100", RATIOS),
    (L + "decisions.py", 'decision.perplexity_scale if metric == "perplexity" else "value"', "decision.perplexity_scale", RATIOS),
    (S + "analysis_plan.py", "self.alpha * self.share", "self.alpha", ALPHA),
    (S + "two_samples.py", "(1 - share) ** 2 / (len(b) - 1)", "(1 - share) ** 2 / len(b)", TESTED),
    (S + "two_samples.py", "EffectSize(d, d * correction", "EffectSize(d, d", TESTED),
    # the page: order, words, counting, escaping
    (R + "units.py", '-1 if study["higher_is_better"] else 1', "1", [PAGE + "test_best_arm_is_first_in_both_directions"]),
    (R + "verdicts.py", "(better, total)} better than", "(better, total)} worse than", [PAGE + "test_verdicts_of_the_comparison_come_first"]),
    (R + "attention_maps.py", "[str(layer + 1) for", "[str(layer) for", [PAGE + "test_layers_and_heads_are_counted_from_one"]),
    (R + "attention_maps.py", '.replace("<", "\\\\u003c")', "", [PAGE + "test_all_text_is_escaped"]),
]  # fmt: skip


def stop_shrinking():
    """One failing example is enough: hypothesis need not look for the simplest."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", phases=phases, database=None)
    hypothesis.settings.load_profile("mutants")


def copy_sources(folder):
    """Copy both packages and compile them, so that a child compiles the changed file alone."""
    ignore = shutil.ignore_patterns("__pycache__", "results")
    for package in (ROOT / "src" / "whence", ROOT / "papers" / "src" / "whence_papers"):
        shutil.copytree(package, folder / package.name, ignore=ignore)
    compileall.compile_dir(folder, quiet=2)


def run_child(sources, arguments):
    """Run pytest in a forked child on these sources: the exit code, and the first test that fails."""
    report, answer = os.pipe()
    child = os.fork()
    if child == 0:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        sys.path.insert(0, str(sources))
        os.environ["PYTHONPATH"] = str(sources)
        os.chdir(ROOT)
        failure = FirstFailure()
        code = int(pytest.main([*QUICK, *arguments], plugins=[failure]))
        os.write(answer, (failure.name or "").encode())
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(answer)
    with os.fdopen(report) as lines:
        return code, lines.read()


def find_source(file):
    return Path(file if file.startswith("whence_papers/") else f"whence/{file}")


def run_mutant(sources, file, old, new, tests):
    """The exit code of pytest with this change (1 if a test fails, 0 if the mutant survives), and the test that fails."""
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / "src"
        shutil.copytree(sources, changed, copy_function=os.link)
        path = changed / find_source(file)
        text = path.read_text()
        if old not in text:
            return f"'{old}' is not in {file} any more", ""
        path.unlink()  # a link: the copied file itself stays
        path.write_text(text.replace(old, new))
        return run_child(changed, tests)


def main():
    preload()
    stop_shrinking()
    share, shares = int(sys.argv[1]), int(sys.argv[2])
    outcome = {"mutants": []}
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        copy_sources(sources)
        for file, old, new, tests in MUTANTS[share::shares]:
            start = time.monotonic()
            code, test = run_mutant(sources, file, old, new, tests)
            result = {"change": f"{file}: {old} -> {new}", "exit": code, "by": test}
            outcome["mutants"].append(result | {"seconds": round(time.monotonic() - start, 1)})
        killers = sorted({mutant["by"] for mutant in outcome["mutants"] if mutant["exit"] == 1})
        outcome["unchanged"] = run_child(sources, killers) if killers else None
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
