"""Rows of whole runs, by `rollpacker train` as a user starts it: one learns, one loses an engine and goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from rollpacker.config.words import quoted
from rollpacker.gpu_check.outcomes import require

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rollpacker.demo.inputs import Inputs
    from rollpacker.gpu_check.inputs import Bench

NUM_STEPS = 40
"""The demo's reward has risen by then."""

ERRORS_APART = 3.0
"""Standard errors between the held-out scores before and after."""

_POLL_S = 0.2


async def learns(bench: Bench) -> Mapping[str, float]:
    """Train the demo's model with engines and trainer in turns on all GPUs, and score prompts that it never saw."""
    from rollpacker.metrics.tables import read_frame

    inputs = _demo(bench)
    run_dir = bench.folder / "runs" / f"learns-{time.time():.0f}"
    _run(
        inputs,
        run_dir,
        f"run.num_steps={NUM_STEPS}",
        f"evaluation.path={quoted(inputs.unseen)}",
        f"evaluation.every_steps={NUM_STEPS}",
    ).finish()
    evaluations = read_frame(run_dir, "evaluations").sort_values("policy_version")
    before, after = evaluations.iloc[0], evaluations.iloc[-1]
    error = float((before.se_over_prompts**2 + after.se_over_prompts**2) ** 0.5)
    steps = read_frame(run_dir, "steps")
    require(
        after.reward_mean - before.reward_mean > ERRORS_APART * error,
        f"held-out score {before.reward_mean:.3f} before, {after.reward_mean:.3f} after, standard error {error:.3f}",
    )
    return {
        "score_before": float(before.reward_mean),
        "score_after": float(after.reward_mean),
        "mismatch_mean_nats": float(steps["logprob_mismatch_mean"].mean()),
        "weight_sync_s": float(steps["weight_sync_time_s"].median()),
        "step_s": float(steps["step_time_s"].median()),
    }


async def lost_engine(bench: Bench) -> Mapping[str, float]:
    """Kill an engine by SIGKILL in the midst of a run: another one takes its place, and the run ends."""
    from rollpacker.metrics.tables import METRICS_FOLDER, load_manifest, read_frame

    run_dir = bench.folder / "runs" / f"lost-engine-{time.time():.0f}"
    run = _run(_demo(bench), run_dir, "run.num_steps=8", "engine.restart_pause_s=0")
    run.wait_until(lambda: load_manifest(run_dir / METRICS_FOLDER) is not None)
    log = (run_dir / "logs" / "attempt-000" / "engine-0.log").read_text(errors="replace")
    found = re.search(r"^Process (\d+) on ", log, re.MULTILINE)
    require(found is not None, "the engine's log does not name its process")
    assert found is not None
    os.kill(int(found[1]), signal.SIGKILL)
    run.finish()
    steps = read_frame(run_dir, "steps")
    lost, replaced = int(steps["num_engines_lost"].sum()), int(steps["num_engines_replaced"].sum())
    # where several engines work, the run may end before another one has started
    least = 1 if bench.num_gpus == 1 else 0
    require(lost == 1 and replaced >= least, f"{lost} engines were lost and {replaced} replaced, of 1 that was killed")
    return {"lost": lost, "replaced": replaced, "steps": len(steps)}


class _Run:
    """`rollpacker train` in a process of the row's group, so that it ends with the row."""

    def __init__(self, words: list[str]) -> None:
        self._process = subprocess.Popen([sys.executable, "-P", "-m", "rollpacker.cli", "train", *words])  # noqa: S603

    def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            require(self._process.poll() is None, f"the run ended with exit code {self._process.returncode}")
            time.sleep(_POLL_S)

    def finish(self) -> None:
        code = self._process.wait()
        require(code == 0, f"the run ended with exit code {code}")


def _run(inputs: Inputs, run_dir: Path, *words: str) -> _Run:
    """Start a run on all GPUs, in turns, as `placement=auto` chooses."""
    own = [
        f"model.path={quoted(inputs.model)}",
        f"data.path={quoted(inputs.prompts)}",
        f"run.dir={quoted(run_dir)}",
        "data.max_prompt_tokens=16",
        "reward=walk",
        "rollout.num_prompts=16",
        "rollout.num_responses=8",
        "rollout.max_response_tokens=256",
        "trainer.learning_rate=3e-4",
        "trainer.adam_betas=[0.9,0.99]",
        "trainer.loss_normalisation=token_bound",
        "run.progress=plain",
    ]
    return _Run([*own, *words])


def _demo(bench: Bench) -> Inputs:
    """The demo's prompts and its model, which has imitated worked-out walks; made once."""
    from rollpacker.demo.inputs import Inputs, provide_inputs

    inputs = Inputs(folder=bench.folder / "models" / "demo")
    provide_inputs(inputs)
    return inputs
