"""What the tables say of steps: speed, requests that outlive steps, engines that come and go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.core.commands import CloseEnvironment
from rollpacker.core.environment_events import TurnFinished
from rollpacker.core.ids import ENVIRONMENT, RequestId, VersionSpan
from rollpacker.metrics.event_log import attempt_path, read_event_log
from rollpacker.metrics.tables import read_frame
from rollpacker.runtime.run.recorder import StepRecorder, StepResult
from tests.runtime.driving import driving
from tests.runtime.rollout.test_batch import Anything
from tests.runtime.scripted import ScriptedEngine
from tests.sim.test_environment import RUN
from tests.sim.test_systems import SMALL
from tests.timeline.test_worker_lives import WORDS


@pytest.mark.parametrize("words", [(), ("system.dynamic_sampling=true",)])
def test_an_asynchronous_step_launched_the_prompts_that_it_trains_or_drops(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    pipeline.run(compose([*SMALL, f"run.dir={tmp_path}", "system=roll-flash", *words]))
    steps = read_frame(tmp_path, "steps")
    assert set(steps["round_kind"]) == {"async"}
    assert bool(steps["num_prompts_dropped"].any()) == bool(words)
    assert list(steps["num_prompts_launched"]) == list(steps["num_prompts"] + steps["num_prompts_dropped"])
    assert list(steps["num_responses_launched"]) == list(4 * steps["num_prompts_launched"])


def test_all_that_an_engine_of_a_worker_does_has_the_role_worker(tmp_path: Path) -> None:
    pipeline.run(compose([*SMALL, f"run.dir={tmp_path}", *WORDS]))
    intervals = read_frame(tmp_path, "intervals")
    is_of_worker = intervals["actor"].str.contains(".", regex=False)
    activities = set(intervals.loc[is_of_worker, "activity"])
    assert {"starting", "catching_up", "generate", "lost"} <= activities
    assert set(intervals.loc[is_of_worker, "role"]) == {"worker"}
    assert set(intervals.loc[intervals["actor"].str.startswith("engine-"), "role"]) == {"engine"}


def test_tokens_of_trajectories_that_began_again_were_generated_and_are_wasted(tmp_path: Path) -> None:
    hanging = ("workload.environment.fail_stop_share=0.2", "workload.environment.max_restarts=20")
    pipeline.run(compose([*RUN, *hanging, "system=verl", f"run.dir={tmp_path}"]))
    had: dict[RequestId, int] = {}
    num_discarded = 0
    for record in read_event_log(attempt_path(tmp_path, 0)).records:
        if isinstance(record.event, TurnFinished):
            had[record.event.request] = record.event.num_tokens
        for command in record.commands:
            if isinstance(command, CloseEnvironment):
                num_tokens = had.pop(command.request, 0)
                num_discarded += num_tokens if command.begins_again else 0
    steps, responses = read_frame(tmp_path, "steps"), read_frame(tmp_path, "responses")
    assert num_discarded > 0
    assert steps["tokens_wasted"].sum() == responses.loc[~responses["accepted"], "length_tokens"].sum() + num_discarded
    assert list(steps["tokens_generated"]) == list(steps["tokens_trained"] + steps["tokens_wasted"])


ROLLOUT_S, HAND_OVER_S, TRAIN_S = 2.0, 1.0, 7.0


class Clock:
    now_s = 0.0

    def now(self) -> float:
        return self.now_s


async def tokens_per_second(
    tmp_path: Path, *, max_staleness: int = 0, num_generated: int = 0, takes_turns: bool = False
) -> float:
    """Of a step of 8 responses of 3 tokens, 2 of which an environment wrote; engines generated so many in the step."""
    async with driving(tmp_path, [ScriptedEngine("engine-0", lambda _: 1)]) as driver:
        batch = await driver.next_batch(0)
        await driver.quiesce()
        costs = await driver.measure_round()
        turnover = driver.turnover()
    assert batch is not None
    assert len(batch.requests) == 8
    for record in batch.requests.values():
        assert record.response is not None
        spans = (VersionSpan(0, 1), VersionSpan(ENVIRONMENT, 2))
        record.response = replace(record.response, spans=spans)
    batch.max_staleness = max_staleness
    batch.began_at_s, batch.generated_at_s, batch.ended_at_s = 0.0, ROLLOUT_S, ROLLOUT_S
    before = {engine: replace(stats, num_generated_tokens=100) for engine, stats in costs.after.items()}
    after = {engine: replace(stats, num_generated_tokens=100 + num_generated) for engine, stats in before.items()}
    clock: Any = Clock()
    anything: Any = Anything()
    recorder = StepRecorder(step=0, system="", clock=clock, is_modelled=False)
    stages = {"rollout": ROLLOUT_S} | ({"hand_over": HAND_OVER_S} if takes_turns else {}) | {"train": TRAIN_S}
    for stage, time_s in stages.items():
        with recorder.stage(stage):
            clock.now_s += time_s
    result = StepResult(
        update=anything,
        costs=replace(costs, before=before, after=after),
        published=anything,
        num_tokens_streamed=0,
        turnover=turnover,
    )
    speed: float = recorder.step_row(batch, result, [])["tokens_per_second"]
    return speed


async def test_tokens_that_an_environment_wrote_are_no_speed_of_engines(tmp_path: Path) -> None:
    assert await tokens_per_second(tmp_path) == 8 / ROLLOUT_S


async def test_an_asynchronous_step_is_as_fast_as_engines_generated_in_it_whatever_it_trains(tmp_path: Path) -> None:
    speed = await tokens_per_second(tmp_path, max_staleness=1, num_generated=900)
    assert speed == 900 / (ROLLOUT_S + TRAIN_S)


async def test_engines_that_sleep_while_the_trainer_learns_are_as_fast_as_when_awake(tmp_path: Path) -> None:
    speed = await tokens_per_second(tmp_path, max_staleness=1, num_generated=900, takes_turns=True)
    assert speed == 900 / ROLLOUT_S
