"""Opens one attempt at a run, and closes it whatever happens.

Order: the run's folder (most mistakes show there, and it costs nothing), the backend's workers, the newest checkpoint,
the first weights. Closing undoes it backwards.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from rollpacker.config.schema import RunConfig
from rollpacker.core.commands import Command
from rollpacker.core.errors import PolicyDiverged, RepeatedFailure, WrongSampling
from rollpacker.core.events import Event
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import SchedulerSettings
from rollpacker.data.contents import contents_of
from rollpacker.data.order import PromptOrder, keys_of
from rollpacker.metrics.event_log import EventLogWriter, attempt_path
from rollpacker.metrics.mending import mend_tables
from rollpacker.metrics.table_writer import MetricsWriter
from rollpacker.metrics.tables import EVALUATION_FOLDER
from rollpacker.protocols.backend import Backend, BackendContext, Workers
from rollpacker.protocols.blocking import in_daemon_thread
from rollpacker.protocols.rollout import TokenizedPrompt
from rollpacker.runtime.job.allocation import current_allocation
from rollpacker.runtime.job.deadline import StepInterrupted
from rollpacker.runtime.job.preemption import Preemption
from rollpacker.runtime.placing.planning import held_gpus
from rollpacker.runtime.rollout.driver import Driver
from rollpacker.runtime.rollout.fleet_parts import FleetParts
from rollpacker.runtime.rollout.interval_log import IntervalLog
from rollpacker.runtime.rollout.learning import Learner
from rollpacker.runtime.rollout.listeners import Listeners, OnEvent
from rollpacker.runtime.rollout.requests import SamplingRules
from rollpacker.runtime.rollout.scheduling import NOTHING_TO_LEND, can_stream, scheduler_settings
from rollpacker.runtime.run.attempt import RunAttempt, begin_attempt, locked_folder
from rollpacker.runtime.run.callbacks import Callbacks, open_callbacks
from rollpacker.runtime.run.checkpoints import with_way_back
from rollpacker.runtime.run.evaluations import Evaluations
from rollpacker.runtime.run.handover import Handover, SharedGpuHandover
from rollpacker.runtime.run.outputs import RunOutputs
from rollpacker.runtime.run.policies import policy_name
from rollpacker.runtime.run.progress import Progress, make_progress
from rollpacker.runtime.run.rollouts import load_rollouts
from rollpacker.runtime.run.saving import RunSaver
from rollpacker.runtime.run.startup import StartupTimes, process_began_at
from rollpacker.runtime.run.status import StatusBoard, shown_status
from rollpacker.runtime.run.texts import TextKeeper, with_texts
from rollpacker.runtime.run.trackers import Tracker, make_trackers
from rollpacker.runtime.run.training_run import TrainingRun
from rollpacker.runtime.waiting.clock import RunClock
from rollpacker.runtime.waiting.watchdog import Watchdog
from rollpacker.transfer.snapshots import SnapshotSync

Watch = Callable[[Scheduler, SchedulerSettings, int], OnEvent]
"""Given the scheduler of an attempt, its settings and the attempt's first step: gets every decision."""


@asynccontextmanager
async def open_run(
    config: RunConfig, backend: Backend, watch: Watch | None, preemption: Preemption
) -> AsyncIterator[TrainingRun]:
    """Open everything that a run needs; inside, the engines hold the policy and the next step can begin."""
    progress = make_progress(config.run.progress, now=asyncio.get_running_loop().time)
    preemption.listen(progress.note)
    progress.begin_run(_title(config), config.run.num_steps)
    try:
        with locked_folder(config.run.dir):
            async with _opened(config, backend, progress, watch, preemption) as run:
                yield run
    except BaseException as error:
        progress.fail(error)
        cut_short = preemption.cut_short(config.run.num_steps)
        if isinstance(error, asyncio.CancelledError) and cut_short is not None:
            raise cut_short from None
        raise
    finally:
        preemption.stop_listening()
    progress.end_run()


