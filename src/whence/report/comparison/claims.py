"""What stands on a page of studies about the ledger of claims: how the claims came out, and the way to its own page."""

from __future__ import annotations

import html
from typing import Any


def claims(findings: dict[str, Any]) -> str:
    """A section with a link to the ledger's page; nothing where the report has no such page.

    >>> told = claims({"ledger": {"page": "claims.html", "counts": {"reproduced": 2, "open": 0, "not reproduced": 1}}})
    >>> '<a href="claims.html">3 claims</a>: 2 reproduced, 1 not reproduced.' in told, claims({})
    (True, '')
    """
    ledger = findings.get("ledger")
    if not ledger:
        return ""
    counts = {verdict: number for verdict, number in ledger["counts"].items() if number}
    total = sum(counts.values())
    told = ", ".join(f"{number:,} {html.escape(verdict)}" for verdict, number in counts.items())
    return (
        '<section aria-labelledby="claims"><h2 id="claims">What the sources claim</h2>'
        f"<p>The ledger holds the sources’ claims against these records, on a page of its own: "
        f'<a href="{html.escape(ledger["page"])}">{total:,} claim{"" if total == 1 else "s"}</a>: {told}.</p></section>'
    )
