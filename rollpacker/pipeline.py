"""The RL loop on one screen: roll out, learn, publish, record. Read this first.

What a batch is made of, and when it is complete, is the scheduler's business (`rollpacker.core`). Engines, reward and
trainer are the configuration's: a backend provides them, and `rollpacker.runtime.run.training_run` opens the run. What
is left is the order of a synchronous, strictly on-policy step: every trained token comes from the policy that the step
began with. Where engines and trainer share GPUs, they take turns: engines sleep while the trainer learns, and the
trainer sleeps from then on until the next batch is there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rollpacker.runtime.job.preemption import Preemption, ShellPreemption, SlurmPreemption, modelled_slurm_preemption
from rollpacker.runtime.job.signals import SignalListener
from rollpacker.runtime.run.training_run import open_run

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.backend import Backend
    from rollpacker.runtime.job.allocation import Allocation
    from rollpacker.runtime.run.training_run import Watch


def run(config: RunConfig, allocation: Allocation | None = None, signals: SignalListener | None = None) -> None:
    """Train one configuration to its end, in this process and the actors that it starts.

    Args:
        config: Already judged.
        allocation: The Slurm job that this process heads; None is this machine alone.
        signals: Have heard the job's signals so far; None has heard none.

    Raises:
        RollpackerError: Why the run could not start or go on; everything it had started has ended.
        Preempted: Slurm wants the machines back, and a checkpoint says where to go on; likewise.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP outside Slurm; likewise.
        KeyboardInterrupt: They came a third time, and nothing was waited for.
    """
    match config.backend.name:
        case "ray":
            from rollpacker.runtime.ray.backend import RayBackend

            asyncio.run(_train(config, RayBackend(config, allocation), allocation, signals))
        case "sim":
            from rollpacker.sim.backend import ModelledBackend
            from rollpacker.sim.virtual_time import run_in_virtual_time

            run_in_virtual_time(_train(config, ModelledBackend(config), allocation, signals))


async def _train(
    config: RunConfig, backend: Backend, allocation: Allocation | None, signals: SignalListener | None
) -> None:
    if allocation is None:
        await train(config, backend, preemption=ShellPreemption(config))
    else:
        preemption = modelled_slurm_preemption if backend.is_modelled else SlurmPreemption
        await train(config, backend, preemption=preemption(config, allocation, signals or SignalListener()))


async def train(
    config: RunConfig, backend: Backend, watch: Watch | None = None, preemption: Preemption | None = None
) -> None:
    """Train on a running event loop.

    Args:
        config: Already judged.
        backend: Brings the workers.
        watch: Sees every decision of the scheduler.
        preemption: How long the machines are there; None is as long as the run needs them.
    """
    async with open_run(config, backend, watch, preemption or Preemption()) as run:
        num_finished = config.run.num_steps
        for step in run.remaining_steps():
            recorder = run.recorder(step)
            if run.is_checkpoint_due(step):
                with recorder.stage("checkpoint"):
                    await run.checkpoint(step)
            async with run.may_leave(step):
                with recorder.stage("rollout"):
                    batch = await run.roll_out(step)
                if batch is None:  # every prompt was trained in every epoch
                    num_finished = step
                    break
                if run.is_colocated:
                    with recorder.stage("hand_over"):
                        await run.hand_over_gpus()
                with recorder.stage("train"):
                    update = await run.learn(batch)
            with recorder.stage("quiesce"):
                await run.quiesce()
            with recorder.stage("weight_sync"):
                await run.publish_weights()
            await run.record(recorder, batch, update)
        await run.checkpoint(num_finished)
