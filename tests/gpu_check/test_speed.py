"""Figures of the trainers' rows, with ranks and a clock that are not real."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from rollpacker.gpu_check import trainers, workers
from rollpacker.gpu_check.inputs import TINY, Bench
from rollpacker.gpu_check.workers import TrainerRanks

PEAK_FLOPS = 1e12
SECONDS = {"trainer.begin_step": 8.0, "trainer.accumulate": 1.0, "gpu.synchronize": 2.0, "trainer.finish_step": 4.0}
PASSES_S = 3.0
"""From the call of `accumulate` until the GPU has done what it queued."""


class Clock:
    now_s = 0.0

    def perf_counter(self):
        return self.now_s


class Rank:
    """Takes so long for each call."""

    def __init__(self, clock):
        self._clock = clock
        self._policy_version = 0

    async def call(self, name, *_):
        self._clock.now_s += SECONDS[name]
        if name == "trainer.finish_step":
            self._policy_version += 1
            return SimpleNamespace(policy_version=self._policy_version)
        return None

    async def aclose(self):
        pass


@pytest.fixture
def figures(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(workers, "time", clock)
    monkeypatch.setattr(trainers, "matrix_flops", lambda: PEAK_FLOPS)
    ranks = object.__new__(TrainerRanks)
    ranks.ranks, ranks.policy_version = [Rank(clock)], 0
    monkeypatch.setattr(trainers, "trainer_on", lambda *_: contextlib.aclosing(ranks))
    bench = Bench(folder=tmp_path, model=None, num_gpus=1, has_gpus=False)
    return asyncio.run(trainers.speed(bench, trainer="torch"))


def test_the_speed_is_of_the_passes_until_the_gpu_has_done_them_without_the_update(figures):
    assert figures["tokens_per_s"] == pytest.approx(4 * 32 / PASSES_S)


def test_the_output_layer_works_for_tokens_of_responses_alone(figures):
    hidden, num_layers = TINY["hidden_size"], TINY["num_hidden_layers"]
    attention, mlp = 2 * hidden * (hidden + hidden // 2), 3 * hidden * TINY["intermediate_size"]
    in_layers = 2 * num_layers * (attention + mlp) * (4 * 32)
    in_output_layer = 2 * TINY["vocab_size"] * hidden * (4 * 16)
    in_attention = 2 * num_layers * hidden * 32**2 * 4
    flops = 3 * (in_layers + in_output_layer + in_attention)
    assert figures["mfu"] == pytest.approx(flops / PASSES_S / PEAK_FLOPS)
