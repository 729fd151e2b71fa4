"""A Llama of 135 million parameters with an attached position, against the same model on SDPA.

Random weights of the architecture of SmolLM2-135M, bfloat16, its own rotation kept. Four measurements: a training step of
2 x 4096 tokens (forward, backward, AdamW), the same compiled as one graph, the prefill of a prompt of 16384 tokens, and
decoding steps with a static cache, compiled as one graph. Before timing, the loss and all gradients on a short sequence are
compared with float64. The error may be twice that of the model on SDPA, plus rounding.
"""

from __future__ import annotations

import copy
import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import whence
from gpu_timing import DEVICE, LONG_STEP_MS, time_step

HEADS = 9 if DEVICE == "cuda" else 4
CHECKED_TOKENS = 256 if DEVICE == "cuda" else 12
TRAINING = (2, 4096) if DEVICE == "cuda" else (2, 16)
PREFILL = 16384 if DEVICE == "cuda" else 32
DECODED, CACHE = (64, 2048) if DEVICE == "cuda" else (3, 32)
WARM_UP = 10  # steps after which memory has settled: before, eager steps take up to half as long again
POSITIONS: dict[str, Callable[[], whence.Position | None]] = {
    "sdpa": lambda: None,
    "epar": lambda: whence.Epar(HEADS, learnable=True, context=TRAINING[1], beta=4.0),
    "alibi": lambda: whence.Alibi(HEADS, learnable=True),
    "power prior": lambda: whence.PowerPrior(HEADS, alpha=0.01, beta=0.6),
}
LABELS = {
    "sdpa": "SDPA, the model as it is",
    "epar": "EPAR attached, learnable",
    "alibi": "ALiBi attached, learnable",
    "power prior": "power prior attached, learnable",
}


