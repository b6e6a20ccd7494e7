"""One attempt of one run: everything that the pipeline works with, opened together and closed together.

Opening order: the run's folder (cheap, and most mistakes show there), the backend's workers, the newest checkpoint, the
first weights. Closing undoes it in any case.
"""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rollpacker.config.record import CONFIG_FILE, to_yaml
from rollpacker.config.schema import RunConfig
from rollpacker.core.commands import Command
from rollpacker.core.errors import ConfigError, PolicyDiverged, RepeatedFailure
from rollpacker.core.events import Event
from rollpacker.core.ids import Domain, EngineId
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import SchedulerSettings
from rollpacker.data.order import PromptOrder
from rollpacker.metrics.event_log import EventLogWriter, attempt_path, attempt_paths
from rollpacker.metrics.files import make_private_folder, storage_errors, write_atomically
from rollpacker.metrics.mending import mend_tables
from rollpacker.metrics.table_writer import MetricsWriter
from rollpacker.protocols.backend import Backend, BackendContext, Workers
from rollpacker.protocols.reward import ColocatedJudges
from rollpacker.protocols.rollout import TokenizedPrompt
from rollpacker.protocols.trainer import Trainer, UpdateMetrics
from rollpacker.protocols.weights import Published, WeightSync
from rollpacker.rewards.overlong import OverlongPunishment
from rollpacker.runtime.job.deadline import StepInterrupted
from rollpacker.runtime.job.preemption import Preemption, steps_in_words
from rollpacker.runtime.rollout.driver import Driver, OnEvent, RoundCosts
from rollpacker.runtime.rollout.interval_log import IntervalLog
from rollpacker.runtime.rollout.learning import Learner
from rollpacker.runtime.rollout.round_record import RoundRecord
from rollpacker.runtime.rollout.scheduling import NOTHING_TO_LEND, can_stream, scheduler_settings
from rollpacker.runtime.run.checkpoints import (
    SCHEMA_VERSION,
    Checkpoint,
    CheckpointMeta,
    CheckpointStore,
    with_way_back,
)
from rollpacker.runtime.run.progress import Progress, make_progress
from rollpacker.runtime.run.recorder import StepRecorder
from rollpacker.runtime.run.run_folder import RunIdentity, find_resumable, identify_run
from rollpacker.runtime.run.startup import StartupTimes, process_began_at
from rollpacker.runtime.run.status import StatusBoard, shown_status
from rollpacker.runtime.run.trackers import Tracker, make_trackers
from rollpacker.runtime.waiting.clock import RunClock
from rollpacker.runtime.waiting.watchdog import Watchdog
from rollpacker.transfer.snapshots import SnapshotSync

Answer = TypeVar("Answer")

