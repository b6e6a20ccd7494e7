"""Lent engines come back when those before them have left, and the trainer has."""

import asyncio
from types import SimpleNamespace

from rollpacker.core.commands import ReclaimEngines
from rollpacker.core.events import EnginesReturned
from rollpacker.core.ids import EngineId
from rollpacker.runtime.rollout.aside import Aside
from rollpacker.runtime.rollout.elastic import Elastic
from rollpacker.runtime.waiting.clock import RunClock

ENGINES = (EngineId("engine-0"), EngineId("engine-1"))


class ScriptedSides:
    """Engines and trainer, which need some turns of the event loop to change places."""

    def __init__(self):
        self.done, self.told = [], []

    async def _take_turns(self, what):
        for _ in range(3):
            await asyncio.sleep(0)
        self.done.append(what)

    async def lend(self):
        await self._take_turns("engines leave")

    async def give_back(self):
        await self._take_turns("the trainer leaves")

    async def take_back(self, engine_ids, _):
        await self._take_turns("engines come")
        return engine_ids[:1]  # the other one is lost meanwhile


async def test_lent_engines_come_back_after_they_have_left_and_the_trainer_has():
    sides, errors = ScriptedSides(), []
    aside = Aside(on_end=lambda: None, on_error=errors.append)
    elastic = Elastic(
        sides,
        SimpleNamespace(are_any_expected=False),
        aside=aside,
        report=sides.told.append,
        on_reclaim=sides.give_back,
        clock=RunClock(),
    )
    await elastic.publish(object())
    aside.begin_in_turn(sides.lend(), "engines to be lent")
    elastic.carry_out(ReclaimEngines(round=4, engines=ENGINES))
    while aside.is_any:  # noqa: ASYNC110  (both have ended)
        await asyncio.sleep(0)
    assert errors == []
    assert sides.done == ["engines leave", "the trainer leaves", "engines come"]
    assert sides.told == [EnginesReturned(round=4, engines=ENGINES[:1])]
