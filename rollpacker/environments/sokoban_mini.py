"""A small Sokoban: push the box onto the target. The room is drawn from the seed, and can be solved.

An observation is the room: `#` wall, `P` the player, `X` the box, `O` the target, `_` floor. A turn names a move; the
last one that it names counts, and one that a wall stops stays. Source: Sokoban of ROLL's agents, with one box.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from rollpacker.environments.moves import MOVES, UNKNOWN_MOVE, Place, beyond, move_in

_LEAST_SIZE = 5
"""Walls around, and a place on each side of the box."""


class _State(NamedTuple):
    player: Place
    box: Place


class SokobanMini:
    """One room.

    Args:
        size: Rows and columns, walls included.
        min_moves: Of a shortest solution.
    """

    def __init__(self, size: int = 6, min_moves: int = 3) -> None:
        if size < _LEAST_SIZE or not 1 <= min_moves <= size:
            raise ValueError(f"size={size} and min_moves={min_moves}; they are at least 5, and from 1 to the size")
        self._size, self._min_moves = size, min_moves
        inside = range(1, size - 1)
        self._floor = {(row, column): None for row in inside for column in inside}

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Draw rooms until one can be solved, and not at once."""
        numbers = random.Random(seed)
        while True:
            self._target, player, box = numbers.sample(list(self._floor), 3)
            self._state = _State(player, box)
            if len(self.way()) >= self._min_moves:
                return self._shown(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Move, and push the box if it is in the way."""
        move = move_in(action)
        if move is None:
            return UNKNOWN_MOVE, 0.0, False, False, {}
        self._state = self._after(self._state, move)
        is_solved = self._state.box == self._target
        return self._shown(), float(is_solved), is_solved, False, {}

    def way(self) -> list[str]:
        """The moves of a shortest solution; empty where there is none."""
        ways: dict[_State, list[str]] = {self._state: []}
        queue = [self._state]
        for state in queue:
            if state.box == self._target:
                return ways[state]
            for name, move in MOVES.items():
                following = self._after(state, move)
                if following not in ways:
                    ways[following] = [*ways[state], name]
                    queue.append(following)
        return []

    def _after(self, state: _State, move: Place) -> _State:
        there = beyond(state.player, move)
        box = beyond(there, move) if there == state.box else state.box
        return _State(there, box) if {there, box} <= self._floor.keys() else state

    def _shown(self) -> str:
        marks = {self._target: "O", self._state.box: "X", self._state.player: "P"}

        def letter(place: Place) -> str:
            return marks.get(place, "_") if place in self._floor else "#"

        rows = range(self._size)
        return "\n".join("".join(letter((row, column)) for column in rows) for row in rows)