Watch = Callable[[Scheduler, SchedulerSettings, int], OnEvent]
"""Given the scheduler of an attempt, its settings and the attempt's first step: who is told of every decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """The run between two steps: all that a checkpoint holds beside the trainer."""

    elapsed_s: float
    scheduler: Mapping[str, Any]
    order: Mapping[str, Any]


class TrainingRun:
    """The parts of a run, each step's verbs, and where it stands."""

    def __init__(
        self,
        *,
        config: RunConfig,
        identity: RunIdentity,
        attempt: int,
        first_step: int,
        clock: RunClock,
        interval_log: IntervalLog,
        scheduler: Scheduler,
        order: PromptOrder,
        driver: Driver,
        trainer: Trainer,
        weight_sync: WeightSync,
        learner: Learner,
        watchdog: Watchdog,
        progress: Progress,
        trackers: Tracker,
        metrics: MetricsWriter,
        event_log: EventLogWriter,
        checkpoints: CheckpointStore,
        status: StatusBoard,
        preemption: Preemption,
        colocated_engines: frozenset[EngineId],
        judges: ColocatedJudges | None,
        is_modelled: bool,
    ) -> None:
        self.config = config
        self._identity = identity
        self._attempt = attempt
        self._first_step = first_step
        self._clock = clock
        self._interval_log = interval_log
        self._scheduler = scheduler
        self._order = order
        self._driver = driver
        self._trainer = trainer
        self._weight_sync = weight_sync
        self._learner = learner
        self._watchdog = watchdog
        self._progress = progress
        self._trackers = trackers
        self._metrics = metrics
        self._event_log = event_log
        self._checkpoints = checkpoints
        self._status = status
        self._preemption = preemption
        self._deadline = preemption.deadline
        self._colocated_engines = colocated_engines
        self._judges = judges
        self._judges_asleep_since = clock.now()
        self._is_trainer_asleep = False
        self._is_modelled = is_modelled
        self._deadlines = config.backend.deadlines
        self._policy_version = 0
        self._costs: RoundCosts | None = None
        self._published: Published | None = None

    async def begin(self) -> None:
        """Let the run's time go on, and listen to the engines."""
        self._clock.start()
        self._interval_log.take()  # what came before the run's time went on
        await self._driver.start()

    def remaining_steps(self) -> Iterator[int]:
        """Steps that no checkpoint covers yet."""
        yield from range(self._first_step, self.config.run.num_steps)

    def recorder(self, step: int) -> StepRecorder:
        return StepRecorder(
            step=step,
            system=self.config.system.name,
            clock=self._clock,
            is_modelled=self._is_modelled,
        )

    async def roll_out(self, step: int) -> RoundRecord | None:
        """Generate and score the batch of a step; None when all data has been trained."""
        self._progress.stage("rollout")
        self._costs = None
        return await self._driver.run_round(step, self._policy_version)

    @property
    def policy_version(self) -> int:
        """Of the weights that the engines hold."""
        return self._policy_version

    @property
    def is_colocated(self) -> bool:
        """Engines and trainer share GPUs, on which only one of them is awake at a time."""
        return bool(self._colocated_engines)

    async def hand_over_gpus(self) -> None:
        """Let the trainer have the GPUs that it shares with engines: they sleep until new weights come."""
        await self.quiesce()
        await self._driver.leave_gpus(self._colocated_engines)
        await self._learner.end_streaming()
        await self._wake_trainer()

    async def _wake_trainer(self) -> None:
        """Let the trainer have all of its GPUs; judges on them sleep until it has left them."""
        if self._judges is not None:
            await self._watchdog.within(self._deadlines.train_s, "judges to fall asleep", self._judges.sleep())
            self._judges_asleep_since = self._clock.now()
        await self._watchdog.within(self._deadlines.train_s, "the trainer to take its GPUs", self._trainer.wake())
        self._is_trainer_asleep = False

    async def learn(self, batch: RoundRecord) -> UpdateMetrics:
        """Train on a batch: one step of the trainer, part of which may have streamed during the rollout."""
        self._progress.stage("training")
        await self._learner.accumulate(batch)
        self._deadline.commit()
        return await self._learner.update()

    async def quiesce(self) -> None:
        """Wait until no request of the round is in flight, and measure what it cost; no more than once."""
        if self._costs is None:
            await self._driver.quiesce()
            self._costs = await self._driver.measure_round()

    async def publish_weights(self) -> None:
        """Bring the trainer's policy to every engine; where they take turns on GPUs, it is the engines' from now on."""
        self._progress.stage("weight sync")
        if self.is_colocated:
            prepared = self._weight_sync.prepare()
            await self._watchdog.within(self._deadlines.weight_sync_s, "the trainer's weights", prepared)
            self._is_trainer_asleep = True
            await self._watchdog.within(self._deadlines.train_s, "the trainer to leave its GPUs", self._trainer.sleep())
            if self._judges is not None:
                for judge in self._judges.takers:
                    self._interval_log.add(judge, "judge", "asleep", self._judges_asleep_since)
                await self._watchdog.within(self._deadlines.train_s, "judges to wake", self._judges.wake())
        self._published = await self._watchdog.within(
            self._deadlines.weight_sync_s + self._driver.longest_switch_s,
            "the engines to load the trainer's weights",
            self._driver.publish(self._weight_sync),
        )
        self._policy_version = self._published.policy_version

    async def record(self, recorder: StepRecorder, batch: RoundRecord, update: UpdateMetrics) -> None:
        """Write the step's metrics, and show them."""
        assert self._costs is not None
        assert self._published is not None
        interval_log = self._interval_log.take()
        step_row = recorder.step_row(
            batch,
            update,
            self._costs,
            self._published,
            self._learner.num_tokens_streamed,
            interval_log=interval_log,
            turnover=self._driver.turnover(),
        )
        domain_rows = recorder.domain_rows(batch)
        self._metrics.write_step(
            step_row["step"],
            {
                "steps": [step_row],
                "domains": domain_rows,
                "responses": recorder.response_rows(batch),
                "intervals": recorder.interval_rows(batch, interval_log),
            },
        )
        self._event_log.flush()
        self._trackers.log_step(step_row, domain_rows)
        self._progress.step_finished(step_row, domain_rows)
        self._status.step_finished(step_row["step"] + 1)
        self._preemption.finished_steps = step_row["step"] + 1
        self._deadline.step_ended()

    @asynccontextmanager
    async def may_leave(self, step: int) -> AsyncIterator[None]:
        """Let a step run inside, unless the machines are wanted back before it could end.

        Raises:
            Preempted: They are; the checkpoint holds the run as it was before this step.
            Interrupted: Likewise, because a person wants the run to end.
            WorldError: They are, again, and there is no use in another attempt.
        """
        before = self._now()
        if not self._deadline.may_begin(is_first=step == self._first_step):
            await self._leave(step, before)
        try:
            async with self._deadline.in_step():
                yield
        except StepInterrupted:
            await self._learner.close()
            await self._leave(step, before)

    async def _leave(self, step: int, before: _Moment) -> NoReturn:
        self._progress.note(f"Leaving after step {step}: {self._deadline.reason}.")
        if self._is_trainer_asleep and step != self._preemption.saved_steps:
            await self._driver.end_engines(self._colocated_engines)
            await self._wake_trainer()
        await self._save(step, before)
        error = self._preemption.leave(step, self.config.run.num_steps)
        self._status.fail(error)  # at once: ending the workers may take longer than there is time
        raise error

    def is_checkpoint_due(self, step: int) -> bool:
        """True when `step` is the first of another `run.checkpoint_every_steps` steps.

        A checkpoint comes before a step, when all records of the last one are on the disk: what a checkpoint covers
        is never missing from the tables.
        """
        every = self.config.run.checkpoint_every_steps
        return every > 0 and step % every == 0

    async def checkpoint(self, num_finished_steps: int) -> None:
        """Save everything that a later attempt needs, unless the last checkpoint has it.

        A trainer that sleeps takes its GPUs for it: what it holds in host memory is in no form that could be written.
        """
        moment, began = self._now(), asyncio.get_running_loop().time()
        needs_turn = self._is_trainer_asleep and num_finished_steps != self._preemption.saved_steps
        if needs_turn:
            await self._driver.leave_gpus(self._colocated_engines)
            await self._wake_trainer()
        await self._save(num_finished_steps, moment)
        if needs_turn:
            self._deadline.checkpoint_took(asyncio.get_running_loop().time() - began)
        if needs_turn and num_finished_steps < self.config.run.num_steps:
            await self.publish_weights()

    def _now(self) -> _Moment:
        return _Moment(elapsed_s=self._clock.now(), scheduler=self._scheduler.snapshot(), order=self._order.snapshot())

    async def _save(self, num_finished_steps: int, moment: _Moment) -> None:
        """Save the run as it was between two steps; the trainer still is so."""
        if num_finished_steps == self._preemption.saved_steps:
            return
        began = asyncio.get_running_loop().time()
        self._progress.stage("checkpoint")
        self._metrics.make_durable()
        meta = CheckpointMeta(
            schema_version=SCHEMA_VERSION,
            run_id=self._identity.run_id,
            fingerprint=self._identity.fingerprint,
            step=num_finished_steps,
            elapsed_s=moment.elapsed_s,
            attempt=self._attempt,
        )
        save = self._checkpoints.save(meta, scheduler=moment.scheduler, order=moment.order, trainer=self._trainer)
        await self._watchdog.within(self._deadlines.checkpoint_s, "the trainer's checkpoint", save)
        self._preemption.saved_steps = num_finished_steps
        self._deadline.checkpoint_took(asyncio.get_running_loop().time() - began)

    async def load(self, checkpoint: Checkpoint) -> None:
        """Bring the trainer to where a checkpoint left it."""
        load = self._trainer.load(checkpoint.trainer_folder)
        await self._watchdog.within(self._deadlines.checkpoint_s, "the trainer to load its checkpoint", load)


