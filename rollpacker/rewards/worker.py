"""Reward workers, which implement `protocols.reward`: one that scores in place, and pools of killable processes.

Invariant: each request comes back from `collect` exactly once, unless it was forgotten. Nothing polls: tasks wait for
requests, `collect` for verdicts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

from rollpacker.processes.server_process import ProcessDied, ServerProcess
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.references import AnswerReference, JudgeReference
from rollpacker.protocols.tasks import end_tasks
from rollpacker.rewards.functions import RewardFunction
from rollpacker.rewards.scores import CHECKER_CRASHED, TIMEOUT, Score, verdict_of, verdict_of_crash

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from rollpacker.protocols.references import Reference
    from rollpacker.protocols.reward import ScoringRequest
    from rollpacker.protocols.rollout import Verdict

_log = logging.getLogger(__name__)

_MOST_PROBLEMS = 100
"""Different ones that a worker logs."""

SCORING_PROCESS = "rollpacker.rewards.scoring_process"
"""The module that the processes of `KillableRewardWorker` run."""

SUPERVISOR_GRACE_S = 10.0
"""How much longer than the check's limit a supervisor may take to respond, on a node that is busy."""


class InPlaceRewardWorker:
    """For rewards that are fast and cannot hang: scores while `score` runs."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = RewardFunction(function)
        self._outbox: Arrivals[Verdict] = Arrivals()

    async def score(self, requests: Sequence[ScoringRequest]) -> None:
        self._outbox.put(map(self._score, requests))

    async def forget(self) -> None:
        """Do nothing: what was to be scored was scored at once."""

    async def collect(self) -> Sequence[Verdict]:
        return await self._outbox.collect()

    async def close(self) -> None:
        self._outbox.close()

    def _score(self, request: ScoringRequest) -> Verdict:
        started_s = time.perf_counter()
        outcome = self._function(arguments_of(request))
        if outcome.problem:
            _log.warning("%s is %s: %s", request.request, outcome.score.reason, outcome.problem)
        return verdict_of(request, outcome.score, time.perf_counter() - started_s, outcome.parts)


class QueueRewardWorker(ABC):
    """Requests wait in one queue; tasks take some of them at a time, and `collect` gives the verdicts."""

    most_at_once = 1
    """Requests that a task takes."""

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks = num_tasks
        self._waiting: deque[ScoringRequest] = deque()
        self._has_news = asyncio.Condition()
        self._outbox: Arrivals[Verdict] = Arrivals()
        self._tasks: list[asyncio.Task[None]] = []
        self._num_forgotten = 0
        """Times that everything was."""

    async def score(self, requests: Sequence[ScoringRequest]) -> None:
        async with self._has_news:
            self._waiting.extend(requests)
            self._has_news.notify_all()
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._serve(task)) for task in range(self._num_tasks)]

    async def forget(self) -> None:
        """Drop what waits; of what a task has taken no other part is scored, and verdicts that come are dropped."""
        self._num_forgotten += 1
        self._waiting.clear()

    async def collect(self) -> Sequence[Verdict]:
        """Wait until at least one verdict is there, and take all that are; raises what ended a task.

        Raises:
            EngineFailed: The processes cannot be started, or the server cannot be reached.
            DataError: The prompt file was changed since it was read.
        """
        return await self._outbox.collect()

    async def close(self) -> None:
        """End the tasks; what waits gets no verdict, and a pending `collect` returns."""
        self._outbox.close()
        await end_tasks(*self._tasks)

    def _take(self) -> list[ScoringRequest]:
        """Take some of what waits, at least one."""
        return [self._waiting.popleft() for _ in range(min(self.most_at_once, len(self._waiting)))]

    @abstractmethod
    async def _score(self, task: int, requests: Sequence[ScoringRequest]) -> Sequence[Verdict]:
        """Score some requests in the task of this number."""

    async def _score_parts(self, task: int, requests: Sequence[ScoringRequest]) -> AsyncIterator[Sequence[Verdict]]:
        """Score some requests one part after the other: here all of them at once."""
        yield await self._score(task, requests)

    async def _serve(self, task: int) -> None:
        try:
            while True:
                async with self._has_news:
                    await self._has_news.wait_for(lambda: self._waiting)
                    taken = self._take()
                num_forgotten = self._num_forgotten
                async for verdicts in self._score_parts(task, taken):
                    if num_forgotten != self._num_forgotten:
                        break
                    self._outbox.put(verdicts)
        except Exception as error:  # noqa: BLE001 a task's boundary: `collect` raises it, or it would be lost
            self._outbox.fail(error)


class PooledRewardWorker(QueueRewardWorker):
    """Scores in processes that can be killed, one request at a time each."""

    def __init__(self, processes: Sequence[ServerProcess]) -> None:
        """Take processes, which start while the caller goes on."""
        super().__init__(len(processes))
        self._processes = processes

    @property
    def pids(self) -> list[int]:
        """Of the supervisors."""
        return [process.pid for process in self._processes]

    async def close(self) -> None:
        """End every process, and what it runs."""
        await super().close()
        for process in self._processes:
            process.disconnect()
        for process in self._processes:
            process.close()

    @abstractmethod
    async def _run(self, process: ServerProcess, request: ScoringRequest) -> Verdict: ...

    async def _score(self, task: int, requests: Sequence[ScoringRequest]) -> Sequence[Verdict]:
        [request] = requests
        try:
            return [await self._run(self._processes[task], request)]
        except Exception as error:  # noqa: BLE001 a response's boundary: its check ends no run
            return [verdict_of_crash(request, error)]


class KillableRewardWorker(PooledRewardWorker):
    """For rewards that may hang or crash: calls a function with a time limit (see `functions`, `scoring_process`)."""

    def __init__(self, source: str, num_workers: int, timeout_s: float) -> None:
        super().__init__(
            [ServerProcess(SCORING_PROCESS, [source, str(timeout_s)], "reward process") for _ in range(num_workers)]
        )
        self._limit_s = timeout_s + SUPERVISOR_GRACE_S
        self._problems: set[str] = set()
        """Those that the log has."""

    async def _run(self, process: ServerProcess, request: ScoringRequest) -> Verdict:
        try:
            response = await process.request(json.dumps(arguments_of(request)), self._limit_s)
        except ProcessDied:
            return verdict_of(request, CHECKER_CRASHED)
        except TimeoutError:
            return verdict_of(request, TIMEOUT, self._limit_s)
        score = Score(response["reward"], response["reason"])
        self._note(request, score, response["problem"])
        return verdict_of(request, score, response["time_s"], response["parts"])

    def _note(self, request: ScoringRequest, score: Score, problem: str) -> None:
        """Log a problem the first time: a function may have the same one with every response."""
        if problem and problem not in self._problems and len(self._problems) < _MOST_PROBLEMS:
            self._problems.add(problem)
            _log.warning("%s is %s: %s", request.request, score.reason, problem)


def arguments_of(request: ScoringRequest) -> dict[str, Any]:
    """A value for each of `functions.PARAMETERS`."""
    return {
        "prompt": request.prompt,
        "response": request.response_text,
        "ground_truth": ground_truth_of(request.reference),
        "row": dict(request.row),
        "is_truncated": request.is_truncated,
    }


def ground_truth_of(reference: Reference) -> str:
    """The answer to compare with; empty where the line has none."""
    match reference:
        case AnswerReference(text=text):
            return text
        case JudgeReference(answer=str() as answer):
            return answer
    return ""
