"""What a pool of real environments answers, without when resets begin."""

from __future__ import annotations

import asyncio

from rollpacker.environments.pool import EnvironmentPool
from rollpacker.protocols.environment import EnvironmentAnswer


async def answers_of(pool: EnvironmentPool) -> list[EnvironmentAnswer]:
    """Wait for the next ones; there may be several at once."""
    async with asyncio.timeout(30.0):
        while True:
            if found := [each for each in await pool.collect() if isinstance(each, EnvironmentAnswer)]:
                return found
