"""Which draft tokens a sequence keeps: those that it would have drawn anyway.

One forward pass over a sequence's last token and its drafts gives the policy's distribution after each of them. A token
is drawn from each distribution as plain decoding draws it, with the random number of its sample and position
(`sampling`), and drafts are kept as long as they equal what is drawn; the first token that differs is kept in place of
its draft, and what follows it was computed after a token that is not there. So what comes out is what plain decoding
draws with these numbers, token by token, by the policy's own log-probabilities, at any temperature, top-p and top-k,
and whatever the drafts are: a draft decides how many passes a response takes and nothing else. It is the speculative
sampling of Leviathan et al. (ICML 2023, algorithm 1) for drafts that are sure of themselves: there, too, such a draft x
is accepted with probability p(x), and else a token is drawn from p without x.

Equal up to rounding, that is: a pass over several tokens adds in another order than one over a single token, as one
over another batch does.

Shapes: B rows, G draft tokens, Q = G + 1 tokens that are drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


def num_kept(
    drawn_BQ: npt.NDArray[np.int64],
    drafts_BG: npt.NDArray[np.int64],
    num_drafts_B: npt.NDArray[np.int64],
    end_tokens: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Count the drawn tokens that each row keeps, at least 1: up to the first that is no draft, or ends it.

    Args:
        drawn_BQ: Drawn after the row's last token, and after each of its drafts.
        drafts_BG: The drafts that were fed.
        num_drafts_B: How many each row has; the others are padding.
        end_tokens: Tokens that end a response.
    """
    num_drafts = drafts_BG.shape[1]
    is_right_BG = (drawn_BQ[:, :-1] == drafts_BG) & (np.arange(num_drafts) < num_drafts_B[:, None])
    is_right_BG &= ~np.isin(drawn_BQ[:, :-1], end_tokens)
    kept_B: npt.NDArray[np.int64] = 1 + np.logical_and.accumulate(is_right_BG, axis=1).sum(axis=1)
    return kept_B
