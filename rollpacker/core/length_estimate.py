"""How long a response will become, from how long the last ones became.

    E[L | L > generated] = the mean of those recent lengths that are above what is generated, rounded up

Where none is, a response is taken to become as long as any may.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate


class LengthEstimate:
    """An estimate from some lengths, made once and asked often.

    Args:
        lengths: Of finished responses, in tokens and any order.
        longest: That a response may become.
    """

    def __init__(self, lengths: Iterable[int], longest: int) -> None:
        self._lengths = sorted(lengths)
        self._sums = [0, *accumulate(self._lengths)]
        self._longest = longest

    def of(self, num_generated: int) -> int:
        """Give the length to expect of a response that has so many tokens, in tokens."""
        num_shorter = bisect_right(self._lengths, num_generated)
        num_longer = len(self._lengths) - num_shorter
        if not num_longer:
            return max(self._longest, num_generated)
        return -((self._sums[num_shorter] - self._sums[-1]) // num_longer)