@asynccontextmanager
async def _opened(
    config: RunConfig, backend: Backend, progress: Progress, watch: Watch | None, preemption: Preemption
) -> AsyncIterator[TrainingRun]:
    attempt = begin_attempt(config, progress.note)
    first_step, num_steps = attempt.first_step, config.run.num_steps
    progress.resume(first_step)
    async with AsyncExitStack() as stack:
        status = stack.enter_context(
            shown_status(
                config.run.dir,
                attempt=attempt.number,
                finished_steps=first_step,
                num_steps=num_steps,
                job_id=preemption.job_id,
                num_gpus=0 if backend.is_modelled else held_gpus(config, current_allocation(os.environ)),
            )
        )
        preemption.begin(attempt.number, first_step)
        opening = _Opening(
            stack,
            config,
            attempt,
            progress=progress,
            status=status,
            preemption=preemption,
            is_modelled=backend.is_modelled,
        )
        try:
            async with preemption.deadline.while_starting():
                run = await opening.start(backend, watch)
        except StepInterrupted:
            raise preemption.leave(first_step, num_steps) from None
        await run.begin()
        if backend.is_modelled:
            progress.clock_was_set()
        try:
            yield run
        except (PolicyDiverged, RepeatedFailure, WrongSampling) as error:
            raise with_way_back(error, attempt.checkpoints, run.policy_version) from error


