"""A person ends a run: once, twice, at any moment, in virtual time."""

import asyncio
import json
import signal

import pytest

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.core.errors import Interrupted
from rollpacker.runtime.job.attempts import request_requeue
from rollpacker.runtime.job.deadline import PreemptionDeadline, StepInterrupted
from rollpacker.runtime.job.preemption import STEP_PATIENCE_S, ShellPreemption, SlurmPreemption, loop_time
from rollpacker.runtime.job.signals import handlers_kept
from rollpacker.runtime.run.status import read_status
from rollpacker.sim.backend import ModelledBackend
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.runtime.allocations import DeafListener, allocation
from tests.sim.test_determinism import SMALL

CHECKPOINT_S = 4.0


@pytest.fixture(scope="module")
def config():
    return compose([*SMALL, "run.num_steps=4", "run.checkpoint_every_steps=2", "run.dir=unused"])


def in_a_job(config) -> SlurmPreemption:
    """As of `srun --pty bash`: no batch script waits for the run."""
    here = allocation(config.run.dir, requeue_file=None)
    return SlurmPreemption(config, here, clock=loop_time, signals=DeafListener())


def interrupted(config, run_dir, *, at_event: int, times: int, preemption_of=ShellPreemption) -> Interrupted:
    """Train until the scheduler was told of so many events, and send so many signals then."""
    config = config.model_copy(update={"run": config.run.model_copy(update={"dir": run_dir})})
    told = iter(range(at_event + 1))

    async def train():
        def watch(*_):
            def on_event(*_):
                if next(told, None) == at_event:
                    for _ in range(times):
                        signal.raise_signal(signal.SIGINT)

            return on_event

        await pipeline.train(config, ModelledBackend(config), watch, preemption_of(config))

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as ended:
        run_in_virtual_time(train())
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return ended.value


def saved_steps(run_dir) -> int:
    metas = (run_dir / "checkpoints").glob("step-*/meta.json")
    return max((json.loads(meta.read_text())["step"] for meta in metas), default=0)


@pytest.mark.parametrize("preemption_of", [ShellPreemption, in_a_job])
@pytest.mark.parametrize("at_event", [1, 40, 150, 220])
def test_the_first_signal_saves_every_finished_step(config, tmp_path, at_event, preemption_of):
    error = interrupted(config, tmp_path / "run", at_event=at_event, times=1, preemption_of=preemption_of)
    status = read_status(tmp_path / "run")
    assert status.state == "interrupted"
    assert status.finished_steps == saved_steps(tmp_path / "run")
    assert error.exit_code == 130
    said = f"after step {status.finished_steps} of 4" if status.finished_steps else "before any step"
    assert said in error.problem


@pytest.mark.parametrize("preemption_of", [ShellPreemption, in_a_job])
@pytest.mark.parametrize("at_event", [1, 40, 150, 220])
def test_the_second_signal_leaves_at_once_and_says_what_is_lost(config, tmp_path, at_event, preemption_of):
    error = interrupted(config, tmp_path / "run", at_event=at_event, times=2, preemption_of=preemption_of)
    status, saved = read_status(tmp_path / "run"), saved_steps(tmp_path / "run")
    assert status.state == "interrupted"
    assert saved == status.finished_steps // 2 * 2
    assert "came again and ended the run at once" in error.problem
    if status.finished_steps > saved:
        assert error.allowed.endswith("Lost: 1 step since then.")
    assert not list((tmp_path / "run").rglob(".tmp-*"))


def test_sigterm_with_a_long_grace_leaves_time_to_save_finished_steps_before_scancel_kills(config, tmp_path):
    async def story():
        loop = asyncio.get_running_loop()
        preemption = SlurmPreemption(config, allocation(tmp_path, grace_s=600.0), clock=loop.time)
        preemption.listen(lambda _: None)
        preemption.finished_steps = 1
        preemption.deadline.expect(100.0, [CHECKPOINT_S])
        loop.call_later(5.0, signal.raise_signal, signal.SIGTERM)
        with pytest.raises(StepInterrupted):
            async with preemption.deadline.in_step():
                await asyncio.sleep(100.0)
        return loop.time(), preemption.deadline.reason

    with handlers_kept():
        assert run_in_virtual_time(story()) == (pytest.approx(5.0), "SIGTERM came, with 30 s to leave")


def test_the_last_attempt_without_progress_is_not_requeued_whatever_ends_it(config, tmp_path):
    once = config.model_copy(update={"cluster": ClusterSection(name="slurm", max_attempts_without_progress=1)})
    once = once.model_copy(update={"run": config.run.model_copy(update={"dir": tmp_path})})
    here = allocation(tmp_path)
    preemption = SlurmPreemption(once, here, signals=DeafListener())
    preemption.begin(0, 0)
    request_requeue(here)
    preemption.stop_listening()
    assert not (tmp_path / "17.requeue").exists()


def ended_after(num_finished: int, *, asked_s: float, step_s: float) -> float:
    """Take equal steps, and ask for an end while one more runs; gives how long that one ran."""

    async def story():
        loop = asyncio.get_running_loop()
        deadline = PreemptionDeadline(loop.time)
        deadline.checkpoint_took(CHECKPOINT_S)
        for _ in range(num_finished):
            async with deadline.in_step():
                await asyncio.sleep(step_s)
            deadline.step_ended()
        began = loop.time()
        loop.call_later(asked_s, deadline.ask_soon, "Ctrl-C", STEP_PATIENCE_S)
        try:
            async with deadline.in_step():
                await asyncio.sleep(step_s)
        except StepInterrupted:
            pass
        return loop.time() - began

    return run_in_virtual_time(story())


def test_a_step_that_ends_within_seconds_is_waited_for_and_another_one_is_not():
    assert ended_after(1, asked_s=1.0, step_s=5.0) == 5.0
    assert ended_after(1, asked_s=95.0, step_s=100.0) == 100.0
    assert ended_after(1, asked_s=5.0, step_s=100.0) == 5.0
    assert ended_after(0, asked_s=1.0, step_s=5.0) == 1.0  # there is nothing to save
