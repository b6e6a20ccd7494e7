"""Any environment, slower and less reliable: to see what redundancy and time limits are worth.

Latencies are log-normal, as those of web and game environments are: half of the answers take less than `median_s`, one
of a hundred more than `p99_s`. A share of the episodes hangs at one of the first three steps, and another crashes its
process; an episode that ends before that step goes well.
"""

from __future__ import annotations

import math
import os
import random
import time
from typing import Any

from rollpacker.config.python_names import load_named
from rollpacker.environments.known_parameters import taking_known
from rollpacker.environments.numbered_actions import InTexts, is_played_in_numbers

_Z99 = 2.326
"""Of a normal distribution, where one of a hundred lies above."""


class Delayed:
    """Wraps one environment.

    Args:
        env: The class of the other one, `FILE.py:NAME` or `PACKAGE.MODULE:NAME`.
        arguments: Given to it.
        median_s: Of the latency of resets and steps.
        p99_s: Its 99th percentile; 0 is the median.
        p_hang: Of an episode of three or more steps, the probability that one of the first three never returns.
        p_crash: Of such an episode, the probability that its process dies in one of these steps.
        p_crash_at_reset: That it dies in its reset.

    Raises:
        ValueError: A latency or a probability is none.
    """

    def __init__(
        self,
        env: str,
        arguments: dict[str, Any] | None = None,
        *,
        median_s: float = 0.0,
        p99_s: float = 0.0,
        p_hang: float = 0.0,
        p_crash: float = 0.0,
        p_crash_at_reset: float = 0.0,
    ) -> None:
        if not (0 <= median_s < math.inf and (p99_s == 0 or 0 < median_s <= p99_s < math.inf)):
            raise ValueError(
                f"{median_s=} and {p99_s=}; both are finite and at least 0; p99_s is 0, or at least a median above 0"
            )
        if not (p_hang >= 0 and p_crash >= 0 and p_hang + p_crash <= 1 and 0 <= p_crash_at_reset <= 1):
            raise ValueError(
                f"{p_hang=}, {p_crash=} and {p_crash_at_reset=}; each, and p_hang + p_crash, is from 0 to 1"
            )
        delayed = load_named(env)(**(arguments or {}))
        self._env = InTexts(delayed) if is_played_in_numbers(delayed) else delayed
        self._reset = taking_known(self._env.reset)
        self._median_s = median_s
        self._sigma = math.log(max(p99_s, median_s) / median_s) / _Z99 if median_s else 0.0
        self._p_hang, self._p_crash, self._p_crash_at_reset = p_hang, p_crash, p_crash_at_reset
        self._random = random.Random()  # not the seed's: an episode that begins again must have another fate
        self._ends_at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Wait, and reset the other one."""
        self._wait()
        self._num_steps = 0
        self._fate = self._random.random()
        self._ends_at = self._random.randint(1, 3)
        if self._random.random() < self._p_crash_at_reset:
            os._exit(1)
        result: tuple[str, dict[str, Any]] = self._reset(seed=seed, options=options)
        return result

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Wait, and step the other one, unless the episode's fate comes first."""
        self._num_steps += 1
        if self._num_steps >= self._ends_at and self._fate < self._p_hang + self._p_crash:
            if self._fate < self._p_crash:
                os._exit(1)
            while True:
                time.sleep(3600.0)
        self._wait()
        result: tuple[str, float, bool, bool, dict[str, Any]] = self._env.step(action)
        return result

    def close(self) -> None:
        """Let go of what the other one holds, if it has such a method."""
        if callable(close := getattr(self._env, "close", None)):
            close()

    def _wait(self) -> None:
        if self._median_s:
            time.sleep(self._median_s * math.exp(self._sigma * self._random.gauss(0.0, 1.0)))
