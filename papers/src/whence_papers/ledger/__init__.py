"""The ledger of claims: the claims of the sources are data, the evidence is records, and verdicts are computed from both.

``claims`` reads the data. ``computations`` makes evidence that needs no stored model. ``study_records``, ``probe_records``,
``mend_records`` and ``next_location_records`` read evidence from stored records. ``trained_models`` and
``pretrained_models`` measure it in a model. ``evidence`` finds the evidence of a claim, ``verdicts`` compares it with what
the source says, and ``page`` renders the HTML report.

Here are the claims alone: every whence command imports this package to list its own, and evidence needs much more.
"""

from whence_papers.ledger.claims import Claim, FigureCheck, LedgerFolders, MissingEvidence, Source, load_sources

__all__ = ["Claim", "FigureCheck", "LedgerFolders", "MissingEvidence", "Source", "load_sources"]
