"""Reward workers, as `protocols.reward` wants them: one that judges in place, one with killable processes.

Invariant: each request comes back from `collect` exactly once. Nothing polls: a judging process waits on its queue,
`collect` on the outbox.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import Verdict
from rollpacker.rewards.judgement import verdict_of_crash
from rollpacker.rewards.outbox import Outbox
from rollpacker.rewards.process_pool import JudgingProcess, TimedJudgement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.protocols.reward import ScoringRequest
    from rollpacker.rewards.judgement import RewardModule


class InPlaceRewardWorker:
    """For rewards that are fast and cannot hang: judges while `score` runs."""

    def __init__(self, module: RewardModule) -> None:
        self._module = module
        self._outbox = Outbox()

    async def score(self, requests: Sequence[ScoringRequest]) -> None:
        self._outbox.refuse_when_closed()
        for request in requests:
            try:
                verdict = self._judge(request)
            except Exception as error:  # noqa: BLE001 a response's boundary: its check ends no run
                verdict = verdict_of_crash(request, error)
            self._outbox.put(verdict)

    async def forget(self) -> None:
        """Do nothing: what was to be scored was scored at once."""

    async def collect(self) -> Sequence[Verdict]:
        return await self._outbox.collect()

    async def close(self) -> None:
        self._outbox.close()

    def _judge(self, request: ScoringRequest) -> Verdict:
        started_s = time.perf_counter()
        judgement = self._module.judge(
            request.prompt_text, request.response_text, request.is_truncated, _answer(request)
        )
        return _verdict(request, TimedJudgement(judgement, time.perf_counter() - started_s))


class KillableRewardWorker:
    """For rewards that may hang or crash: judges in `num_workers` processes, each with a time limit per check."""

    def __init__(self, module_name: str, num_workers: int, timeout_s: float) -> None:
        """Start the processes at once; they import while the caller goes on."""
        self._processes = [JudgingProcess(module_name, timeout_s) for _ in range(num_workers)]
        self._queue: asyncio.Queue[ScoringRequest] = asyncio.Queue()
        self._outbox = Outbox()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pids(self) -> list[int]:
        """Of the processes that this worker started; each has at most one child."""
        return [process.pid for process in self._processes]

    async def score(self, requests: Sequence[ScoringRequest]) -> None:
        self._outbox.refuse_when_closed()
        for request in requests:
            self._queue.put_nowait(request)
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._feed(process)) for process in self._processes]

    async def forget(self) -> None:
        """Empty the queue; what the processes are at comes back."""
        while not self._queue.empty():
            self._queue.get_nowait()

    async def collect(self) -> Sequence[Verdict]:
        """Wait until at least one verdict is there, and take all that are.

        Raises:
            EngineFailed: The processes cannot be started.
        """
        return await self._outbox.collect()

    async def close(self) -> None:
        """End every process; requests still in the queue get no verdict, and a pending `collect` returns."""
        self._outbox.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self._processes:
            process.close()

    async def _feed(self, process: JudgingProcess) -> None:
        try:
            while True:
                request = await self._queue.get()
                try:
                    verdict = await _judge_in(process, request)
                except Exception as error:  # noqa: BLE001 a response's boundary: its check ends no run
                    verdict = verdict_of_crash(request, error)
                self._outbox.put(verdict)
        except Exception as error:  # noqa: BLE001 a task's boundary: `collect` raises it, or nobody would ever know
            self._outbox.fail(error)


async def _judge_in(process: JudgingProcess, request: ScoringRequest) -> Verdict:
    arguments = {
        "prompt_text": request.prompt_text,
        "response_text": request.response_text,
        "is_truncated": request.is_truncated,
        "ground_truth": _answer(request),
    }
    return _verdict(request, await process.judge(arguments))


def _answer(request: ScoringRequest) -> str:
    """The text that a rule compares with; that there is one was checked before the run began."""
    assert isinstance(request.reference, AnswerReference), request.reference
    return request.reference.text


def _verdict(request: ScoringRequest, judged: TimedJudgement) -> Verdict:
    reward, reason = judged.judgement
    return Verdict(request=request.request, reward=reward, reason=reason, time_s=judged.time_s)
