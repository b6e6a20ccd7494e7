"""Turns the rewards of single turns into advantages, one per turn: what an environment gave says which turn was good.

The return of a turn is its reward plus what came later, discounted by gamma per turn: G_t = r_t + gamma G_(t+1).

* `gigpo`, Group-in-Group (arXiv 2505.10978, equations 3 to 8): A_E + w A_S. A_E compares the rewards of a group's
  responses, as GRPO does. A_S compares returns of turns that start from one state, the anchor: what the environment had
  said just before, equal token by token, in whichever response of the group and at whichever turn. Both are the
  distance from the mean over the standard deviation. A state that only one turn has seen gives 0.
* `step_reinforce`, REINFORCE step by step, as in ROLL's agentic pipeline: the distance of a turn's return from the mean
  of all turns of its group, over their standard deviation.

Both depend on their own group alone. A token of a turn has its turn's advantage; what an environment wrote has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollpacker.trainers.advantages import group_advantages

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import numpy.typing as npt

    from rollpacker.protocols.rollout import Response, RolloutGroup, Turn

KIND = "group_std"
"""The norm of both levels."""


def returns_of(rewards: Sequence[float], discount: float) -> list[float]:
    """Return the discounted sum of each turn's reward and the later ones."""
    found: list[float] = []
    for reward in reversed(rewards):
        found.append(reward + discount * (found[-1] if found else 0.0))
    return found[::-1]


def turn_advantages(group: RolloutGroup, kind: str, *, discount: float, weight: float) -> list[list[float]]:
    """Return the advantages of the turns of each response of a group that has at least one.

    Args:
        group: With `turns`.
        kind: `gigpo` or `step_reinforce`.
        discount: gamma, per turn.
        weight: w, of A_S.
    """
    returns = [returns_of([turn.reward for turn in turns], discount) for turns in group.turns]
    if kind == "step_reinforce":
        return _within(returns, [[None] * len(each) for each in returns])
    anchors = [_anchors(*each) for each in zip(group.responses, group.turns, strict=True)]
    of_episodes = group_advantages(group.rewards, KIND).tolist()
    return [
        [of_episode + weight * of_turn for of_turn in of_turns]
        for of_episode, of_turns in zip(of_episodes, _within(returns, anchors), strict=True)
    ]


def token_advantages(group: RolloutGroup, advantages: Sequence[Sequence[float]]) -> list[npt.NDArray[np.float32]]:
    """Return an advantage for each token of each response, shape [R]; 0 for those of no turn."""
    found = []
    for response, turns, of_turns in zip(group.responses, group.turns, advantages, strict=True):
        advantages_R = np.zeros(response.num_tokens, dtype=np.float32)
        for turn, advantage in zip(turns, of_turns, strict=True):
            advantages_R[turn.begin : turn.end] = advantage
        found.append(advantages_R)
    return found


def _anchors(response: Response, turns: Sequence[Turn]) -> list[Hashable]:
    """What stood before each turn: tokens of its environment, after those of the turn before it."""
    begins = [0, *(turn.end for turn in turns)]
    return [
        (place == 0, response.token_ids[begin : turn.begin].tobytes())
        for place, (begin, turn) in enumerate(zip(begins, turns, strict=False))
    ]


def _within(values: Sequence[Sequence[float]], keys: Sequence[Sequence[Hashable]]) -> list[list[float]]:
    """Compare each value with those of the same key, over all rows."""
    alike: dict[Hashable, list[tuple[int, int]]] = {}
    for row, of_row in enumerate(keys):
        for place, key in enumerate(of_row):
            alike.setdefault(key, []).append((row, place))
    found = [[0.0] * len(each) for each in values]
    for places in alike.values():
        compared = group_advantages([values[row][place] for row, place in places], KIND)
        for (row, place), value in zip(places, compared.tolist(), strict=True):
            found[row][place] = value
    return found
