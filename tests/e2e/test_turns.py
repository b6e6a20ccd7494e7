"""Real runs in which an environment answers every turn: it hangs and crashes, and each prompt is trained once."""

import json
from collections import Counter

import pytest

from rollpacker.report.page import render
from rollpacker.report.story import read_story
from rollpacker.runtime.rollout.replay import replay
from rollpacker.timeline.chrome_trace import save_trace
from rollpacker.timeline.run_tables import open_run
from tests.e2e.launched import LaunchedRun, rows, small_run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_STEPS = 3

WALK = "rollpacker.environments.walk_turns:WalkTurns"


@pytest.mark.parametrize(
    ("system", "advantage", "nodes"), [("rlhfuse", "gigpo", "all"), ("flash", "step_reinforce", "first")]
)
def test_environments_that_hang_and_crash_cost_no_prompt_and_no_run(turns_inputs, tmp_path, system, advantage, nodes):
    run = LaunchedRun(
        tmp_path / "run",
        *small_run(turns_inputs, f"system={system}", "engine.num_engines=1", "reward=environment"),
        *(f"run.num_steps={NUM_STEPS}", "rollout.max_response_tokens=96"),
        *("environment=gym", "environment.env=rollpacker.environments.delayed:Delayed", "environment.max_turns=12"),
        *("environment.turn_timeout_s=2", "environment.reset_timeout_s=30", "environment.max_open=4"),
        *(f"environment.nodes={nodes}", "environment.max_restarts=8"),  # an attempt in eight fails, by chance
        f"environment.arguments={{env: '{WALK}', p_hang: 0.02, p_crash: 0.05, p_crash_at_reset: 0.05}}",
        *(f"evaluation.path={turns_inputs}/unseen.jsonl", "evaluation.at_end=true", f"trainer.advantage={advantage}"),
    )
    assert run.wait() == 0, run.output()
    responses = rows(run.run_dir, "responses")
    accepted = [row for row in responses if row["accepted"]]
    assert len(accepted) == NUM_STEPS * 8 * 4
    of_prompts = Counter((row["epoch"], row["prompt"]) for row in accepted)
    assert set(of_prompts.values()) == {4}, "each prompt is trained once"
    assert {row["reward_reason"] for row in accepted} <= {"terminated", "limit"}
    assert 0 < sum(row["reward"] for row in accepted) < len(accepted)
    (evaluation,) = [row for row in rows(run.run_dir, "evaluations") if row["step"] == NUM_STEPS]
    assert evaluation["is_complete"]
    assert 0 <= evaluation["reward_mean"] <= 1
    assert any(row["tokens_streamed"] > 0 for row in rows(run.run_dir, "steps")) == (system == "rlhfuse")
    assert replay(run.run_dir).commands, "the log of its events gives the same commands again"
    run.assert_nothing_is_left()
    _assert_who_waited_for_environments_is_shown(run.run_dir, responses, tmp_path / "trace.json")


def _assert_who_waited_for_environments_is_shown(run_dir, responses, trace):
    assert all(row["num_turns"] >= 1 and row["environment_time_s"] > 0 for row in responses if row["accepted"])
    steps, intervals = rows(run_dir, "steps"), rows(run_dir, "intervals")
    waits = [row for row in intervals if row["role"] == "environment"]
    assert {"reset", "step"} <= {row["activity"] for row in waits}
    assert sum(row["num_environment_restarts"] for row in steps) >= sum(
        row["num_environment_restarts"] for row in responses
    )
    failures = [row for row in waits if row["activity"].startswith("environment_")]
    assert len(failures) >= sum(row["num_environment_restarts"] for row in responses)
    summary = save_trace(open_run(run_dir), trace)
    assert summary.num_slices > len(waits)
    assert sum(event.get("cat") == "environment" for event in json.loads(trace.read_text())["traceEvents"]) == len(
        waits
    )
    page = render([read_story(run_dir)])
    assert "Environments" in page
    assert "A trained response had" in page
