"""Real runs: real Ray, engines, trainer and reward, started, broken and resumed as users do."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rollpacker.metrics.event_log import attempt_paths
from rollpacker.runtime.replay import replay
from tests.e2e.launched import LaunchedRun, batches, num_recorded_steps, rows, small_run, trained_prompts

pytestmark = pytest.mark.e2e

NUM_PROMPTS = 40


def final_weights(run_dir: Path):
    last = max((run_dir / "checkpoints").glob("step-*"))
    return load_file(last / "trainer" / "model" / "model.safetensors")


def assert_each_step_once(run_dir: Path):
    steps = [row["step"] for row in rows(run_dir, "steps")]
    assert sorted(steps) == list(range(len(steps)))
    assert {row["step"] for row in rows(run_dir, "responses")} == set(steps)


def assert_each_prompt_was_trained_once(run_dir: Path):
    trained = trained_prompts(run_dir)
    assert len(trained) == NUM_PROMPTS
    assert len(set(trained)) == NUM_PROMPTS


@pytest.fixture(scope="module")
def tail_run(inputs, tmp_path_factory):
    run = LaunchedRun(
        tmp_path_factory.mktemp("tail") / "run", *small_run(inputs, "system=rollpacker", "tracker.tensorboard=true")
    )
    assert run.wait() == 0, run.output()
    return run


@pytest.fixture(scope="module")
def plain_run(inputs, tmp_path_factory):
    run = LaunchedRun(tmp_path_factory.mktemp("plain") / "run", *small_run(inputs, "system=verl"))
    assert run.wait() == 0, run.output()
    return run


def test_tail_batching_trains_every_prompt_once_per_epoch_in_short_and_long_rounds(tail_run):
    assert_each_step_once(tail_run.run_dir)
    assert_each_prompt_was_trained_once(tail_run.run_dir)
    assert {row["round_kind"] for row in rows(tail_run.run_dir, "steps")} == {"short", "long"}


def test_the_rows_of_a_step_add_up(tail_run):
    responses = rows(tail_run.run_dir, "responses")
    for step in rows(tail_run.run_dir, "steps"):
        own = [row for row in responses if row["step"] == step["step"]]
        accepted = [row for row in own if row["accepted"]]
        assert step["num_responses_launched"] == len(own)
        assert step["num_responses"] == len(accepted) == step["num_prompts"] * 4
        assert step["tokens_generated"] == sum(row["length_tokens"] for row in own)
        assert step["tokens_trained"] == sum(row["length_tokens"] for row in accepted)
        assert step["tokens_wasted"] == step["tokens_generated"] - step["tokens_trained"]
        assert step["num_aborted"] == sum(row["finish_reason"] == "aborted" for row in own)
        assert step["policy_version"] == step["step"]
        assert {row["policy_version"] for row in own} == {step["step"]}
        assert 0 <= step["bubble_ratio"] < 1
        assert step["logprob_mismatch_max"] < 1e-4
        assert not step["modelled"]
        parts = ("rollout_time_s", "reward_time_s", "train_time_s", "weight_sync_time_s")
        assert sum(step[part] for part in parts) <= step["step_time_s"] + 1e-6


def test_the_policy_learns_from_rewards_that_differ_within_groups(tail_run):
    assert sum(step["grad_norm"] > 0 for step in rows(tail_run.run_dir, "steps")) >= 2


def test_only_the_first_of_a_race_are_trained(tail_run):
    groups = {}
    for row in rows(tail_run.run_dir, "responses"):
        if row["is_raced"] and row["accepted"]:
            groups.setdefault((row["step"], row["prompt"]), []).append(row["race_rank"])
    assert groups
    assert all(sorted(ranks) == [1, 2, 3, 4] for ranks in groups.values())


def test_the_event_log_of_a_run_replays_to_the_same_commands(tail_run):
    report = replay(tail_run.run_dir)
    assert report.events > 100


def test_the_checkpoint_is_an_ordinary_hugging_face_model(tail_run):
    last = max((tail_run.run_dir / "checkpoints").glob("step-*"))
    model = AutoModelForCausalLM.from_pretrained(last / "trainer" / "model")
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())
    assert (last / "trainer" / "model" / "tokenizer.json").exists()


def test_a_tracker_that_is_asked_for_gets_every_step(tail_run):
    assert list((tail_run.run_dir / "tensorboard").glob("events.out.tfevents.*"))


def test_nothing_of_a_finished_run_is_left(tail_run):
    tail_run.assert_nothing_is_left()


def test_a_plain_run_killed_again_and_again_ends_in_the_weights_of_an_unbroken_one(inputs, plain_run, tmp_path):
    rng = random.Random(1)
    overrides = small_run(inputs, "system=verl", "run.checkpoint_every_steps=1", "run.resume=auto")
    for num_steps in (1, 3):
        broken = LaunchedRun(tmp_path / "run", *overrides)
        broken.wait_for_steps(num_steps)
        time.sleep(rng.uniform(0, 0.5))  # anywhere in a step, or in its checkpoint
        broken.kill_9()
        broken.assert_nothing_is_left()
    resumed = LaunchedRun(tmp_path / "run", *overrides)
    assert resumed.wait() == 0, resumed.output()
    assert_each_step_once(resumed.run_dir)
    assert batches(resumed.run_dir) == batches(plain_run.run_dir)
    expected, actual = final_weights(plain_run.run_dir), final_weights(resumed.run_dir)
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)
    replay(resumed.run_dir)


def test_a_tail_run_killed_in_the_middle_still_trains_every_prompt_once(inputs, tmp_path):
    overrides = small_run(inputs, "system=rollpacker", "run.checkpoint_every_steps=2", "run.resume=auto")
    broken = LaunchedRun(tmp_path / "run", *overrides)
    broken.wait_for_steps(3)
    broken.kill_9()
    broken.assert_nothing_is_left()
    resumed = LaunchedRun(tmp_path / "run", *overrides)
    assert resumed.wait() == 0, resumed.output()
    assert_each_step_once(resumed.run_dir)
    assert_each_prompt_was_trained_once(resumed.run_dir)
    assert len(attempt_paths(resumed.run_dir)) == 2
    replay(resumed.run_dir)


def endless(inputs, *overrides):
    return small_run(inputs, "system=rollpacker", "run.num_epochs=null", "run.num_steps=100000", *overrides)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_at_once_and_leaves_nothing(inputs, tmp_path, number):
    run = LaunchedRun(tmp_path / "run", *endless(inputs))
    run.wait_for_steps(1)
    run.process.send_signal(number)
    assert run.wait(30) == 130
    assert "Traceback" not in run.output()
    run.assert_nothing_is_left()
    assert num_recorded_steps(run.run_dir) >= 1


def test_ctrl_c_while_ray_starts_ends_at_once_and_leaves_nothing(inputs, tmp_path):
    run = LaunchedRun(tmp_path / "run", *endless(inputs))
    run.wait_until((run.run_dir / "logs" / "attempt-000" / "ray.log").exists)
    time.sleep(1)  # while the driver connects to it
    run.process.send_signal(signal.SIGINT)
    assert run.wait(15) == 130
    run.assert_nothing_is_left()


def test_a_run_goes_on_without_an_engine_that_died_and_ends_with_the_reason_when_its_trainer_dies(inputs, tmp_path):
    run = LaunchedRun(tmp_path / "run", *endless(inputs))
    run.wait_for_steps(1)
    os.kill(run.pid_of_actor("EngineActor"), signal.SIGKILL)
    run.wait_for_steps(num_recorded_steps(run.run_dir) + 3)
    assert len({row["engine"] for row in rows(run.run_dir, "responses") if row["step"] == 0}) == 2
    os.kill(run.pid_of_actor("TrainerActor"), signal.SIGKILL)
    assert run.wait(60) == 1
    assert "The process of trainer died" in run.output()
    assert "Traceback" not in run.output()
    run.assert_nothing_is_left()


def fill(disk: Path):
    with (disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(1 << 12))


def test_a_full_disk_ends_the_run_with_the_reason_and_what_was_written_stays_readable(inputs, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)], check=False)
    if mount.returncode != 0:
        pytest.skip("only root may mount the small disk that this test fills")
    try:
        run = LaunchedRun(disk / "run", *endless(inputs, "run.checkpoint_every_steps=0"), logs=tmp_path)
        run.wait_for_steps(1)
        with pytest.raises(OSError, match="No space left"):
            fill(disk)
        assert run.wait(60) == 1
        assert "disk is full" in run.output()
        run.assert_nothing_is_left()
        assert_each_step_once(run.run_dir)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_run_directory_belongs_to_one_process(inputs, tmp_path):
    run = LaunchedRun(tmp_path / "run", *endless(inputs))
    run.wait_until((run.run_dir / "run.json").exists)
    second = LaunchedRun(tmp_path / "run", *endless(inputs, "run.resume=auto"))
    assert second.wait(60) == 2
    assert "Another process is running" in second.output()
    run.process.send_signal(signal.SIGINT)
    assert run.wait(30) == 130
    run.assert_nothing_is_left()