@asynccontextmanager
async def open_run(
    config: RunConfig, backend: Backend, watch: Watch | None, preemption: Preemption
) -> AsyncIterator[TrainingRun]:
    """Open everything that a run needs; inside, the engines hold the policy and the next step can begin."""
    progress = make_progress(config.run.progress, now=asyncio.get_running_loop().time)
    preemption.listen(progress.note)
    progress.begin_run(f"{config.system.name} in {config.run.dir}", config.run.num_steps)
    try:
        with _only_process_in(config.run.dir):
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
    run_dir = config.run.dir
    found = find_resumable(config)
    identity = identify_run(config)
    write_atomically(run_dir / CONFIG_FILE, to_yaml(config).encode())
    checkpoints = CheckpointStore(run_dir, keep=config.run.keep_checkpoints)
    for broken in found.broken:
        kept = checkpoints.set_aside(broken)
        progress.note(f"The checkpoint of step {broken.step} is broken: {broken.problem}. It is kept as {kept}.")
    checkpoint = found.newest
    first_step = checkpoint.meta.step if checkpoint else 0
    if found.broken:
        again = steps_in_words(found.broken[0].step - first_step)
        progress.note(f"The run goes on from the checkpoint of step {first_step}. Done again: {again}.")
    attempt = _next_attempt(run_dir)
    async with AsyncExitStack() as stack:
        status = stack.enter_context(
            shown_status(
                run_dir,
                attempt=attempt,
                finished_steps=first_step,
                num_steps=config.run.num_steps,
                job_id=preemption.job_id,
            )
        )
        preemption.begin(attempt, first_step)
        try:
            async with preemption.deadline.while_starting():
                run = await _start(
                    stack,
                    config,
                    backend,
                    progress=progress,
                    watch=watch,
                    status=status,
                    preemption=preemption,
                    identity=identity,
                    checkpoints=checkpoints,
                    checkpoint=checkpoint,
                    attempt=attempt,
                )
        except StepInterrupted:
            raise preemption.leave(first_step, config.run.num_steps) from None
        await run.begin()
        try:
            yield run
        except (PolicyDiverged, RepeatedFailure) as error:
            raise with_way_back(error, checkpoints, run.policy_version) from error


