"""A reward for runs that go on while a test waits for something else: it takes time, and no processor's.

Without it such a run makes steps as fast as it can, on cores that what the test waits for could use.
"""

import time

from rollpacker.rewards.walk import score as score_walk

RESPONSE_S = 0.05
"""So that a step of tests takes two seconds."""


def score(response, ground_truth, is_truncated):
    time.sleep(RESPONSE_S)
    scored = score_walk(response, ground_truth, is_truncated)
    return scored.reward, scored.reason