def build_model(name: str) -> Any:
    """The model in bfloat16 with its position, the same weights for every variant."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152}
    if DEVICE == "cpu":
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
    config = LlamaConfig(
        **sizes, num_attention_heads=HEADS, num_key_value_heads=HEADS // 3 if HEADS % 3 == 0 else HEADS // 2,
        max_position_embeddings=2 * PREFILL, tie_word_embeddings=True, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16)
    position = POSITIONS[name]()
    if position is not None:
        whence.hf.attach(model, position)
        for parameter_name, parameter in model.named_parameters():
            if ".whence." in parameter_name:
                parameter.data = parameter.data.float()
    return model


def random_tokens(batch: int, tokens: int, vocab_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(vocab_size, (batch, tokens), generator=generator).to(DEVICE)


def loss_and_gradients(model: Any, ids: Tensor) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    gradients = [p.grad.double().flatten() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return [loss.detach().double()[None], torch.cat(gradients)]


def check(name: str) -> dict[str, float]:
    """Relative errors of the loss and of all gradients together, against the same model in float64."""
    model = build_model(name)
    ids = random_tokens(1, CHECKED_TOKENS, model.config.vocab_size)
    got = loss_and_gradients(model, ids)
    # float64 is not supported by the kernels, so another backend computes it
    exact = loss_and_gradients(copy.deepcopy(model).double(), ids)
    return {
        title: ((a - b).norm() / b.norm()).item() for title, a, b in zip(("loss", "gradients"), got, exact, strict=True)
    }


def training_step(model: Any, *, compiled: bool) -> Callable[[], object]:
    ids = random_tokens(*TRAINING, model.config.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=DEVICE == "cuda")
    run = compile_as_one_graph(model) if compiled else model

    def step() -> None:
        run(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def compile_as_one_graph(model: Any) -> Any:
    backend = "inductor" if DEVICE == "cuda" else "eager"
    return torch.compile(model, fullgraph=True, dynamic=False, backend=backend)


def prefill_step(model: Any) -> Callable[[], object]:
    ids = random_tokens(1, PREFILL, model.config.vocab_size)

    @torch.no_grad()
    def step() -> object:
        return model(input_ids=ids, use_cache=True, logits_to_keep=1)

    return step


def decoding_steps(model: Any) -> Callable[[], object]:
    """Greedy decoding with a static cache after a prompt of half its size. Raise if it differs from one forward pass."""
    from transformers import StaticCache

    prompt = random_tokens(1, CACHE // 2, model.config.vocab_size)
    cache = StaticCache(config=model.config, max_cache_len=CACHE)
    run = compile_as_one_graph(model)

    @torch.no_grad()
    def step() -> tuple[Tensor, Tensor]:
        cache.reset()
        logits = model(input_ids=prompt, past_key_values=cache, logits_to_keep=1).logits
        tokens = []
        for _ in range(DECODED):
            tokens.append(logits[:, -1:].argmax(-1))
            logits = run(input_ids=tokens[-1], past_key_values=cache).logits.clone()
        return torch.cat(tokens, 1), logits

    tokens, last = step()
    with torch.no_grad():
        wanted = model(input_ids=torch.cat((prompt, tokens), 1), use_cache=False, logits_to_keep=1).logits
    error = ((last.double() - wanted.double()).norm() / wanted.double().norm()).item()
    if not error < 5e-2:
        raise ArithmeticError(f"wrong: decoding and one forward pass differ by {error:.1e}")
    return step


STEPS: dict[str, Callable[[Any], Callable[[], object]]] = {
    "training": lambda model: training_step(model, compiled=False),
    "training compiled": lambda model: training_step(model, compiled=True),
    "prefill": prefill_step,
    "decoding compiled": decoding_steps,
}


def compile_in_advance(kind: str, name: str) -> None:
    """One step in a process of its own, which leaves what it compiled in the caches on disk."""
    STEPS[kind](build_model(name))()


def measure(
    kind: str, results: list[dict[str, Any]], budget: float, limit: float, report_progress: Callable[[str], None]
) -> None:
    """Append the result of each model to ``results``, the model on SDPA first. ``limit``: seconds that the caller allows."""
    allowed: dict[str, float] = {}
    if "compiled" in kind and DEVICE == "cuda":  # minutes one after the other
        report_progress("compiling in parallel processes")
        with multiprocessing.get_context("spawn").Pool(len(POSITIONS)) as pool:
            waiting = [pool.apply_async(compile_in_advance, (kind, name)) for name in POSITIONS]
            deadline = time.monotonic() + limit / 2
            for each in waiting:
                each.wait(
                    max(0.1, deadline - time.monotonic())
                )  # what fails here fails again below, where it is recorded
    for name in POSITIONS:
        result: dict[str, Any] = {"variant": name}
        results.append(result)
        report_progress(LABELS[name])
        try:
            result["errors"] = check(name)
            rounding = torch.finfo(torch.bfloat16).eps
            allowed = allowed or {title: 2 * (error + rounding) for title, error in result["errors"].items()}
            wrong = [title for title, error in result["errors"].items() if not error <= allowed[title]]
            if wrong:
                result["left_out"] = f"wrong: {' and '.join(wrong)} against float64"
                continue
            torch.compiler.reset()
            step = STEPS[kind](build_model(name))
            for _ in range(2):  # compile
                step()
            first = time_step(step, 1)[0]
            if first < LONG_STEP_MS:
                time_step(step, WARM_UP)
            fewest = WARM_UP if first < LONG_STEP_MS else 3
            times = time_step(step, max(fewest, min(20, int(budget * 1000 / max(first, 1e-3)))))
            result["milliseconds"] = {"eager": times}
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            result["left_out"] = f"failed: {reason}"


def format_rows(name: str, results: list[dict[str, Any]]) -> str:
    lines, first = [f"\n{name}"], None
    for result in results:
        label = LABELS[result["variant"]]
        if "milliseconds" not in result:
            lines.append(f"{label:48}  {result.get('left_out', 'not timed')}")
            continue
        value = statistics.median(result["milliseconds"]["eager"])
        first = value if first is None else first
        lines.append(f"{label:48}{value:>9.2f} ms{value / first:>7.2f}x   error {max(result['errors'].values()):.1e}")
    return "\n".join(lines)