async def _start(
    stack: AsyncExitStack,
    config: RunConfig,
    backend: Backend,
    *,
    progress: Progress,
    watch: Watch | None,
    status: StatusBoard,
    preemption: Preemption,
    identity: RunIdentity,
    checkpoints: CheckpointStore,
    checkpoint: Checkpoint | None,
    attempt: int,
) -> TrainingRun:
    """Start the workers, and bring trainer and engines to where the run stands; `stack` ends it all."""
    run_dir, deadlines = config.run.dir, config.backend.deadlines
    first_step = checkpoint.meta.step if checkpoint else 0
    clock = RunClock(checkpoint.meta.elapsed_s if checkpoint else 0.0)
    interval_log = IntervalLog(clock)
    logs = run_dir / "logs" / f"attempt-{attempt:03d}"
    watchdog = Watchdog(logs / "stall.txt", deadlines.driver_stall_s)
    startup = StartupTimes(logs, began_at=process_began_at(), now=time.time)

    def stage(name: str) -> None:
        startup.begin(name)
        progress.stage(name)

    stack.callback(checkpoints.remove_unfinished)  # when no actor writes any more
    for note in mend_tables(run_dir / "metrics"):
        progress.note(note)
    metrics = MetricsWriter(run_dir / "metrics")
    stack.callback(metrics.close)
    metrics.truncate_after(first_step - 1)
    trackers = make_trackers(config.tracker, run_dir, identity.run_id, config.model_dump(mode="json"))
    stack.callback(trackers.close)

    if not backend.is_modelled:  # in virtual time nothing blocks for long, and a heart would beat a million times
        watchdog.start()
        stack.push_async_callback(watchdog.stop)
    workers = await stack.enter_async_context(
        backend.open(
            BackendContext(
                logs=logs,
                stage=stage,
                note=progress.note,
                within=watchdog.within,
                add_stack_source=watchdog.add_stack_source,
            )
        )
    )
    preemption.listen(progress.note)  # once more: Ray took SIGTERM while it connected
    order = _prompt_order(config, workers.prompts)
    settings = _settings(config, workers, progress)
    scheduler = Scheduler(settings)
    if checkpoint:
        order.restore(checkpoint.order)
        scheduler = Scheduler.restore(settings, checkpoint.scheduler)
    event_log = EventLogWriter(attempt_path(run_dir, attempt), settings, checkpoint.scheduler if checkpoint else None)
    stack.callback(event_log.close)
    learner = Learner(
        workers.trainer,
        config.rollout.max_response_tokens,
        watchdog.within,
        deadlines.train_s,
        interval_log=interval_log,
        on_failure=lambda error: driver.interrupt(error),  # noqa: PLW0108  the driver comes later
    )
    stack.push_async_callback(learner.close)

    def on_progress(num_accepted: int, num_needed: int) -> None:
        learner.group_accepted()
        progress.rollout(num_accepted, num_needed)

    driver = Driver(
        scheduler=scheduler,
        order=order,
        prompts=workers.prompts,
        fleets=workers.fleets,
        replace_engine=workers.replace_engine,
        rebuild=workers.rebuild,
        reward=workers.reward,
        rewards=config.reward,
        rollout=config.rollout,
        overlong=OverlongPunishment.of(config),
        engine=config.engine,
        deadlines=deadlines,
        straggler_s=config.weight_sync.timeout_s,
        seed=config.run.seed,
        clock=clock,
        watchdog=watchdog,
        on_event=_told_to(event_log, watch(scheduler, settings, first_step) if watch else None),
        on_progress=on_progress,
        on_stream=learner.stream,
        interval_log=interval_log,
        asleep=workers.colocated_engines,
        note=progress.note,
    )
    stack.push_async_callback(driver.stop)
    run = TrainingRun(
        config=config,
        identity=identity,
        attempt=attempt,
        first_step=first_step,
        clock=clock,
        interval_log=interval_log,
        scheduler=scheduler,
        order=order,
        driver=driver,
        trainer=workers.trainer,
        weight_sync=workers.weight_sync or SnapshotSync(workers.trainer, config.weight_sync.timeout_s),
        learner=learner,
        watchdog=watchdog,
        progress=progress,
        trackers=trackers,
        metrics=metrics,
        event_log=event_log,
        checkpoints=checkpoints,
        status=status,
        preemption=preemption,
        colocated_engines=workers.colocated_engines,
        judges=workers.judges,
        is_modelled=backend.is_modelled,
    )
    if checkpoint:
        progress.note(f"Resuming after step {checkpoint.meta.step} of {checkpoint.folder}")
        stage("loading the checkpoint")
        await run.load(checkpoint)
    startup.begin("weight sync")
    await run.publish_weights()
    if not backend.is_modelled:
        startup.finish()
    return run


