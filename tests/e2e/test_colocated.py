"""Real runs whose engines and trainer take turns on GPUs, which are not real: numbers that Ray hands out."""

import os
import re
import signal

import pytest

from rollpacker.core.events import ResponseEvicted
from rollpacker.metrics.event_log import attempt_path, read_event_log
from rollpacker.runtime.replay import replay
from tests.e2e.launched import LaunchedRun, rows, small_run, trained_prompts

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_one_of_two_engines_is_lent_to_a_rank_that_learns_meanwhile_until_a_rank_is_killed(
    inputs, tmp_path, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")  # as Slurm may number the GPUs that it gave
    words = small_run(
        inputs,
        "system=rlhfuse",
        "placement=colocated",
        "trainer=fsdp",
        "trainer.data_parallel=2",
        "trainer.shard_ranks=1",
        "trainer.kl_coefficient=0.05",
        "rollout.max_response_tokens=96",
        "run.checkpoint_every_steps=1",
        "run.num_epochs=null",
    )
    run = LaunchedRun(tmp_path / "run", *words, "run.num_steps=100000")

    def has_streamed() -> bool:
        return sum(row["tokens_streamed"] > 0 for row in rows(run.run_dir, "steps")) >= 2

    run.wait_for_steps(2)
    run.wait_until(has_streamed)
    logs = {log.stem: log.read_text() for log in (run.run_dir / "logs" / "attempt-000").glob("*.log")}
    seen = {
        name: re.search(r"^Process (\d+) on .*, CUDA_VISIBLE_DEVICES=(.*)$", text, re.MULTILINE)
        for name, text in logs.items()
    }
    assert {name: found[2] for name, found in seen.items() if found} == {
        "engine-0": "4",
        "engine-1": "6",
        "trainer-0": "4",
        "trainer-1": "6",
        "reward": "",
    }
    stages = [(row["step"], row["activity"]) for row in rows(run.run_dir, "intervals") if row["role"] != "engine"]
    assert {(0, "hand_over"), (1, "hand_over")} <= set(stages)
    assert list((run.run_dir / "checkpoints").glob("step-*/trainer"))  # the trainer had a turn for it

    os.kill(int(seen["trainer-1"][1]), signal.SIGKILL)
    assert run.wait(120) == 1
    assert "The process of trainer-1 died" in run.output()
    assert "Traceback" not in run.output()
    run.assert_nothing_is_left()

    steps = rows(run.run_dir, "steps")
    assert {row["num_engines_lent"] for row in steps} <= {0, 1}
    assert all(row["logprob_mismatch_max"] < 1e-4 for row in steps)  # also where a response moved
    assert all(row["policy_version"] == row["step"] for row in rows(run.run_dir, "responses"))
    trained = trained_prompts(run.run_dir)
    assert len(trained) == len(set(trained)) == 8 * len(steps)
    moved = {
        record.event.request
        for record in read_event_log(attempt_path(run.run_dir, 0)).records
        if isinstance(record.event, ResponseEvicted) and record.event.num_tokens > 0
    }
    assert moved  # with tokens that it kept
    replay(run.run_dir)
