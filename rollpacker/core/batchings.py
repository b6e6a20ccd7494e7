"""The batching machines, by the kind of batching that settings ask for."""

from __future__ import annotations

from typing import Final

from rollpacker.core.async_batching import AsyncBatching
from rollpacker.core.batching_machine import BatchingMachine
from rollpacker.core.dynamic_sampling import DynamicSampling
from rollpacker.core.history_batching import HistoryBatching
from rollpacker.core.plain_batching import PlainBatching
from rollpacker.core.settings import SchedulerSettings
from rollpacker.core.snapshots import kind_of
from rollpacker.core.tail_batching import TailBatching

_BATCHING: Final[dict[str, type[BatchingMachine]]] = {
    "plain": PlainBatching,
    "tail": TailBatching,
    "tail with length history": HistoryBatching,
    "plain with dynamic sampling": DynamicSampling,
    "tail with dynamic sampling": DynamicSampling,
    "asynchronous": AsyncBatching,
    "asynchronous with dynamic sampling": AsyncBatching,
}


def batching_for(settings: SchedulerSettings) -> type[BatchingMachine]:
    """Choose the machine that packs prompts into rounds."""
    return _BATCHING[kind_of(settings)]
