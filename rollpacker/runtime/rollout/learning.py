"""One training step whose accepted groups may reach the trainer while the rollout still runs.

    rollout   ├── all engines ──┼── those that are left ──┤
    trainer                     ├─ stream: lent GPUs ─────┼─ the rest: all GPUs ─┼─ update ─┤

    rollout   ├── all engines ────────────────────────────┤
    trainer   ├─ stream: GPUs of its own ────────────────┼─ the rest ─┼─ update ─┤

Invariant: every group of the batch is accumulated exactly once, and the update comes after the last one. An accepted
group is final, so what streamed is never taken back; and the loss is a sum over samples divided by a constant that is
known in advance (`BatchShape`), so the streamed step equals the unstreamed one. A batch may turn out smaller than was
planned, because environments failed or the data ended: the update is told its size. The trainer gets one call at a
time.

A stream that fails is told of at once: the rollout that still runs could not be trained. Engines may take their GPUs
back in the midst of a step: the stream ends after the call that runs, and the trainer sleeps with the gradients that it
has. The step's update is bit for bit what it would have been (`protocols.trainer`).

Source: RollPacker, section 4.4, algorithm 1.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, TypeVar

from rollpacker.protocols.tasks import end_tasks
from rollpacker.protocols.trainer import BatchShape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from rollpacker.core.ids import PromptId
    from rollpacker.protocols.backend import Within
    from rollpacker.protocols.trainer import Trainer, UpdateMetrics
    from rollpacker.runtime.rollout.batch import Batch
    from rollpacker.runtime.rollout.interval_log import IntervalLog


Answer = TypeVar("Answer")


class Learner:
    """Trains one batch after the other.

    Args:
        trainer: Gets the batches.
        max_response_tokens: The bound that enters the loss's constant.
        within: Awaits an answer for so long, or ends the run with what was awaited.
        deadline_s: Of one call of the trainer.
        interval_log: Takes down when the trainer worked while the rollout ran.
        on_failure: Told of the error that ended a stream.
        keeps_cache: Of each `BatchShape`.
    """

    def __init__(
        self,
        trainer: Trainer,
        max_response_tokens: int,
        within: Within,
        deadline_s: float,
        *,
        interval_log: IntervalLog,
        on_failure: Callable[[Exception], None],
        keeps_cache: bool = False,
    ) -> None:
        self._trainer = trainer
        self._max_response_tokens = max_response_tokens
        self._within = within
        self._deadline_s = deadline_s
        self._interval_log = interval_log
        self._on_failure = on_failure
        self._keeps_cache = keeps_cache
        self._loop = asyncio.get_running_loop()
        self._streaming: asyncio.Task[None] | None = None
        self._accumulated: set[PromptId] = set()
        self._has_news = asyncio.Event()
        self._is_rollout_over = False
        self._has_begun = False
        """Whether the trainer is in a step."""
        self.num_tokens_streamed = 0
        """Response tokens of the last step that were accumulated, or begun to be, while its rollout ran."""
        self.busy_s = 0.0
        """That the trainer worked on the last step."""
        self.idle_s = 0.0
        """That streams of it waited for groups on lent GPUs."""

    def stream(self, batch: Batch, gpus: Collection[int] | None, groups_per_call: int | None) -> None:
        """Begin the step now, with the groups that are accepted and those that will be.

        Args:
            batch: Of the round that runs.
            gpus: Lent ones, where the trainer sleeps so far; None: GPUs of its own, where it is awake.
            groups_per_call: It gets so many at a time at most; None: all that are there.
        """
        can_stream = gpus is None or len(gpus) > 0
        if can_stream and batch.order is None and self._streaming is None:
            self._streaming = asyncio.create_task(
                self._stream_or_tell(batch, gpus, groups_per_call), name="stream training"
            )

    def group_accepted(self) -> None:
        """Another group may be trained."""
        self._has_news.set()

    async def accumulate(self, batch: Batch) -> None:
        """Train what has not streamed, on all GPUs. The policy is as it was until `update`."""
        await self.end_streaming()
        await self._begin(batch)
        self._has_begun = False
        rest = [group for group in batch.groups() if group.prompt not in self._accumulated]
        if rest:
            await self._work("the trainer's gradients", self._trainer.accumulate(rest))
        await self._work("the trainer's gradients", self._trainer.complete_batch(_num_responses_of(batch)))

    async def end_streaming(self) -> None:
        """Begin no further call of the stream, and wait for the one that runs."""
        if self._streaming is not None:
            self._is_rollout_over = True
            self._has_news.set()
            await self._streaming
            self._streaming, self._is_rollout_over = None, False

    async def give_back(self) -> None:
        """Leave lent GPUs in the midst of the step: another stream, or `accumulate`, goes on with it."""
        await self.end_streaming()
        await self._within(self._deadline_s, "the trainer to give lent GPUs back", self._trainer.sleep())

    async def update(self) -> UpdateMetrics:
        """Let the policy learn from all that was accumulated."""
        return await self._work("the trainer's update", self._trainer.finish_step())

    async def give_up(self) -> None:
        """Leave the step, which a later attempt repeats: the trainer can save after the pass that runs."""
        await self.close()
        await self._within(self._deadline_s, "the trainer to give its step up", self._trainer.give_up_step())

    async def close(self) -> None:
        """End a stream that no `accumulate` will end; what had streamed is lost with its step."""
        streaming, self._streaming, self._has_begun = self._streaming, None, False
        await end_tasks(streaming)

    async def _begin(self, batch: Batch) -> None:
        """Begin the step, unless a stream has."""
        if self._has_begun:
            return
        self._has_begun = True
        self._accumulated, self.num_tokens_streamed = set(), 0
        self.busy_s = self.idle_s = 0.0
        shape = BatchShape(
            step=batch.begin.step,
            policy_version=batch.policy_version,
            oldest_policy_version=batch.oldest_policy_version,
            num_groups=_num_groups_of(batch),
            num_responses=_num_responses_of(batch),
            max_response_tokens=self._max_response_tokens,
            keeps_cache=self._keeps_cache,
        )
        await self._within(self._deadline_s, "the trainer to begin the step", self._trainer.begin_step(shape))

    async def _stream_or_tell(self, batch: Batch, gpus: Collection[int] | None, groups_per_call: int | None) -> None:
        try:
            await self._stream(batch, gpus, groups_per_call)
        except Exception as error:
            self._on_failure(error)
            raise

    async def _stream(self, batch: Batch, gpus: Collection[int] | None, groups_per_call: int | None) -> None:
        if gpus is not None:
            await self._within(self._deadline_s, "the trainer to take the lent GPUs", self._trainer.wake(gpus))
        await self._begin(batch)
        while not self._is_rollout_over:
            num_begun = len(self._accumulated)  # in the order in which they were accepted
            end = None if groups_per_call is None else num_begun + groups_per_call
            prompts = list(itertools.islice(batch.accepted, num_begun, end))
            if not prompts:
                self._has_news.clear()
                began = self._loop.time()
                await self._has_news.wait()
                if gpus is not None:
                    self.idle_s += self._loop.time() - began
                continue
            groups = [batch.group(prompt) for prompt in prompts]
            self._accumulated.update(prompts)
            self.num_tokens_streamed += sum(response.num_tokens for group in groups for response in group.responses)
            with self._interval_log.during("trainer", "trainer", "stream"):
                await self._work("the trainer's gradients", self._trainer.accumulate(groups, gpus))

    async def _work(self, what: str, answer: Awaitable[Answer]) -> Answer:
        """Let the trainer do something, and count its time."""
        began = self._loop.time()
        try:
            return await self._within(self._deadline_s, what, answer)
        finally:
            self.busy_s += self._loop.time() - began


def _num_groups_of(batch: Batch) -> int:
    """As planned while the round runs."""
    return batch.begin.num_prompts_needed if batch.order is None else len(batch.order)


def _num_responses_of(batch: Batch) -> int:
    return _num_groups_of(batch) * batch.begin.num_responses_needed
