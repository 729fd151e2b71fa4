"""The ledger of claims: what the sources say, as data; what we find, as records; a verdict computed from both.

``ledger`` reads the data, ``computations`` makes evidence that needs no training, ``studies`` and ``probes``
read the records of those, ``evidence`` finds either for a claim, and ``judging`` holds it against what the source says.
"""

from whence_papers.ledger.evidence import Evidence, evidence_of, update
from whence_papers.ledger.judging import RULES, VERDICTS, Judgement, findings, judge
from whence_papers.ledger.ledger import Check, Claim, Source, load
from whence_papers.ledger.places import Places, Waiting

__all__ = [
    "Check", "Claim", "Evidence", "Judgement", "Places", "RULES", "Source", "VERDICTS", "Waiting", "evidence_of", "findings",
    "judge", "load", "update",
]  # fmt: skip
