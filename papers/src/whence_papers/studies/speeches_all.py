"""All mechanisms on the speeches assignment: its encoder with a padding mask, and its decoder.

ALiBi has the three scales whose attention maps the source draws. Mechanisms that are defined only for earlier keys (Fire,
CoPE, StableMask) are only in the decoder's study. Recency is for pointers over a history, and a sink alone carries no
position; neither is included. With this many arms, a claim needs six seeds; five seeds give intervals. The decoder showed
differences that five seeds cannot claim, so it has a second study with six new seeds: seeds that were already inspected
must not decide.
"""

from dataclasses import replace

from whence.lab.arms import Arm, parse_arm
from whence.lab.study import Budget, Decision, Study

SEEDS, OTHERS = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9, 10)
MODEL = {"embed_dim": 64, "heads": 2, "layers": 4, "ffn_dim": 100, "dropout": 0.1}
PLAIN = {"batch_size": 16, "lr": 1e-3, "optimizer": "Adam", "weight_decay": 0.0, "max_grad_norm": None}
EVERYWHERE = ("none", "learned", "rotary", "shaw", "xl", "t5", "kerple", "sandwich", "epar", "power")
EARLIER_KEYS_ONLY = ("fire", "cope", "stablemask")
SCALES = tuple(Arm(f"ALiBi, {scale}", f"Alibi(scale={scale})") for scale in (0.5, 1.0, 2.0))


DECODER = Study(
    name="speeches-all-decoder",
    question="Which mechanism predicts the next word of the presidents best?",
    task="speeches_lm",
    model=MODEL,
    arms=(parse_arm("sinusoidal"), *map(parse_arm, EVERYWHERE + EARLIER_KEYS_ONLY), *SCALES),
    seeds=SEEDS,
    budget=Budget(steps=500, evaluate_every=250, **PLAIN),
    decision=Decision(baseline="sinusoidal", split="obama"),
)


def studies() -> list[Study]:
    return [
        Study(
            name="speeches-all",
            question="Which mechanism tells the presidents apart best?",
            about="Padding mask: keys.",
            task="speeches_classify",
            task_settings={"mask_padding": "keys"},
            model=MODEL,
            arms=(parse_arm("sinusoidal"), *map(parse_arm, EVERYWHERE), *SCALES),
            seeds=SEEDS,
            budget=Budget(epochs=15, evaluate_every=3, **PLAIN),
            decision=Decision(baseline="sinusoidal"),
        ),
        DECODER,
        replace(
            DECODER, name="speeches-all-decoder-decided", seeds=OTHERS, about="Six seeds that the first study lacks."
        ),
    ]
