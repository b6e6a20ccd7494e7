"""Frozen lake: reach the goal without falling into a hole; the map is drawn from the seed, and always has a way.

An observation is the map: `P` the player, `G` the goal, `O` a hole, `_` ice. A turn names a move; the last one that it
names counts, and one into the border stays. Source: FrozenLake of gymnasium, as ROLL's agents play it in text.
"""

from __future__ import annotations

import random
from typing import Any

from rollpacker.environments.moves import MOVES, UNKNOWN_MOVE, Place, beyond, move_in

_LEAST_SIZE = 2

_MOST_DRAWS = 100
"""Of maps, before holes of the last one are filled: with many holes hardly any map has a way."""


class FrozenLake:
    """One lake.

    Args:
        size: Rows and columns.
        hole_share: Of the places, about; fewer where hardly any such map has a way.
    """

    def __init__(self, size: int = 4, hole_share: float = 0.2) -> None:
        if size < _LEAST_SIZE or not 0 <= hole_share < 1:
            raise ValueError(f"size={size} and hole_share={hole_share}; they are at least 2, and from 0 to below 1")
        self._size, self._hole_share = size, hole_share

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a lake."""
        numbers = random.Random(seed)
        self._player, self._goal = (0, 0), (self._size - 1, self._size - 1)
        for _ in range(_MOST_DRAWS):
            self._holes = {place for place in self._places() if numbers.random() < self._hole_share}
            self._holes -= {self._player, self._goal}
            if self.way():
                return self._shown(), {}
        filled = sorted(self._holes)
        numbers.shuffle(filled)
        while not self.way():
            self._holes.remove(filled.pop())
        return self._shown(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Move."""
        move = move_in(action)
        if move is None:
            return UNKNOWN_MOVE, 0.0, False, False, {}
        there = beyond(self._player, move)
        if there in self._places():
            self._player = there
        is_over = self._player in self._holes or self._player == self._goal
        return self._shown(), float(self._player == self._goal), is_over, False, {}

    def way(self) -> list[str]:
        """The moves of a shortest way to the goal; empty where there is none."""
        ways: dict[Place, list[str]] = {self._player: []}
        queue, places = [self._player], self._places()
        for place in queue:
            for name, move in MOVES.items():
                there = beyond(place, move)
                if there in places and there not in ways and there not in self._holes:
                    ways[there] = [*ways[place], name]
                    queue.append(there)
        return ways.get(self._goal, [])

    def _places(self) -> set[Place]:
        return {(row, column) for row in range(self._size) for column in range(self._size)}

    def _shown(self) -> str:
        def letter(place: Place) -> str:
            if place == self._player:
                return "P"
            return "O" if place in self._holes else "G" if place == self._goal else "_"

        rows = range(self._size)
        return "\n".join("".join(letter((row, column)) for column in rows) for row in rows)