def _told_to(event_log: EventLogWriter, watched: OnEvent | None) -> OnEvent:
    def on_event(event: Event, now: float, commands: tuple[Command, ...]) -> None:
        event_log.append(event, now, commands)
        if watched:
            watched(event, now, commands)

    return on_event


def _next_attempt(run_dir: Path) -> int:
    """Give the number that names this attempt's files; one that ended before its event log began has logs only."""
    names = [path.stem for path in attempt_paths(run_dir)]
    names += [folder.name for folder in (run_dir / "logs").glob("attempt-*")]
    numbers = [name.removeprefix("attempt-") for name in names]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1


def _settings(config: RunConfig, workers: Workers, progress: Progress) -> SchedulerSettings:
    fleets, parts = workers.fleets, workers.trainer_parts
    if config.system.stream and not any(can_stream(config, parts, fleet.gpus) for fleet in fleets.values()):
        progress.note(f"Nothing streams to the trainer: {NOTHING_TO_LEND}.")
    return scheduler_settings(
        config,
        Counter(prompt.prompt.domain for prompt in workers.prompts.values()),
        list(fleets),
        trainer_parts=parts,
        costs=[fleet.costs for fleet in fleets.values() if fleet.costs],
        prompt_tokens=sum(len(prompt.token_ids) for prompt in workers.prompts.values()) // len(workers.prompts),
    )


def _prompt_order(config: RunConfig, prompts: Mapping[str, TokenizedPrompt]) -> PromptOrder:
    keys: dict[Domain, list[str]] = {}
    for key, tokenized in prompts.items():
        keys.setdefault(tokenized.prompt.domain, []).append(key)
    return PromptOrder(keys, config.run.seed, config.data.shuffle, config.run.num_epochs)


@contextmanager
def _only_process_in(run_dir: Path) -> Iterator[None]:
    """Hold the run's lock: two processes in one folder would write over each other."""
    make_private_folder(run_dir)
    with storage_errors(run_dir):
        lock = (run_dir / "lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"Another process is running in run.dir={run_dir}.",
                "A run's folder belongs to one process at a time.",
                "Wait for it, or choose another run.dir.",
            ) from None
        yield
