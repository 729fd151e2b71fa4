"""The ledger of claims: what the sources say, as data; what we find, as records; a verdict computed from both.

``ledger`` reads the data, ``computations`` makes evidence that needs no training, ``studies`` and ``probes``
read the records of those, ``evidence`` finds either for a claim, and ``judging`` holds it against what the source says.
"""

from whence.claims.evidence import Evidence, evidence_of, update
from whence.claims.judging import RULES, VERDICTS, Judgement, findings, judge
from whence.claims.ledger import Check, Claim, Source, load
from whence.claims.places import Places, Waiting

__all__ = [
    "Check", "Claim", "Evidence", "Judgement", "Places", "RULES", "Source", "VERDICTS", "Waiting", "evidence_of", "findings",
    "judge", "load", "update",
]  # fmt: skip
