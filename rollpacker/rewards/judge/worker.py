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
from typing import TYPE_CHECKING

from rollpacker.core.errors import EngineFailed, RollpackerError
from rollpacker.protocols.rollout import Verdict
from rollpacker.rewards.judge.verdicts import score_of
from rollpacker.rewards.scores import verdict_of, verdict_of_crash
from rollpacker.rewards.worker import QueueRewardWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.config.sections.judge import JudgeSection
    from rollpacker.core.ids import RequestId
    from rollpacker.protocols.judging import JudgeModel
    from rollpacker.protocols.reward import ScoringRequest
    from rollpacker.protocols.rollout import TokenIds
    from rollpacker.rewards.judge.reading import JudgePrompts


class JudgeRewardWorker(QueueRewardWorker):
    """Judges texts by a language model, which it owns. `ScoringRequest.prompt_text` is the bare question."""

    def __init__(self, model: JudgeModel, prompts: JudgePrompts, section: JudgeSection) -> None:
        super().__init__(num_tasks=1)
        self._model = model
        self._prompts = prompts
        self._section = section
        self._is_reading = asyncio.Lock()  # a tokenizer is one thread's at a time
        self._model_in_use = asyncio.Lock()  # by a batch; held while it sleeps
        self._read: dict[RequestId, TokenIds] = {}
        """What the judge reads of each answer that waits."""

    async def score(self, requests: Sequence[ScoringRequest]) -> None:
        """Make the requests ready for the judge, beside the batch that it reads."""
        num_forgotten = self._num_forgotten
        async with self._is_reading:
            read = await asyncio.to_thread(lambda: [self._encode(request) for request in requests])
        if num_forgotten != self._num_forgotten:
            return
        self._outbox.put(verdict for verdict in read if isinstance(verdict, Verdict))
        ready = {
            request.request: tokens
            for request, tokens in zip(requests, read, strict=True)
            if not isinstance(tokens, Verdict)
        }
        self._read |= ready
        await super().score([request for request in requests if request.request in ready])

    async def forget(self) -> None:
        """Drop what waits, and the verdicts of the batch that the judge reads."""
        for request in self._waiting:
            del self._read[request.request]  # and not what `score` is about to queue
        await super().forget()

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
        await super().close()
        await self._model.close()

    def _encode(self, request: ScoringRequest) -> TokenIds | Verdict:
        """Give the tokens that the judge reads; a verdict where there are none."""
        try:
            return self._prompts.encode(request)
        except Exception as error:  # noqa: BLE001 a response's boundary: what no tokenizer reads ends no run
            return verdict_of_crash(request, error)

    def _take(self) -> list[ScoringRequest]:
        """Take as many as a forward pass holds, and at least one."""
        batch = [self._waiting.popleft()]
        room = self._section.max_batch_tokens - len(self._read[batch[0].request])
        while self._waiting and (room := room - len(self._read[self._waiting[0].request])) >= 0:
            batch.append(self._waiting.popleft())
        return batch

    async def _score(self, task: int, requests: Sequence[ScoringRequest]) -> Sequence[Verdict]:  # noqa: ARG002
        prompts = [self._read.pop(request.request) for request in requests]
        async with self._model_in_use:
            began = time.perf_counter()
            try:
                answers = await self._model.next_token_logprobs(prompts, self._prompts.candidates)
            except RollpackerError:
                raise
            except Exception as error:  # an inference library's boundary: it has no class of its own
                raise EngineFailed(f"The judge failed: {type(error).__name__}: {error}") from error
            time_s = time.perf_counter() - began
        return [
            verdict_of(request, score_of(self._section, answer), time_s)
            for request, answer in zip(requests, answers, strict=True)
        ]
