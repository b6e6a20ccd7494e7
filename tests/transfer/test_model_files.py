"""Engines that read the model's files themselves: they agree, and those that do not are lost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollpacker.core.errors import EngineFailed
from rollpacker.core.ids import EngineId
from rollpacker.protocols.weights import Weights
from rollpacker.transfer.model_files import FileSync, ModelFiles


@dataclass
class Reader:
    """An engine, as far as weights go."""

    checksum: str
    folder: Path | None = None

    async def load_weights(self, weights: Weights) -> str:
        assert isinstance(weights.payload, ModelFiles)
        self.folder = weights.payload.folder
        if not self.checksum:
            raise EngineFailed("It died.")
        return self.checksum


def readers(**checksums: str) -> dict[EngineId, Reader]:
    return {EngineId(name): Reader(checksum) for name, checksum in checksums.items()}


async def test_every_engine_reads_the_same_folder_and_a_later_one_too() -> None:
    sync = FileSync(Path("model"), straggler_s=60)
    engines = readers(a="1f", b="1f")
    published = await sync.publish(engines)  # type: ignore[arg-type]
    assert (published.policy_version, published.checksum, published.lost) == (0, "1f", {})
    assert [engine.folder for engine in engines.values()] == [Path("model")] * 2
    assert not (await sync.serve(EngineId("c"), Reader("1f"))).lost  # type: ignore[arg-type]


async def test_one_that_read_something_else_or_died_is_lost() -> None:
    sync = FileSync(Path("model"), straggler_s=60)
    published = await sync.publish(readers(a="1f", b="2e", c=""))  # type: ignore[arg-type]
    assert published.checksum == "1f"
    assert published.lost.keys() == {"b", "c"}
    assert "b read weights with checksum 2e" in published.lost[EngineId("b")].problem
