"""A real run whose engines and trainer take turns on GPUs, which are not real: numbers that Ray hands out."""

import os
import re
import signal

import pytest

from tests.e2e.launched import LaunchedRun, rows, small_run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_two_ranks_take_turns_with_two_engines_until_one_is_killed_which_ends_the_run_with_its_name(
    inputs, tmp_path, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")  # as Slurm may number the GPUs that it gave
    run = LaunchedRun(
        tmp_path / "run",
        *small_run(
            inputs,
            "placement=colocated",
            "trainer=fsdp",
            "trainer.data_parallel=2",
            "run.checkpoint_every_steps=1",
            "run.num_epochs=null",
            "run.num_steps=100000",
        ),
    )
    run.wait_for_steps(2)
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
    assert all(row["logprob_mismatch_max"] < 1e-4 for row in rows(run.run_dir, "steps"))

    os.kill(run.pid_of("trainer-1"), signal.SIGKILL)
    assert run.wait() == 1
    assert "The process of trainer-1 died" in run.output()
    assert "Traceback" not in run.output()
    run.assert_nothing_is_left()
