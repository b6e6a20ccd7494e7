"""Which failures a person who follows a run is told of: few notes in a run of any length."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_GROWTH = 4
"""A share grows from one of a thousand to all of them in five notes."""


class FailureNews:
    """Failures are news when a reason is new, or the share that fails is `_GROWTH` times what was news before."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()
        self._share = 0.0

    def has(self, share: float, reasons: Iterable[str] = ()) -> bool:
        """Tell whether a share, 0 to 1, that fails for these reasons is news; if so, it is known from now on."""
        found = {*reasons}
        if not share or (found <= self._reasons and share < _GROWTH * self._share):
            return False
        self._reasons |= found
        self._share = max(self._share, share)
        return True
