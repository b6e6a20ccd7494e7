"""What settings may be, whoever made them."""

from __future__ import annotations


def require(holds: bool, rule: str) -> None:
    """Refuse what no configuration says: it comes from a log that was changed, or from a mistake of ours."""
    if not holds:
        raise ValueError(rule)
