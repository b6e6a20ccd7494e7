"""The batching machines, by the kind of batching that settings ask for."""

from __future__ import annotations

from rollpacker.core.async_batching import AsyncBatching
from rollpacker.core.batching_machine import BatchingMachine
from rollpacker.core.dynamic_sampling import DynamicSampling
from rollpacker.core.history_batching import HistoryBatching
from rollpacker.core.plain_batching import PlainBatching
from rollpacker.core.settings import SchedulerSettings
from rollpacker.core.tail_batching import TailBatching


def batching_for(settings: SchedulerSettings) -> type[BatchingMachine]:
    """Choose the machine that packs prompts into rounds."""
    if settings.asynchronous:
        return AsyncBatching
    if settings.dynamic_sampling:
        return DynamicSampling
    if settings.length_history:
        return HistoryBatching
    return TailBatching if settings.batching == "tail" else PlainBatching
