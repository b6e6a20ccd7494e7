"""The reward worker of the sandbox: a pool of keepers, one program at a time each.

Invariant: each request comes back from `collect` exactly once, unless it was forgotten. A forgotten program is
killed, and its verdict dropped. Only the texts of responses wait in the queue; test cases are read when a slot is
free for them, so the pool's memory does not grow with its work.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import math
import os
from typing import TYPE_CHECKING, Any

from rollpacker.core.events import CaseRun
from rollpacker.data.test_cases import load_test_cases
from rollpacker.protocols.references import AssertCase, CallCase, CodeReference, StdinCase
from rollpacker.protocols.rollout import Verdict
from rollpacker.rewards.judgement import CHECKER_CRASHED, TRUNCATED, Judgement, verdict_of_crash
from rollpacker.rewards.outbox import Outbox
from rollpacker.rewards.process_pool import KeptProcess, ProcessDied
from rollpacker.rewards.sandbox.program import find_program, is_cut_off

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.config.sections.sandbox import SandboxSection
    from rollpacker.protocols.references import TestCase
    from rollpacker.protocols.reward import ScoringRequest

NO_CODE = Judgement(0.0, "no_code")
"""There is no program in the response."""

_MAX_ATTEMPTS = 2
"""A keeper that dies with a program takes another; one that dies again is the program's fault."""

_WALL_FACTOR, _WALL_GRACE_S = 20.0, 600.0
"""How long a keeper may be silent: twice what it gives each case, and time to start on a busy node."""

_CACHED_PROMPTS = 32
"""Whose test cases stay in memory: responses of a prompt come together."""


class SandboxRewardWorker:
    """Runs programs in sandboxes."""

    def __init__(self, section: SandboxSection) -> None:
        """Start the keepers at once; they try a sandbox out while the caller goes on."""
        self._section = section
        self._keepers = [KeptProcess(_KEEPER, [section.bounds_json()]) for _ in range(pool_size(section))]
        self._queue: asyncio.Queue[ScoringRequest] = asyncio.Queue()
        self._outbox = Outbox()
        self._slots: list[asyncio.Task[None]] = []
        self._busy: set[KeptProcess] = set()
        self._num_forgotten = 0
        """Times that everything was; a verdict from before is dropped."""
        self._load = functools.lru_cache(maxsize=_CACHED_PROMPTS)(load_test_cases)

    @property
    def pids(self) -> list[int]:
        """Of the keepers."""
        return [keeper.pid for keeper in self._keepers]

    async def score(self, requests: Sequence[ScoringRequest]) -> None:
        self._outbox.refuse_when_closed()
        for request in requests:
            self._queue.put_nowait(request)
        if not self._slots:
            self._slots = [asyncio.create_task(self._serve(keeper)) for keeper in self._keepers]

    async def forget(self) -> None:
        """Empty the queue, and kill what runs."""
        self._num_forgotten += 1
        while not self._queue.empty():
            self._queue.get_nowait()
        for keeper in self._busy:
            keeper.tell({"stop": True})

    async def collect(self) -> Sequence[Verdict]:
        """Wait until at least one verdict is there, and take all that are.

        Raises:
            EngineFailed: No sandbox can be started here.
            DataError: The prompt file was changed since it was read.
        """
        return await self._outbox.collect()

    async def close(self) -> None:
        """End every keeper and its sandbox; requests still in the queue get no verdict, a pending `collect` returns."""
        self._outbox.close()
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)
        for keeper in self._keepers:
            keeper.disconnect()
        for keeper in self._keepers:
            keeper.close()

    async def _serve(self, keeper: KeptProcess) -> None:
        try:
            while True:
                request = await self._queue.get()
                num_forgotten = self._num_forgotten
                try:
                    verdict = await self._judge(keeper, request)
                except Exception as error:  # noqa: BLE001 a response's boundary: its check ends no run
                    verdict = verdict_of_crash(request, error)
                if num_forgotten == self._num_forgotten:
                    self._outbox.put(verdict)
        except Exception as error:  # noqa: BLE001 a task's boundary: `collect` raises it, or nobody would ever know
            self._outbox.fail(error)

    async def _judge(self, keeper: KeptProcess, request: ScoringRequest) -> Verdict:
        program = find_program(request.response_text)
        if request.is_truncated and is_cut_off(request.response_text):
            return _verdict(request, TRUNCATED)
        if program is None:
            return _verdict(request, NO_CODE)
        reference = request.reference
        assert isinstance(reference, CodeReference), reference  # checked before the run began
        cases = await asyncio.to_thread(self._load, reference)
        limits_s = request.case_limits_s or (self._section.max_case_s,)
        question = {
            "source": program,
            "entry_point": reference.entry_point,
            "has_prelude": any(isinstance(case, CallCase) for case in cases),
            "cases": [_as_json(case) for case in cases],
            "limits_s": limits_s,
        }
        line = await asyncio.to_thread(json.dumps, question)
        grace_s = _WALL_GRACE_S + _WALL_FACTOR * math.fsum(
            limits_s[min(index, len(limits_s) - 1)] for index in range(len(cases))
        )
        for _ in range(_MAX_ATTEMPTS):
            self._busy.add(keeper)
            try:
                answer = await keeper.ask(line, grace_s)
            except ProcessDied:
                continue
            finally:
                self._busy.discard(keeper)
            return _verdict_of(request, answer)
        return _verdict(request, CHECKER_CRASHED)


_KEEPER = "rollpacker.rewards.sandbox.keeper"


def pool_size(section: SandboxSection) -> int:
    """Programs at the same time: as many as cores, so that they do not wait for each other."""
    return section.num_workers or len(os.sched_getaffinity(0))


def _as_json(case: TestCase) -> dict[str, Any]:
    limits = dataclasses.asdict(case.limits)
    own: dict[str, Any] = {"time_limit_s": limits["time_s"], "memory_limit_mb": limits["memory_mb"]}
    match case:
        case StdinCase():
            return own | {"kind": "stdin", "input": case.input, "output": case.output}
        case CallCase():
            return own | {"kind": "call", "args": case.args, "accepted": case.accepted}
        case AssertCase():
            return own | {"kind": "assert", "source": case.source}


def _verdict(request: ScoringRequest, judgement: Judgement) -> Verdict:
    return Verdict(request=request.request, reward=judgement.reward, reason=judgement.reason, time_s=0.0)


def _verdict_of(request: ScoringRequest, answer: dict[str, Any]) -> Verdict:
    reason = answer["reason"]
    return Verdict(
        request=request.request,
        reward=float(reason == "correct"),
        reason=reason,
        time_s=answer["time_s"],
        case_runs=tuple(CaseRun(*run) for run in answer["case_runs"]),
    )
