"""All mechanisms on the speeches assignment: its encoder with a padding mask, and its decoder.

ALiBi has the three scales whose attention maps the source draws. Mechanisms that are defined only for earlier keys (Fire,
CoPE, StableMask) are only in the decoder's study. Recency is for pointers over a history, and a sink alone carries no
position; neither is included. With this many arms, a claim needs six seeds; five seeds give intervals. The decoder showed
differences that five seeds cannot claim, so it has a second study with six new seeds: seeds that were already inspected
must not decide.
"""

from dataclasses import replace

from whence.lab.arms import Arm, parse_arm
from whence.lab.study import Budget, Study
from whence_papers.speeches.studies import ADAM, build_decoder_study, build_encoder_study

NEW_SEEDS = (5, 6, 7, 8, 9, 10)
BASELINE = parse_arm("sinusoidal")
EVERYWHERE = ("none", "learned", "rotary", "shaw", "xl", "t5", "kerple", "sandwich", "epar", "power")
EARLIER_KEYS_ONLY = ("fire", "cope", "stablemask")
SCALES = tuple(Arm(f"ALiBi, {scale}", f"Alibi(scale={scale})") for scale in (0.5, 1.0, 2.0))


def studies() -> list[Study]:
    encoder = build_encoder_study(
        "speeches-all",
        "Which mechanism tells the presidents apart best?",
        "keys",
        (BASELINE, *map(parse_arm, EVERYWHERE), *SCALES),
        Budget(epochs=15, evaluate_every=3, **ADAM),
    )
    decoder = build_decoder_study(
        "speeches-all-decoder",
        "Which mechanism predicts the next word of the presidents best?",
        (BASELINE, *map(parse_arm, EVERYWHERE + EARLIER_KEYS_ONLY), *SCALES),
        Budget(steps=500, evaluate_every=250, **ADAM),
    )
    about = "Six seeds that the first study lacks."
    return [
        replace(encoder, about="Padding mask: keys."),
        decoder,
        replace(decoder, name="speeches-all-decoder-decided", seeds=NEW_SEEDS, about=about),
    ]