class _Opening:
    """Starts the workers, and restores trainer and engines to where the run stands; `stack` ends it all."""

    def __init__(
        self,
        stack: AsyncExitStack,
        config: RunConfig,
        attempt: RunAttempt,
        *,
        progress: Progress,
        status: StatusBoard,
        preemption: Preemption,
        is_modelled: bool,
    ) -> None:
        self._stack = stack
        self._config = config
        self._attempt = attempt
        self._progress = progress
        self._status = status
        self._preemption = preemption
        self._is_modelled = is_modelled
        self._clock = RunClock(attempt.elapsed_s)
        self._interval_log = IntervalLog(self._clock)
        self._watchdog = Watchdog(attempt.logs / "stall.txt", config.backend.deadlines.driver_stall_s)
        self._startup = StartupTimes(attempt.logs, began_at=process_began_at(), now=time.time)

    async def start(self, backend: Backend, watch: Watch | None) -> TrainingRun:
        """Open files, workers, scheduler and driver, and publish the first weights."""
        attempt, checkpoint = self._attempt, self._attempt.checkpoint
        metrics, trackers = self._open_tables()
        callbacks = await self._open_callbacks()
        workers = await self._open_workers(backend)
        if workers.num_modelled_gpus is not None:
            self._status.count_gpus(workers.num_modelled_gpus)
        order = await self._order(workers)
        settings = _settings(self._config, workers, self._progress)
        scheduler = Scheduler(settings)
        if checkpoint:
            order.restore(checkpoint.order)
            if edited := order.edited_since(checkpoint.order):
                self._progress.note(
                    f"Edited since the checkpoint of step {attempt.first_step}: prompts of {', '.join(edited)}. "
                    "Rewards from before and after are not comparable."
                )
            scheduler = Scheduler.restore(settings, checkpoint.scheduler)
        event_log = EventLogWriter(
            attempt_path(self._config.run.dir, attempt.number), settings, checkpoint.scheduler if checkpoint else None
        )
        self._stack.callback(event_log.close)
        watched = watch(scheduler, settings, attempt.first_step) if watch else None
        driver, learner = self._make_driver(workers, scheduler, order, _told_to(event_log, watched))
        if checkpoint:
            driver.restore(load_rollouts(checkpoint.folder))
        texts = TextKeeper(
            workers.text_reader,
            num_prompts=self._config.run.samples_per_step,
            num_held_out=self._config.evaluation.num_texts,
        )
        evaluations = self._open_evaluations(texts, workers)
        outputs = RunOutputs(
            metrics=metrics,
            evaluations=evaluations if settings.evaluation else None,
            texts=texts,
            event_log=event_log,
            trackers=trackers,
            callbacks=callbacks,
            progress=self._progress,
            status=self._status,
            interval_log=self._interval_log,
        )
        saver = RunSaver(
            self._config,
            attempt,
            scheduler=scheduler,
            driver=driver,
            order=order,
            trainer=workers.trainer,
            clock=self._clock,
            outputs=outputs,
            watchdog=self._watchdog,
            preemption=self._preemption,
        )
        run = TrainingRun(
            self._config,
            attempt.first_step,
            clock=self._clock,
            driver=driver,
            learner=learner,
            handover=self._handover(workers, driver, learner),
            saver=saver,
            outputs=outputs,
            preemption=self._preemption,
            is_modelled=self._is_modelled,
        )
        if checkpoint:
            self._progress.note(f"Resuming after step {attempt.first_step} of {checkpoint.folder}")
            self._stage("loading the checkpoint")
            await saver.load_trainer()
        self._startup.begin("weight sync")
        await run.publish_weights()
        metrics.truncate_after(attempt.first_step - 1)  # not before: a start that fails keeps them
        if evaluations:
            evaluations.take_back(attempt.first_step + 1)
            _log_again(evaluations, attempt.first_step, trackers)
        if not self._is_modelled:
            self._startup.finish()
        return run

    async def _order(self, workers: Workers) -> PromptOrder:
        """Order the prompts, in a thread: a million may take minutes. In virtual time nobody watches the event loop."""

        def order() -> PromptOrder:
            return _prompt_order(self._config, workers.prompts)

        return order() if self._is_modelled else await in_daemon_thread(order)

    def _stage(self, name: str) -> None:
        self._startup.begin(name)
        self._progress.stage(name)

    def _open_tables(self) -> tuple[MetricsWriter, Tracker]:
        config, run_dir = self._config, self._config.run.dir
        self._stack.callback(self._attempt.checkpoints.remove_unfinished)  # when no actor writes any more
        for note in mend_tables(run_dir / "metrics", first_step=self._attempt.first_step):
            self._progress.note(note)
        metrics = MetricsWriter(run_dir / "metrics")
        self._stack.callback(metrics.close)
        run_id = self._attempt.identity.run_id
        record = config.model_dump(mode="json")
        trackers = make_trackers(config.tracker, run_dir, run_id, record, self._progress.note)
        self._stack.callback(trackers.close)
        return metrics, trackers

    async def _open_callbacks(self) -> Callbacks:
        run = self._config.run
        opened = open_callbacks(run.callbacks, run.dir, self._attempt.logs, self._progress.note)
        return await self._stack.enter_async_context(opened)

    def _open_evaluations(self, texts: TextKeeper, workers: Workers) -> Evaluations | None:
        """Open their tables where there are any, or will be."""
        if self._config.evaluation.path is None and not (self._config.run.dir / EVALUATION_FOLDER).is_dir():
            return None
        evaluations = Evaluations(
            self._config,
            self._attempt.first_step,
            {name: [each.prompt for each in prompts.values()] for name, prompts in workers.held_out.items()},
            saved_steps=self._attempt.checkpoints.steps,
            texts=texts,
            note=self._progress.note,
            is_modelled=self._is_modelled,
        )
        self._stack.callback(evaluations.close)
        return evaluations

    async def _open_workers(self, backend: Backend) -> Workers:
        if not self._is_modelled:  # in virtual time nothing blocks for long, and the heart would beat a million times
            self._watchdog.start()
            self._stack.push_async_callback(self._watchdog.stop)
        context = BackendContext(
            logs=self._attempt.logs,
            stage=self._stage,
            note=self._progress.note,
            within=self._watchdog.within,
            limit=self._watchdog.limit,
            add_stack_source=self._watchdog.add_stack_source,
        )
        return await self._stack.enter_async_context(backend.open(context))

    def _make_driver(
        self, workers: Workers, scheduler: Scheduler, order: PromptOrder, on_event: OnEvent
    ) -> tuple[Driver, Learner]:
        config = self._config
        learner = Learner(
            workers.trainer,
            config.rollout.max_response_tokens,
            self._watchdog.within,
            config.backend.deadlines.train_s,
            interval_log=self._interval_log,
            on_failure=lambda error: driver.interrupt(error),  # noqa: PLW0108  the driver comes later
            keeps_cache=config.system.interrupt == "keep",
        )
        self._stack.push_async_callback(learner.close)

        def on_progress(num_accepted: int, num_needed: int) -> None:
            learner.group_accepted()
            self._progress.rollout(num_accepted, num_needed)

        driver = Driver(
            scheduler=scheduler,
            order=order,
            fleet=FleetParts.of(workers, config, self._watchdog.limit),
            reward=workers.reward,
            sampling=SamplingRules.of(config, workers.prompts, workers.held_out),
            clock=self._clock,
            watchdog=self._watchdog,
            interval_log=self._interval_log,
            environments=workers.environments,
            listeners=Listeners(
                on_event=on_event,
                on_progress=on_progress,
                on_stream=learner.stream,
                on_reclaim=learner.give_back,
                note=self._progress.note,
            ),
        )
        self._stack.push_async_callback(driver.stop)
        return driver, learner

    def _handover(self, workers: Workers, driver: Driver, learner: Learner) -> Handover:
        config = self._config
        weight_sync = workers.weight_sync or SnapshotSync(workers.trainer, config.weight_sync.timeout_s)
        if not workers.colocated_engines:
            return Handover(driver, weight_sync, self._watchdog, config.backend.deadlines)
        return SharedGpuHandover(
            driver,
            weight_sync,
            self._watchdog,
            config.backend.deadlines,
            workers=workers,
            learner=learner,
            clock=self._clock,
            interval_log=self._interval_log,
        )


