"""Real runs in which a language model judges part of the responses."""

import json
import os
import signal

import pytest

from rollpacker.runtime.rollout.replay import replay
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


def joined(run, judge):
    return f"note: {judge} has taken the place of" in run.output()


def test_a_killed_judge_is_replaced_and_the_run_ends_when_no_judge_is_left_or_to_come(inputs, tmp_path):
    words = ("engine.num_engines=1", "reward.judge.max_restarts=1", "reward.judge.restart_pause_s=0")
    run = judged_run(inputs, tmp_path, *words)
    run.wait_for_steps(1)
    os.kill(run.pid_of("judge-0"), signal.SIGKILL)
    run.wait_until(lambda: joined(run, "judge-0-r1"))
    run.wait_for_steps(num_recorded_steps(run.run_dir) + 3)
    for judge in ("judge-0-r1", "judge-1"):
        os.kill(run.pid_of(judge), signal.SIGKILL)
    run.wait_until(lambda: joined(run, "judge-1-r1"))
    os.kill(run.pid_of("judge-1-r1"), signal.SIGKILL)
    assert run.wait() == 1, run.output()
    lost = "The answers that it had go to other judges, or wait."
    assert f"The process of judge-0 died. {lost} judge-0-r1 is to take its place: restart 1 of 1." in run.output()
    assert f"The process of judge-0-r1 died. {lost} It is not replaced: reward.judge.max_restarts=1." in run.output()
    assert "The process of judge-1-r1 died. No judge is left that could go on." in run.output()
    assert "judge-1-r1.log" in run.output()
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
    assert {("judge-0", "judge"), ("judge-0-r1", "judge"), ("judge-1", "judge"), ("reward", "reward")} <= actors
    replay(run.run_dir)


def test_a_judge_on_the_gpus_of_engine_and_trainer_sleeps_in_the_trainers_turns(inputs, tmp_path, monkeypatch):
    """The GPU is not real: a number that Ray hands out."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    words = ("placement=colocated", "placement.judge=0", "engine.num_engines=1", "reward.judge.num_replicas=1")
    words = (*words, "placement.automatic=false")  # the GPU is not real
    run = judged_run(inputs, tmp_path, *words, "run.num_steps=3", "run.checkpoint_every_steps=2")
    assert run.wait() == 0, run.output()
    intervals = rows(run.run_dir, "intervals")
    asleep = [row for row in intervals if (row["actor"], row["activity"]) == ("judge-0", "asleep")]
    for step in range(3):
        [training] = [row for row in intervals if (row["step"], row["activity"]) == (step, "train")]
        assert any(
            row["started_at_s"] <= training["started_at_s"] and training["ended_at_s"] <= row["ended_at_s"]
            for row in asleep
        )
        assert any((row["step"], row["actor"], row["activity"]) == (step, "judge-0", "score") for row in intervals)
    replay(run.run_dir)
