"""What the tables say of modelled runs in which requests outlive steps, or engines come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.metrics.tables import read_frame
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
