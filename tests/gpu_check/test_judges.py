"""Figures of the judge's rows, with workers and a clock that are not real."""

import asyncio
from types import SimpleNamespace

import pytest

from rollpacker.config.compose import compose
from rollpacker.gpu_check import judges

COLD_S = 30.0
"""By which an engine's first generation takes longer."""


class Clock:
    now_s = 0.0

    def perf_counter(self):
        return self.now_s


class Engine:
    """Generates a response per second."""

    def __init__(self, clock):
        self._clock = clock
        self._is_cold = True

    async def call(self, name, requests=()):
        if name == "loader.respond":
            self._clock.now_s += len(requests) + (COLD_S if self._is_cold else 0.0)
            self._is_cold = False
        return [SimpleNamespace(num_tokens=1) for _ in requests]


class Judge:
    """Reads without being in the engine's way."""

    async def call(self, name, seconds):
        assert (name, seconds) == ("timed.read_for", 20.0)


def test_an_engine_that_a_judge_does_not_slow_down_is_as_fast_beside_it_as_alone(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(judges, "time", clock)
    config = compose(["backend=sim", "hardware=h800", "model=qwen2.5-7b", "workload=math"])
    speed = asyncio.run(judges.speed_beside_judge(Engine(clock), Judge(), config))
    assert speed == pytest.approx(1.0)
