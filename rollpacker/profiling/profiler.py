"""Measures the workers of a run: the offline phase of the paper (section 4.2), by the calls that a run makes.

Invariant: everything is measured through the protocols, on the actors that a run of the same configuration would start,
so a profile contains the costs of a run: the engine's own bookkeeping, calls between processes, other actors that
share the cores. Only what happens once is measured once, and repetitions of a point lie far apart in time, so that a
disturbance of a second affects one repetition of many points and not all repetitions of one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rollpacker.metrics.profiles import Point, Profile, ProfileFacts
from rollpacker.profiling.points import Points
from rollpacker.profiling.probes.bench import Bench
from rollpacker.profiling.probes.engine import (
    kv_cache,
    num_that_fit,
    probe_calls,
    probe_decoding,
    probe_rollout_start,
)
from rollpacker.profiling.probes.reward import probe_reward
from rollpacker.profiling.probes.rollout import probe_endings, roll_out_data
from rollpacker.profiling.probes.trainer import (
    of_equal_tokens,
    probe_lengths,
    probe_training,
    probe_weight_sync,
    selections,
    train,
)
from rollpacker.profiling.subject import Subject, now_s
from rollpacker.profiling.workload import WINDOW_PASSES, Workload
from rollpacker.protocols.backend import Backend, BackendContext
from rollpacker.runtime.waiting.watchdog import Watchdog

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.rollout import RolloutGroup

NUM_REPEATS = 5
"""Of each point; enough for a median that one disturbance does not move."""

OnProgress = Callable[[int, int, str], None]
"""Called with the points measured, the points to measure, and the next one."""


async def measure(
    config: RunConfig,
    backend: Backend,
    facts: ProfileFacts,
    *,
    logs: Path,
    on_progress: OnProgress,
    on_note: Callable[[str], None],
) -> Profile:
    """Start the workers of a run, measure them, and end them."""
    watchdog = Watchdog(logs / "stall.txt", config.backend.deadlines.driver_stall_s)
    watchdog.start()
    try:
        context = BackendContext(
            logs=logs,
            stage=lambda name: on_progress(0, 0, name),
            note=on_note,
            within=watchdog.within,
            limit=watchdog.limit,
            add_stack_source=watchdog.add_stack_source,
        )
        async with backend.open(context) as workers:
            bench = Bench(
                subject=Subject(config, workers, watchdog),
                workload=Workload(config, list(workers.prompts.values())),
                points=Points(),
                collect_interval_s=facts.collect_interval_s,
            )
            points = await _Profiler(bench, on_progress).measure_all()
            return Profile(facts=facts, points=tuple(points))
    finally:
        await watchdog.stop()


class _Profiler:
    """Measures started workers, all engines at the same time."""

    def __init__(self, bench: Bench, on_progress: OnProgress) -> None:
        self._bench = bench
        self._on_progress = on_progress
        self._num_done = 0

    async def measure_all(self) -> list[Point]:
        """Measure every point."""
        bench, subject = self._bench, self._bench.subject
        points: list[Point] = []
        await subject.publish()
        await self._probe_first("first_rollout", self._first_passes)
        batch = await roll_out_data(bench)
        await subject.trainers_turn()
        await self._probe_first("first_train", lambda: train(bench, batch, is_trained=True))
        await subject.publish()
        for degree in subject.degrees:
            await subject.switch_to(degree)
            await self._measure_fleet(batch, with_trainer=not points)
            points += bench.points.take(degree)
            points.append(await kv_cache(bench))
        return points

    async def _measure_fleet(self, batch: Sequence[RolloutGroup], *, with_trainer: bool) -> None:
        """Measure the engines in use and, `with_trainer`, the training steps, which do not depend on the degree."""
        bench, workload = self._bench, self._bench.workload
        grid = [(size, context) for size in workload.batch_sizes() for context in workload.contexts()]
        chosen = list(selections(batch)) if with_trainer else []
        equal = of_equal_tokens(batch, workload.longest) if with_trainer else ()
        exchanges = sorted({1, max(1, workload.num_launched() // 8), workload.num_launched()})
        num_points = NUM_REPEATS * (len(grid) + len(exchanges) + 2 * len(chosen) + len(equal) + 3)
        most_per_engine = await num_that_fit(bench, _lengths(batch))
        self._num_done = 0
        for _ in range(NUM_REPEATS):
            self._tell(num_points, "a batch of the data")
            await probe_endings(bench, most_per_engine)
            for size, context in grid:
                self._tell(num_points, f"decoding {size} sequences of {context} tokens")
                await probe_decoding(bench, size, context)
            for num_requests in exchanges:
                self._tell(num_points, f"exchanging {num_requests} requests")
                await probe_calls(bench, num_requests)
                await probe_reward(bench, batch, num_requests)
            for groups in chosen:
                for is_trained in (True, False):
                    self._tell(num_points, f"training {sum(len(group.responses) for group in groups)} responses")
                    await probe_training(bench, groups, is_trained=is_trained)
            for groups in equal:
                self._tell(num_points, f"training {sum(len(group.responses) for group in groups)} of one length")
                await probe_lengths(bench, groups)
            self._tell(num_points, "sending weights")
            await probe_weight_sync(bench)
            self._tell(num_points, "a round's start after a sleep")
            await probe_rollout_start(bench)

    def _tell(self, num_points: int, what: str) -> None:
        self._on_progress(self._num_done, num_points, what)
        self._num_done += 1

    async def _probe_first(self, measurement: str, do: Callable[[], Awaitable[object]]) -> None:
        """Note what the first call of a kind takes beyond the median of later ones."""
        seconds: list[float] = []
        for _ in range(1 + NUM_REPEATS):
            began = now_s()
            await do()
            seconds.append(now_s() - began)
        self._bench.points.note((measurement,), 0, 0, seconds[0] - float(np.median(seconds[1:])))

    async def _first_passes(self) -> None:
        workload = self._bench.workload
        size = min(workload.num_launched(), self._bench.subject.config.engine.max_num_seqs)
        await self._bench.burst_on_all((workload.contexts()[0], [WINDOW_PASSES] * size))


def _lengths(batch: Sequence[RolloutGroup]) -> list[int]:
    """Tokens of each sequence, prompt and response."""
    return [len(group.prompt_token_ids) + response.num_tokens for group in batch for response in group.responses]
