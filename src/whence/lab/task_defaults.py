"""Question, model, budget and data of the tasks of ``whence compare`` where the user sets nothing."""

from __future__ import annotations

from typing import Any

#: question, model, budget, deciding split, baseline and margin of tasks, so that a comparison takes minutes on two cores; a
#: margin is in points of accuracy and holds for no other metric
TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    "copy": {
        "question": "Does it copy a string? Symbols repeat, so only their positions tell which one comes next.",
        "model": {"embed_dim": 32, "heads": 4, "layers": 1, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 200, "batch_size": 16, "lr": 3e-3, "evaluate_every": 100},
        "settings": {"string": 8, "symbols": 8, "items": 128},
        "margin": 10.0,
    },
    "recall": {
        "question": "Does it recall the latest of several marked symbols in inputs 8 times as long as in training? "
        "Only position tells which mark is the latest.",
        "model": {"embed_dim": 32, "heads": 4, "layers": 1, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 200, "batch_size": 32, "lr": 3e-3, "evaluate_every": 100},
        "settings": {"tokens": 32, "symbols": 8, "interval": 4, "items": 64},
        "split": "8x",
        "baseline": "rotary",
        "margin": 10.0,
    },
    "sources": {
        "question": "Does it recognise where a piece of text comes from?",
        "model": {"embed_dim": 32, "heads": 2, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 200, "batch_size": 32, "lr": 2e-3, "evaluate_every": 50},
        "settings": {},
    },
    "topics": {
        "question": "Does it predict the next byte of prose in texts 8 times as long as in training?",
        "model": {"embed_dim": 32, "heads": 4, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 250, "batch_size": 16, "lr": 3e-3, "evaluate_every": 125},
        "settings": {"context": 32, "blocks": 64},
        "split": "8x",
        "baseline": "rotary",
    },
    "retrieval": {
        "question": "Does it retrieve the value of a key, also from longer lists than in training?",
        "model": {"embed_dim": 32, "heads": 2, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 400, "batch_size": 32, "lr": 3e-3, "evaluate_every": 100},
        "settings": {"pairs": 4, "keys": 32, "values": 8, "items": 128},
    },
    "questions": {
        "question": "Does it find the answers to questions about a passage, and see that some have none?",
        "model": {"embed_dim": 32, "heads": 4, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 400, "batch_size": 16, "lr": 3e-3, "evaluate_every": 200},
        "settings": {"facts": 2, "context": 40},
    },
    "reports": {
        "question": "Does it summarize a report, whose first and last sentence alone matter?",
        "model": {"embed_dim": 32, "heads": 4, "layers": 1, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 400, "batch_size": 16, "lr": 3e-3, "evaluate_every": 200},
        "settings": {"sentences": 4, "context": 40},
    },
    "paraphrases": {
        "question": "Does it tell whether two sentences with the same words mean the same?",
        "model": {"embed_dim": 32, "heads": 4, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 400, "batch_size": 32, "lr": 3e-3, "evaluate_every": 100},
        "settings": {},
    },
    "qmsum": {
        "question": "Does it summarize what a meeting says about a query?",
        "model": {"embed_dim": 64, "heads": 4, "layers": 2, "ffn_dim": 256, "dropout": 0.1},
        "budget": {"steps": 400, "batch_size": 16, "lr": 1e-3},
        "settings": {"context": 256, "target_context": 64, "summaries": 20},
    },
    "arxiv": {
        "question": "Does it write the abstract of a paper?",
        "model": {"embed_dim": 64, "heads": 4, "layers": 2, "ffn_dim": 256, "dropout": 0.1},
        "budget": {"steps": 400, "batch_size": 16, "lr": 1e-3},
        "settings": {"context": 256, "target_context": 64, "summaries": 20, "test_texts": 200},
    },
    "squad": {
        "question": "Does it find the answers to questions about a passage, and see that some have none?",
        "model": {"embed_dim": 64, "heads": 4, "layers": 2, "ffn_dim": 256, "dropout": 0.1},
        "budget": {"steps": 400, "batch_size": 16, "lr": 1e-3},
        "settings": {"context": 192},
    },
}

#: model and budget of a task on a user's data
FILE_DEFAULTS: dict[str, Any] = {
    "model": {"embed_dim": 64, "heads": 4, "layers": 2, "ffn_dim": 128, "dropout": 0.1},
    "budget": {"steps": 400, "batch_size": 32, "lr": 1e-3},
}
