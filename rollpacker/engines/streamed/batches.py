"""Which waiting prompts go through the model together.

Invariants: every prompt is in one pass at some time, for the one that waits longest is in the next; a pass has at most
`max_tokens` padded tokens, unless a single prompt is longer than that.

Rows are padded on the right to the longest, so rows of similar length belong together. The pass is still filled up when
only shorter ones are left: a pass costs the copies of all streamed layers, which is worth thousands of padded tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def next_pass(lengths: Sequence[int], max_tokens: int) -> list[int]:
    """Choose a pass.

    Args:
        lengths: Tokens of the waiting prompts, the one that waits longest first. At least one.
        max_tokens: Bound of rows times longest row.

    Returns:
        Places in `lengths`, from the longest prompt to the shortest.
    """
    order = sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))
    pass_: list[int] = []
    for place in order:
        longest = lengths[pass_[0]] if pass_ else lengths[place]
        if pass_ and (len(pass_) + 1) * longest > max_tokens:
            if 0 in pass_:
                return pass_
            pass_ = []
        pass_.append(place)
    return pass_
