"""What the driver does to measure the progress of a round, and to change its engines."""

from __future__ import annotations

from collections.abc import Callable

from rollpacker.core.commands import EscalateTail, MeasureProgress, SwitchEngines
from rollpacker.core.events import EnginesSwitched, Event, ProgressMeasured
from rollpacker.runtime.rollout.aside import Aside
from rollpacker.runtime.rollout.costs import RoundMeter
from rollpacker.runtime.rollout.engines import Engines

SwitchCommand = MeasureProgress | EscalateTail | SwitchEngines


class Switching:
    """Measures progress, and changes the engines in the midst of a round.

    Args:
        engines: To change.
        meter: Counts what they do in the round.
        aside: Carries out what takes time.
        report: Tells the scheduler.
    """

    def __init__(self, engines: Engines, meter: RoundMeter, aside: Aside, report: Callable[[Event], None]) -> None:
        self._engines = engines
        self._meter = meter
        self._aside = aside
        self._report = report

    def carry_out(self, command: SwitchCommand) -> None:
        """Carry out a command."""
        match command:
            case MeasureProgress():
                self._aside.begin(self._measure(command), "progress of the engines")
            case EscalateTail():
                self._engines.next_tensor_parallel = command.tensor_parallel
            case SwitchEngines():
                self._aside.begin_in_turn(self._switch(command), "larger engines to take over")

    async def _measure(self, command: MeasureProgress) -> None:
        self._report(ProgressMeasured(round=command.round, engines=tuple(await self._engines.progress())))

    async def _switch(self, command: SwitchEngines) -> None:
        await self._meter.leave()
        self._meter.take_over(await self._engines.switch())
        self._report(EnginesSwitched(round=command.round))
