"""Real runs: real Ray, engines, trainer and reward, started, broken and resumed as users do."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollpacker.metrics.event_log import attempt_paths
from rollpacker.rewards.walk import score
from rollpacker.runtime.rollout.replay import replay
from tests.e2e.invariants import assert_all_holds, assert_each_step_once, assert_ended_as, assert_no_prompt_is_missing
from tests.e2e.launched import LaunchedRun, num_recorded_steps, rows, small_run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_PROMPTS = 40
DOMAINS = ("math", "walk")
NUM_LAST_STEPS = 6
"""Of the resumed run: more than the short rounds that come before a long one."""


class Ended(NamedTuple):
    """How a signal ended a run."""

    run: LaunchedRun
    exit_code: int
    num_recorded: int
    """Steps in the tables."""
    checkpoint: int
    """Steps that the newest one holds."""


def ended_by(number: signal.Signals, run: LaunchedRun) -> Ended:
    run.process.send_signal(number)
    exit_code = run.wait()
    run.assert_nothing_is_left()
    checkpoints = run.run_dir / "checkpoints"
    assert not list(checkpoints.glob(".tmp-*"))
    newest = max((int(folder.name[5:]) for folder in checkpoints.glob("step-*")), default=0)
    return Ended(run, exit_code, num_recorded_steps(run.run_dir), newest)


class TailRun(NamedTuple):
    """An endless run under tail batching that was ended twice, each time resumed, and then trained a few steps more."""

    refused: LaunchedRun
    """Started in the directory while the first one trained."""
    refused_with: int
    ended: tuple[Ended, Ended]
    """By SIGINT and by SIGTERM."""
    resumed: LaunchedRun
    num_steps: int
    """Of all together."""

    @property
    def run_dir(self) -> Path:
        return self.resumed.run_dir


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
    words = (
        *endless(inputs, "tracker.tensorboard=true", "weight_sync.transport=broadcast", "run.resume=auto"),
        f"data.path=[{folder}/math.jsonl,{{path:{folder}/walks.jsonl,domain:walk}}]",
        *("reward.domains.math=math", "reward.timeout_s=60"),
    )
    run = LaunchedRun(folder / "run", *words)
    run.wait_until((run.run_dir / "run.json").exists)
    refused = LaunchedRun(folder / "run", *words)
    refused_with = refused.wait()
    run.wait_for_steps(1)
    first = ended_by(signal.SIGINT, run)
    run = LaunchedRun(folder / "run", *words)
    run.wait_for_steps(first.num_recorded + 1)
    second = ended_by(signal.SIGTERM, run)
    num_steps = second.num_recorded + NUM_LAST_STEPS
    resumed = LaunchedRun(folder / "run", *words, "engine.num_engines=2", f"run.num_steps={num_steps}")
    assert resumed.wait() == 0, resumed.output()
    return TailRun(refused, refused_with, (first, second), resumed, num_steps)


def endless(inputs, *overrides):
    small = small_run(inputs, "system=rollpacker", "engine.num_engines=1")
    return [*small, "run.num_epochs=null", "run.num_steps=100000", *overrides]


def test_a_run_directory_belongs_to_one_process(tail_run):
    assert tail_run.refused_with == 2
    assert "Another process is running" in tail_run.refused.output()


def test_ctrl_c_and_sigterm_end_a_run_with_a_checkpoint_of_every_step(tail_run):
    assert [ended.exit_code for ended in tail_run.ended] == [128 + signal.SIGINT, 128 + signal.SIGTERM]
    for ended in tail_run.ended:
        assert "Traceback" not in ended.run.output()
        assert ended.checkpoint == ended.num_recorded
    assert 1 <= tail_run.ended[0].num_recorded < tail_run.ended[1].num_recorded < tail_run.num_steps


def test_tail_batching_trains_every_prompt_once_per_epoch_in_short_and_long_rounds(inputs, tail_run):
    assert_all_holds(tail_run.run_dir, 8 * tail_run.num_steps)
    assert len(attempt_paths(tail_run.run_dir)) == 3
    prompts = [json.loads(line)["id"] for line in (inputs / "prompts.jsonl").read_text().splitlines()]
    assert assert_no_prompt_is_missing(tail_run.run_dir, set(prompts)) == []
    assert {row["round_kind"] for row in rows(tail_run.run_dir, "steps")} == {"short", "long"}


def test_a_resumed_run_uses_the_engines_that_it_has_now(tail_run):
    last = {row["engine"] for row in rows(tail_run.run_dir, "responses") if row["step"] == tail_run.num_steps - 1}
    assert last == {"engine-0", "engine-1"}


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
            groups.setdefault((row["step"], row["epoch"], row["prompt"]), []).append(row["race_rank"])
    assert groups
    assert all(sorted(ranks) == [1, 2, 3, 4] for ranks in groups.values())


def test_the_event_log_of_a_run_replays_to_the_same_commands(tail_run):
    report = replay(tail_run.run_dir)
    assert report.events > 100
    assert report.attempts == 3


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
    walks = 8 * [prompt for prompt in prompts if prompt["domain"] == "walk"]
    batch = tokenizer([walk["prompt"] for walk in walks], return_tensors="pt")
    torch.manual_seed(0)
    written = model.generate(**batch, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=48)
    rewards = []
    for walk, response in zip(walks, written[:, batch["input_ids"].shape[1] :], strict=True):
        is_cut = tokenizer.eos_token_id not in response
        text = tokenizer.decode(response, skip_special_tokens=True)
        rewards.append(score(text, walk["ground_truth"], is_cut).reward)
    trained = [row for row in rows(tail_run.run_dir, "responses") if row["accepted"] and row["domain"] == "walk"]
    own = [row["reward"] for row in trained if row["step"] >= tail_run.num_steps - NUM_LAST_STEPS]
    assert sum(rewards) / len(rewards) == pytest.approx(sum(own) / len(own), abs=0.15)


def test_a_tracker_that_is_asked_for_gets_every_step(tail_run):
    assert list((tail_run.run_dir / "tensorboard").glob("events.out.tfevents.*"))


def test_nothing_of_a_finished_run_is_left(tail_run):
    tail_run.resumed.assert_nothing_is_left()


def test_a_killed_plain_run_ends_in_the_weights_of_an_unbroken_one(inputs, plain_run, tmp_path):
    """A step that is in the tables, and in no checkpoint, is made a second time."""
    checkpoints = ("run.checkpoint_every_steps=2", "run.resume=auto")
    overrides = small_run(inputs, "system=verl", "engine.num_engines=1", *checkpoints)
    broken = LaunchedRun(tmp_path / "run", *overrides)
    broken.wait_for_steps(3)
    broken.kill_9()
    assert num_recorded_steps(broken.run_dir) < NUM_PROMPTS // 8
    broken.assert_nothing_is_left()
    resumed = LaunchedRun(tmp_path / "run", *overrides)
    assert resumed.wait() == 0, resumed.output()
    assert_each_step_once(resumed.run_dir)
    assert_ended_as(resumed.run_dir, plain_run)
    replay(resumed.run_dir)


def test_ctrl_c_while_ray_starts_ends_it_and_leaves_nothing(inputs, tmp_path):
    run = LaunchedRun(tmp_path / "run", *endless(inputs))
    run.wait_until((run.run_dir / "logs" / "attempt-000" / "ray.log").exists)
    time.sleep(1)  # while the driver connects to it
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
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
