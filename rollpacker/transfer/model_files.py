"""A policy that nobody trains: every engine reads the model's files itself.

No process holds it for the others, so an engine that joins later reads the same files. The files do not say what the
checksum of the tensors is; every engine must have that of the first one that has read them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.core.errors import EngineFailed
from rollpacker.protocols.weights import Published, Weights
from rollpacker.transfer.confirmations import those_that_do_not_confirm

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rollpacker.core.ids import EngineId
    from rollpacker.protocols.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The payload of weights that an engine's process reads."""

    folder: Path
    """A directory in Hugging Face format, on every node."""


class FileSync:
    """Implements `rollpacker.protocols.weights.WeightSync` for policy version 0, the only one.

    Args:
        folder: The model's.
        straggler_s: How much longer than half of the engines another one may read.
    """

    def __init__(self, folder: Path, straggler_s: float) -> None:
        self._straggler_s = straggler_s
        self._weights = Weights(policy_version=0, checksum="", num_bytes=0, payload=ModelFiles(folder=folder))
        self._checksum = ""
        """Of what the first engine read."""

    async def prepare(self) -> None:
        """There is no trainer that would sleep."""

    async def publish(self, engines: Mapping[EngineId, Engine]) -> Published:
        began = asyncio.get_running_loop().time()
        lost = await those_that_do_not_confirm(
            {name: self._read(name, engine) for name, engine in engines.items()},
            policy_version=0,
            checksum=self._weights.checksum,
            straggler_s=self._straggler_s,
        )
        return Published(
            policy_version=0,
            checksum=self._checksum,
            num_bytes=self._weights.num_bytes,
            time_s=asyncio.get_running_loop().time() - began,
            lost=lost,
        )

    async def serve(self, engine_id: EngineId, engine: Engine) -> Published:
        return await self.publish({engine_id: engine})

    async def _read(self, name: EngineId, engine: Engine) -> str:
        """Hold an engine's checksum against the first one's; returns that of the weights as they were sent."""
        checksum = await engine.load_weights(self._weights)
        self._checksum = self._checksum or checksum
        if checksum != self._checksum:
            raise EngineFailed(f"{name} read weights with checksum {checksum}, and the first engine {self._checksum}.")
        return self._weights.checksum
