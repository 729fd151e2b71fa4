"""The ledger of claims as one page that needs nothing but itself."""

from whence.report.ledger.page import page

__all__ = ["page"]
