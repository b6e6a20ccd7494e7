"""The judge as a reward worker: answers become batches as they arrive, one batch at a time.

While a batch is in the model the answers that come meanwhile are made ready and wait, first come first served; the next
batch takes as many of them as a forward pass holds. So a batch is small when few answers come, and latency is low, and
large when many do. How many may wait is the caller's business (`reward.judge.max_open`).

Invariant: each request comes back from `collect` exactly once, unless it was forgotten. While the model sleeps nothing
is in it; answers wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

from rollpacker.core.errors import EngineFailed, RollpackerError
from rollpacker.protocols.rollout import Verdict
from rollpacker.rewards.judge.verdicts import score_of
from rollpacker.rewards.outbox import Outbox
from rollpacker.rewards.scores import verdict_of, verdict_of_crash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.config.sections.judge import JudgeSection
    from rollpacker.protocols.judging import JudgeModel
    from rollpacker.protocols.reward import ScoringRequest
    from rollpacker.protocols.rollout import TokenIds
    from rollpacker.rewards.judge.reading import JudgePrompts


class JudgeRewardWorker:
    """Judges texts by a language model, which it owns. `ScoringRequest.prompt_text` is the bare question."""

    def __init__(self, model: JudgeModel, prompts: JudgePrompts, section: JudgeSection) -> None:
        self._model = model
        self._prompts = prompts
        self._section = section
        self._is_reading = asyncio.Lock()  # a tokenizer is one thread's at a time
        self._model_in_use = asyncio.Lock()  # by a batch; held while it sleeps
        self._waiting: deque[tuple[ScoringRequest, TokenIds]] = deque()
        self._has_news = asyncio.Event()
        self._outbox = Outbox()
        self._task: asyncio.Task[None] | None = None

    async def score(self, requests: Sequence[ScoringRequest]) -> None:
        """Make the requests ready for the judge, beside the batch that it reads."""
        self._outbox.refuse_when_closed()
        async with self._is_reading:
            read = await asyncio.to_thread(lambda: [self._read(request) for request in requests])
        self._outbox.put(verdict for verdict in read if isinstance(verdict, Verdict))
        self._waiting.extend(
            (request, tokens) for request, tokens in zip(requests, read, strict=True) if not isinstance(tokens, Verdict)
        )
        self._has_news.set()
        if self._task is None:
            self._task = asyncio.create_task(self._judge_all(), name="judge")

    async def forget(self) -> None:
        """Drop what waits; the batch that the judge reads comes back."""
        self._waiting.clear()

    async def collect(self) -> Sequence[Verdict]:
        """Wait until at least one verdict is there, and take all that are.

        Raises:
            RollpackerError: The model failed.
        """
        return await self._outbox.collect()

    async def sleep(self) -> None:
        """Have the model give back GPU memory, once it has read the batch under way."""
        await self._model_in_use.acquire()
        try:
            await self._model.sleep()
        except BaseException:
            self._model_in_use.release()
            raise

    async def wake(self) -> None:
        """Let the model go on."""
        await self._model.wake()
        self._model_in_use.release()

    async def describe_work(self) -> str:
        """Describe the model's work, for its log; may be empty."""
        return await self._model.describe_work()

    async def close(self) -> None:
        """End the model; what was not judged gets no verdict, and a pending `collect` returns."""
        self._outbox.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._model.close()

    def _read(self, request: ScoringRequest) -> TokenIds | Verdict:
        """Give the tokens that the judge reads; a verdict where there are none."""
        try:
            return self._prompts.encode(request)
        except Exception as error:  # noqa: BLE001 a response's boundary: what no tokenizer reads ends no run
            return verdict_of_crash(request, error)

    async def _judge_all(self) -> None:
        try:
            while True:
                while not self._waiting:
                    self._has_news.clear()
                    await self._has_news.wait()
                async with self._model_in_use:
                    if self._waiting:  # else it was forgotten meanwhile
                        await self._judge(self._next_batch())
        except Exception as error:  # noqa: BLE001 a task's boundary: `collect` raises it
            is_ours = isinstance(error, RollpackerError)
            self._outbox.fail(error if is_ours else EngineFailed(f"The judge failed: {type(error).__name__}: {error}"))

    def _next_batch(self) -> list[tuple[ScoringRequest, TokenIds]]:
        """As many as a forward pass holds, and at least one."""
        batch = [self._waiting.popleft()]
        num_tokens = len(batch[0][1])
        while self._waiting and num_tokens + len(self._waiting[0][1]) <= self._section.max_batch_tokens:
            batch.append(self._waiting.popleft())
            num_tokens += len(batch[-1][1])
        return batch

    async def _judge(self, batch: Sequence[tuple[ScoringRequest, TokenIds]]) -> None:
        began = time.perf_counter()
        answers = await self._model.next_token_logprobs([read for _, read in batch], self._prompts.candidates)
        time_s = time.perf_counter() - began
        self._outbox.put(
            verdict_of(request, score_of(self._section, answer), time_s)
            for (request, _), answer in zip(batch, answers, strict=True)
        )
