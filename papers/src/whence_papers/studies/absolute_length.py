"""Absolute positions beyond the trained length: the perplexity of the same bytes after 1, 2, 4 and 8 times as much text.

The survey says that absolute encodings are limited beyond the lengths of training. A small decoder is trained on 64 bytes of
Python's help topics, which every machine has. Each test block is scored alone and after up to seven more blocks of text. More text
before a block can only help a model that can use it, so a higher perplexity shows the limit. Learned vectors exist for all 512
positions, and training reaches the first 64; a table of 64 vectors could not be read beyond them at all. ALiBi and rotary, which
are relative, are scored beside them.
"""

from whence.lab.arms import Arm, parse_arm
from whence.lab.study import Budget, Decision, Study

CONTEXT, LENGTHS = 64, (1, 2, 4, 8)
ARMS = (
    parse_arm("alibi"),
    parse_arm("rotary"),
    parse_arm("sinusoidal"),
    Arm("learned", f"Learned(max_length={CONTEXT * max(LENGTHS)})"),
)


def studies() -> list[Study]:
    return [
        Study(
            name="absolute-length",
            question="Do absolute positions reach beyond the trained length?",
            about=f"Trained on {CONTEXT} bytes. The same {CONTEXT} bytes are scored alone and after up to {max(LENGTHS) - 1} "
            "times as many bytes of text.",
            task="topics",
            task_settings={"context": CONTEXT, "blocks": 128, "lengths": list(LENGTHS)},
            model={"embed_dim": 64, "heads": 4, "layers": 2, "ffn_dim": 256, "dropout": 0.0},
            arms=ARMS,
            seeds=(0, 1, 2, 3, 4),
            budget=Budget(steps=400, batch_size=16, lr=2e-3, warmup_steps=40, schedule="cosine"),
            decision=Decision(baseline="alibi", split="8x"),
        )
    ]
