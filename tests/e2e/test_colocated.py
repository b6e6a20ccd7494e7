"""Real runs whose engines and trainer take turns on GPUs, which are not real: numbers that Ray hands out."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from rollpacker.core.commands import EndRound, LendEngines
from rollpacker.core.events import EngineLost, ResponseEvicted
from rollpacker.core.ids import EngineId
from rollpacker.metrics.event_log import attempt_paths, read_event_log
from tests.e2e.invariants import assert_all_holds, assert_dropped_prompts_have_no_signal_and_no_other_is_missing
from tests.e2e.launched import LaunchedRun, num_recorded_steps, rows, small_run
from tests.e2e.processes import freezing_environment, is_stopped

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def freeze_a_stream(run: LaunchedRun, file: Path, *others: int) -> int:
    """Wait until a rank trains on a lent GPU, stop it in the middle of that and others with it; gives the rank."""
    ranks = [run.pid_of(f"trainer-{rank}") for rank in (0, 1)]
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(" ".join(map(str, others)))
    unfinished.rename(file)

    def stopped() -> list[int]:
        return [rank for rank, pid in enumerate(ranks) if is_stopped(pid)]

    run.wait_until(stopped)
    file.unlink()
    return stopped()[0]


def lent_when_an_engine_was_lost(run_dir: Path) -> set[EngineId]:
    """Which engines were lent when the first one was lost."""
    lent: set[EngineId] = set()
    for record in read_event_log(attempt_paths(run_dir)[0]).records:
        if isinstance(record.event, EngineLost):
            return lent
        for command in record.commands:
            if isinstance(command, LendEngines):
                lent = set(command.engines)
            elif isinstance(command, EndRound):
                lent = set()
    return lent


def test_a_rank_streams_while_the_last_engine_is_replaced_and_its_step_is_made_anew_when_it_is_killed_itself(
    inputs, tmp_path, monkeypatch
):
    freeze = tmp_path / "freeze"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")  # as Slurm may number the GPUs that it gave
    for name, value in freezing_environment(freeze, "stream").items():
        monkeypatch.setenv(name, value)
    words = small_run(
        inputs,
        "system=dapo-rollpacker",
        "system.stream=true",
        "system.max_launch_factor=1000",  # few prompts differ, of such a model
        "placement=colocated",
        "placement.automatic=false",  # the GPUs are not real
        "trainer=fsdp",
        "trainer.data_parallel=2",
        "trainer.shard_ranks=1",
        "trainer.kl_coefficient=0.05",
        "rollout.num_prompts=4",
        "rollout.max_response_tokens=96",
        "engine.restart_pause_s=0",
        "run.checkpoint_every_steps=1",
        "run.num_epochs=null",
        "run.resume=auto",
    )
    run = LaunchedRun(tmp_path / "run", *words, "run.num_steps=100000")

    def has_streamed() -> bool:
        return sum(row["tokens_streamed"] > 0 for row in rows(run.run_dir, "steps")) >= 2

    run.wait_for_steps(2)
    run.wait_until(has_streamed, interval_s=0.3)
    logs = {log.stem: log.read_text() for log in (run.run_dir / "logs" / "attempt-000").glob("*.log")}
    seen = {
        name: re.search(r"^Process \d+ on .*, CUDA_VISIBLE_DEVICES=(.*)$", text, re.MULTILINE)
        for name, text in logs.items()
    }
    assert {name: found[1] for name, found in seen.items() if found} == {
        "engine-0": "4",
        "engine-1": "6",
        "trainer-0": "4",
        "trainer-1": "6",
        "reward": "",
    }
    stages = [(row["step"], row["activity"]) for row in rows(run.run_dir, "intervals") if row["role"] != "engine"]
    assert {(0, "hand_over"), (1, "hand_over")} <= set(stages)
    assert list((run.run_dir / "checkpoints").glob("step-*/trainer"))  # the trainer had a turn for it

    engines = [run.pid_of(f"engine-{number}") for number in (0, 1)]
    rank = freeze_a_stream(run, freeze, *engines)
    kept = 1 - rank  # the other engine is lent
    os.kill(engines[kept], signal.SIGKILL)
    for pid in (engines[rank], run.pid_of(f"trainer-{rank}")):
        os.kill(pid, signal.SIGCONT)
    # a start that the trainer's turn cuts off is begun again, under another name
    run.wait_until(lambda: re.search(rf"engine-{kept}-r\d+ has taken the place of engine-{kept}", run.output()))
    run.wait_until(lambda: any(row["num_engines_lost"] for row in rows(run.run_dir, "steps")), interval_s=0.3)

    rank = freeze_a_stream(run, freeze)
    os.kill(run.pid_of(f"trainer-{rank}"), signal.SIGKILL)
    assert run.wait() == 1
    assert f"The process of trainer-{rank} died" in run.output()
    assert "Traceback" not in run.output()
    run.assert_nothing_is_left()

    num_steps = num_recorded_steps(run.run_dir) + 2
    resumed = LaunchedRun(tmp_path / "run", *words, f"run.num_steps={num_steps}")
    assert resumed.wait() == 0, resumed.output()
    resumed.assert_nothing_is_left()
    assert_all_holds(run.run_dir, 4 * num_steps)  # also of responses that moved
    prompts = [json.loads(line)["id"] for line in (inputs / "prompts.jsonl").read_text().splitlines()]
    assert_dropped_prompts_have_no_signal_and_no_other_is_missing(run.run_dir, set(prompts))
    steps = rows(run.run_dir, "steps")
    assert {row["num_engines_lent"] for row in steps} <= {0, 1}
    assert sum(row["num_engines_lost"] for row in steps) == 1
    # none, if the rollout had ended in the moment before
    assert lent_when_an_engine_was_lost(run.run_dir) in ({f"engine-{1 - kept}"}, set())
    moved = {
        record.event.request
        for path in attempt_paths(run.run_dir)
        for record in read_event_log(path).records
        if isinstance(record.event, ResponseEvicted) and record.event.num_tokens > 0
    }
    assert moved  # with tokens that it kept
