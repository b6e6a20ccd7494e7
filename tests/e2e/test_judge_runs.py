"""Real runs in which a language model judges part of the responses."""

import json
import os
import signal

import pytest

from rollpacker.runtime.replay import replay
from tests.e2e.launched import LaunchedRun, num_recorded_steps, rows, small_run
from tests.judges import make_judge

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def judged_run(inputs, tmp_path, *overrides):
    """Half of the walks are read by a judge."""
    walks = [json.loads(line) for line in (inputs / "prompts.jsonl").read_text().splitlines()]
    for walk in walks[::2]:
        del walk["ground_truth"]
        walk |= {"domain": "qa", "rubric": "The last number is the second of the task."}
    (tmp_path / "mixed.jsonl").write_text("".join(f"{json.dumps(walk)}\n" for walk in walks))
    make_judge(tmp_path / "judge")
    return LaunchedRun(
        tmp_path / "run",
        *small_run(inputs, "system=rollpacker", "run.num_epochs=null", "run.num_steps=100000"),
        *(f"data.path={tmp_path}/mixed.jsonl", "reward.domains.qa=judge", f"reward.judge.model.path={tmp_path}/judge"),
        *("reward.judge.model.dtype=float32", "reward.judge.yes=[Y,T,R]", "reward.judge.no=[N,F,W]"),
        *("reward.judge.reward=graded", "reward.judge.min_mass=0", "reward.judge.max_prompt_tokens=2000"),
        *("reward.judge.num_replicas=2", "reward.judge.max_open=4", "backend.deadlines.start_s=400"),
        *overrides,
    )


def test_judges_read_their_domain_a_killed_ones_answers_go_to_the_other_and_the_last_ones_death_ends_the_run(
    inputs, tmp_path
):
    run = judged_run(inputs, tmp_path)
    run.wait_for_steps(2)
    os.kill(run.pid_of("judge-0"), signal.SIGKILL)
    run.wait_for_steps(num_recorded_steps(run.run_dir) + 3)
    os.kill(run.pid_of("judge-1"), signal.SIGKILL)
    assert run.wait() == 1, run.output()
    assert "The process of judge-0 died. The answers that it read go to the other judges." in run.output()
    assert "The process of judge-1 died. No judge is left that could go on." in run.output()
    assert "judge-1.log" in run.output()
    assert "Traceback" not in run.output()
    run.assert_nothing_is_left()

    responses = [row for row in rows(run.run_dir, "responses") if row["reward_reason"] is not None]
    judged = [row for row in responses if row["domain"] == "qa"]
    assert {row["reward_reason"] for row in judged} <= {"judged_right", "judged_wrong"}
    assert len({round(row["reward"], 3) for row in judged}) > 10
    assert all(row["reward_time_s"] > 0 and row["scored_at_s"] >= row["finished_at_s"] for row in judged)
    assert {row["reward_reason"] for row in responses if row["domain"] == "walk"} & {"malformed", "wrong_sum"}
    scoring = [row for row in rows(run.run_dir, "intervals") if row["activity"] == "score"]
    actors = {(row["actor"], row["role"]) for row in scoring}
    assert actors == {("judge-0", "judge"), ("judge-1", "judge"), ("reward", "reward")}
    last_step = max(row["step"] for row in scoring)
    assert "judge-0" not in {row["actor"] for row in scoring if row["step"] == last_step}
    replay(run.run_dir)
