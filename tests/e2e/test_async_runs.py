"""A real asynchronous run: engines are killed, and the driver with kill -9, and it goes on from the tokens it had."""

import os
import signal

import pytest

from rollpacker.runtime.rollout.replay import replay
from tests.e2e.invariants import assert_each_prompt_was_trained_once, assert_each_step_once
from tests.e2e.launched import LaunchedRun, rows, small_run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_PROMPTS = 40
BOUND = 2


@pytest.fixture(scope="module")
def killed_run(inputs, tmp_path_factory):
    """Engine 0 is killed in the first attempt, and the driver after two steps; the second attempt ends the epoch."""
    folder = tmp_path_factory.mktemp("async")
    words = small_run(
        inputs,
        *("system=flash", f"system.max_staleness={BOUND}", "system.lookahead=1.5", "engine.num_engines=2"),
        *("run.checkpoint_every_steps=1", "run.resume=auto", "engine.restart_pause_s=0"),
    )
    first = LaunchedRun(folder / "run", *words)
    first.wait_until(lambda: "  rollout ..." in first.output())
    os.kill(first.pid_of("engine-0"), signal.SIGKILL)
    first.wait_until((first.run_dir / "checkpoints" / "step-000002").exists)
    first.process.kill()
    first.process.wait()
    second = LaunchedRun(folder / "run", *words)
    assert second.wait() == 0, second.output()
    second.assert_nothing_is_left()
    return second


def test_each_prompt_is_trained_once_and_each_step_is_there_once(killed_run):
    assert_each_step_once(killed_run.run_dir)
    assert_each_prompt_was_trained_once(killed_run.run_dir, NUM_PROMPTS)


def test_no_trained_token_is_older_than_the_bound_and_none_is_thrown_away(killed_run):
    responses = rows(killed_run.run_dir, "responses")
    for row in responses:
        assert row["accepted"]
        assert row["round"] <= row["first_policy_version"] <= row["policy_version"] <= row["step"]
        assert row["step"] - row["first_policy_version"] <= BOUND
    steps = rows(killed_run.run_dir, "steps")
    assert all(step["staleness_max"] <= BOUND and step["tokens_wasted"] == 0 for step in steps)
    assert max(step["staleness_max"] for step in steps) > 0


def test_the_trainer_finds_the_probabilities_of_the_newest_tokens_its_own(killed_run):
    mismatches = [step["logprob_mismatch_max"] for step in rows(killed_run.run_dir, "steps")]
    assert any(mismatch is not None for mismatch in mismatches)
    assert all(mismatch is None or mismatch < 1e-4 for mismatch in mismatches)


def test_the_event_logs_give_the_same_commands_again(killed_run):
    replay(killed_run.run_dir)