def _title(config: RunConfig) -> str:
    if config.trains:
        return f"{config.system.name} in {config.run.dir}"
    return f"evaluation of {policy_name(config.model.path)}"


def _log_again(evaluations: Evaluations, step: int, trackers: Tracker) -> None:
    """Log the evaluation that the checkpoint of a step has: from that step on trackers forget what they had."""
    rows, responses = evaluations.of_step(step)
    if rows:
        trackers.log_evaluation(rows, with_texts(responses))


def _told_to(event_log: EventLogWriter, watched: OnEvent | None) -> OnEvent:
    def on_event(event: Event, now: float, commands: tuple[Command, ...]) -> None:
        event_log.append(event, now, commands)
        if watched:
            watched(event, now, commands)

    return on_event


def _settings(config: RunConfig, workers: Workers, progress: Progress) -> SchedulerSettings:
    fleets, parts = workers.fleets, workers.trainer_parts
    if config.system.stream and not any(can_stream(config, parts, fleet.gpus) for fleet in fleets.values()):
        progress.note(f"Nothing streams to the trainer: {NOTHING_TO_LEND}.")
    prompts = [*workers.prompts.values()] or [each for of_set in workers.held_out.values() for each in of_set.values()]
    return scheduler_settings(
        config,
        Counter(prompt.prompt.domain for prompt in prompts),
        list(fleets),
        trainer_parts=parts,
        costs=[fleet.costs for fleet in fleets.values() if fleet.costs],
        held_out=workers.held_out,
        prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts) // len(prompts),
        largest_engines=list(fleets[max(fleets)].gpus.values()),
    )


def _prompt_order(config: RunConfig, tokenized: Mapping[str, TokenizedPrompt]) -> PromptOrder:
    prompts = [each.prompt for each in tokenized.values()]
    return PromptOrder(
        keys_of(prompts), config.run.seed, config.data.shuffle, config.run.num_epochs, contents_of(prompts)
    )
