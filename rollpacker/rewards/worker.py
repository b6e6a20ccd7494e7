"""Reward workers, which implement `protocols.reward`: one that scores in place, and pools of killable processes.

Invariant: each request comes back from `collect` exactly once, unless it was forgotten. Nothing polls: tasks wait on
the queue of requests, `collect` on the outbox.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from rollpacker.protocols.references import AnswerReference
from rollpacker.rewards.outbox import Outbox
from rollpacker.rewards.reward_module import CHECKER_CRASHED, TIMEOUT, Score, verdict_of, verdict_of_crash
from rollpacker.rewards.supervisor_process import ProcessDied, SupervisorProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.protocols.reward import ScoringRequest
    from rollpacker.protocols.rollout import Verdict
    from rollpacker.rewards.reward_module import RewardModule

SUPERVISOR_GRACE_S = 10.0
"""How much longer than the check's limit a supervisor may take to respond, on a node that is busy."""


class InPlaceRewardWorker:
    """For rewards that are fast and cannot hang: scores while `score` runs."""

    def __init__(self, module: RewardModule) -> None:
        self._module = module
        self._outbox = Outbox()

    async def score(self, requests: Sequence[ScoringRequest]) -> None:
        self._outbox.refuse_when_closed()
        self._outbox.put(map(self._score, requests))

    async def forget(self) -> None:
        """Do nothing: what was to be scored was scored at once."""

    async def collect(self) -> Sequence[Verdict]:
        return await self._outbox.collect()

    async def close(self) -> None:
        self._outbox.close()

    def _score(self, request: ScoringRequest) -> Verdict:
        started_s = time.perf_counter()
        try:
            score = self._module.score(**_arguments(request))
        except Exception as error:  # noqa: BLE001 a response's boundary: its check ends no run
            return verdict_of_crash(request, error)
        return verdict_of(request, score, time.perf_counter() - started_s)


class PooledRewardWorker(ABC):
    """Scores in processes that can be killed, one request at a time each."""

    def __init__(self, processes: Sequence[SupervisorProcess]) -> None:
        """Take processes, which start while the caller goes on."""
        self._processes = processes
        self._queue: asyncio.Queue[ScoringRequest] = asyncio.Queue()
        self._outbox = Outbox()
        self._tasks: list[asyncio.Task[None]] = []
        self._num_forgotten = 0
        """Times that everything was."""

    @property
    def pids(self) -> list[int]:
        """Of the supervisors."""
        return [process.pid for process in self._processes]

    async def score(self, requests: Sequence[ScoringRequest]) -> None:
        self._outbox.refuse_when_closed()
        for request in requests:
            self._queue.put_nowait(request)
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._serve(process)) for process in self._processes]

    async def forget(self) -> None:
        """Empty the queue; verdicts on requests that are in a process are dropped."""
        self._num_forgotten += 1
        while not self._queue.empty():
            self._queue.get_nowait()

    async def collect(self) -> Sequence[Verdict]:
        """Wait until at least one verdict is there, and take all that are.

        Raises:
            EngineFailed: The processes cannot be started.
            DataError: The prompt file was changed since it was read.
        """
        return await self._outbox.collect()

    async def close(self) -> None:
        """End every process; queued requests get no verdict, and a pending `collect` returns."""
        self._outbox.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self._processes:
            process.disconnect()
        for process in self._processes:
            process.close()

    @abstractmethod
    async def _score(self, process: SupervisorProcess, request: ScoringRequest) -> Verdict: ...

    async def _serve(self, process: SupervisorProcess) -> None:
        try:
            while True:
                request = await self._queue.get()
                num_forgotten = self._num_forgotten
                try:
                    verdict = await self._score(process, request)
                except Exception as error:  # noqa: BLE001 a response's boundary: its check ends no run
                    verdict = verdict_of_crash(request, error)
                if num_forgotten == self._num_forgotten:
                    self._outbox.put([verdict])
        except Exception as error:  # noqa: BLE001 a task's boundary: `collect` raises it, or it would be lost
            self._outbox.fail(error)


class KillableRewardWorker(PooledRewardWorker):
    """For rewards that may hang or crash: runs a reward module, with a time limit per check (see `scoring_process`)."""

    def __init__(self, module_name: str, num_workers: int, timeout_s: float) -> None:
        arguments = [module_name, str(timeout_s)]
        super().__init__(
            [SupervisorProcess("rollpacker.rewards.scoring_process", arguments) for _ in range(num_workers)]
        )
        self._limit_s = timeout_s + SUPERVISOR_GRACE_S

    async def _score(self, process: SupervisorProcess, request: ScoringRequest) -> Verdict:
        try:
            response = await process.request(json.dumps(_arguments(request)), self._limit_s)
        except ProcessDied:
            return verdict_of(request, CHECKER_CRASHED)
        except TimeoutError:
            return verdict_of(request, TIMEOUT, self._limit_s)
        return verdict_of(request, Score(response["reward"], response["reason"]), response["time_s"])


def _arguments(request: ScoringRequest) -> dict[str, Any]:
    """Of a reward module's `score`. That the reference is an answer was checked before the run began."""
    assert isinstance(request.reference, AnswerReference), request.reference
    return {
        "prompt_text": request.prompt_text,
        "response_text": request.response_text,
        "is_truncated": request.is_truncated,
        "ground_truth": request.reference.text,
    }
