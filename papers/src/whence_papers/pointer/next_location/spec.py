"""``NextPlaceSpec``: everything about a next-place model except what position does to its pointer.

An ablation is another spec, never a switch inside the model's code:

    no pointer                    answers="generate"
    no gate                       answers="halves"
    no bias                       the pointer's position is NoPosition()
    no position-from-end          reads without "from_end"
    the additive attention        pointer="additive"
    the predecessor as a whole    body="lstm", pointer="additive"
"""

from __future__ import annotations

from dataclasses import dataclass

from whence.errors import usage_error
from whence_papers.pointer.next_location.histories import DURATIONS, TIMES

#: what a visit is read by beside its place; the model sums one embedding for each
READS = ("user", "time", "weekday", "duration", "ago", "from_end")
CHOICES = {
    "body": ("transformer", "lstm"),
    # how the answer is made: a gate weighs generating against copying, or each has half, or there is only one of them
    "answers": ("gate", "halves", "generate", "copy"),
    "pointer": ("dot", "additive"),
}


@dataclass(frozen=True)
class NextPlaceSpec:
    """A pointer-generator over a history of visits, validated when it is made.

    Args:
        places: numbers of places, padding and unknown included.
        users: known users; there is one number more, for whoever is unknown.
        days: of a history.
        context: the longest history with positions of its own; older visits share the last one.
        width, heads, layers, hidden, dropout: of the encoder; an LSTM has ``ffn_dim`` units, no heads and one layer.
        reads: what a visit is read by beside its place, some of ``READS``.
        answers: ``"gate"``, ``"halves"``, ``"generate"`` or ``"copy"``.
        pointer: ``"dot"``, which takes a Position, or ``"additive"``, which takes none.
        encoder: what position does inside the encoder, as text.
        body: ``"transformer"``, or ``"lstm"``: the LSTM pointer-generator, whose pointer is additive.

    >>> NextPlaceSpec(places=10, users=2, days=7, context=20).sizes()["ago"]
    9
    """

    places: int
    users: int
    days: int
    context: int
    embed_dim: int = 64
    heads: int = 4
    layers: int = 2
    ffn_dim: int = 128
    dropout: float = 0.15
    reads: tuple[str, ...] = READS
    answers: str = "gate"
    pointer: str = "dot"
    encoder: str = "NoPosition()"
    body: str = "transformer"

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", tuple(self.reads))  # JSON has lists only
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                got = repr(getattr(self, name))
                raise usage_error(f"NextPlaceSpec({name}=...)", got, f"it is one of {', '.join(choices)}", "choose one")
        if self.body == "lstm" and (
            self.pointer != "additive" or self.answers not in ("gate", "generate") or self.encoder != "NoPosition()"
        ):
            raise usage_error(
                'NextPlaceSpec(body="lstm")',
                f"pointer={self.pointer!r}, answers={self.answers!r}, encoder={self.encoder!r}",
                "the LSTM pointer-generator points additively, has a gate or only generates, and takes no position",
                'give pointer="additive" and leave the others',
            )
        if not set(self.reads) <= set(READS) or len(set(self.reads)) < len(self.reads):
            raise usage_error(
                "NextPlaceSpec(reads=...)", repr(self.reads), f"each is one of {', '.join(READS)}, once", "choose again"
            )

    def sizes(self) -> dict[str, int]:
        """How many numbers each thing that is read may have; 0 is padding or unknown everywhere."""
        every = {
            "user": self.users + 1, "time": TIMES + 1, "weekday": 8, "duration": DURATIONS + 1, "ago": self.days + 2,
            "from_end": self.context + 1,
        }  # fmt: skip
        return {name: every[name] for name in self.reads}
