"""The RL loop on one screen: roll out, learn, publish, record. Read this first.

What a batch is made of, and when it is complete, is the scheduler's business (`rollpacker.core`). The configuration
chooses engines, reward and trainer, a backend starts them, and `rollpacker.runtime.run.opening` opens the run. What is
left is the order of a step. In a synchronous run it is strictly on-policy: every trained token comes from the policy
that the step began with. In an asynchronous one (`system.max_staleness`) engines go on while the trainer learns, what
they have not finished is suspended while new weights are published, and the next `roll_out` goes on from its tokens.
Where engines and trainer share GPUs, one side sleeps: engines while the trainer learns, after they have given back what
was unfinished, and the trainer from then on until the next batch is complete.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rollpacker.runtime.job.preemption import Preemption, ShellPreemption
from rollpacker.runtime.run.opening import open_run

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.backend import Backend
    from rollpacker.runtime.job.allocation import Allocation
    from rollpacker.runtime.run.opening import Watch


def run(config: RunConfig, preemption: Preemption | None = None, allocation: Allocation | None = None) -> None:
    """Train one configuration to its end, in this process and the actors that it starts.

    Args:
        config: Validated.
        preemption: What may end the run early; None is a person at a shell.
        allocation: The Slurm job that this process heads; None is this machine alone.

    Raises:
        RollpackerError: Why the run could not start or go on; everything it had started has ended.
        Preempted: Slurm takes the machines back; a checkpoint says where to go on.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP outside Slurm; the same.
        KeyboardInterrupt: They came a third time, and nothing was waited for.
    """
    preemption = preemption or ShellPreemption(config)
    match config.backend.name:
        case "ray":
            from rollpacker.runtime.ray.backend import RayBackend

            asyncio.run(train(config, RayBackend(config, allocation), preemption=preemption))
        case "sim":
            from rollpacker.sim.backend import ModelledBackend
            from rollpacker.sim.virtual_time import run_in_virtual_time

            run_in_virtual_time(train(config, ModelledBackend(config), preemption=preemption))


async def train(
    config: RunConfig, backend: Backend, watch: Watch | None = None, preemption: Preemption | None = None
) -> None:
    """Train on a running event loop.

    Args:
        config: Validated.
        backend: Provides the workers.
        watch: Gets every decision of the scheduler.
        preemption: What may end the run early; None is nothing.
    """
    async with open_run(config, backend, watch, preemption or Preemption()) as run:
        num_finished = run.num_steps
        for step in run.remaining_steps():
            is_best = await run.evaluate(step)
            recorder = run.recorder(step)
            if run.is_checkpoint_due(step, is_best=is_best):
                with recorder.stage("checkpoint"):
                    await run.checkpoint(step, is_best=is_best)
            async with run.preemptible(step):
                with recorder.stage("rollout"):
                    batch = await run.roll_out(step)
                if batch is None:  # every prompt was trained in every epoch
                    num_finished = step
                    break
                if run.is_colocated:
                    with recorder.stage("quiesce"):
                        await run.quiesce()
                    with recorder.stage("hand_over"):
                        await run.hand_over_gpus()
                with recorder.stage("train"):
                    update = await run.learn(batch)
            if not run.is_colocated:
                with recorder.stage("quiesce"):
                    await run.quiesce()
            with recorder.stage("weight_sync"):
                await run.publish_weights()
            await run.record(recorder, batch, update)
        is_best = await run.evaluate(num_finished, is_last=True)
        await run.checkpoint(num_finished, is_best=is_best, is_last=True)
        await run.export_model()
