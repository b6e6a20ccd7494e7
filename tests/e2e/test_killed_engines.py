"""Engines that are killed in the middle of a real rollout are replaced, and nothing of the data is lost or repeated."""

import os
import re
import signal

import pytest

from rollpacker.runtime.rollout.replay import replay
from tests.e2e.launched import LaunchedRun, rows, small_run, trained_prompts

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_KILLS = 3
"""Both engines, and one that has taken a place."""
NUM_PROMPTS = 40


def engines_that_joined(run: LaunchedRun) -> list[str]:
    """The first two once a rollout has begun, and then each one that took another's place."""
    output = run.output()
    first = ["engine-0", "engine-1"] if "  rollout ..." in output else []
    return [*first, *re.findall(r"note: (engine-\S+) has taken the place of", output)]


def test_kills_of_engines_during_rollouts_lose_nothing_and_train_nothing_twice(inputs, tmp_path):
    """Each engine is killed as soon as it has joined, so that rounds stand without any; the last while no reward is."""
    run = LaunchedRun(
        tmp_path / "run",
        *small_run(inputs, "system=rollpacker", f"engine.max_restarts={NUM_KILLS}", "engine.restart_pause_s=0"),
    )

    def kill(number):
        run.wait_until(lambda: len(engines_that_joined(run)) > number)
        engine = engines_that_joined(run)[number]
        os.kill(run.pid_of(engine), signal.SIGKILL)
        return engine

    for number in range(NUM_KILLS - 1):
        kill(number)
    reward = run.pid_of("reward")
    os.kill(reward, signal.SIGSTOP)
    try:
        place, _, restart = kill(NUM_KILLS - 1).partition("-r")
        run.wait_until(lambda: f"{place}-r{int(restart) + 1}" in engines_that_joined(run))
    finally:
        os.kill(reward, signal.SIGCONT)
    assert run.wait() == 0, run.output()
    run.assert_nothing_is_left()

    steps, responses = rows(run.run_dir, "steps"), rows(run.run_dir, "responses")
    assert [step["step"] for step in steps] == list(range(len(steps)))
    trained = trained_prompts(run.run_dir)
    assert len(trained) == len(set(trained)) == NUM_PROMPTS
    assert all(row["policy_version"] == row["step"] for row in responses if row["accepted"])
    assert {row["engine"] for row in responses} <= set(engines_that_joined(run))
    assert sum(step["num_engines_lost"] for step in steps) == NUM_KILLS
    assert sum(step["num_engines_replaced"] for step in steps) == len(engines_that_joined(run)) - 2
    replay(run.run_dir)
