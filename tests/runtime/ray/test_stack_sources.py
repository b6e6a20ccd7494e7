"""The report of an expired wait asks the processes that hold the run's slots now, not those that were lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollpacker.config.sections.backend import DeadlineSection
from rollpacker.core.ids import EngineId, WorkerId
from rollpacker.runtime.job.elastic_folder import ElasticFolder, WorkerReport
from rollpacker.runtime.ray import elastic_members, engine_slots, judge_slots
from rollpacker.runtime.ray.elastic_members import RayMembers
from rollpacker.runtime.ray.engine_slots import EngineSlots
from rollpacker.runtime.ray.judge_slots import JudgeSlots
from rollpacker.runtime.ray.remote import Slot

PLACE = Slot(group=None, index=0, resources=None, gpus=(), log=Path("slot.log"))


class Process:
    """Starts at once, and has its name for its stacks."""

    def __init__(self, name: EngineId, _place: object) -> None:
        self._name = name

    async def start(self, *_: object) -> None:
        pass

    async def kill(self) -> None:
        pass

    async def stacks(self) -> str:
        return self._name


class Context(SimpleNamespace):
    """Keeps the sources of stacks, as the watchdog does."""

    def __init__(self) -> None:
        super().__init__(logs=Path(), limit=asyncio.timeout)
        self.sources: dict[str, Callable[[], Awaitable[str]]] = {}

    def add_stack_source(self, name: str, show_stacks: Callable[[], Awaitable[str]]) -> None:
        self.sources[name] = show_stacks

    async def stacks(self) -> dict[str, str]:
        return {name: await show() for name, show in self.sources.items()}


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setattr(engine_slots, "make_engine_process", Process)
    monkeypatch.setattr(judge_slots, "make_judge_process", Process)
    monkeypatch.setattr(elastic_members, "make_engine_process", Process)
    for module in (engine_slots, elastic_members):
        monkeypatch.setattr(module, "config_of", lambda config, _: config)
    return Context()


def config(**other: object) -> SimpleNamespace:
    engine = SimpleNamespace(switch="sleep", tensor_parallel=1)
    return SimpleNamespace(engine=engine, backend=SimpleNamespace(deadlines=DeadlineSection()), **other)


async def test_an_engine_that_was_replaced_is_not_asked(context):
    slot = EngineId("engine-0")
    slots = EngineSlots(config(), {slot: PLACE}, {slot: 1}, context)
    await slots.open()
    await slots.replace(slot, EngineId("engine-0-r1"))
    assert await context.stacks() == {"engine-0": "engine-0-r1"}


async def test_a_judge_that_was_replaced_is_not_asked(context):
    slot = EngineId("judge-0")
    slots = JudgeSlots(config(), {slot: PLACE}, context)
    await slots.replace(slot, EngineId("judge-0-r1"))
    assert await context.stacks() == {"judge-0": "judge-0-r1"}


async def test_an_engine_of_a_workers_earlier_life_is_not_asked(context, tmp_path, monkeypatch):
    monkeypatch.setattr(elastic_members, "have_engines_gpus", lambda _: False)
    elastic = SimpleNamespace(tensor_parallel=1, start_s=60.0, silence_s=60.0)
    members = RayMembers(config(elastic=elastic), ElasticFolder(tmp_path), "7.0.0", context)
    for life in (0, 1):
        worker = WorkerId(f"e9_0-r{life}")
        report = WorkerReport(worker=worker, attempt="7.0.0", node="n1", stage="in the run", num_engines=2)
        members._take([report], frozenset({f"elastic-{worker}"}))
        for number in (0, 1):
            await members.start_engine(worker, EngineId(f"{worker}.{number}"))
    assert await context.stacks() == {"e9_0.0": "e9_0-r1.0", "e9_0.1": "e9_0-r1.1"}
