"""Responses of several turns: which tokens are whose."""

from __future__ import annotations

import numpy as np
import pytest

from rollpacker.core.ids import ENVIRONMENT, PromptId, RequestId, VersionSpan
from rollpacker.protocols.rollout import Response, empty_response


def response(*spans: tuple[int, int]) -> Response:
    """Of (version, tokens); its tokens are 0, 1, 2, ..."""
    num_tokens = sum(each for _, each in spans)
    whole = empty_response(RequestId(0, PromptId(0, "p"), 0))
    values = {name: getattr(whole, name) for name in whole.__slots__}
    values["token_ids"] = np.arange(num_tokens, dtype=np.int32)
    return Response(**values | {"spans": tuple(VersionSpan(*span) for span in spans)})


@pytest.mark.parametrize(
    ("spans", "last"),
    [
        (((3, 4),), [0, 1, 2, 3]),
        (((3, 2), (4, 2)), [0, 1, 2, 3]),
        (((3, 2), (ENVIRONMENT, 1), (3, 1), (4, 1)), [3, 4]),
        (((ENVIRONMENT, 2), (3, 1)), [2]),
        ((), []),
    ],
)
def test_the_last_turn_is_what_follows_an_environments_last_words(spans, last):
    assert response(*spans).last_turn.tolist() == last
