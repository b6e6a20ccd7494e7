"""Environments in processes that can be killed; implements `rollpacker.protocols.environment.EnvironmentService`.

    free process ──reset──> a trajectory's ──end──> free
                                            ├──in the middle of a call──> finishing ──its late answer──> free
                                            ├──it has not started in time──> finishing
                                            └──its call took too long, or it died──> ended

A race stops many trajectories while their environments act. To start an interpreter takes seconds, and most calls less,
so these processes finish what they do. So do those that start too slowly for their trajectory, on a busy node all of
them: another one takes over what has started, and not a start from the beginning.

Invariant: a process belongs to one trajectory at a time. There are at most as many as trajectories were open at once,
and as many again that are finishing; which may be open is decided in `rollpacker.core.environments`, and so is how long
a call may take, from the moment at which `EnvironmentBegan` tells that a process has it. No more processes are starting
at a time than there are cores: a hundred interpreters that import at once stop everything else on a node, the driver's
loop too, which therefore starts and ends none itself. Trajectories wait for them in order, and a start that takes too
long makes room for the next one. A process that has ended is replaced when a trajectory needs it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from rollpacker.core.environment_events import EnvironmentBegan
from rollpacker.core.environments import LOST
from rollpacker.core.errors import EngineFailed
from rollpacker.core.ids import RequestId
from rollpacker.environments.starting import EnvironmentStarter
from rollpacker.processes.server_process import STOP_LIMIT_S, DiedAtStart, LateStart, ProcessDied, ServerProcess
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.environment import EnvironmentAnswer, EnvironmentNews, EnvironmentReset, EnvironmentTurn
from rollpacker.protocols.tasks import end_tasks

_MOST_DEAD_STARTS = 3
"""In a row, after which it is no accident that a process ends as it starts."""

_MOST_PROBLEMS = 100
"""Different ones that are logged."""

_POLL_S = 0.02
"""Between looks at which processes have ended; a thread for each would be more than an event loop has."""

_NO_LIMITS: Mapping[str, str] = MappingProxyType({})

_log = logging.getLogger(__name__)


class EnvironmentPool:
    """Runs one class of environments.

    Args:
        starter: Starts its processes.
        limit_s: After which a call is given up even if nobody ends it.
        sends_tokens: Whether it needs more of a turn than its text.
        limits: The scheduler's for a `reset` and for a `turn`, in words.
    """

    def __init__(
        self,
        starter: EnvironmentStarter,
        *,
        limit_s: float,
        sends_tokens: bool = False,
        limits: Mapping[str, str] = _NO_LIMITS,
    ) -> None:
        self._starter = starter
        self._limit_s = limit_s
        self._sends_tokens = sends_tokens
        self._limits = limits
        self._free: list[ServerProcess] = []
        self._open: dict[RequestId, ServerProcess | None] = {}
        """None until it is started."""
        self._most_open = 0
        self._finishing: dict[asyncio.Task[None], ServerProcess] = {}
        """By their calls, whose trajectories are over."""
        self._starts: set[asyncio.Task[ServerProcess]] = set()
        self._ends: set[asyncio.Task[None]] = set()
        self._may_start = asyncio.Semaphore(len(os.sched_getaffinity(0)))
        self._calls: dict[RequestId, asyncio.Task[None]] = {}
        self._kinds: dict[RequestId, str] = {}
        """Of these calls: `reset` or `turn`."""
        self._answers: Arrivals[EnvironmentNews] = Arrivals()
        self._num_dead_starts = 0
        self._problems: set[str] = set()

    def reset(self, request: RequestId, call: int, start: EnvironmentReset) -> None:
        if request not in self._open:
            if not self._free and len(self._finishing) > self._most_open:
                self._break_off(next(iter(self._finishing)))
            self._open[request] = self._take_free()
            self._most_open = max(self._most_open, len(self._open))
        self._ask(request, call, {"reset": dataclasses.asdict(start)})

    def step(self, request: RequestId, call: int, turn: EnvironmentTurn) -> None:
        if request in self._open:
            self._ask(request, call, {"step": dataclasses.asdict(turn) if self._sends_tokens else {"text": turn.text}})
        else:
            self._answers.put([EnvironmentAnswer(request=request, call=call, failure=LOST)])

    def end(self, request: RequestId, *, has_hung: bool = False) -> None:
        process = self._open.pop(request, None)
        calling = self._calls.pop(request, None)
        kind = self._kinds.pop(request, "")
        if has_hung and calling is not None and not calling.done():
            has_begun = process is not None and process.is_ready
            limit = self._limits.get(kind, "it may")
            self._note(request, f"its {kind} took longer than {limit}" if has_begun else "it did not start in time")
        if process is None:
            if calling is not None:
                calling.cancel()
        elif calling is None or calling.done():
            self._free.append(process)
        else:
            self._finishing[calling] = process
            if has_hung and process.is_ready:
                self._break_off(calling)

    def _break_off(self, calling: asyncio.Task[None]) -> None:
        calling.cancel()
        self._end(self._finishing.pop(calling))

    def _end(self, process: ServerProcess) -> None:
        ending = asyncio.create_task(process.end())
        self._ends.add(ending)
        ending.add_done_callback(self._ends.discard)

    def _take_free(self) -> ServerProcess | None:
        """Give one that lives, if there is one."""
        while self._free:
            process = self._free.pop()
            if not process.has_died:
                return process
            self._end(process)
        return None

    async def collect(self) -> Sequence[EnvironmentNews]:
        return await self._answers.collect()

    async def close(self) -> None:
        """End all processes, at once those that have not closed what they hold after `STOP_LIMIT_S`."""
        await end_tasks(*self._calls.values(), *self._finishing)
        await asyncio.gather(*self._starts, *self._ends, return_exceptions=True)
        processes = [*self._free, *self._finishing.values(), *filter(None, self._open.values())]
        for process in processes:
            process.disconnect()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_LIMIT_S):
                while not all(process.has_died for process in processes):  # noqa: ASYNC110 no event tells of it
                    await asyncio.sleep(_POLL_S)
        await asyncio.gather(*(process.end() for process in processes if not process.has_died))
        self._answers.close()

    async def _answer_of(
        self, request: RequestId, call: int, process: ServerProcess | None, line: str, *, is_reset: bool
    ) -> dict[str, Any]:
        """Ask a trajectory's process, which is started before if there is none."""
        if process is None:
            if not is_reset:
                raise ProcessDied  # a fresh one would know nothing of the trajectory
            async with self._may_start:
                process = self._open[request] = self._take_free() or await self._started()
                await process.ready()
        if is_reset:
            await process.ready()  # a free one may still be starting
            self._answers.put([EnvironmentBegan(request=request, call=call)])
        response = await process.request_once(line, self._limit_s)
        self._num_dead_starts = 0
        return response

    async def _started(self) -> ServerProcess:
        start = asyncio.create_task(asyncio.to_thread(self._starter.start))
        self._starts.add(start)
        start.add_done_callback(self._starts.discard)
        try:
            return await asyncio.shield(start)
        except asyncio.CancelledError:
            start.add_done_callback(lambda ended: self._free.append(ended.result()))
            raise

    def _ask(self, request: RequestId, call: int, message: dict[str, Any]) -> None:
        is_reset = "reset" in message
        calling = self._call(request, call, self._open[request], json.dumps(message), is_reset=is_reset)
        self._kinds[request] = "reset" if is_reset else "turn"
        self._calls[request] = asyncio.create_task(calling, name=f"environment of {request}")

    async def _call(
        self, request: RequestId, call: int, process: ServerProcess | None, line: str, *, is_reset: bool
    ) -> None:
        failure, answer, is_lost = "environment_error", {}, True
        try:
            answer = await self._answer_of(request, call, process, line, is_reset=is_reset)
            problem, is_lost = answer.get("failure", ""), False
        except ProcessDied:
            failure, problem = "environment_crashed", "its process died"
        except TimeoutError:
            failure, problem = "environment_timeout", f"it took longer than {self._limit_s:g} s"
        except (asyncio.LimitOverrunError, ValueError) as error:
            problem = f"its answer cannot be read: {error}"
        except EngineFailed as error:
            if not self._is_accident(error):
                self._answers.fail(error)
                return
            failure = "environment_timeout" if isinstance(error, LateStart) else "environment_crashed"
            problem = error.problem
        own = asyncio.current_task()
        assert own is not None
        if own in self._finishing:
            put_back = self._end if is_lost else self._free.append
            put_back(self._finishing.pop(own))
            return
        if is_lost and (lost := self._open.get(request)) is not None:
            self._open[request] = None
            self._end(lost)
        if problem:
            self._note(request, problem)
            self._answers.put([EnvironmentAnswer(request=request, call=call, failure=failure, problem=problem)])
            return
        self._answers.put(
            [
                EnvironmentAnswer(
                    request=request,
                    call=call,
                    observation=answer["observation"],
                    reward=answer["reward"],
                    is_terminated=answer["terminated"],
                    is_truncated=answer["truncated"],
                )
            ]
        )

    def _is_accident(self, error: EngineFailed) -> bool:
        """Whether a start that failed concerns its trajectory alone."""
        if isinstance(error, DiedAtStart):
            self._num_dead_starts += 1
            return self._num_dead_starts < _MOST_DEAD_STARTS
        return isinstance(error, LateStart)

    def _note(self, request: RequestId, problem: str) -> None:
        """Log a problem the first time: environments may have the same one in every trajectory."""
        if problem not in self._problems and len(self._problems) < _MOST_PROBLEMS:
            self._problems.add(problem)
            _log.warning("The environment of %s failed: %s", request, problem)
