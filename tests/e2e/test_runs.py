"""Real runs: real Ray, engines, trainer and reward, started, broken and resumed as users do."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollpacker.metrics.event_log import attempt_paths
from rollpacker.rewards.walk import score
from rollpacker.runtime.rollout.replay import replay
from tests.e2e.invariants import assert_all_holds, assert_each_prompt_was_trained_once, assert_each_step_once
from tests.e2e.launched import LaunchedRun, batches, num_recorded_steps, rows, small_run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_PROMPTS = 40
DOMAINS = ("math", "walk")


def final_weights(run_dir: Path):
    last = max((run_dir / "checkpoints").glob("step-*"))
    return load_file(last / "trainer" / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def tail_run(inputs, tmp_path_factory):
    """Of two domains in two files: half of the walks are judged as math, by the last number that the answer names."""
    folder = tmp_path_factory.mktemp("tail")
    walks = [json.loads(line) for line in (inputs / "prompts.jsonl").read_text().splitlines()]
    for walk in walks[: NUM_PROMPTS // 2]:
        walk |= {"domain": "math", "ground_truth": walk["ground_truth"].split()[1]}
    for walk in walks[NUM_PROMPTS // 2 :]:
        del walk["domain"]
    for name, lines in (("math", walks[: NUM_PROMPTS // 2]), ("walks", walks[NUM_PROMPTS // 2 :])):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run = LaunchedRun(
        folder / "run",
        *small_run(inputs, "system=rollpacker", "tracker.tensorboard=true", "weight_sync.transport=broadcast"),
        f"data.path=[{folder}/math.jsonl,{{path:{folder}/walks.jsonl,domain:walk}}]",
        *("reward.domains.math=math", "reward.timeout_s=60"),
    )
    assert run.wait() == 0, run.output()
    return run


def test_tail_batching_trains_every_prompt_once_per_epoch_in_short_and_long_rounds(tail_run):
    assert_each_step_once(tail_run.run_dir)
    assert_each_prompt_was_trained_once(tail_run.run_dir, NUM_PROMPTS)
    assert {row["round_kind"] for row in rows(tail_run.run_dir, "steps")} == {"short", "long"}


def test_groups_stream_to_the_trainer_while_the_rollout_runs(tail_run):
    steps = rows(tail_run.run_dir, "steps")
    assert any(step["tokens_streamed"] > 0 for step in steps)
    assert all(step["tokens_streamed"] <= step["tokens_trained"] for step in steps)
    assert all((step["stream_time_s"] > 0) == (step["tokens_streamed"] > 0) for step in steps)
    assert {step["num_engines_lent"] for step in steps} == {0}


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
        assert 0 < step["kv_cache_used_share"] <= 1
        assert step["requests_running_mean"] > 0
        assert step["requests_waiting_mean"] >= 0
        assert step["logprob_mismatch_max"] < 1e-4
        assert not step["modelled"]
        parts = ("rollout_time_s", "exposed_reward_time_s", "train_time_s", "weight_sync_time_s")
        assert sum(step[part] for part in parts) <= step["step_time_s"] + 1e-6


def test_each_domain_is_judged_by_its_own_check_and_has_its_share_of_every_short_round(tail_run):
    responses = [row for row in rows(tail_run.run_dir, "responses") if row["reward_reason"] is not None]
    reasons = {domain: {row["reward_reason"] for row in responses if row["domain"] == domain} for domain in DOMAINS}
    assert reasons["math"] <= {"correct", "wrong_answer", "no_answer", "truncated"}
    assert reasons["walk"] <= {"correct", "malformed", "wrong_sum", "truncated", "missed_target"}
    assert reasons["walk"] & {"malformed", "wrong_sum", "missed_target"}
    domains = rows(tail_run.run_dir, "domains")
    for step in rows(tail_run.run_dir, "steps"):
        own = [row for row in domains if row["step"] == step["step"]]
        assert [row["domain"] for row in own] == sorted(row["domain"] for row in own)
        assert sum(row["num_responses"] for row in own) == step["num_responses"]
        total = sum(row["reward_mean"] * row["num_responses"] for row in own)
        assert total == pytest.approx(step["reward_mean"] * step["num_responses"])
        if step["round_kind"] == "short":
            assert [(row["domain"], row["num_prompts"]) for row in own] == [("math", 4), ("walk", 4)]


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


def test_the_trained_model_earns_in_anybodys_hands_what_it_earns_in_the_run(inputs, tail_run):
    """Text in, text out, by transformers alone."""
    folder = max((tail_run.run_dir / "checkpoints").glob("step-*")) / "trainer" / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    prompts = [json.loads(line) for line in (inputs / "prompts.jsonl").read_text().splitlines()]
    prompts = [prompt for prompt in prompts if prompt["domain"] == "walk"]
    torch.manual_seed(0)
    rewards = []
    for prompt in prompts:
        batch = tokenizer([prompt["prompt"]] * 8, return_tensors="pt")
        written = model.generate(**batch, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=48)
        for response in written[:, batch["input_ids"].shape[1] :]:
            is_cut = tokenizer.eos_token_id not in response
            text = tokenizer.decode(response, skip_special_tokens=True)
            rewards.append(score(text, prompt["ground_truth"], is_cut).reward)
    own = [row["reward"] for row in rows(tail_run.run_dir, "responses") if row["domain"] == "walk" and row["accepted"]]
    assert sum(rewards) / len(rewards) == pytest.approx(sum(own) / len(own), abs=0.15)


def test_a_tracker_that_is_asked_for_gets_every_step(tail_run):
    assert list((tail_run.run_dir / "tensorboard").glob("events.out.tfevents.*"))


def test_nothing_of_a_finished_run_is_left(tail_run):
    tail_run.assert_nothing_is_left()


def test_a_plain_run_killed_again_and_again_ends_in_the_weights_of_an_unbroken_one(inputs, plain_run, tmp_path):
    rng = random.Random(1)
    checkpoints = ("run.checkpoint_every_steps=1", "run.resume=auto")
    overrides = small_run(inputs, "system=verl", "engine.num_engines=1", *checkpoints)
    for num_steps in (1, 3):
        broken = LaunchedRun(tmp_path / "run", *overrides)
        broken.wait_for_steps(num_steps)
        time.sleep(rng.uniform(0, 0.5))  # anywhere in a step, or in its checkpoint
        broken.kill_9()
        broken.assert_nothing_is_left()
    resumed = LaunchedRun(tmp_path / "run", *overrides)
    assert resumed.wait() == 0, resumed.output()
    assert_each_step_once(resumed.run_dir)
    assert batches(resumed.run_dir) == batches(plain_run)
    expected, actual = final_weights(plain_run), final_weights(resumed.run_dir)
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)
    replay(resumed.run_dir)


def test_a_tail_run_killed_in_the_middle_still_trains_every_prompt_once(inputs, tmp_path):
    one_engine = ("system=rollpacker", "engine.num_engines=1")
    overrides = small_run(inputs, *one_engine, "run.checkpoint_every_steps=2", "run.resume=auto")
    broken = LaunchedRun(tmp_path / "run", *overrides)
    broken.wait_for_steps(3)
    broken.kill_9()
    broken.assert_nothing_is_left()
    resumed = LaunchedRun(tmp_path / "run", *overrides)
    assert resumed.wait() == 0, resumed.output()
    assert_all_holds(resumed.run_dir, NUM_PROMPTS)
    assert len(attempt_paths(resumed.run_dir)) == 2


def endless(inputs, *overrides):
    small = small_run(inputs, "system=rollpacker", "engine.num_engines=1")
    return [*small, "run.num_epochs=null", "run.num_steps=100000", *overrides]


def test_ctrl_c_ends_a_run_with_a_checkpoint_and_leaves_nothing(inputs, tmp_path):
    run = LaunchedRun(tmp_path / "run", *endless(inputs))
    run.wait_for_steps(1)
    assert_ends_by(signal.SIGINT, run)
    assert num_recorded_steps(run.run_dir) >= 1


def test_a_run_directory_belongs_to_one_process_until_sigterm_ends_it_with_a_checkpoint(inputs, tmp_path):
    run = LaunchedRun(tmp_path / "run", *endless(inputs))
    run.wait_until((run.run_dir / "run.json").exists)
    second = LaunchedRun(tmp_path / "run", *endless(inputs, "run.resume=auto"))
    assert second.wait() == 2
    assert "Another process is running" in second.output()
    run.wait_for_steps(1)
    assert_ends_by(signal.SIGTERM, run)


def assert_ends_by(number: signal.Signals, run: LaunchedRun) -> None:
    run.process.send_signal(number)
    assert run.wait() == 128 + number
    assert "Traceback" not in run.output()
    saved = max(int(folder.name[5:]) for folder in (run.run_dir / "checkpoints").glob("step-*"))
    assert saved == num_recorded_steps(run.run_dir)
    assert not list((run.run_dir / "checkpoints").glob(".tmp-*"))
    run.assert_nothing_is_left()


def test_ctrl_c_while_ray_starts_ends_it_and_leaves_nothing(inputs, tmp_path):
    run = LaunchedRun(tmp_path / "run", *endless(inputs))
    run.wait_until((run.run_dir / "logs" / "attempt-000" / "ray.log").exists)
    time.sleep(1)  # while the driver connects to it
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    run.assert_nothing_is_left()


def test_a_run_goes_on_when_an_engine_dies_and_ends_with_the_reason_when_its_trainer_does(inputs, tmp_path):
    run = LaunchedRun(tmp_path / "run", *endless(inputs, "engine.num_engines=2"))
    run.wait_for_steps(1)
    os.kill(run.pid_of("engine-0"), signal.SIGKILL)
    run.wait_for_steps(num_recorded_steps(run.run_dir) + 3)
    assert len({row["engine"] for row in rows(run.run_dir, "responses") if row["step"] == 0}) == 2
    os.kill(run.pid_of("trainer"), signal.SIGKILL)
    assert run.wait() == 1
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
        assert run.wait() == 1
        assert "disk is full" in run.output()
        run.assert_nothing_is_left()
        assert_each_step_once(run.run_dir)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
