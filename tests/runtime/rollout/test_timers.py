"""Timers fire once, when they are due, and not after they have been moved or stopped."""

import asyncio

from rollpacker.runtime.rollout.timers import Timers


class Clock:
    """Stands still at the beginning of a run."""

    def now(self):
        return 0.0


async def test_a_timer_that_another_one_moves_as_both_are_due_fires_once():
    fired = []

    def on_fired(name):
        fired.append(name)
        if name == "first":
            timers.set("second", 0.05)

    timers = Timers(Clock(), on_fired)
    timers.set("first", 0.0)
    timers.set("second", 0.0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert fired == ["first"]
    await asyncio.sleep(0.1)
    assert fired == ["first", "second"]


async def test_what_a_timer_stops_does_not_fire():
    fired = []

    def on_fired(name):
        fired.append(name)
        timers.stop()

    timers = Timers(Clock(), on_fired)
    timers.set("first", 0.0)
    timers.set("second", 0.0)
    await asyncio.sleep(0.01)
    assert fired == ["first"]
