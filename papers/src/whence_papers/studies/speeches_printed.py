"""The speeches assignment as printed: ALiBi with one slope for all heads, and training scores over time.

Part 3 prints the bias of ALiBi as b = -s |i - j| with one s, 1.1; it draws attention maps at 2, 1 and 0.5. ``speeches_alibi``
multiplies the published slopes of Press et al. (1/16 and 1/256 for two heads) by 1.1, a penalty 16 and 256 times smaller. Both
are arms here, with evaluations every 5 epochs, as in the tables. The page of the study has the attention maps of the
sentences that the source draws, for every s.

The source prints training accuracy and training perplexity and does not say how they were measured. The studies here record
both ways: the running mean over the batches of training, with dropout, and the weights in evaluation mode. Parts 1 and 2 are
the studies of ``speeches_encoder`` (without a mask) and ``speeches_decoder`` with these scores.

The third study has 30 runs of 100 epochs, 5 hours of a CPU core: ``--only speeches-printed-alibi`` selects it.
"""

from whence.lab.arms import Arm, parse_arm
from whence.lab.study import Budget, Study
from whence_papers.speeches.studies import ADAM, build_decoder_study, build_encoder_study

SINUSOIDAL = parse_arm("sinusoidal")
PRESS = Arm("ALiBi, published slopes times 1.1", "Alibi(scale=1.1)")
PRINTED = tuple(Arm(f"ALiBi, s = {s}", f"Alibi(slope={s})") for s in (1.1, 2.0, 1.0, 0.5))


def studies() -> list[Study]:
    encoder = build_encoder_study(
        "speeches-printed-encoder",
        "How accurate is the encoder on its training sentences over time?",
        "none",
        (SINUSOIDAL,),
        Budget(epochs=15, evaluate_every=1, **ADAM),
        training_scores=True,
    )
    decoder = build_decoder_study(
        "speeches-printed-decoder",
        "What is the perplexity of the decoder on its training text over time?",
        (SINUSOIDAL,),
        Budget(steps=500, evaluate_every=100, **ADAM),
        training_scores=True,
    )
    alibi = build_encoder_study(
        "speeches-printed-alibi",
        "Does ALiBi with one slope for all heads tell the presidents apart better than sinusoidal position?",
        "none",
        (SINUSOIDAL, PRESS, *PRINTED),
        Budget(
            epochs=100,
            batch_size=16,
            lr=1e-4,
            optimizer="AdamW",
            weight_decay=0.1,
            max_grad_norm=None,
            evaluate_every=5,
        ),
        training_scores=True,
    )
    return [encoder, decoder, alibi]
