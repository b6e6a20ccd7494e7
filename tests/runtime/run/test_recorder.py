"""What the tables say of modelled runs in which requests outlive steps, or engines come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.core.commands import CloseEnvironment
from rollpacker.core.environment_events import TurnFinished
from rollpacker.core.ids import RequestId
from rollpacker.metrics.event_log import attempt_path, read_event_log
from rollpacker.metrics.tables import read_frame
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
