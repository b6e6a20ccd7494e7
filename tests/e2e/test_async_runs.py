"""A real asynchronous run: engine, trainer and driver end by kill -9, and it goes on from the tokens it had.

`python -m tests.benchmarks.kills N SEED asynchronous` does it at many random times, and with requests kept on engines.
"""

import os
import signal

import pytest

from rollpacker.runtime.rollout.replay import replay
from tests.e2e.invariants import assert_each_prompt_was_trained_once, assert_each_step_once, assert_within_bound
from tests.e2e.launched import LaunchedRun, rows, small_run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_PROMPTS = 40
BOUND = 2


@pytest.fixture(scope="module")
def killed_run(inputs, tmp_path_factory):
    """Killed are engine 0, then the trainer between two steps, the driver in the second attempt; the third ends."""
    folder = tmp_path_factory.mktemp("async")
    words = small_run(
        inputs,
        *("system=flash", f"system.max_staleness={BOUND}", "system.lookahead=1.5", "engine.num_engines=2"),
        *("run.checkpoint_every_steps=1", "run.resume=auto", "engine.restart_pause_s=0"),
    )
    first = LaunchedRun(folder / "run", *words)
    first.wait_until(lambda: "  rollout ..." in first.output())
    os.kill(first.pid_of("engine-0"), signal.SIGKILL)
    trainer = first.pid_of("trainer")
    first.wait_for_steps(1)  # what is under way is suspended until the checkpoint is written
    os.kill(trainer, signal.SIGKILL)
    assert first.wait() == 1, first.output()
    second = LaunchedRun(folder / "run", *words)
    second.wait_until((second.run_dir / "checkpoints" / "step-000003").exists)
    second.kill_9()
    third = LaunchedRun(folder / "run", *words)
    assert third.wait() == 0, third.output()
    third.assert_nothing_is_left()
    return third


def test_each_prompt_is_trained_once_and_each_step_is_there_once(killed_run):
    assert_each_step_once(killed_run.run_dir)
    assert_each_prompt_was_trained_once(killed_run.run_dir, NUM_PROMPTS)


def test_no_trained_token_is_older_than_the_bound_and_none_is_thrown_away(killed_run):
    assert_within_bound(killed_run.run_dir, BOUND)
    assert max(step["staleness_max"] for step in rows(killed_run.run_dir, "steps")) > 0


def test_the_event_logs_give_the_same_commands_again(killed_run):
    replay(killed_run.run_dir)
