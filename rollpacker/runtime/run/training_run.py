"""One attempt at a run, as the pipeline uses it: a verb for each stage of a step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn

from rollpacker.config.words import counted
from rollpacker.protocols.rollout import FinishReason
from rollpacker.runtime.job.deadline import StepInterrupted
from rollpacker.runtime.rollout.scheduling import all_dropped
from rollpacker.runtime.run.recorder import StepRecorder, StepResult
from rollpacker.trainers.surprisal import surprisal_warning

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.trainer import UpdateMetrics
    from rollpacker.protocols.weights import Published
    from rollpacker.runtime.job.preemption import Preemption
    from rollpacker.runtime.rollout.batch import Batch
    from rollpacker.runtime.rollout.costs import RoundCosts
    from rollpacker.runtime.rollout.driver import Driver
    from rollpacker.runtime.rollout.learning import Learner
    from rollpacker.runtime.run.handover import Handover
    from rollpacker.runtime.run.outputs import RunOutputs
    from rollpacker.runtime.run.saving import Moment, RunSaver
    from rollpacker.runtime.waiting.clock import RunClock


class TrainingRun:
    """The stages of a step, and where the run stands."""

    def __init__(
        self,
        config: RunConfig,
        first_step: int,
        *,
        clock: RunClock,
        driver: Driver,
        learner: Learner,
        handover: Handover,
        saver: RunSaver,
        outputs: RunOutputs,
        preemption: Preemption,
        is_modelled: bool,
    ) -> None:
        self.config = config
        self._first_step = first_step
        self._clock = clock
        self._driver = driver
        self._learner = learner
        self._handover = handover
        self._saver = saver
        self._outputs = outputs
        self._preemption = preemption
        self._deadline = preemption.deadline
        self._is_modelled = is_modelled
        self._step = first_step
        self._costs: RoundCosts | None = None
        self._published: Published | None = None
        self._warned: set[str] = set()
        """What was said once in an attempt."""

    async def begin(self) -> None:
        """Start the run's clock and listen to the engines."""
        evaluations = self._outputs.evaluations
        if self.config.run.keep_best and evaluations and evaluations.best_step:
            self._saver.mark_best(evaluations.best_step)  # an attempt may end before the mark, or a better one break
        self._clock.start()
        self._outputs.interval_log.take()  # what came before the first step
        await self._driver.start()

    @property
    def num_steps(self) -> int:
        """After which the run is over: those that it asks for, or more where an attempt before was to go on longer."""
        return max(self.config.run.num_steps, self._first_step)

    def remaining_steps(self) -> Iterator[int]:
        """Steps that no checkpoint covers yet."""
        yield from range(self._first_step, self.config.run.num_steps)

    def recorder(self, step: int) -> StepRecorder:
        """Begin to record a step."""
        return StepRecorder(step=step, system=self.config.system.name, clock=self._clock, is_modelled=self._is_modelled)

    async def roll_out(self, step: int) -> Batch | None:
        """Generate and score the batch of a step; None when all data has been trained.

        Raises:
            DataError: No step could be, since prompts were dropped.
        """
        self._outputs.progress.stage("rollout")
        self._step = step
        batch = await self._driver.next_batch(step)
        if batch is None and self._driver.has_lent:
            await self._take_lent_gpus_back()
        if batch is None and step == 0:
            raise all_dropped(has_environments=bool(self.config.environment or self.config.modelled_environment))
        return batch

    async def _take_lent_gpus_back(self) -> None:
        """Have engines serve again that were lent to a batch which has come to nothing: its prompts were dropped."""
        await self._driver.quiesce()
        await self._handover.to_trainer()
        await self._learner.close()
        await self.publish_weights()

    async def evaluate(self, step: int, *, is_last: bool = False) -> bool:
        """Evaluate the policy after so many steps on the held-out sets, where there are any and it is due.

        Returns:
            Whether a checkpoint is to keep it as the best one so far; one that is there is marked so.

        Raises:
            Preempted, Interrupted, WorldError: As `preemptible` does; a later attempt evaluates from the beginning.
        """
        if self._outputs.evaluations is None:
            return False
        self._outputs.progress.stage("evaluation")
        async with self.preemptible(step):
            record = await self._driver.evaluate(step, is_last=is_last)
        is_best = record is not None and self._outputs.evaluated(record)
        is_best = is_best and self.config.run.keep_best and step > 0  # before the first step it is that of model.path
        if is_best:
            self._saver.mark_best(step)  # its checkpoint, where an attempt that ended in this evaluation has written it
        return is_best

    @property
    def policy_version(self) -> int:
        """Of the weights that the engines hold."""
        return self._published.policy_version if self._published is not None else 0

    @property
    def is_colocated(self) -> bool:
        """Engines and trainer share GPUs, on which only one of them is awake at a time."""
        return self._handover.is_colocated

    async def hand_over_gpus(self) -> None:
        """Give the trainer the GPUs that it shares with engines: they sleep until new weights come. All are idle."""
        await self._handover.to_trainer()

    async def learn(self, batch: Batch) -> UpdateMetrics:
        """Train on a batch: one step of the trainer, part of which may have streamed during the rollout.

        Raises `WrongSampling`, and nothing is published, where engines did not draw it from the policy.
        """
        self._outputs.progress.stage("training")
        await self._learner.accumulate(batch)
        self._deadline.commit()
        update = await self._learner.update()
        if not batch.begin.races and not self.config.system.dynamic_sampling:
            self._warn_once("sampling", surprisal_warning(update, self.config.trainer, batch.begin.step))
        if self.config.trainer.mask_truncated:
            self._warn_once("masked", _masked_warning(update, batch))
        return update

    def _warn_once(self, subject: str, warning: str | None) -> None:
        if warning is not None and subject not in self._warned:
            self._outputs.progress.note(warning)
            self._warned.add(subject)

    async def quiesce(self) -> None:
        """Wait until no request of the round is in flight, and measure its costs."""
        is_saved = self._saver.is_due(self._step + 1)
        await self._driver.quiesce(empties_engines=is_saved or self.is_colocated, settles_rewards=is_saved)
        self._costs = await self._driver.measure_round()

    async def publish_weights(self) -> None:
        """Send the trainer's policy to every engine; shared GPUs are the engines' from then on."""
        self._outputs.progress.stage("weight sync")
        self._published = await self._handover.publish()

    async def record(self, recorder: StepRecorder, batch: Batch, update: UpdateMetrics) -> None:
        """Write the step's metrics, and those of an evaluation that filled its round, and show them."""
        evaluation = self._driver.take_evaluation()
        if evaluation is not None:
            self._outputs.evaluated(evaluation)
        assert self._costs is not None
        assert self._published is not None
        elastic = self._driver.elastic.report_step(
            batch,
            local_share=self._costs.tensor_parallel / self.config.engine.tensor_parallel,
            train_s=self._learner.busy_s,
            trainer_idle_s=self._learner.idle_s,
        )
        result = StepResult(
            update=update,
            costs=self._costs,
            published=self._published,
            num_tokens_streamed=self._learner.num_tokens_streamed,
            turnover=self._driver.turnover(),
            elastic=elastic,
        )
        self._preemption.finished_steps = self._outputs.record(recorder, batch, result)
        self._deadline.step_ended()

    @asynccontextmanager
    async def preemptible(self, step: int) -> AsyncIterator[None]:
        """Run a step inside, unless the run is preempted before the step could end.

        Raises:
            Preempted: A checkpoint holds the run as it was before this step.
            Interrupted: The same, because a person ended the run.
            WorldError: The run is preempted again without progress, so another attempt would not help.
        """
        before = self._saver.moment()
        if not self._deadline.may_begin(is_first=step == self._first_step):
            await self._leave(step, before)
        try:
            async with self._deadline.in_step():
                yield
        except StepInterrupted:
            await self._learner.give_up()
            await self._leave(step, before)

    async def _leave(self, step: int, before: Moment) -> NoReturn:
        self._outputs.progress.note(f"Leaving after step {step}: {self._deadline.reason}.")
        if not self._saver.is_saved(step):
            await self._handover.for_checkpoint(is_last=True)
            await self._saver.save(step, before)
        error = self._preemption.leave(step, self.config.run.num_steps)
        self._outputs.status.fail(error)  # at once: ending the workers may take longer than the time left
        raise error

    def is_checkpoint_due(self, step: int, *, is_best: bool) -> bool:
        """True when the policy is the best one, or `step` the first of another `run.checkpoint_every_steps` steps.

        A checkpoint comes before a step, when all records of the last one are on the disk: what a checkpoint covers
        is never missing from the tables. None is due where the newest one holds these steps.
        """
        return (is_best or self._saver.is_due(step)) and not self._saver.is_saved(step)

    async def checkpoint(self, num_finished_steps: int, *, is_best: bool, is_last: bool = False) -> None:
        """Save everything that a later attempt needs, unless the last checkpoint has it; mark it where it `is_best`.

        Shared GPUs are the engines' again, unless nothing is to come: it `is_last`.
        """
        took_gpus = False
        if not self._saver.is_saved(num_finished_steps):
            moment = self._saver.moment()
            with self._deadline.timing_checkpoint():
                took_gpus = await self._handover.for_checkpoint(is_last=False)
                await self._saver.save(num_finished_steps, moment)
        if is_best:
            self._saver.mark_best(num_finished_steps)
        if took_gpus and not is_last:
            await self.publish_weights()

    async def export_model(self) -> None:
        """Write the policy of the last checkpoint as `run.dir/model`; a modelled run has none."""
        if not self._is_modelled:
            await self._saver.export()


def _masked_warning(update: UpdateMetrics, batch: Batch) -> str | None:
    """Say that a step with `trainer.mask_truncated` had no gradient, if responses that were cut are a reason."""
    ends = [each.response.finish_reason for each in batch.requests.values() if each.is_accepted and each.response]
    num_cut = ends.count(FinishReason.LENGTH)
    has_gradient = update.loss is None or update.clip_fraction is not None  # a modelled step has neither number
    if has_gradient or not num_cut:
        return None
    rest = ", and the others have an advantage of 0" if num_cut < len(ends) else ""
    return (
        f"Step {batch.begin.step + 1} had no gradient: {num_cut} of {counted(len(ends), 'response')} were cut and left "
        f"out of the loss{rest}. Raise rollout.max_response_tokens, or set trainer.mask_truncated=false."
    )
